"""The whole daemon while others are away or start anew: the API server, the kubelet, the daemon itself."""

from __future__ import annotations

from dataclasses import replace
from unittest.mock import Mock

import msgspec
import pytest

from neuron_plugin.allocation.keys import INVENTORY_KEY
from neuron_plugin.plugin.node import NodeTimes
from neuron_plugin.topology import Unit
from tests.plugin.site import NAMESPACE, NODE, a_site, decision_of, eventually, holders, ids, ledger
from tests.plugin.world import CORE, NEURON, TRN1, app, init, uid_of


async def test_the_api_server_down_at_start_is_not_waited_for_long_and_is_caught_up_with() -> None:
    async with a_site() as site:
        assert site.api is not None
        await site.api.stop()
        async with site.daemon() as daemon:
            site.create("a", app(4))
            assert ids(await site.admit("a"), NEURON) == (0, 1, 2, 3)
            await eventually(lambda: bool(holders(daemon)))
            await site.api.start()
            await eventually(lambda: holders(daemon) == {uid_of("a")})
            await site.annotated("a")
            await eventually(lambda: INVENTORY_KEY in site.node_annotations())


async def test_p61_a_new_process_knows_who_holds_what_init_containers_included() -> None:
    async with a_site() as site:
        async with site.daemon():
            await site.run("a", init(4, CORE), app(2, CORE))
            await site.run("b", app(4), annotations=decision_of(app(4), sets=[[8, 9, 10, 11]]))
            await site.annotated("a", "b")
            patches = len([seen for seen in site.api.requests if seen.method == "PATCH"]) if site.api else 0
        async with site.daemon() as daemon:
            assert ledger(daemon).used_mask & TRN1.devices_mask((8, 9, 10, 11))
            await site.confirmed(daemon, "a", "b")
            assert holders(daemon) == {uid_of("a"), uid_of("b")}
            assert ledger(daemon).used_mask == TRN1.mask_of(Unit.CORE, range(4)) | TRN1.devices_mask((8, 9, 10, 11))
            await site.kubelet.wait_for_capacity(NEURON.value, 14)
            later = await site.run("c", app(4))
            assert ids(later, NEURON) == (4, 5, 6, 7)
            assert site.api is not None
            written = [seen for seen in site.api.requests if seen.method == "PATCH" and "/pods/" in seen.path]
            assert len(written) <= patches + 1


@pytest.mark.parametrize("lives", [False, True])
async def test_p60_what_a_pod_that_vanished_before_the_start_has_open_is_not_offered(
    lives: bool,  # noqa: FBT001 - a table's column
) -> None:
    async with a_site() as site:
        site.times = replace(site.times, node=NodeTimes(unknown=5.0 if lives else 0.0))
        assert site.api is not None
        uid, proc = "99999999-4a5b-6c7d-8e9f-001122334455", site.settings.dev.parent / "proc"
        process = proc / "50"
        (process / "fd").mkdir(parents=True)
        for number in (5, 6):
            (process / f"fd/{number}").symlink_to(site.settings.dev / f"neuron{number}")
        (process / "cgroup").write_text(f"0::/kubepods/pod{uid}/aa\n")
        cgroup = site.settings.cgroup / "kubepods" / f"pod{uid}"
        cgroup.mkdir(parents=True)
        (cgroup / "cgroup.events").write_text("populated 1\n")
        (proc / "2").mkdir()
        (proc / "2/comm").write_text("kthreadd\n")
        if lives:  # a monitor, which asks for no Neuron
            monitor = {"metadata": {"name": "monitor", "uid": uid, "namespace": NAMESPACE}, "spec": {"containers": []}}
            site.api.create_pod(monitor)
            site.api.bind(NAMESPACE, "monitor", node=NODE)
        site.settings = msgspec.structs.replace(site.settings, proc=proc)
        async with site.daemon() as daemon:
            if lives:
                await site.kubelet.wait_for_capacity(NEURON.value, 16)
                return
            assert site.kubelet.capacity(NEURON.value).allocatable == 14
            assert daemon.node.snapshot
            assert daemon.node.snapshot.published_inventory.unhealthy.keys() == {5, 6}
            assert site.kubelet.capacity(CORE.value).allocatable == 28
            assert ids(await site.run("a", app(4)), NEURON) == (0, 1, 2, 3)
            (cgroup / "cgroup.events").write_text("populated 0\n")
            await site.kubelet.wait_for_capacity(NEURON.value, 16)


async def test_p72_a_kubelet_restart_changes_nothing_for_who_holds_what(monkeypatch: pytest.MonkeyPatch) -> None:
    async with a_site() as site:
        site.times = replace(site.times, turn=600.0)
        async with site.daemon() as daemon:
            await site.run("a", app(4))
            await site.confirmed(daemon, "a")
            noticed = Mock(wraps=daemon.node.kubelet_restarted)
            monkeypatch.setattr(daemon.node, "kubelet_restarted", noticed)
            await site.kubelet.restart()
            await site.kubelet.wait_for_capacity(NEURON.value, 16)
            assert holders(daemon) == {uid_of("a")}
            assert not site.kubelet.rejections
            assert noticed.called
            noticed.reset_mock()
            assert ids(await site.run("b", app(4)), NEURON) == (4, 5, 6, 7)
            await site.confirmed(daemon, "b")
            assert not noticed.called, "other files of its directory are no new kubelet"


async def test_what_the_kubelet_records_is_known_by_the_event_and_not_by_the_next_turn() -> None:
    async with a_site(cluster=False) as site:
        site.times = replace(site.times, turn=600.0)
        async with site.daemon() as daemon:
            await site.run("a", app(4))
            await eventually(lambda: holders(daemon) == {uid_of("a")})


async def test_p62_without_pod_resources_pods_are_served_all_the_same() -> None:
    async with a_site("trn1.2xlarge") as site:
        site.settings = msgspec.structs.replace(
            site.settings, pod_resources_socket=site.settings.kubelet_dir / "none.sock"
        )
        async with site.daemon():
            for number in range(4):
                name = f"p{number}"
                assert ids(await site.run(name, app(1)), NEURON) == (0,)
                site.end(name)
