"""A small cluster that commands look at."""

from __future__ import annotations

from neuron_plugin.allocation import Resource
from neuron_plugin.placement.account import DAY, HOUR, PARTS, Account, DeviceTime, Share, Split
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

BEGIN = 20_000 * DAY


def ten_days() -> Account:
    """Ten days of a node with 16 devices and one with 6."""
    shares = {
        ("ml", "train", "trn1", "busy"): 7,
        ("ml", "train", "trn1", "idle"): 1,
        ("ml", "eval", "trn1", "unknown"): 4,
    }
    shares |= {("web", "serve", "inf2", "busy"): 2, ("", "", "trn1", "broken"): 4, ("", "", "inf2", "free"): 4}
    nodes = {("", "a", "trn1", "busy"): 7, ("", "a", "trn1", "idle"): 9, ("", "b", "inf2", "free"): 6}
    split = Split(
        *(DeviceTime({Share(*who): parts * PARTS for who, parts in each.items()}) for each in (shares, nodes))
    )
    account = Account(BEGIN, BEGIN)
    for hour in range(240):
        account.count(split, BEGIN + (hour + 1) * HOUR)
    return account
