"""What the simulated API server makes of objects: creation, changes, deletions."""

from __future__ import annotations

from typing import Any

import pytest

from neuron_plugin.simulation.api_server_kinds import LEASES, NODES, PODS, Refusal
from neuron_plugin.simulation.api_server_objects import created, deleted
from neuron_plugin.simulation.api_server_patches import merge_patched

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
