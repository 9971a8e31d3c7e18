from __future__ import annotations

import pytest

from neuron_plugin.extender.selectors import SelectorError, parse_selector
from tests.extender.world import DEVICE, World


@pytest.mark.parametrize(
    ("fields", "labels", "expected"),
    [
        ("", "", {"a", "b"}),
        ("metadata.name=a", "", {"a"}),
        ("metadata.name!=a", "", {"b"}),
        ("metadata.namespace=default", "", {"a", "b"}),
        ("metadata.namespace=other", "", set()),
        ("spec.nodeName=one", "", {"a"}),
        ("spec.nodeName==two,metadata.name=b", "", {"b"}),
        ("spec.nodeName=one,metadata.name=b", "", set()),
        ("", "neuron-plugin.io/node=two", {"b"}),
        ("", "neuron-plugin.io/namespace!=default", set()),
        (" metadata.name = a ,", "", {"a"}),
    ],
)
def test_e06_terms_select_pods_by_name_namespace_and_node(
    world: World, fields: str, labels: str, expected: set[str]
) -> None:
    world.held("a", "one", DEVICE, "0")
    world.held("b", "two", DEVICE, "0")
    selector = parse_selector(fields, labels)

    assert {record.pod.name for record in world.state.pods.values() if selector.matches(record)} == expected
    assert not selector.matches(None)


def test_e06_nodes_are_selected_by_their_name_under_every_key(world: World) -> None:
    world.node("one", "trn1.32xlarge")
    record = world.state.nodes["one"]

    for fields, labels in (("metadata.name=one", ""), ("spec.nodeName=one", ""), ("", "neuron-plugin.io/node=one")):
        assert parse_selector(fields, labels).matches(record)
    assert not parse_selector("metadata.name=two", "").matches(record)
    assert parse_selector("metadata.namespace=", "").matches(record)


@pytest.mark.parametrize(
    ("fields", "labels"),
    [("metadata.name", ""), ("status.phase=Running", ""), ("", "app=web"), ("", "neuron-plugin.io/node"), ("=", "")],
)
def test_e06_what_cannot_be_selected_by_is_named(fields: str, labels: str) -> None:
    with pytest.raises(SelectorError, match="expected key=value"):
        parse_selector(fields, labels)
