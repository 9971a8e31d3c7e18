"""Nodes whose kubelet is silent: when they are marked, and what becomes of their pods."""

from __future__ import annotations

from typing import Any

from neuron_plugin.simulation.api_server import NODES, PODS, SimulatedApiServer
from neuron_plugin.simulation.node_lifecycle import NOT_READY_SECONDS, TOLERATION_SECONDS, NodeLifecycle

KEY = "node.kubernetes.io/unreachable"
SILENT_AT = 100.0
LATE_AT = SILENT_AT + NOT_READY_SECONDS


def world(*tolerations: dict[str, Any]) -> SimulatedApiServer:
    """A node with a taint of its own and a ready pod that has these tolerations."""
    api = SimulatedApiServer()
    ready = {"type": "Ready", "status": "True"}
    taint = {"key": "own", "effect": "NoSchedule"}
    status = {"conditions": [ready]}
    api.create_node({"metadata": {"name": "a"}, "spec": {"taints": [taint]}, "status": status})
    api.create_pod({"metadata": {"name": "p"}, "spec": {"containers": [], "tolerations": list(tolerations)}})
    api.bind("default", "p", node="a")
    api.patch_status(PODS, "p", {"phase": "Running", **status}, "default")
    return api


def ready_of(found: dict[str, Any]) -> str:
    (status,) = (each["status"] for each in found["status"]["conditions"] if each["type"] == "Ready")
    return str(status)


def test_a_node_is_marked_after_a_while_of_silence_and_cleared_once_it_is_heard() -> None:
    api = world()
    lifecycle = NodeLifecycle(api)
    assert list(lifecycle.look({"a"}, SILENT_AT)) == []
    assert list(lifecycle.look({"a"}, LATE_AT - 1)) == []
    assert list(lifecycle.look({"a"}, LATE_AT)) == ["node a: not ready: its kubelet is silent"]
    node = api.get(NODES, "a")
    taints = [(taint["key"], taint["effect"]) for taint in node["spec"]["taints"]]
    assert taints == [("own", "NoSchedule"), (KEY, "NoSchedule"), (KEY, "NoExecute")]
    assert (ready_of(node), ready_of(api.get(PODS, "p", "default"))) == ("Unknown", "False")
    assert list(lifecycle.look(set(), LATE_AT + 1)) == []
    assert [taint["key"] for taint in api.get(NODES, "a")["spec"]["taints"]] == ["own"]
    assert list(lifecycle.look({"a"}, LATE_AT + 2)) == [], "its silence begins anew"


def evicted_after(*tolerations: dict[str, Any]) -> float | None:
    """How long after its node was marked a pod is deleted; None: not within an hour."""
    api = world(*tolerations)
    lifecycle = NodeLifecycle(api)
    list(lifecycle.look({"a"}, SILENT_AT))
    for seconds in range(3600):
        if any("evicted" in line for line in lifecycle.look({"a"}, LATE_AT + seconds)):
            assert "deletionTimestamp" in api.get(PODS, "p", "default")["metadata"]
            assert list(lifecycle.look({"a"}, LATE_AT + seconds + 1)) == [], "once"
            return seconds
    return None


def test_pods_are_evicted_when_they_tolerate_it_no_longer() -> None:
    assert evicted_after() == TOLERATION_SECONDS
    assert evicted_after({"key": KEY, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 30}) == 30
    assert evicted_after({"operator": "Exists"}) is None
    assert evicted_after({"key": KEY, "effect": "NoSchedule"}, {"key": "other"}) == TOLERATION_SECONDS
