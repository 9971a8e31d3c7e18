"""What the simulated API server makes of objects: creation, deletions, patches."""

from __future__ import annotations

from typing import Any

import pytest

from neuron_plugin.simulation.api_server_kinds import LEASES, NODES, PODS, Refusal
from neuron_plugin.simulation.api_server_objects import created, deleted, merge_patched, strategically_patched

Json = dict[str, Any]


def pod(**metadata: Any) -> Json:
    return created(PODS, "ns", {"metadata": {"name": "p", "uid": "uid-p", **metadata}, "spec": {"containers": []}})


def stored(**metadata: Any) -> Json:
    made = pod(**metadata)
    return made | {"metadata": made["metadata"] | {"resourceVersion": "5"}}


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


@pytest.mark.parametrize(
    ("metadata", "code"),
    [({}, 422), ({"name": "a", "resourceVersion": "1"}, 400), ({"name": "a", "namespace": "x"}, 400)],
)
def test_what_cannot_be_created_is_refused(metadata: Json, code: int) -> None:
    with pytest.raises(Refusal) as raised:
        created(LEASES, "ns", {"metadata": metadata})
    assert raised.value.code == code


# Deletions.


@pytest.mark.parametrize(("spec", "phase"), [({}, "Pending"), ({"nodeName": "n1"}, "Succeeded")])
def test_a_pod_without_a_node_and_one_that_has_ended_are_gone_at_once(spec: Json, phase: str) -> None:
    assert deleted(PODS, merge_patched(stored(), {"spec": spec, "status": {"phase": phase}}), {}) is None


def test_a_second_deletion_does_not_move_the_time() -> None:
    ending = deleted(PODS, merge_patched(stored(), {"spec": {"nodeName": "n1"}}), {})
    assert ending is not None
    assert deleted(PODS, ending, {}) == ending
    assert deleted(PODS, ending, {"gracePeriodSeconds": 0}) is None


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


GATES = [{"name": "quota"}, {"name": "ours"}]


@pytest.mark.parametrize(
    ("patch", "expected"),
    [
        ([{"$patch": "delete", "name": "ours"}], ["quota"]),
        ([{"$patch": "delete", "name": "never-was"}], ["quota", "ours"]),
        ([{"name": "quota"}], ["quota", "ours"]),
        ([{"name": "new"}], ["quota", "ours", "new"]),
        ([{"name": "ours"}, {"$patch": "replace"}], ["ours"]),
        ([], ["quota", "ours"]),
        (None, []),
    ],
)
def test_a_strategic_merge_knows_gates_by_their_name(patch: Any, expected: list[str]) -> None:
    after = strategically_patched({"spec": {"schedulingGates": GATES}}, {"spec": {"schedulingGates": patch}})
    assert [gate["name"] for gate in after["spec"].get("schedulingGates", [])] == expected


def test_a_strategic_merge_replaces_terms_and_merges_the_containers_of_an_apply() -> None:
    terms = [{"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n1"]}]}]
    main = {"name": "main", "image": "a", "env": [{"name": "A", "value": "1"}]}
    pod = {"spec": {"containers": [{"name": "side"}, main], "nodeSelectorTerms": [{"matchExpressions": []}]}}
    patch = {
        "spec": {
            "$setElementOrder/containers": [{"name": "main"}, {"name": "side"}],
            "containers": [{"name": "main", "image": "b", "env": [{"name": "B", "value": "2"}]}],
            "nodeSelectorTerms": terms,
        }
    }
    environment = [{"name": "A", "value": "1"}, {"name": "B", "value": "2"}]
    assert strategically_patched(pod, patch)["spec"] == {
        "containers": [{"name": "main", "image": "b", "env": environment}, {"name": "side"}],
        "nodeSelectorTerms": terms,
    }


def test_directives_keep_keys_replace_objects_and_take_texts_out_of_lists() -> None:
    pod = {"metadata": {"finalizers": ["a", "b"]}, "spec": {"strategy": {"type": "x", "more": 1}, "old": {"a": 1}}}
    patch = {
        "metadata": {"$deleteFromPrimitiveList/finalizers": ["a"], "finalizers": ["c"]},
        "spec": {"strategy": {"$retainKeys": ["type"], "type": "y"}, "old": {"$patch": "replace", "b": 2}},
    }
    assert strategically_patched(pod, patch) == {
        "metadata": {"finalizers": ["b", "c"]},
        "spec": {"strategy": {"type": "y"}, "old": {"b": 2}},
    }


@pytest.mark.parametrize("patch", [{"$patch": "burn"}, {"schedulingGates": [{}]}, {"schedulingGates": ["ours"]}])
def test_what_cannot_be_applied_is_a_bad_request(patch: Json) -> None:
    with pytest.raises(Refusal) as raised:
        strategically_patched({"schedulingGates": GATES}, patch)
    assert raised.value.code == 400
