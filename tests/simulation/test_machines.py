"""What nodes have besides Neuron, and where they stand in the network."""

from __future__ import annotations

from neuron_plugin.simulation.machines import CPU_NODE, labels_of, resources_of, ultraserver_of

LAYER = "topology.k8s.aws/network-node-layer-"


def places(instance_type: str, count: int) -> list[dict[str, str]]:
    return [labels_of(f"n-{place}", instance_type, place) for place in range(count)]


def test_eight_trn2u_are_two_ultraservers_in_one_leaf_of_the_network() -> None:
    servers = [ultraserver_of("trn2u.48xlarge", place) for place in range(8)]
    assert [servers[0]["server_id_4"] == each["server_id_4"] for each in servers] == [True] * 4 + [False] * 4
    assert [each["node_id_4"] for each in servers] == ["0", "1", "2", "3"] * 2
    assert len({each["server_id_2"] for each in servers}) == 4
    labels = places("trn2u.48xlarge", 9)
    assert [labels[0][f"{LAYER}4"] == each[f"{LAYER}4"] for each in labels] == [True] * 8 + [False]
    assert labels[0][f"{LAYER}3"] == labels[8][f"{LAYER}3"], "the next leaf hangs on the same of its layer"


def test_trn1_has_three_layers_and_inf2_and_cpu_nodes_none() -> None:
    layers = {name: sum(LAYER in key for key in labels_of("n", name, 0)) for name in ("trn1.32xlarge", "inf2.xlarge")}
    assert layers == {"trn1.32xlarge": 3, "inf2.xlarge": 0}
    labels = labels_of("cpu-1", CPU_NODE, 0)
    assert labels["node.kubernetes.io/instance-type"] == "m7i.8xlarge"
    assert labels["beta.kubernetes.io/instance-type"] == "m7i.8xlarge", "which old manifests select"
    assert not any(LAYER in key for key in labels)


def test_another_zone_begins_after_as_many_nodes_as_one_has() -> None:
    zones = [each["topology.kubernetes.io/zone"] for each in places("trn1.32xlarge", 257)]
    assert set(zones[:256]) == {"us-west-2a"}
    assert zones[256] == "us-west-2b"
    first, last = places("trn1.32xlarge", 257)[::256]
    assert first[f"{LAYER}1"] != last[f"{LAYER}1"]


def test_nodes_with_efa_have_huge_pages() -> None:
    trn1, inf2 = resources_of("trn1.32xlarge"), resources_of("inf2.48xlarge")
    assert (trn1["vpc.amazonaws.com/efa"], trn1["hugepages-2Mi"]) == ("8", "10256Mi")
    assert resources_of("trn1n.32xlarge")["vpc.amazonaws.com/efa"] == "16"
    assert {"vpc.amazonaws.com/efa", "hugepages-2Mi"}.isdisjoint(inf2)
    assert (inf2["cpu"], inf2["memory"]) == ("192", "768Gi")
    assert "ephemeral-storage" in inf2
