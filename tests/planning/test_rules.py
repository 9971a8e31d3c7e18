"""The words in which kube-scheduler's rules speak against a node; ``test_verdicts`` holds what they decide."""

from __future__ import annotations

from neuron_plugin.allocation.node_rules import NO_USE, NodeRules, PodRules
from neuron_plugin.planning.rules import shortages

GIB = 1024**3 * 1000
"""In thousandths of a byte, as all amounts are."""


def test_amounts_are_said_in_cores_and_gibibytes() -> None:
    pod = PodRules(
        needs=(("cpu", 1500), ("memory", 5 * GIB // 2), ("hugepages-2Mi", GIB), ("vpc.amazonaws.com/efa", 2000))
    )
    node = NodeRules(allocatable=(("cpu", 1000), ("memory", 2 * GIB), ("hugepages-2Mi", GIB // 2)))
    assert list(shortages(pod, node, NO_USE)) == [
        "has 1 of cpu left, the pod asks for 1.5",
        "has 2Gi of memory left, the pod asks for 2.5Gi",
        "has 0.5Gi of hugepages-2Mi left, the pod asks for 1Gi",
        "offers no vpc.amazonaws.com/efa, the pod asks for 2",
    ]
