"""What the simulated kubelet remembers of claims, and its file."""

from __future__ import annotations

import msgspec
import pytest

from neuron_plugin.kubelet.dra_state import parse_dra_state
from neuron_plugin.simulation.kubelet_claims import ClaimMemory, DriverDevice, KubeletStateError, NotPreparedError
from tests.simulation.dra import DRIVER, Json

KEY = ("default", "c")
D0 = DriverDevice("n1-neuron", "neuron-0", ("neurons",), ("neuron-plugin.io/device=0-0",))


def claim(uid: str = "uid-c", drivers: tuple[str, ...] = (DRIVER,)) -> Json:
    results = [{"driver": each, "request": "neurons", "pool": "p", "device": "d"} for each in drivers]
    metadata = {"namespace": "default", "name": "c", "uid": uid}
    return {"metadata": metadata, "status": {"allocation": {"devices": {"results": results}}}}


def prepared(*pods: str) -> ClaimMemory:
    memory = ClaimMemory()
    for each in pods:
        memory.add(claim(), each)
    memory.add_device(KEY, DRIVER, D0)
    memory.mark_prepared([KEY])
    return memory


def test_before_the_drivers_are_called_the_file_has_the_claim_and_the_pod_and_no_device() -> None:
    memory = ClaimMemory()
    info = memory.add(claim(), "pod-a")
    assert memory.unprepared([info]) == {DRIVER: [info]}
    data = msgspec.json.decode(msgspec.json.decode(memory.state_bytes())["Data"])
    (entry,) = data["ClaimInfoStateList"]
    assert (entry["PodUIDs"], entry["DriverState"]) == ({"pod-a": {}}, {DRIVER: {"Devices": None}})
    assert parse_dra_state(memory.state_bytes(), {DRIVER}) == ()


def test_afterwards_it_has_the_devices_and_a_second_pod_asks_no_driver() -> None:
    memory = prepared("pod-a")
    assert memory.unprepared([memory.add(claim(), "pod-b")]) == {}
    (found,) = parse_dra_state(memory.state_bytes(), {DRIVER})
    assert (found.pod_uids, found.devices) == (("pod-a", "pod-b"), ("neuron-0",))


def test_kubernetes_140955_a_second_answer_is_appended_to_the_first() -> None:
    memory = prepared("pod-a")
    memory.add_device(KEY, DRIVER, D0)
    (found,) = parse_dra_state(memory.state_bytes(), {DRIVER})
    assert found.devices == ("neuron-0", "neuron-0")


def test_after_a_start_everything_is_there_and_nothing_is_prepared() -> None:
    before, memory = prepared("pod-a"), ClaimMemory()
    memory.load(before.state_bytes())
    assert memory.claims[KEY].drivers == {DRIVER: [D0]}
    assert memory.unprepared([memory.claims[KEY]]) == {DRIVER: [memory.claims[KEY]]}


@pytest.mark.parametrize("spoil", [lambda data: data[:-20], lambda data: data.replace(b"neuron-0", b"neuron-1")])
def test_a_file_that_was_changed_keeps_the_kubelet_from_starting(spoil: type) -> None:
    with pytest.raises(KubeletStateError, match="please drain node and remove DRA state file"):
        ClaimMemory().load(spoil(prepared("pod-a").state_bytes()))


def test_a_kubelet_without_a_file_knows_nothing() -> None:
    memory = prepared("pod-a")
    memory.load(None)
    assert not memory.claims


def test_a_new_claim_of_the_same_name_waits_for_the_old_one_to_be_given_up() -> None:
    memory = prepared("pod-a")
    with pytest.raises(NotPreparedError, match=r"old ResourceClaim with same name c and different UID uid-c"):
        memory.add(claim("uid-d"), "pod-b")
    memory.forget(key for key in [KEY])
    memory.add(claim("uid-d"), "pod-b")


def test_a_shared_claim_is_given_up_with_its_last_pod() -> None:
    memory = prepared("pod-a", "pod-b")
    assert memory.given_up([KEY], "pod-a") == {}
    assert memory.given_up([KEY], "pod-b") == {DRIVER: [memory.claims[KEY]]}


@pytest.mark.parametrize(("looks_at_pod", "given_up"), [(False, True), (True, False)])
def test_kubernetes_140212_a_second_end_of_one_pod_gives_up_what_the_other_has(
    *, looks_at_pod: bool, given_up: bool
) -> None:
    memory = prepared("pod-a", "pod-b")
    memory.looks_at_pod = looks_at_pod
    memory.given_up([KEY], "pod-a")
    assert bool(memory.given_up([KEY], "pod-a")) == given_up


def test_kubernetes_140527_an_answer_for_a_claim_that_was_given_up_meanwhile_is_an_error() -> None:
    memory = prepared("pod-a")
    memory.forget([KEY])
    with pytest.raises(NotPreparedError, match="unable to get claim info for ResourceClaim c in namespace default"):
        memory.add_device(KEY, DRIVER, D0)
    with pytest.raises(NotPreparedError):
        memory.mark_prepared([KEY])


def test_claims_of_pods_that_are_gone_are_found() -> None:
    assert prepared("pod-a", "pod-b").of_inactive({"pod-b"}) == {("default", "pod-a"): [KEY]}
