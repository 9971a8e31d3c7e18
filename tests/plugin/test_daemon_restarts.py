"""The whole daemon while others are away or start anew: the API server, the kubelet, the daemon itself."""

from __future__ import annotations

from dataclasses import replace
from unittest.mock import Mock

import msgspec
import pytest

from neuron_plugin.allocation.keys import DISABLE_KEY, INVENTORY_KEY
from neuron_plugin.plugin.node import NodeTimes
from neuron_plugin.plugin.settings import Mode
from tests.kubelet.test_dra_state import claim, text
from tests.plugin.site import NAMESPACE, NODE, a_site, eventually, holders, ids
from tests.plugin.world import CORE, NEURON, app, uid_of


async def test_the_api_server_down_at_start_is_not_waited_for_long_and_is_caught_up_with() -> None:
    async with a_site() as site:
        assert site.api is not None
        site.api.patch_node(NODE, {"metadata": {"annotations": {DISABLE_KEY: "5"}}})
        await site.api.stop()
        async with site.daemon() as daemon:
            site.create("a", app(4))
            assert ids(await site.admit("a"), NEURON) == (0, 1, 2, 3)
            await eventually(lambda: bool(holders(daemon)))
            assert site.kubelet.capacity(NEURON.value).allocatable == 16
            await site.api.start()
            await eventually(lambda: holders(daemon) == {uid_of("a")})
            await site.annotated("a")
            await eventually(lambda: INVENTORY_KEY in site.node_annotations())
            await site.kubelet.wait_for_capacity(NEURON.value, 15)


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


async def test_p72_a_kubelet_restart_is_noticed_by_its_event_and_other_files_are_no_new_kubelet(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with a_site() as site:
        site.times = replace(site.times, turn=600.0)
        async with site.daemon() as daemon:
            noticed = Mock(wraps=daemon.node.kubelet_restarted)
            monkeypatch.setattr(daemon.node, "kubelet_restarted", noticed)
            await site.kubelet.restart()
            await site.kubelet.wait_for_capacity(NEURON.value, 16)
            assert noticed.called
            noticed.reset_mock()
            await site.run("a", app(4))
            await site.confirmed(daemon, "a")  # by the event of the file, too
            assert holders(daemon) == {uid_of("a")}
            assert not noticed.called


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


async def test_what_a_pod_has_by_count_is_known_after_the_mode_has_changed_to_claims() -> None:
    async with a_site() as site:
        async with site.daemon() as daemon:
            await site.run("a", app(4))
            await site.confirmed(daemon, "a")
        site.settings = msgspec.structs.replace(site.settings, mode=Mode.DRA)
        async with site.daemon(registered=False) as daemon:
            await eventually(lambda: bool(daemon.node.snapshot) and daemon.node.pods.listed_at is not None)
            assert holders(daemon) == {uid_of("a")}


async def test_what_a_pod_has_by_claim_is_offered_to_nobody_by_count_after_the_mode_has_changed() -> None:
    async with a_site() as site:
        prepared = claim(devices=tuple(f"neuron-{number}" for number in range(4)))
        site.settings.dra_state_file.write_bytes(text(prepared | {"PodUIDs": {uid_of("a"): {}}}))
        site.create("a")
        async with site.daemon() as daemon:
            assert holders(daemon) == {uid_of("a")}
            await site.kubelet.wait_for_capacity(NEURON.value, 12)
            assert site.api
            site.api.delete_pod(NAMESPACE, "a", grace_seconds=0)
            await site.kubelet.wait_for_capacity(NEURON.value, 16)
