"""What is written on a pod, so that whoever reads it reads what is true."""

from __future__ import annotations

from neuron_plugin.allocation import Holding, read_assignment
from neuron_plugin.plugin.annotate import confirmed_annotations, inherited_annotations
from neuron_plugin.plugin.pods import NodePod
from tests.plugin.world import CORE, NEURON, TRN1, app, decided, devices, init, pod

ROW0, ROW1 = [0, 1, 2, 3], [4, 5, 6, 7]


def neuron(*ids: int, container: str = "app") -> Holding:
    return Holding(container, NEURON, devices(*ids))


def after(pod_: NodePod, before: dict[str, str], changes: dict[str, str | None]) -> list[tuple[int, ...]]:
    """The ids that the pod says once a merge patch is applied."""
    merged = {key: value for key, value in {**before, **changes}.items() if value is not None}
    decision = read_assignment("default/a", merged, pod_.request)
    assert decision is not None
    return [part.ids for part in decision.containers]


def test_p55_a_decision_that_came_true_is_only_marked() -> None:
    found = confirmed_annotations(TRN1, decided("a", app(4), sets=[ROW0]), (neuron(*ROW0),), 7)
    assert found == {"NEURON_ALLOCATED": "true"}


def test_a_pod_that_says_it_all_already_is_left_alone() -> None:
    assert confirmed_annotations(TRN1, decided("a", app(4), sets=[ROW0], allocated=True), (neuron(*ROW0),), 7) == {}


def test_p56_other_ids_are_written_with_the_time_of_the_decision() -> None:
    found = confirmed_annotations(TRN1, decided("a", app(4), sets=[ROW0], time=5), (neuron(*ROW1),), 7)
    assert found == {"NEURON_DEVS": "4,5,6,7", "NEURON_ALLOC_TIME": "5", "NEURON_ALLOCATED": "true"}


def test_a_pod_without_a_decision_gets_what_it_holds_and_the_time_of_now() -> None:
    found = confirmed_annotations(TRN1, pod("a", app(2, CORE)), (Holding("app", CORE, TRN1.cores_mask((2, 3))),), 7)
    assert found == {"NEURON_CORES": "2,3", "NEURON_ALLOC_TIME": "7", "NEURON_ALLOCATED": "true"}


def test_half_an_assignment_is_not_written() -> None:
    assert confirmed_annotations(TRN1, pod("a", init(4), app(1)), (neuron(0),), 7) == {}


def test_an_init_set_nobody_knows_does_not_keep_a_true_decision_from_being_marked() -> None:
    container = decided("a", init(4), app(4), sets=[ROW0, ROW0])
    assert confirmed_annotations(TRN1, container, (neuron(*ROW0),), 7) == {"NEURON_ALLOCATED": "true"}


def test_what_a_pod_cannot_have_asked_for_does_not_make_a_true_decision_a_wrong_one() -> None:
    rest = Holding("#0", NEURON, devices(*ROW1))
    found = confirmed_annotations(TRN1, decided("a", app(4), sets=[ROW0]), (rest, neuron(*ROW0)), 7)
    assert found == {"NEURON_ALLOCATED": "true"}


def test_p65_the_vendors_dialect_is_corrected_where_it_is_used() -> None:
    before = {"AWS_NEURON_IDS": "0,1,2,3", "NEURON_RESOURCE_TYPE": NEURON.value}
    vendors = pod("a", app(4), annotations=before)
    found = confirmed_annotations(TRN1, vendors, (neuron(*ROW1),), 7)
    assert found["AWS_NEURON_IDS"] == "4,5,6,7"
    assert after(vendors, before, found) == [tuple(ROW1)]


def test_p49_what_made_an_assignment_unreadable_is_removed() -> None:
    before = {"NEURON_DEVS": "0-x", "NEURON_CORES": "1"}
    malformed = pod("a", app(4), annotations=before)
    assert malformed.problem
    found = confirmed_annotations(TRN1, malformed, (neuron(*ROW1),), 7)
    assert found["NEURON_CORES"] is None
    assert after(malformed, before, found) == [tuple(ROW1)]


def test_a_vendors_list_that_cannot_say_two_resources_is_removed() -> None:
    before = {"AWS_NEURON_IDS": "0"}
    second = type(app(1))("second", app(1).kind, {CORE.value: "1"})
    mixed = pod("a", app(1), second, annotations=before)
    found = confirmed_annotations(TRN1, mixed, (neuron(0), Holding("second", CORE, TRN1.cores_mask((4,)))), 7)
    assert found["AWS_NEURON_IDS"] is None
    assert after(mixed, before, found) == [(0,), (4,)]


def test_p56_an_heir_is_to_get_the_givers_sets_at_its_own_place_in_the_order() -> None:
    heir = decided("a", app(4), sets=[ROW0], time=5)
    found = inherited_annotations(TRN1, heir, decided("b", app(4, name="other"), sets=[ROW1], time=9))
    assert found == {"NEURON_DEVS": "4,5,6,7", "NEURON_ALLOC_TIME": "5", "NEURON_ALLOCATED": "false"}


def test_without_two_decisions_there_is_nothing_to_inherit() -> None:
    assert inherited_annotations(TRN1, pod("a", app(4)), decided("b", app(4), sets=[ROW1])) == {}
