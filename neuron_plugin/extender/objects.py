"""NeuronNode and NeuronPod: what the extender knows, as Kubernetes objects of ``neuron-plugin.io/v1``.

Read-only views for people, dashboards and controllers. Ids are ascending and comma separated, as in the annotations.
"""

from __future__ import annotations

from neuron_plugin.allocation import Assignment, format_ids
from neuron_plugin.extender.claims import PodRecord, Unreadable
from neuron_plugin.extender.hardware import Hardware
from neuron_plugin.extender.nodes import NodeRecord
from neuron_plugin.extender.shapes import ClosedShape
from neuron_plugin.topology import cores_in

API_VERSION = "neuron-plugin.io/v1"
NODE_LABEL = "neuron-plugin.io/node"
NAMESPACE_LABEL = "neuron-plugin.io/namespace"

Json = dict[str, object]


def neuron_node(record: NodeRecord, version: int) -> Json:
    """One node: what it has, what of it is free, who holds the rest, and what keeps it closed."""
    metadata = {
        "name": record.name,
        "uid": record.facts.uid,
        "resourceVersion": str(version),
        "labels": {NODE_LABEL: record.name},
    }
    return {
        "apiVersion": API_VERSION,
        "kind": "NeuronNode",
        "metadata": metadata,
        "spec": _spec_of(record),
        "status": _status_of(record),
    }


def neuron_pod(record: PodRecord, version: int) -> Json:
    """One live pod that asks for Neuron: what it asks, where it is and what it was given."""
    return {
        "apiVersion": API_VERSION,
        "kind": "NeuronPod",
        "metadata": {
            "name": record.pod.name,
            "namespace": record.pod.namespace,
            "uid": record.uid,
            "resourceVersion": str(version),
            "labels": {NODE_LABEL: record.node, NAMESPACE_LABEL: record.pod.namespace},
        },
        "spec": {"nodeName": record.node, "priority": record.priority, "containers": _asked(record)},
        "status": {"phase": _phase(record), **_given(record)},
    }


def _spec_of(record: NodeRecord) -> Json:
    if not isinstance(record.hardware, Hardware):
        return {}
    geometry = record.hardware.geometry
    return {
        "instanceType": geometry.instance_type,
        "topology": geometry.topology.value,
        "devices": geometry.device_count,
        "coresPerDevice": geometry.cores_per_device,
    }


def _status_of(record: NodeRecord) -> Json:
    closed = record.shape.refusal.text if isinstance(record.shape, ClosedShape) else ""
    details = [claim.detail for claim in record.unclear]
    if not isinstance(record.hardware, Hardware):
        return {"open": False, "reason": closed, "details": [record.hardware.detail] if record.hardware.detail else []}
    geometry = record.hardware.geometry
    holders = [
        {
            "namespace": holder.pod.namespace,
            "name": holder.pod.name,
            "uid": holder.pod.uid,
            "cores": format_ids(cores_in(holder.mask)),
            "devices": format_ids(geometry.devices_touched(holder.mask)),
        }
        for holder in record.ledger
    ]
    return {
        "open": not closed,
        "reason": closed,
        "details": details,
        "freeDevices": format_ids(geometry.whole_devices(record.free_mask)),
        "freeCores": format_ids(cores_in(record.free_mask)),
        "usedDevices": format_ids(geometry.devices_touched(record.used_mask)),
        "usedCores": format_ids(cores_in(record.used_mask)),
        "unhealthyDevices": {str(device): why for device, why in record.hardware.unhealthy.items()},
        "missingDevices": format_ids(record.hardware.missing),
        "holders": holders,
    }


def _asked(record: PodRecord) -> list[Json]:
    if isinstance(record.request, Unreadable):
        return []
    return [
        {"name": part.container, "kind": part.kind.value, "resource": part.resource.value, "count": part.count}
        for part in record.request
    ]


def _given(record: PodRecord) -> Json:
    match record.decision:
        case Assignment() as decision:
            lists = [{"name": part.request.container, "ids": format_ids(part.ids)} for part in decision.containers]
            return {"allocated": decision.allocated, "containers": lists}
        case Unreadable(text):
            return {"problem": text}
        case None:
            return {"problem": record.request.text} if isinstance(record.request, Unreadable) else {}


def _phase(record: PodRecord) -> str:
    if record.terminating:
        return "Terminating"
    return "Bound" if record.node else "Waiting"
