"""Pods as the node daemon sees them, and the watch that brings them."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from neuron_plugin.allocation.ledger import Holding, Ledger
from neuron_plugin.allocation.requests import Kind
from neuron_plugin.cluster.records import Pod as PodRecord
from neuron_plugin.plugin.pod_watch import _take_in, neuron_pod, take_stock
from neuron_plugin.plugin.pods import annotated_holdings, demanded_cores, node_pod, unserved
from tests.plugin.site import manifest
from tests.plugin.world import (
    CORE,
    NEURON,
    TRN1,
    FakeReport,
    a_state,
    app,
    assignment,
    decided,
    devices,
    init,
    pod,
    ref,
    sidecar,
)


def record(*containers: object, **metadata: object) -> PodRecord:
    made = manifest("a", "uid-a", containers)  # type: ignore[arg-type]  # ContainerSpecs
    made["metadata"] |= metadata
    return msgspec.convert(made, PodRecord)


def test_a_pod_that_asks_for_no_neuron_is_none_of_ours() -> None:
    spec = type(app(1))("app", Kind.APP, {"cpu": "1", NEURON.value: "0"})
    assert node_pod(ref("a"), [spec], {"NEURON_DEVS": "0"}) is None
    assert neuron_pod(record(spec)) is None


def test_a_malformed_annotation_leaves_a_pod_without_a_decision_and_says_why() -> None:
    found = pod("a", app(1), annotations={"NEURON_DEVS": "x"})
    assert found.decision is None
    assert "NEURON_DEVS" in found.problem
    assert "default/a" in found.problem
    assert found.assignment_keys == {"NEURON_DEVS"}


def test_contradicting_dialects_are_no_decision() -> None:
    found = pod("a", app(1), annotations={"NEURON_DEVS": "0", "AWS_NEURON_IDS": "1"})
    assert found.decision is None
    assert found.problem
    assert found.assignment_keys == {"NEURON_DEVS", "AWS_NEURON_IDS"}


@pytest.mark.parametrize("quantity", ["-1", "1.5", "x", "9223372036854775808"])
def test_a_request_that_cannot_be_served_is_kept_with_its_demand(quantity: str) -> None:
    spec = type(app(1))("app", Kind.APP, {NEURON.value: quantity})
    found = node_pod(ref("a"), [spec], {})
    assert found is not None
    assert found.request == ()
    assert found.refused == {(NEURON, quantity)}
    assert found.problem.startswith("pod default/a: container app asks for")


def test_limits_decide_and_requests_stand_in_for_a_refused_demand() -> None:
    spec = type(app(1))("app", Kind.APP, {NEURON.value: "1"}, {NEURON.value: "9", CORE.value: "2"})
    found = node_pod(ref("a"), [spec], {})
    assert found is not None
    assert found.refused == {(NEURON, "1"), (CORE, "2")}


def test_containers_are_served_in_the_kubelets_order() -> None:
    second = type(app(1))("second", Kind.APP, app(1).limits)
    both = pod("a", app(1), second)
    first = unserved(both, Ledger(), NEURON, 1)
    assert first is not None
    assert first.container == "app"
    ledger = Ledger().with_holding(ref("a"), Holding("app", NEURON, devices(0)))
    later = unserved(both, ledger, NEURON, 1)
    assert later is not None
    assert later.container == "second"
    assert unserved(both, ledger, NEURON, 2) is None
    assert unserved(both, ledger, CORE, 1) is None


def test_what_a_pod_says_it_has_counts_only_once_it_was_allocated() -> None:
    assert annotated_holdings(TRN1, decided("a", app(1), sets=[[3]])) == ()
    assert annotated_holdings(TRN1, decided("a", app(1), sets=[[3]], allocated=True)) == (
        Holding("app", NEURON, devices(3)),
    )


def test_a_demand_is_counted_in_cores() -> None:
    assert [demanded_cores(TRN1, part) for part in pod("a", init(3), app(3, CORE)).request] == [6, 3]


def test_a_record_gives_kinds_in_the_order_of_admission() -> None:
    found = neuron_pod(record(init(1), sidecar(1), app(2)))
    assert found is not None
    assert [(part.container, part.kind, part.count) for part in found.request] == [
        ("init", Kind.INIT, 1),
        ("sidecar", Kind.SIDECAR, 1),
        ("app", Kind.APP, 2),
    ]


@pytest.mark.parametrize("phase", ["Succeeded", "Failed"])
def test_p59_a_terminal_pod_holds_nothing(phase: str) -> None:
    made = manifest("a", "uid-a", (app(1),)) | {"status": {"phase": phase}}
    found = neuron_pod(msgspec.convert(made, PodRecord))
    assert found is not None
    assert found.ended


def test_p66_a_pod_that_is_being_deleted_is_still_one() -> None:
    annotations = assignment(TRN1, [app(1)], [[3]])
    found = neuron_pod(record(app(1), deletionTimestamp="2026-01-01T00:00:00Z", annotations=annotations))
    assert found is not None
    assert found.decision is not None


def test_a_pod_that_came_is_taken_in_and_told_of_and_one_that_went_is_forgotten() -> None:
    state, report, came = a_state(), FakeReport(), []
    bad = pod("a", app(1), annotations={"NEURON_DEVS": "x"})
    _take_in(state, report, lambda: came.append(1), "uid-a", None, bad)
    assert list(state.pods) == ["uid-a"]
    assert report.reasons == ["InvalidNeuronRequest"]
    assert came == [1]
    _take_in(state, report, lambda: came.append(1), "uid-a", bad, None)
    assert not state.pods
    assert came == [1]


async def test_a_second_reflector_forgets_who_ended_before_it_was_there() -> None:
    class Synced:
        synced = asyncio.Event()
        values = {"uid-b": pod("b", app(1))}  # noqa: RUF012 - a stand-in for one test

    state = a_state(TRN1, pod("a", app(1)), pod("b", app(1)))
    Synced.synced.set()
    await take_stock(Synced(), state)  # type: ignore[arg-type]  # the two attributes that are read
    assert list(state.pods) == ["uid-b"]
    assert state.pods_known
