"""What is left to pods that were handed to their schedulers without a node."""

from __future__ import annotations

import pytest

from neuron_plugin.allocation import Resource
from tests.support.manifests import gated_manifest
from tests.support.world import DEVICE, World, record_of

TRN1, INF2 = "trn1.32xlarge", "inf2.48xlarge"
LACKING = {
    "nobody comes": (TRN1, "0", (), False),
    "one that fits": (TRN1, "0,4", (8,), False),
    "one that would have no linked set": (TRN1, "0,8", (8,), True),
    "one that kube-scheduler would not send there": (TRN1, "0,1,2,3,4,5,8,9,10", (8,), False),
    "as many as there are sets": (TRN1, "", (8, 8), False),
    "more than can come at once": (TRN1, "", (8, 8, 8, 16), False),
    "a small one that finds no row beside the large one": (TRN1, "1,3,4,6", (8, 4, 4), True),
    "two small ones that find no windows": (INF2, "4,7,8,9,10,11", (4, 3, 3), True),
}


@pytest.mark.parametrize(("kind", "held", "coming", "lacks"), LACKING.values(), ids=LACKING)
def test_a_node_lacks_sets_where_those_that_may_come_by_count_do_not_all_find_one(
    world: World, kind: str, held: str, coming: tuple[int, ...], *, lacks: bool
) -> None:
    world.node("a", kind)
    for device in filter(None, held.split(",")):
        world.held(f"held-{device}", "a", DEVICE, device)
    roaming = [record_of(gated_manifest(f"p{number}", DEVICE, count)) for number, count in enumerate(coming)]
    assert world.state.scene().lacking_sets(["a"], roaming) == (["a"] if lacks else [])


def test_nodes_with_the_same_free_devices_are_told_apart_by_what_kube_scheduler_counts(world: World) -> None:
    for name, resource in (("a", Resource.NEURON), ("b", Resource.NEURONDEVICE)):
        world.node(name, TRN1)
        world.held(f"on-{name}", name, resource, "0,1,2,3,4,5,6,7")
    roaming = [record_of(gated_manifest(f"p{number}", Resource.NEURON, count)) for number, count in enumerate((8, 4))]
    assert world.state.scene().lacking_sets(["a", "b"], roaming) == ["b"], "until the kubelet offers less of neuron"
