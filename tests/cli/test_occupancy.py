from __future__ import annotations

from itertools import pairwise

import pytest

from neuron_plugin.allocation import HolderLedger, Holding, PodReference, PodUid, Resource
from neuron_plugin.cli.occupancy import Occupancy
from neuron_plugin.simulation import SimulatedNode
from neuron_plugin.topology import CoreMask
from tests.inspection.cases import looked
from tests.inspection.doubles import MakeNode


def occupancy(node: SimulatedNode, ledger: HolderLedger | None) -> Occupancy:
    seen = looked(node)
    assert seen.geometry is not None
    return Occupancy(seen, seen.geometry, ledger)


def held(*holdings: tuple[str, str, Resource, int]) -> HolderLedger:
    ledger = HolderLedger()
    for pod, container, resource, mask in holdings:
        ledger = ledger.with_holding(PodReference(PodUid(pod), "ml", pod), Holding(container, resource, CoreMask(mask)))
    return ledger


def characters(of: Occupancy) -> list[str]:
    return ["".join(mark.character for mark in marks) for marks in of.marks().values()]


def legend(of: Occupancy) -> dict[str, str]:
    return {line.mark.character: line.text for line in of.legend()}


def test_each_pod_has_a_letter_and_the_legend_its_containers(make_node: MakeNode) -> None:
    ledger = held(
        ("train", "init", Resource.NEURONDEVICE, 0b1111),
        ("train", "main", Resource.NEURON, 0b0011),
        ("infer", "serve", Resource.NEURONCORE, 0b110000000),
    )
    of = occupancy(make_node("inf2.24xlarge"), ledger)
    assert characters(of) == ["AA", "AA", "..", ".B", "B.", ".."]
    assert legend(of) == {
        "A": "ml/train: init devices 0-1, main device 0",
        "B": "ml/infer: serve cores 7-8",
        ".": "free",
    }


def test_trouble_has_marks_of_its_own(make_node: MakeNode) -> None:
    node = make_node("inf2.24xlarge", missing=[5])
    node.set_ecc(1, sram=1)
    node.set_attribute(2, "core_count", "x")
    of = occupancy(node, HolderLedger())
    assert characters(of) == ["..", "!!", "xx", "..", "..", "xx"]
    assert set(legend(of)) == {".", "!", "x"}


def test_whoever_holds_an_unhealthy_device_is_still_shown(make_node: MakeNode) -> None:
    node = make_node("inf2.24xlarge")
    node.set_ecc(0, sram=1)
    assert characters(occupancy(node, held(("a", "x", Resource.NEURON, 0b01))))[0] == "A!"


def test_a_core_in_two_hands_is_seen(make_node: MakeNode) -> None:
    of = occupancy(
        make_node("inf2.24xlarge"),
        held(("a", "x", Resource.NEURON, 0b0011), ("b", "y", Resource.NEURONCORE, 0b0110)),
    )
    assert characters(of)[:2] == ["A#", "B."]
    assert "more than one pod" in legend(of)["#"]


def test_unknown_holders_make_no_core_free(make_node: MakeNode) -> None:
    of = occupancy(make_node("inf2.xlarge"), None)
    assert legend(of) == {".": "free unless a pod holds it (holders are not known)"}


def test_nothing_that_is_not_drawn_is_in_the_legend(make_node: MakeNode) -> None:
    of = occupancy(make_node("inf2.xlarge"), held(("a", "x", Resource.NEURON, 0b11)))
    assert set(legend(of)) == {"A"}


def test_a_core_for_every_pod_has_letters_enough_for_62(make_node: MakeNode) -> None:
    ledger = held(*((f"p{core}", "x", Resource.NEURONCORE, 1 << core) for core in range(64)))
    shown = "".join(characters(occupancy(make_node("inf1.24xlarge"), ledger)))
    assert len(set(shown[:62])) == 62
    assert shown[62:] == "##", "further pods share a mark"


@pytest.mark.parametrize("count", [2, 9])
def test_neighbouring_letters_differ_in_colour(make_node: MakeNode, count: int) -> None:
    ledger = held(*((f"p{core}", "x", Resource.NEURONCORE, 1 << core) for core in range(count)))
    styles = [line.mark.style for line in occupancy(make_node("inf2.24xlarge"), ledger).legend()][:count]
    assert all(one != other for one, other in pairwise(styles))
