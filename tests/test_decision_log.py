from __future__ import annotations

import json

import pytest

from neuron_plugin.allocation import PodReference, PodUid, Rejection, Resource
from neuron_plugin.allocation.placement import choose
from neuron_plugin.decision_log import MOST_CANDIDATES, DecisionLog, LoggedDecision, Step, explain_decision
from neuron_plugin.topology import Unit
from tests.topology.oracle import INF1, TRN1

POD = PodReference(PodUid("u1"), "default", "train")


def row(first: int) -> int:
    return TRN1.devices_mask(range(first, first + 4))


def entry(**changes: object) -> LoggedDecision:
    usual = LoggedDecision(
        at_ns=17,
        step=Step.PREFERRED,
        node="n1",
        geometry=TRN1,
        resource=Resource.NEURONDEVICE,
        chosen=row(4),
        reason="the best linked set",
        pod=POD,
        container="main",
        usable=lambda: TRN1.all_mask & ~row(0),
        offered=TRN1.all_mask,
    )
    return usual._replace(**changes)  # type: ignore[arg-type]  # a test's few fields


def test_the_latest_entries_are_kept_in_order() -> None:
    journal = DecisionLog(remembered=3)
    for at in range(5):
        journal.record(entry(at_ns=at))
    assert [each.at_ns for each in journal.entries()] == [2, 3, 4]


def test_what_was_handed_out_does_not_change_with_the_journal() -> None:
    journal = DecisionLog()
    journal.record(entry())
    seen = journal.entries()
    journal.record(entry())
    assert len(seen) == 1


def test_an_entry_is_not_explained_before_somebody_asks() -> None:
    asked: list[int] = []

    def usable() -> int:
        asked.append(1)
        return TRN1.all_mask

    DecisionLog().record(made := entry(usable=usable))
    assert not asked
    explain_decision(made)
    assert asked


def test_an_explanation_names_pod_inputs_choice_and_reason() -> None:
    told = explain_decision(entry(must_include=TRN1.devices_mask([5])))
    assert told["pod"] == "default/train"
    assert told["uid"] == "u1"
    assert (told["step"], told["container"], told["node"]) == ("preferred", "main", "n1")
    assert (told["resource"], told["count"], told["ids"]) == ("aws.amazon.com/neurondevice", 4, [4, 5, 6, 7])
    assert told["offered"] == [*range(16)]
    assert told["mustInclude"] == [5]
    assert told["usable"] == [*range(4, 16)]
    assert told["reason"] == "the best linked set"


def test_the_candidates_are_the_choosers_own_best_first_with_their_cost() -> None:
    told = explain_decision(entry())
    candidates = told["candidates"]
    assert isinstance(candidates, list)
    best = choose(TRN1, TRN1.all_mask & ~row(0), Unit.DEVICE, 4)
    assert not isinstance(best, Rejection)
    assert candidates[0]["ids"] == [*TRN1.whole_devices(best)]
    assert [each["cost"] for each in candidates] == sorted(each["cost"] for each in candidates)
    assert told["candidateCount"] == 3


def test_only_the_best_candidates_are_shown_and_all_are_counted() -> None:
    told = explain_decision(entry(resource=Resource.NEURONCORE, chosen=1, usable=lambda: TRN1.all_mask))
    assert isinstance(told["candidates"], list)
    assert len(told["candidates"]) == MOST_CANDIDATES
    assert told["candidateCount"] == 32


def test_demanded_ids_leave_only_candidates_with_them() -> None:
    told = explain_decision(entry(must_include=TRN1.devices_mask([9])))
    assert [each["ids"] for each in told["candidates"]] == [[8, 9, 10, 11]]  # type: ignore[attr-defined]  # a list, as above


@pytest.mark.parametrize(("pod", "uid"), [(None, ""), (PodReference(PodUid("0123"), "", ""), "0123")])
def test_a_pod_without_a_name_has_its_uid_or_nothing(pod: PodReference | None, uid: str) -> None:
    shown = explain_decision(entry(pod=pod))
    assert (shown["pod"], shown["uid"]) == ("", uid)


def test_an_entry_without_a_set_has_no_candidates() -> None:
    told = explain_decision(entry(step=Step.REFUSED, chosen=0, usable=int))
    assert (told["ids"], told["count"], told["candidates"], told["candidateCount"]) == ([], 0, [], 0)


def test_an_explanation_is_json() -> None:
    told = explain_decision(
        entry(geometry=INF1, chosen=INF1.mask_of(Unit.CORE, [0, 1]), resource=Resource.NEURONCORE, usable=int)
    )
    assert json.loads(json.dumps(told)) == told
