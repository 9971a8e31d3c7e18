"""The simulated kubelet and drivers of claims, over sockets; what it remembers of claims, and its file."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec
import pytest

from neuron_plugin.kubelet.dra_state import parse_dra_state
from neuron_plugin.simulation.api_server import SimulatedApiServer
from neuron_plugin.simulation.api_server_kinds import RESOURCE_CLAIMS
from neuron_plugin.simulation.kubelet_dra import (
    ClaimMemory,
    DraManager,
    DraManagerTimes,
    KubeletStateError,
    NotPreparedError,
)
from neuron_plugin.simulation.kubelet_pods import KubeletContainer, KubeletPod, PodGoneError
from tests.simulation.dra import DRIVER
from tests.simulation.dra_driver import RawDriver, serving
from tests.support.kubelet import KubeletOptions, StandInKubelet
from tests.support.running import until

FAST = DraManagerTimes(retry=0.05, call=2.0, watcher=0.02, wipe=0.3, health=0.05, reconcile=60.0)
EFA = "efa.networking.k8s.aws"


@dataclass
class Site:
    root: Path
    kubelet: StandInKubelet
    dra: DraManager
    api: SimulatedApiServer

    @property
    def recorded(self) -> dict[str, tuple[str, ...]]:
        """Devices by claim, as the file has them."""
        return {each.name: each.devices for each in parse_dra_state(self.dra.path.read_bytes(), {DRIVER})}

    @property
    def pods_in_file(self) -> dict[str, list[str]]:
        data = msgspec.json.decode(msgspec.json.decode(self.dra.path.read_bytes())["Data"])
        return {each["ClaimName"]: sorted(each["PodUIDs"]) for each in data["ClaimInfoStateList"]}

    def add(self, name: str, *pods: str, drivers: tuple[str, ...] = (DRIVER,)) -> None:
        """A claim that is allocated and reserved for these pods."""
        results = [{"driver": each, "request": "neurons", "pool": "p", "device": "d0"} for each in drivers]
        self.api.create(RESOURCE_CLAIMS, {"metadata": {"name": name}, "spec": {}}, "default")
        reserved = [{"resource": "pods", "name": each, "uid": f"uid-{each}"} for each in pods]
        status = {"allocation": {"devices": {"results": results}}, "reservedFor": reserved}
        self.api.change(RESOURCE_CLAIMS, name, {"status": status}, "default", "status")


@asynccontextmanager
async def a_site(root: Path, *drivers: RawDriver, times: DraManagerTimes = FAST) -> AsyncIterator[Site]:
    for name in ("dp", "registry", "cdi"):
        (root / name).mkdir()
    api = SimulatedApiServer()
    dra = DraManager(root, api, "n1", times)
    kubelet = StandInKubelet(
        root / "dp",
        plugins_registry=root / "registry",
        options=KubeletOptions(watcher_seconds=FAST.watcher),
        cgroup_root=root / "cgroup",
        dra=dra,
        cdi_dir=root / "cdi",
    )
    async with kubelet, AsyncExitStack() as stack:
        for each in drivers:
            await stack.enter_async_context(serving(each, root / "registry"))
        await until(lambda: dra.drivers == {each.name for each in drivers})
        yield Site(root, kubelet, dra, api)


def pod(name: str = "a", *claims: str, request: str = "") -> KubeletPod:
    names = {each: each for each in claims or ("c",)}
    uses = tuple((each, request) for each in names)
    return KubeletPod(f"uid-{name}", "default", name, (KubeletContainer("app", claims=uses),), names)


def describe(root: Path, driver: RawDriver) -> None:
    """Write the CDI file of a driver."""
    kind, _, name = driver.cdi_id.partition("=")
    edits = {"deviceNodes": [{"path": "/dev/d0"}], "env": [f"{driver.name.upper()[:3]}=1"]}
    content = {"kind": kind, "devices": [{"name": name, "containerEdits": edits}]}
    (root / "cdi" / f"{driver.name}.json").write_bytes(msgspec.json.encode(content))


async def test_a_container_whose_cdi_device_is_not_described_does_not_start(directory: Path) -> None:
    driver = RawDriver()
    async with a_site(directory, driver) as site:
        site.add("c", "a")
        app = (await site.kubelet.admit(pod())).container("app")
        assert app.waiting
        assert "unresolvable CDI devices" in app.waiting


async def test_a_pod_waits_whose_driver_goes_under_the_call_and_then_runs(directory: Path) -> None:
    driver = RawDriver()
    async with a_site(directory, driver) as site:
        describe(directory, driver)
        site.add("c", "a")
        driver.gate = asyncio.Event()
        admitted = asyncio.create_task(site.kubelet.admit(pod()))
        await until(lambda: driver.prepared)
        socket = directory / "registry" / f"{DRIVER}.sock"
        hidden = socket.rename(socket.with_name(".gone"))
        await until(lambda: "the client connection is closing" in site.kubelet.waiting.get("uid-a", ""))
        await until(lambda: "is not registered" in site.kubelet.waiting.get("uid-a", ""))
        driver.gate.set()
        hidden.rename(socket)
        assert (await admitted).container("app").devices


async def test_a_pod_whose_driver_is_not_there_or_whose_claim_is_not_its_own_waits_unrecorded(directory: Path) -> None:
    async with a_site(directory, RawDriver()) as site:
        with pytest.raises(NotPreparedError, match='"c" not found'):
            await site.dra.prepare(pod())
        for name, user, drivers, why in (
            ("b", "b", (DRIVER,), r"pod a \(uid-a\) is not allowed to use ResourceClaim b"),
            ("efa", "a", (DRIVER, EFA), f"DRA driver {EFA} is not registered"),
        ):
            site.add(name, user, drivers=drivers)
            with pytest.raises(NotPreparedError, match=why):
                await site.dra.prepare(pod("a", name))
        assert not site.dra.path.exists()


async def test_a_pod_that_is_deleted_while_it_waits_is_gone(directory: Path) -> None:
    driver = RawDriver()
    driver.error = "busy"
    async with a_site(directory, driver) as site:
        site.add("c", "a")
        admitted = asyncio.create_task(site.kubelet.admit(pod()))
        await until(lambda: driver.prepared)
        left = site.kubelet.finish("uid-a")
        with pytest.raises(PodGoneError):
            await admitted
        driver.error = ""
        await site.kubelet.unprepare(left)
        assert (driver.unprepared, site.pods_in_file) == ([["c"]], {})


async def test_the_claim_of_a_pod_that_was_deleted_by_force_is_given_up_after_a_while(directory: Path) -> None:
    driver = RawDriver()
    async with a_site(directory, driver, times=replace(FAST, reconcile=0.05)) as site:
        site.add("c", "a")
        await site.kubelet.admit(pod())
        assert site.pods_in_file == {"c": ["uid-a"]}
        site.kubelet.remove_while_running("uid-a")
        await until(lambda: not site.pods_in_file)
        assert driver.unprepared == [["c"]]


async def test_a_pod_stays_terminating_while_its_driver_is_away_or_refuses(directory: Path) -> None:
    driver = RawDriver()
    async with a_site(directory, driver) as site:
        site.add("c", "a")
        await site.dra.prepare(pod())
        driver.error = "not now"
        with pytest.raises(NotPreparedError, match="NodeUnprepareResources failed for ResourceClaim c: not now"):
            await site.kubelet.unprepare(pod())
        assert site.pods_in_file == {"c": ["uid-a"]}
        driver.error = ""
        await site.kubelet.unprepare(pod())
        assert site.pods_in_file == {}


# What is remembered, and its file.


async def test_the_file_has_the_pod_before_the_call_and_the_devices_after_it_and_a_second_pod_asks_no_driver(
    directory: Path,
) -> None:
    driver = RawDriver()
    async with a_site(directory, driver) as site:
        site.add("c", "a", "b")
        driver.gate = asyncio.Event()
        prepared = asyncio.create_task(site.dra.prepare(pod("a")))
        await until(lambda: driver.prepared)
        assert (site.pods_in_file, site.recorded) == ({"c": ["uid-a"]}, {})
        driver.gate.set()
        await prepared
        await site.dra.prepare(pod("b"))
        assert (site.pods_in_file, site.recorded) == ({"c": ["uid-a", "uid-b"]}, {"c": ("d0",)})
        assert driver.prepared == [["c"]]


async def test_after_a_start_nothing_is_prepared_and_kubernetes_140955_a_second_answer_is_appended(
    directory: Path,
) -> None:
    async with a_site(directory, RawDriver()) as site:
        site.add("c", "a")
        for devices in (("d0",), ("d0", "d0")):
            site.dra.memory.load(site.dra.path.read_bytes() if site.dra.path.exists() else None)
            await site.dra.prepare(pod("a"))
            assert (site.pods_in_file, site.recorded) == ({"c": ["uid-a"]}, {"c": devices})
        site.dra.memory.load(None)
        assert not site.dra.memory.claims


@pytest.mark.parametrize(
    ("error", "why"), [("", "skipped 1 ResourceClaims"), ("busy", "failed for ResourceClaim c: busy")]
)
async def test_a_driver_that_skips_or_refuses_a_claim_lets_the_pod_wait(directory: Path, error: str, why: str) -> None:
    driver = RawDriver()
    driver.error, driver.skips = error, not error
    async with a_site(directory, driver) as site:
        site.add("c", "a")
        with pytest.raises(NotPreparedError, match=f"NodePrepareResources {why}"):
            await site.dra.prepare(pod("a"))
        driver.error, driver.skips = "", False
        await site.dra.prepare(pod("a"))
        assert driver.prepared == [["c"], ["c"]], "it was not prepared"


@pytest.mark.parametrize("spoil", [lambda data: data[:-20], lambda data: data.replace(b"d0", b"d1")])
async def test_a_file_that_was_changed_keeps_the_kubelet_from_starting(directory: Path, spoil: type) -> None:
    async with a_site(directory, RawDriver()) as site:
        site.add("c", "a")
        await site.dra.prepare(pod("a"))
        with pytest.raises(KubeletStateError, match="please drain node and remove DRA state file"):
            ClaimMemory().load(spoil(site.dra.path.read_bytes()))


async def test_a_new_claim_of_the_same_name_waits_for_the_old_one_to_be_given_up(directory: Path) -> None:
    async with a_site(directory, RawDriver()) as site:
        site.add("c", "a")
        await site.dra.prepare(pod("a"))
        site.api.delete(RESOURCE_CLAIMS, "c", "default")
        site.add("c", "b")
        with pytest.raises(NotPreparedError, match="old ResourceClaim with same name c and different UID"):
            await site.dra.prepare(pod("b"))
        await site.dra.unprepare(pod("a"))
        await site.dra.prepare(pod("b"))


async def test_a_shared_claim_goes_with_its_last_pod_but_kubernetes_140212_a_second_end_of_one_counts_for_the_other(
    directory: Path,
) -> None:
    driver = RawDriver()
    async with a_site(directory, driver) as site:
        site.add("c", "a", "b")
        for name in "ab":
            await site.dra.prepare(pod(name))
        assert site.dra.memory.of_inactive({"uid-b"}) == {"uid-a": [("default", "c")]}
        await site.dra.unprepare(pod("a"))
        assert (driver.unprepared, site.pods_in_file) == ([], {"c": ["uid-b"]})
        await site.dra.unprepare(pod("a"))
        assert (driver.unprepared, site.pods_in_file) == ([["c"]], {})


async def test_kubernetes_140527_an_answer_for_a_claim_that_was_given_up_meanwhile_is_an_error(directory: Path) -> None:
    driver = RawDriver()
    async with a_site(directory, driver) as site:
        site.add("c", "a")
        driver.gate = asyncio.Event()
        prepared = asyncio.create_task(site.dra.prepare(pod("a")))
        await until(lambda: driver.prepared)
        site.dra.memory.claims.clear()
        driver.gate.set()
        with pytest.raises(NotPreparedError, match="unable to get claim info for ResourceClaim c in namespace default"):
            await prepared
