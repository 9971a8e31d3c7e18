"""The whole daemon as a driver of claims: over its sockets, beside a simulated kubelet, API server and scheduler.

Faults of the real kubelet that are met here are named by their issue (kubernetes#...).
"""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from neuron_plugin.allocation.claims import DRA_DRIVER
from neuron_plugin.kubelet.dra_state import parse_dra_state
from neuron_plugin.plugin.settings import Mode
from neuron_plugin.simulation import KubeletContainer, KubeletPod
from neuron_plugin.simulation.api_server_kinds import DEVICE_CLASSES, RESOURCE_CLAIMS, RESOURCE_SLICES
from neuron_plugin.simulation.kubelet_dra import NotPreparedError
from tests.plugin.dra_site import ClaimSite, a_claim_site, numbers
from tests.plugin.site import NAMESPACE, NODE, Site, eventually, holders
from tests.plugin.world import NEURON, app, uid_of
from tests.simulation.dra import claim_spec, device_class, exactly, linked, node_slice
from tests.simulation.dra_driver import RawDriver, serving
from tests.support.api_server import Fault, Match

EFA = "efa.networking.k8s.aws"


def rogue_pod(site: ClaimSite, device: str, pool: str = f"{NODE}-neuron") -> KubeletPod:
    """A pod whose claim somebody has allocated who did not look: nothing keeps two allocators apart."""
    site.claim("rogue", claim_spec())
    result = {"request": "neurons", "driver": DRA_DRIVER, "pool": pool, "device": device}
    user = {"resource": "pods", "name": "rogue", "uid": uid_of("rogue")}
    status = {"allocation": {"devices": {"results": [result]}}, "reservedFor": [user]}
    site.api.change(RESOURCE_CLAIMS, "rogue", {"status": status}, NAMESPACE, "status")
    claims = [{"name": "rogue", "resourceClaimName": "rogue"}]
    spec = {"nodeName": NODE, "containers": [{"name": "app"}], "resourceClaims": claims}
    site.api.create_pod({"metadata": {"name": "rogue", "uid": uid_of("rogue")}, "spec": spec})
    return KubeletPod(uid_of("rogue"), NAMESPACE, "rogue", (KubeletContainer("app"),), {"rogue": "rogue"})


def mixed_claim(site: ClaimSite) -> str:
    """A claim for a device of ours and one of another driver, which has one."""
    site.api.create(DEVICE_CLASSES, device_class(EFA), "")
    site.api.create(RESOURCE_SLICES, node_slice(NODE, 1, driver=EFA), "")
    edits = {"name": "0", "containerEdits": {"env": ["EFA=1"]}}
    described = {"kind": f"{EFA.replace('.', '-')}.io/device", "devices": [edits]}
    site.settings.cdi_dir.mkdir(exist_ok=True)
    (site.settings.cdi_dir / "efa.json").write_bytes(msgspec.json.encode(described))
    return site.claim("mixed", claim_spec(exactly(), exactly("nic", deviceClassName=EFA)))


def recorded(site: ClaimSite) -> dict[str, tuple[str, ...]]:
    """The devices by pod, as the kubelet's file has them."""
    found = parse_dra_state(site.dra.path.read_bytes(), {DRA_DRIVER})
    names = {str(uid_of(name)): name for name in ("a", "b", "c")}
    return {names[uid]: each.devices for each in found for uid in each.pod_uids}


async def test_k8s_140212_a_live_pod_whose_claim_was_unprepared_keeps_its_devices() -> None:
    async with a_claim_site(prepare_seconds=0.2) as site:
        async with site.daemon() as daemon:
            site.claim("shared", claim_spec())
            await site.start("a", claim="shared")
            await site.start("b", claim="shared")
            ended = site.kubelet_pods["a"]
            await site.stop("a")
            await site.kubelet.unprepare(ended)
            assert recorded(site) == {}
            await eventually(lambda: holders(daemon) == {uid_of("b")})
            with pytest.raises(NotPreparedError, match="pod default/b has neuron devices 0 by claim shared"):
                await site.dra.prepare(rogue_pod(site, "neuron-0"))
        async with site.daemon() as daemon:  # it knows by what the API server says of the claim
            await eventually(lambda: holders(daemon) == {uid_of("b")})


async def test_half_failed_prepares_with_another_driver_and_retries_that_append_end_in_one_set() -> None:
    """kubernetes#140955: each retry appends our devices in the kubelet's memory, and then in its file."""
    partner = RawDriver(EFA)
    partner.error = "no interface"
    async with a_claim_site() as site, site.daemon() as daemon, serving(partner, site.settings.plugins_registry):
        await eventually(lambda: EFA in site.dra.drivers)
        site.place("a", claim=mixed_claim(site))
        admitted = asyncio.create_task(site.admit("a"))
        await eventually(lambda: len(partner.prepared) > 2)
        assert holders(daemon) == {uid_of("a")}
        partner.error = ""
        assert numbers(await admitted) == {0: 0}
        assert set(recorded(site)["a"]) == {"neuron-0"}
        assert len(recorded(site)["a"]) > 2
        await site.stop("a")
        assert partner.unprepared == [["mixed"]]
        await eventually(lambda: not holders(daemon))


async def test_what_a_pod_has_by_count_is_given_to_no_claim_after_the_mode_has_changed() -> None:
    async with a_claim_site(mode=Mode.DEVICE_PLUGIN, prepare_seconds=0.2) as site:
        async with site.daemon():
            site.create("a", app(4))
            counted = await Site.admit(site, "a")
            assert [each.host_path.rpartition("neuron")[2] for each in counted.container("app").devices] == list("0123")
            site.says_running("a")
        site.settings = msgspec.structs.replace(site.settings, mode=Mode.DRA)
        async with site.daemon() as daemon:
            assert holders(daemon) == {uid_of("a")}
            with pytest.raises(NotPreparedError, match="pod default/a has neuron devices 0"):
                await site.dra.prepare(site.place("b", "one"))


async def test_what_a_pod_has_by_claim_is_offered_to_nobody_by_count_after_the_mode_has_changed() -> None:
    async with a_claim_site() as site:
        async with site.daemon():
            await site.start("a", "four")
        site.settings = msgspec.structs.replace(site.settings, mode=Mode.DEVICE_PLUGIN)
        async with site.daemon() as daemon:
            assert holders(daemon) == {uid_of("a")}
            await site.kubelet.wait_for_capacity(NEURON.value, 12)
            site.end("a")
            await site.kubelet.wait_for_capacity(NEURON.value, 16)


async def test_a_claim_waits_while_the_api_server_is_away() -> None:
    async with a_claim_site() as site, site.daemon():
        site.place("a", "one")
        site.api.fail(Fault(Match("GET", "/resourceclaims/"), times=3, status=500))
        assert numbers(await site.admit("a")) == {0: 0}


async def test_aws_templates_for_1_4_8_and_16_devices_and_all_work() -> None:
    async with a_claim_site() as site, site.daemon():
        site.template("eight", linked(8))
        site.template("sixteen", linked(16))
        site.template("all", claim_spec(exactly(allocationMode="All")))
        for name, template, expected in (
            ("a", "one", [0]),
            ("a", "four", [0, 1, 2, 3]),
            ("a", "eight", list(range(8))),
            ("a", "sixteen", list(range(16))),
            ("a", "all", list(range(16))),
        ):
            assert list(numbers(await site.start(name, template)).values()) == expected
            await site.stop(name)
