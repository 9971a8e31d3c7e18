"""What becomes of a node whose kubelet is silent, as kube-controller-manager has it.

It is not ready after a while, its taints keep pods off, and those that do not tolerate them for longer are deleted:
they stay Terminating until their kubelet is back, or until somebody deletes them by force or the node for good.
Sources: ``pkg/controller/nodelifecycle/node_lifecycle_controller.go``, ``pkg/controller/tainteviction`` and
``plugin/pkg/admission/defaulttolerationseconds`` of 1.36.2.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator

from neuron_plugin.simulation.api_server import SimulatedApiServer
from neuron_plugin.simulation.api_server_kinds import NODES, PODS, AnyJson, Refusal
from neuron_plugin.simulation.api_server_pods import now_text

NOT_READY_SECONDS = 10.0
"""Of silence until a node is not ready: a fifth of what is usual, because someone waits for it."""
TOLERATION_SECONDS = 300.0
"""That pods tolerate it for that do not say for how long."""
_UNREACHABLE = "node.kubernetes.io/unreachable"
_SILENT = {
    "type": "Ready",
    "status": "Unknown",
    "reason": "NodeStatusUnknown",
    "message": "Kubelet stopped posting node status.",
}


class NodeLifecycle:
    """The controller of one API server."""

    def __init__(self, api: SimulatedApiServer) -> None:
        self._api = api
        self._silent: dict[str, float] = {}
        """Since when nodes are silent."""

    def look(self, silent: Collection[str], now: float) -> Iterator[str]:
        """Mark nodes that have been ``silent``, and those that are back, and evict pods; lines that say so."""
        self._silent = {name: self._silent.get(name, now) for name in silent}
        for node in self._api.objects(NODES):
            name, quiet = node["metadata"]["name"], now - self._silent.get(node["metadata"]["name"], now)
            marked = any(taint["key"] == _UNREACHABLE for taint in node["spec"].get("taints") or ())
            is_late = quiet >= NOT_READY_SECONDS
            if marked and name not in self._silent:
                self._mark(node, [])
            elif is_late and not marked:
                taint = {"key": _UNREACHABLE, "timeAdded": now_text()}
                self._mark(node, [{**taint, "effect": effect} for effect in ("NoSchedule", "NoExecute")])
                self._api.patch_status(NODES, name, {"conditions": [_SILENT]})
                yield f"node {name}: not ready: its kubelet is silent"
            if is_late:
                yield from self._evict(name, quiet - NOT_READY_SECONDS)

    def _mark(self, node: AnyJson, taints: list[AnyJson]) -> None:
        others = [taint for taint in node["spec"].get("taints") or () if taint["key"] != _UNREACHABLE]
        self._api.patch_node(node["metadata"]["name"], {"spec": {"taints": others + taints}})

    def _evict(self, node: str, seconds: float) -> Iterator[str]:
        """Say of the pods of a node that they are not ready, and delete those whose time is up."""
        for pod in self._api.objects(PODS):
            metadata, status = pod["metadata"], pod["status"]
            if pod["spec"].get("nodeName") != node or "deletionTimestamp" in metadata:
                continue
            name, namespace = metadata["name"], metadata["namespace"]
            with contextlib.suppress(Refusal):  # deleted meanwhile
                if any(
                    entry == {**entry, "type": "Ready", "status": "True"} for entry in status.get("conditions") or ()
                ):
                    not_ready = {"type": "Ready", "status": "False", "reason": "NodeNotReady"}
                    self._api.patch_status(PODS, name, {"conditions": [not_ready]}, namespace)
                if seconds >= _tolerated_seconds(pod):
                    self._api.delete_pod(namespace, name)
                    yield f"pod {namespace}/{name}: evicted, because node {node} is not ready; ends once it is back"


def _tolerated_seconds(pod: AnyJson) -> float:
    """How long a pod stays on a node that cannot be reached."""
    seconds = [
        float(toleration.get("tolerationSeconds", "inf"))
        for toleration in pod["spec"].get("tolerations") or ()
        if toleration.get("key", _UNREACHABLE) == _UNREACHABLE
        and toleration.get("effect", "NoExecute") in {"", "NoExecute"}
    ]
    return min(seconds, default=TOLERATION_SECONDS)
