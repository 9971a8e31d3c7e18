"""What the simulated API server makes of objects: creation, patches, bindings, deletions."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from neuron_plugin.simulation.api_server_kinds import EVENTS, LEASES, NODES, PODS, Refusal
from neuron_plugin.simulation.api_server_objects import bound, created, deleted, merge_patched, strategically_patched

Json = dict[str, Any]


def pod(**metadata: Any) -> Json:
    return created(PODS, "ns", {"metadata": {"name": "p", "uid": "uid-p", **metadata}, "spec": {"containers": []}})


def stored(**metadata: Any) -> Json:
    made = pod(**metadata)
    return made | {"metadata": made["metadata"] | {"resourceVersion": "5"}}


def refusal_of(value: Json, **metadata: Any) -> Refusal:
    with pytest.raises(Refusal) as raised:
        bound(value, {"metadata": metadata, "target": {"name": "n1"}})
    return raised.value


# Creation.


def test_quantities_become_texts_and_limits_are_requested() -> None:
    limits: Json = {"aws.amazon.com/neuron": 2, "cpu": "1"}
    container = {"name": "c", "resources": {"limits": limits, "requests": {"cpu": "500m"}}}
    spec = {"containers": [container], "initContainers": [container]}
    made = created(PODS, "ns", {"metadata": {"name": "p"}, "spec": spec})
    for part in ("containers", "initContainers"):
        assert made["spec"][part][0]["resources"] == {
            "limits": {"aws.amazon.com/neuron": "2", "cpu": "1"},
            "requests": {"aws.amazon.com/neuron": "2", "cpu": "500m"},
        }
    assert limits["aws.amazon.com/neuron"] == 2, "the manifest is the caller's"


def test_what_a_node_can_give_is_what_it_has_unless_said() -> None:
    made = created(NODES, "", {"metadata": {"name": "n"}, "status": {"capacity": {"cpu": 4}}})
    assert made["status"] == {"capacity": {"cpu": "4"}, "allocatable": {"cpu": "4"}}


def test_a_generated_name_starts_with_its_prefix() -> None:
    made = [created(EVENTS, "ns", {"metadata": {"generateName": "pod-a-"}})["metadata"] for _ in range(2)]
    assert all(metadata["name"].startswith("pod-a-") for metadata in made)
    assert made[0]["name"] != made[1]["name"]


@pytest.mark.parametrize(
    ("metadata", "code"),
    [({}, 422), ({"name": "a", "resourceVersion": "1"}, 400), ({"name": "a", "namespace": "x"}, 400)],
)
def test_what_cannot_be_created_is_refused(metadata: Json, code: int) -> None:
    with pytest.raises(Refusal) as raised:
        created(LEASES, "ns", {"metadata": metadata})
    assert raised.value.code == code


# Patches.


@pytest.mark.parametrize(
    ("value", "patch", "expected"),
    [  # RFC 7386, appendix A
        ({"a": "b"}, {"a": "c"}, {"a": "c"}),
        ({"a": "b"}, {"b": "c"}, {"a": "b", "b": "c"}),
        ({"a": "b"}, {"a": None}, {}),
        ({"a": "b", "b": "c"}, {"a": None}, {"b": "c"}),
        ({"a": ["b"]}, {"a": "c"}, {"a": "c"}),
        ({"a": "c"}, {"a": ["b"]}, {"a": ["b"]}),
        ({"a": {"b": "c"}}, {"a": {"b": "d", "c": None}}, {"a": {"b": "d"}}),
        ({"a": [{"b": "c"}]}, {"a": [1]}, {"a": [1]}),
        (["a", "b"], ["c", "d"], ["c", "d"]),
        ({"a": "b"}, ["c"], ["c"]),
        ({"a": "foo"}, None, None),
        ({"a": "foo"}, "bar", "bar"),
        ({"e": None}, {"a": 1}, {"e": None, "a": 1}),
        ([1, 2], {"a": "b", "c": None}, {"a": "b"}),
        ({}, {"a": {"bb": {"ccc": None}}}, {"a": {"bb": {}}}),
    ],
)
def test_a_merge_patch_is_that_of_the_rfc(value: Any, patch: Any, expected: Any) -> None:
    assert merge_patched(value, patch) == expected


Tree = st.recursive(
    st.integers() | st.text(max_size=2),
    lambda inner: st.dictionaries(st.sampled_from("abc"), inner, max_size=3) | st.lists(inner, max_size=2),
    max_leaves=8,
)


@given(value=Tree, patch=Tree)
def test_a_merge_patch_twice_is_the_same_as_once(value: Any, patch: Any) -> None:
    once = merge_patched(value, patch)
    assert merge_patched(once, patch) == once


def test_a_strategic_merge_knows_conditions_by_their_type() -> None:
    old = {"type": "X", "status": "True", "reason": "r"}
    node = {"status": {"conditions": [{"type": "Ready", "status": "True"}, old]}}
    patch = {"status": {"conditions": [{"type": "X", "status": "False"}, {"type": "Y", "status": "True"}]}}
    assert strategically_patched(node, patch)["status"]["conditions"] == [
        {"type": "Ready", "status": "True"},
        {"type": "X", "status": "False", "reason": "r"},
        {"type": "Y", "status": "True"},
    ]
    assert old["status"] == "True", "the old value stays what it was"


def test_a_strategic_merge_removes_the_conditions_marked_for_deletion() -> None:
    ready = {"type": "Ready", "status": "True"}
    node = {"status": {"conditions": [ready, {"type": "X", "status": "True"}]}}
    patch = {"status": {"conditions": [{"$patch": "delete", "type": kind} for kind in ("X", "never-was")]}}
    assert strategically_patched(node, patch)["status"]["conditions"] == [ready]


# Bindings: the texts of pkg/registry/core/pod/storage/storage.go.


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (
            {"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}},
            "pod p is being deleted, cannot be assigned to a host",
        ),
        ({"spec": {"nodeName": "n9"}}, 'pod p is already assigned to node "n9"'),
        ({"spec": {"schedulingGates": [{"name": "g"}]}}, "pod p has non-empty .spec.schedulingGates"),
    ],
)
def test_a_pod_that_cannot_be_bound_is_refused_with_the_servers_text(change: Json, text: str) -> None:
    refusal = refusal_of(merge_patched(stored(), change))
    assert (refusal.code, refusal.reason) == (409, "Conflict")
    assert refusal.message == f'Operation cannot be fulfilled on pods/binding "p": {text}'


def test_preconditions_of_a_binding_are_kept() -> None:
    assert "UID in precondition: x, UID in object meta: uid-p" in refusal_of(stored(), uid="x").message
    assert "ResourceVersion in precondition: 4" in refusal_of(stored(), resourceVersion="4").message
    after = bound(stored(), {"metadata": {"uid": "uid-p", "resourceVersion": "5"}, "target": {"name": "n1"}})
    assert after["spec"]["nodeName"] == "n1"


@pytest.mark.parametrize("target", [{}, {"name": ""}, {"name": "n1", "kind": "Machine"}])
def test_a_binding_needs_a_node(target: Json) -> None:
    with pytest.raises(Refusal) as raised:
        bound(stored(), {"target": target})
    assert raised.value.code == 422


def test_a_binding_leaves_the_old_value_alone() -> None:
    before = stored(annotations={"a": "1"})
    bound(before, {"metadata": {"annotations": {"b": "2"}}, "target": {"name": "n1"}})
    assert before["metadata"]["annotations"] == {"a": "1"}
    assert "nodeName" not in before["spec"]


# Deletions.


def test_a_second_deletion_does_not_move_the_time() -> None:
    ending = deleted(PODS, merge_patched(stored(), {"spec": {"nodeName": "n1"}}), {})
    assert ending is not None
    assert deleted(PODS, ending, {}) == ending
    assert deleted(PODS, ending, {"gracePeriodSeconds": 0}) is None


def test_other_kinds_are_gone_at_once() -> None:
    assert deleted(NODES, {"metadata": {"name": "n", "uid": "u"}}, {}) is None
