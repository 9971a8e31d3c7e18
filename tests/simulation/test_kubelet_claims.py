"""What the simulated kubelet remembers of claims, and its file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec
import pytest

from neuron_plugin.kubelet.dra_state import parse_dra_state
from neuron_plugin.simulation.kubelet_claims import (
    ClaimInfo,
    ClaimMemory,
    DriverDevice,
    KubeletStateError,
    NotPreparedError,
)
from tests.simulation.dra import DRIVER, Json

KEY = ("default", "c")
D0 = DriverDevice("n1-neuron", "neuron-0", ("neurons",), ("neuron-plugin.io/device=0-0",))


class Answering:
    """A driver that gives each claim one device, or ``answer``; it keeps what it is asked, and looks at the file."""

    def __init__(self, memory: ClaimMemory) -> None:
        self.memory = memory
        self.asked: list[str] = []
        self.seen: list[Json] = []
        self.answer: dict[str, Sequence[DriverDevice] | str] | None = None
        self.forgets = False

    async def prepare(self, driver: str, claims: Sequence[ClaimInfo]) -> Mapping[str, Sequence[DriverDevice] | str]:
        self.asked.append(f"prepare {driver}")
        self.seen = msgspec.json.decode(msgspec.json.decode(self.memory.state_bytes())["Data"])["ClaimInfoStateList"]
        if self.forgets:
            self.memory.claims.clear()
        return {each.uid: [D0] for each in claims} if self.answer is None else self.answer

    async def unprepare(self, driver: str, claims: Sequence[ClaimInfo]) -> None:
        self.asked += [f"unprepare {driver} {each.key[1]}" for each in claims]


@pytest.fixture
def driver() -> Answering:
    return Answering(ClaimMemory())


def claim(uid: str = "uid-c") -> Json:
    results = [{"driver": DRIVER, "request": "neurons", "pool": "p", "device": "d"}]
    metadata = {"namespace": "default", "name": "c", "uid": uid}
    return {"metadata": metadata, "status": {"allocation": {"devices": {"results": results}}}}


async def prepare(driver: Answering, *pods: str) -> None:
    for pod in pods:
        await driver.memory.prepare([claim()], pod, driver)


def recorded(driver: Answering) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Pods and devices of the claim, as the product reads the file."""
    (found,) = parse_dra_state(driver.memory.state_bytes(), {DRIVER})
    return found.pod_uids, found.devices


async def test_the_file_has_the_pod_before_the_call_and_the_devices_after_it_and_a_second_pod_asks_no_driver(
    driver: Answering,
) -> None:
    await prepare(driver, "pod-a", "pod-b")
    (entry,) = driver.seen
    assert (entry["PodUIDs"], entry["DriverState"]) == ({"pod-a": {}}, {DRIVER: {"Devices": None}})
    assert (driver.asked, recorded(driver)) == ([f"prepare {DRIVER}"], (("pod-a", "pod-b"), ("neuron-0",)))


async def test_after_a_start_nothing_is_prepared_and_kubernetes_140955_a_second_answer_is_appended(
    driver: Answering,
) -> None:
    await prepare(driver, "pod-a")
    driver.memory.load(driver.memory.state_bytes())
    assert driver.memory.claims[KEY].drivers == {DRIVER: [D0]}
    await prepare(driver, "pod-a")
    assert recorded(driver) == (("pod-a",), ("neuron-0", "neuron-0"))
    driver.memory.load(None)
    assert not driver.memory.claims


@pytest.mark.parametrize(
    ("answer", "why"),
    [({}, "skipped 1 ResourceClaims"), ({"uid-c": "busy"}, "failed for ResourceClaim c: busy")],
)
async def test_a_driver_that_skips_or_refuses_a_claim_lets_the_pod_wait(
    driver: Answering, answer: dict[str, Sequence[DriverDevice] | str], why: str
) -> None:
    driver.answer = answer
    with pytest.raises(NotPreparedError, match=f"NodePrepareResources {why}"):
        await prepare(driver, "pod-a")
    assert not driver.memory.claims[KEY].prepared


@pytest.mark.parametrize("spoil", [lambda data: data[:-20], lambda data: data.replace(b"neuron-0", b"neuron-1")])
async def test_a_file_that_was_changed_keeps_the_kubelet_from_starting(driver: Answering, spoil: type) -> None:
    await prepare(driver, "pod-a")
    with pytest.raises(KubeletStateError, match="please drain node and remove DRA state file"):
        ClaimMemory().load(spoil(driver.memory.state_bytes()))


async def test_a_new_claim_of_the_same_name_waits_for_the_old_one_to_be_given_up(driver: Answering) -> None:
    await prepare(driver, "pod-a")
    with pytest.raises(NotPreparedError, match=r"old ResourceClaim with same name c and different UID uid-c"):
        await driver.memory.prepare([claim("uid-d")], "pod-b", driver)
    await driver.memory.unprepare([KEY], "pod-a", driver)
    await driver.memory.prepare([claim("uid-c")], "pod-b", driver)


async def test_a_shared_claim_goes_with_its_last_pod_but_kubernetes_140212_a_second_end_of_one_counts_for_the_other(
    driver: Answering,
) -> None:
    await prepare(driver, "pod-a", "pod-b")
    assert driver.memory.of_inactive({"pod-b"}) == {("default", "pod-a"): [KEY]}
    await driver.memory.unprepare([KEY], "pod-a", driver)
    assert (driver.asked[1:], recorded(driver)[0]) == ([], ("pod-b",))
    await driver.memory.unprepare([KEY], "pod-a", driver)
    assert (driver.asked[1:], driver.memory.claims) == ([f"unprepare {DRIVER} c"], {})


async def test_kubernetes_140527_an_answer_for_a_claim_that_was_given_up_meanwhile_is_an_error(
    driver: Answering,
) -> None:
    driver.forgets = True
    with pytest.raises(NotPreparedError, match="unable to get claim info for ResourceClaim c in namespace default"):
        await prepare(driver, "pod-a")
