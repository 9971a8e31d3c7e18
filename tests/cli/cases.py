"""A small cluster that commands look at."""

from __future__ import annotations

from neuron_plugin.allocation import Resource
from tests.support.manifests import container, node_manifest, pod_manifest

DEVICE, CORE = Resource.NEURON, Resource.NEURONCORE

NODES = [
    node_manifest("trn-1", "trn1.32xlarge", unhealthy={12: "ECC"}),
    node_manifest("inf-1", "inf2.48xlarge"),
    {"metadata": {"name": "web-1", "uid": "web-1"}},
]
PODS = [
    pod_manifest(
        "train",
        containers=[container("main", DEVICE, 4), container("eval", CORE, 1)],
        node="trn-1",
        annotations={"NEURON_DEVS": "0,1,2,3", "NEURON_CORES": "8", "NEURON_ALLOCATED": "true"},
    ),
    pod_manifest("assigned", CORE, 2, node="trn-1", annotations={"NEURON_CORES": "10,11"}),
    pod_manifest("stock", DEVICE, 1, node="inf-1"),
    pod_manifest("waiting", DEVICE, 8),
]
