from __future__ import annotations

import pytest

from neuron_plugin.allocation import Holder, Rejection, place
from neuron_plugin.extender.claims import PodRecord, UnclearClaim, Unreadable, claim_of, holder_for
from neuron_plugin.extender.hardware import Hardware, NodeFacts, NoHardware
from neuron_plugin.extender.nodes import node_record
from neuron_plugin.extender.reasons import NO_NEURON, OVERLAPPING_CLAIMS, STALE, UNREADABLE_CLAIM, UNTOLD_CLAIM
from neuron_plugin.extender.shapes import ClosedShape, Shape
from neuron_plugin.simulation import container, pod_manifest, shipped_geometry
from tests.extender.world import CORE, DEVICE, record_of, request_of

TRN1 = shipped_geometry("trn1.32xlarge")
INF1 = shipped_geometry("inf1.6xlarge")
COMPLETE = Hardware(TRN1, TRN1.all_mask)


def bound(name: str, ids: str, amount: int = 1) -> PodRecord:
    return record_of(pod_manifest(name, DEVICE, amount, node="node", annotations={"NEURON_DEVS": ids}))


def test_a_claim_is_the_silicon_behind_the_ids_by_the_nodes_own_geometry() -> None:
    on_trn1, on_inf1 = claim_of(bound("pod", "1"), TRN1), claim_of(bound("pod", "1"), INF1)

    assert isinstance(on_trn1, Holder)
    assert isinstance(on_inf1, Holder)
    assert (on_trn1.mask, on_inf1.mask) == (0b1100, 0xF0)


def test_every_container_holds_its_own_list_under_its_own_name() -> None:
    manifest = pod_manifest(
        "pod",
        containers=[container("a", DEVICE, 1), container("b", CORE, 2)],
        node="node",
        annotations={"NEURON_DEVS": "0", "NEURON_CORES": "2,3"},
    )

    claim = claim_of(record_of(manifest), TRN1)

    assert isinstance(claim, Holder)
    assert [(each.container, each.resource, each.mask) for each in claim.holdings] == [
        ("a", DEVICE, 0b11),
        ("b", CORE, 0b1100),
    ]


@pytest.mark.parametrize(
    ("record", "refusal", "detail"),
    [
        (record_of(pod_manifest("pod", DEVICE, 1, node="node")), UNTOLD_CLAIM, "no assignment yet"),
        (bound("pod", "x"), UNREADABLE_CLAIM, "NEURON_DEVS='x'"),
        (bound("pod", "16"), UNREADABLE_CLAIM, "(16,)"),
        (
            record_of(pod_manifest("pod", containers=[container("main", CORE, "1.5")], node="node")),
            UNREADABLE_CLAIM,
            "1.5",
        ),
    ],
    ids=["untold", "garbage", "beyond the node", "unreadable request"],
)
def test_what_is_not_clear_is_said_with_its_reason(record: PodRecord, refusal: object, detail: str) -> None:
    claim = claim_of(record, TRN1)

    assert isinstance(claim, UnclearClaim)
    assert claim.refusal is refusal
    assert detail in claim.detail


def test_an_unreadable_request_carries_no_decision() -> None:
    record = record_of(
        pod_manifest("pod", containers=[container("main", CORE, "-1")], annotations={"NEURON_CORES": "0"})
    )

    assert isinstance(record.request, Unreadable)
    assert record.decision is None


def test_a_placement_becomes_the_same_holder_that_its_annotations_will_be() -> None:
    record = record_of(pod_manifest("pod", DEVICE, 4))
    placed = place(TRN1, TRN1.all_mask, request_of(record))
    assert not isinstance(placed, Rejection)

    read_back = claim_of(bound("pod", "0,1,2,3", 4), TRN1)

    assert isinstance(read_back, Holder)
    assert holder_for(record.pod, placed).holdings == read_back.holdings


def test_a_node_without_hardware_is_closed_and_holds_nothing() -> None:
    record = node_record(NodeFacts("node"), NoHardware(NO_NEURON), [bound("pod", "0")], [])

    assert isinstance(record.shape, ClosedShape)
    assert record.shape.refusal is NO_NEURON
    assert (record.used_mask, record.free_mask) == (0, 0)


def test_of_several_reasons_the_one_that_no_pods_end_mends_is_told() -> None:
    record = node_record(NodeFacts("node"), COMPLETE, [bound("odd", "x")], [], stale=True)

    assert isinstance(record.shape, ClosedShape)
    assert record.shape.refusal is STALE


def test_overlapping_pods_close_the_node_and_both_stay_on_its_ledger() -> None:
    record = node_record(NodeFacts("node"), COMPLETE, [bound("a", "0,1", 2), bound("b", "1,2", 2), bound("c", "5")], [])

    assert isinstance(record.shape, ClosedShape)
    assert record.shape.refusal is OVERLAPPING_CLAIMS
    assert len(record.ledger.holders) == 3
    assert record.used_mask == 0b111111 | 0b11 << 10
    (unclear,) = record.unclear
    assert unclear.detail == "pod default/b claims silicon that default/a claims, too"


def test_an_open_node_has_the_shape_of_what_is_healthy_and_free() -> None:
    hardware = Hardware(TRN1, TRN1.devices_mask(range(8)))

    record = node_record(NodeFacts("node"), hardware, [bound("pod", "0")], [])

    assert isinstance(record.shape, Shape)
    assert record.shape.free_mask == record.free_mask == TRN1.devices_mask(range(1, 8))
