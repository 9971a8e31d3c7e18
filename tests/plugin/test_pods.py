"""Pods as the node daemon sees them."""

from __future__ import annotations

import pytest

from neuron_plugin.allocation import ContainerKind, HolderLedger, Holding
from neuron_plugin.plugin.pods import annotated_holdings, demanded_cores, node_pod, unserved
from tests.plugin.world import (
    CORE,
    NEURON,
    TRN1,
    app,
    decided,
    devices,
    init,
    pod,
    ref,
)


def test_a_pod_that_asks_for_no_neuron_is_none_of_ours() -> None:
    spec = type(app(1))("app", ContainerKind.APP, {"cpu": "1", NEURON.value: "0"})
    assert node_pod(ref("a"), [spec], {"NEURON_DEVS": "0"}) is None


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
    spec = type(app(1))("app", ContainerKind.APP, {NEURON.value: quantity})
    found = node_pod(ref("a"), [spec], {})
    assert found is not None
    assert found.request == ()
    assert found.refused == {(NEURON, quantity)}
    assert found.problem.startswith("pod default/a: container app asks for")


def test_limits_decide_and_requests_stand_in_for_a_refused_demand() -> None:
    spec = type(app(1))("app", ContainerKind.APP, {NEURON.value: "1"}, {NEURON.value: "9", CORE.value: "2"})
    found = node_pod(ref("a"), [spec], {})
    assert found is not None
    assert found.refused == {(NEURON, "1"), (CORE, "2")}


def test_containers_are_served_in_the_kubelets_order() -> None:
    second = type(app(1))("second", ContainerKind.APP, app(1).limits)
    both = pod("a", app(1), second)
    first = unserved(TRN1, both, HolderLedger(), NEURON, devices(0))
    assert first is not None
    assert first.container == "app"
    ledger = HolderLedger().with_holding(ref("a"), Holding("app", NEURON, devices(0)))
    later = unserved(TRN1, both, ledger, NEURON, devices(0))
    assert later is not None
    assert later.container == "second"
    assert unserved(TRN1, both, ledger, NEURON, devices(0, 1)) is None
    assert unserved(TRN1, both, ledger, CORE, TRN1.cores_mask((0,))) is None


def test_what_a_pod_says_it_has_counts_only_once_it_was_allocated() -> None:
    assert annotated_holdings(TRN1, decided("a", app(1), sets=[[3]])) == ()
    assert annotated_holdings(TRN1, decided("a", app(1), sets=[[3]], allocated=True)) == (
        Holding("app", NEURON, devices(3)),
    )


def test_a_demand_is_counted_in_cores() -> None:
    assert [demanded_cores(TRN1, part) for part in pod("a", init(3), app(3, CORE)).request] == [6, 3]
