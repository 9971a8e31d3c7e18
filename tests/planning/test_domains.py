"""The tree of the network, as it stands on the nodes' labels."""

from __future__ import annotations

from dataclasses import replace

import pytest

from neuron_plugin.allocation import NodeInfo
from neuron_plugin.planning.choice import Choices
from neuron_plugin.planning.domains import Domains, common_depth, domains_of
from tests.planning.clusters import devices, node

ZONE, LAYER = "topology.kubernetes.io/zone", "topology.k8s.aws/network-node-layer-{}"
ULTRASERVER, PAIR = "neuron-plugin.io/ultraserver-server-id-4", "neuron.amazonaws.com/ultraserver-server-id-2"


def labelled(name: str, labels: dict[str, str]) -> NodeInfo:
    info = node(name).info
    return replace(info, node=replace(info.node, rules=replace(info.node.rules, labels=labels)))


def tree(nodes: dict[str, dict[str, str]], *named: str) -> Domains:
    return Domains({name: labelled(name, labels) for name, labels in nodes.items()}, named)


def layers(*names: str) -> dict[str, str]:
    return {LAYER.format(number + 1): name for number, name in enumerate(names)}


def test_only_levels_that_some_node_has_exist_broad_to_narrow() -> None:
    domains = tree({"a": {ZONE: "z", **layers("t", "s", "l")}, "b": {PAIR: "p"}, "c": {}})
    assert domains.level_names() == ["zone", *(LAYER.format(n) for n in (1, 2, 3)), "leaf", "pair", "node"]
    assert domains.path("a") == ("z", "t", "s", "l", "/a", "a")
    assert domains.path("c") == (*["/c"] * 5, "c")


@pytest.mark.parametrize(
    ("level", "depth"),
    [("zone", 1), (ZONE, 1), ("leaf", 5), (LAYER.format(4), 5), ("ultraserver", 6), (ULTRASERVER, 6), ("node", 7)],
)
def test_a_level_is_asked_for_by_its_name_or_its_label(level: str, depth: int) -> None:
    """The leaf is the highest layer that there is: the fourth where nodes have four."""
    domains = tree({"a": {ZONE: "z", **layers("t", "s", "x", "l"), ULTRASERVER: "u"}})
    assert domains.depth_of(level) == depth


def test_a_level_that_no_node_has_is_none() -> None:
    assert [tree({"a": {}}).depth_of(level) for level in ("leaf", "ultraserver", "rack")] == [None] * 3


def test_levels_that_are_named_stand_in_place_of_those_that_are_known() -> None:
    domains = tree({"a": {ZONE: "z", "row": "1", "rack": "2"}}, "row", "rack")
    assert (domains.path("a"), domains.level_names()) == (("1", "2", "a"), ["row", "rack", "node"])


def test_a_label_that_changes_changes_the_tree() -> None:
    nodes = {"a": labelled("a", {ZONE: "z"}), "b": labelled("b", {ZONE: "z"})}
    domains = Domains(nodes)
    assert common_depth(map(domains.path, nodes)) == 1
    nodes["b"] = labelled("b", {ZONE: "y", ULTRASERVER: "u"})
    domains.forget("b")
    assert domains.path("b") == ("y", "u", "b")
    assert domains.path("a") == ("z", "/a", "a")
    del nodes["b"]
    domains.forget("b")
    assert domains.path("a") == ("z", "a")


def test_nodes_of_an_ultraserver_are_in_the_order_of_their_node_ids() -> None:
    ids = {"a": "3", "b": "0", "c": "12", "d": "2"}
    domains = tree({name: {ULTRASERVER: "u", "neuron-plugin.io/ultraserver-node-id-4": ids[name]} for name in ids})
    assert sorted(ids, key=domains.rank_key) == ["b", "d", "a", "c"]


def test_the_pairs_of_an_ultraserver_are_in_the_order_of_its_ring_too() -> None:
    def of(pair: str, four: int, two: int) -> dict[str, str]:
        ids = {f"neuron-plugin.io/ultraserver-node-id-{size}": str(number) for size, number in ((4, four), (2, two))}
        return {ULTRASERVER: "u", PAIR: pair, **ids}

    domains = tree({"a": of("z", 0, 0), "b": of("z", 1, 1), "c": of("p", 2, 0), "d": of("p", 3, 1)})
    assert sorted("abcd", key=domains.rank_key) == ["a", "b", "c", "d"]
    pairs_alone = tree({"a": {PAIR: "z"}, "b": {PAIR: "z"}, "c": {PAIR: "p"}})
    assert sorted("abc", key=pairs_alone.rank_key) == ["c", "a", "b"]


def test_the_domains_of_a_node_are_those_that_its_labels_name() -> None:
    labels = {PAIR: "p", ULTRASERVER: "u", **layers("t", "l"), ZONE: "z", "rack": "r"}
    assert list(domains_of(labels).items()) == [
        ("zone", "z"), (LAYER.format(1), "t"), (LAYER.format(2), "l"), ("ultraserver", "u"), ("pair", "p"),
    ]  # fmt: skip
    assert domains_of(labels, ["rack", "row"]) == {"rack": "r"}
    assert domains_of({}) == {}


def test_empty_nodes_are_counted_in_each_domain_as_pods_come_and_go() -> None:
    labels = {
        "a": {ZONE: "z", ULTRASERVER: "u"},
        "b": {ZONE: "z", ULTRASERVER: "u"},
        "c": {ZONE: "z", ULTRASERVER: "v"},
    }
    nodes = {name: labelled(name, said) for name, said in labels.items()}
    domains, empty = Domains(nodes), dict(nodes)
    assert [domains.empty_around(domains.path(name)) for name in "abc"] == [(2, 3), (2, 3), (1, 3)]
    held = devices("x", 0)
    nodes["a"] = nodes["a"].with_pod(held.pod.reference, held.placement)
    domains.see_pods("a")
    assert [domains.empty_around(domains.path(name)) for name in "bc"] == [(1, 2), (1, 2)]
    nodes["a"] = empty["a"]
    domains.see_pods("a")
    del nodes["c"]
    domains.forget("c")
    assert domains.empty_around(domains.path("b")) == (2, 2)
    nodes["b"] = labelled("b", {ZONE: "y"})  # of no UltraServer
    domains.forget("b")
    assert domains.empty_around(domains.path("b")) == (1, 1)
    nodes["a"] = labelled("a", {ZONE: "y"})  # the level ends
    domains.forget("a")
    assert domains.empty_around(domains.path("b")) == (2,)


def test_how_many_nodes_are_empty_follows_the_pods() -> None:
    nodes = {name: labelled(name, {ZONE: "z"}) for name in "abc"}
    choices = Choices(nodes)
    around = choices.domains.path("a")
    assert choices.domains.empty_around(around) == (3,)
    used = node("b", devices("x", 0)).info
    nodes["b"] = replace(used, node=nodes["b"].node)
    choices.forget("b", node_changed=False)
    assert choices.domains.empty_around(around) == (2,)
