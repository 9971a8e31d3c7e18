from __future__ import annotations

import msgspec

from neuron_plugin.allocation import ContainerKind, Resource
from neuron_plugin.allocation.inventory import read_inventory
from neuron_plugin.allocation.keys import INVENTORY_KEY
from neuron_plugin.cluster.objects import NODES
from neuron_plugin.cluster.pods import PODS
from tests.support.manifests import container, node_manifest, pod_manifest, shipped_geometry


def test_a_node_manifest_agrees_with_its_inventory_and_counts_what_is_present() -> None:
    node = NODES.decode(msgspec.json.encode(node_manifest("n", "trn2.48xlarge", unhealthy={1: "ECC"}, missing=[3])))

    inventory = read_inventory(node.annotations[INVENTORY_KEY])

    assert inventory.geometry == shipped_geometry("trn2.48xlarge")
    assert 3 not in inventory.present
    assert node.capacity[Resource.NEURON.value] == "15"
    assert node.capacity[Resource.NEURONCORE.value] == "60"


def test_a_node_of_the_vendors_plugin_has_no_inventory() -> None:
    assert node_manifest("n", "inf1.xlarge", inventory=False)["metadata"]["annotations"] == {}


def test_every_manifest_has_a_uid_of_its_own() -> None:
    uids = {pod_manifest("same")["metadata"]["uid"] for _ in range(10)}

    assert len(uids) == 10


def test_a_pod_manifest_reads_back_with_its_containers_in_order() -> None:
    manifest = pod_manifest(
        "pod",
        containers=[container("a", Resource.NEURON, 1), container("b", Resource.NEURONCORE, 0)],
        init_containers=[container("i", Resource.NEURON, 2, sidecar=True)],
        node="n",
        priority=7,
    )

    pod = PODS.decode(msgspec.json.encode(manifest))

    found = [(each.name, kind, dict(each.limits)) for each, kind in pod.containers]
    assert found == [
        ("i", ContainerKind.SIDECAR, {Resource.NEURON: "2"}),
        ("a", ContainerKind.APP, {Resource.NEURON: "1"}),
        ("b", ContainerKind.APP, {}),
    ]
    assert (pod.node_name, pod.spec.priority) == ("n", 7)
