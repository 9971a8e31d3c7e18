"""The pods of pre-flight checks: how they are made, and how they end."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from neuron_plugin.allocation import (
    Assignment,
    ContainerKind,
    ContainerRequest,
    Dialect,
    NeuronNode,
    NeuronPod,
    NodeInventory,
    Rejection,
    Resource,
)
from neuron_plugin.allocation.assignment import write_assignment
from neuron_plugin.allocation.claims import ClaimResult, devices_of, pool_of
from neuron_plugin.allocation.group import GroupName
from neuron_plugin.allocation.keys import PREFIX, PREFLIGHT_GROUP_KEY, PREFLIGHT_KEY
from neuron_plugin.allocation.placement import ContainerAssignment
from neuron_plugin.cluster import Pod, Scope
from neuron_plugin.cluster.pod_wire import NOT_ITS_OWN_ERROR, ContainerState, unix_seconds
from neuron_plugin.placement.check_steps import CheckEnd, CheckPod, running_text, timed_out
from neuron_plugin.placement.claims import Results
from neuron_plugin.placement.reserves import ReserveRecord
from neuron_plugin.placement.settings import PreflightSettings
from neuron_plugin.planning.scene import GroupStanding
from neuron_plugin.topology import CoreMask, Geometry, Unit

BOOT_KEY = f"{PREFIX}boot-id"
"""Annotation of a check's pod: the boot of the machine that it checks."""
CLAIM = "devices"
"""The claim of a check's pod, and the request of its template, where the node gives devices by claims."""
_COULD_NOT_RUN = (126, 127)
"""Exit codes of a shell that finds no such command: they say nothing about the node."""
_GRACE_SECONDS = 5
"""An ended check has nothing to save, and others wait for its devices."""
_LONGEST_NAME, _DIGEST = 200, 8


# The result of a check.


def check_pod(pod: Pod, timeout: float) -> CheckPod:
    """The pod of a check, and its result; ``timeout`` seconds are its deadline."""
    status, state = pod.status, _deciding_state(pod)
    ended, waiting = state.terminated, state.waiting
    is_own = ended and ended.reason not in NOT_ITS_OWN_ERROR and ended.exit_code not in _COULD_NOT_RUN
    ran = state.running is not None or bool(ended and ended.started_at and is_own)
    said, end = (ended.message if ended else "") or "", CheckEnd.RUNS
    if status.phase == "Succeeded":
        end = CheckEnd.PASSED
    elif status.phase == "Failed" and status.reason == "DeadlineExceeded" and ran:
        end, said = CheckEnd.FAILED, f"{said}\n{timed_out(timeout)}"
    elif status.phase == "Failed":
        own = ran and not status.reason
        end = CheckEnd.FAILED if own else CheckEnd.NOT_RUN
        if own and ended and not said.strip():
            said = f"it ended with exit code {ended.exit_code} and has said nothing"
    if end in {CheckEnd.NOT_RUN, CheckEnd.RUNS} and not ran:
        why = (ended.reason if ended else "", waiting.reason if waiting else "", status.reason)
        texts = (status.message, said, waiting.message if waiting else "")
        said = ": ".join(filter(None, (next(filter(None, why), ""), next(filter(None, texts), ""))))
    return CheckPod(
        pod.name,
        pod.uid,
        pod.node_name,
        pod.annotations.get(BOOT_KEY, ""),
        unix_seconds(pod.metadata.creation_timestamp or ""),
        end,
        ran=ran,
        said=said,
        terminating=pod.terminating,
    )


def _deciding_state(pod: Pod) -> ContainerState:
    """The state of the container that ended badly, else of the first."""
    states = [status.state or ContainerState() for status in pod.status.container_statuses or ()] or [ContainerState()]
    bad = (state for state in states if state.terminated and state.terminated.exit_code)
    return next(bad, states[0])


# Making the pod of a check.


def check_scope(namespace: str, of: str) -> Scope:
    """The pods of checks of a ``node`` or a ``group``."""
    return Scope(namespace, label_selector=f"{PREFLIGHT_KEY}={of}")


class CheckAsk(NamedTuple):
    """The request of a check's pod, as a count of a resource, and its variables."""

    resource: Resource
    amount: int
    variables: Mapping[str, object]


def check_manifest(settings: PreflightSettings, node: NeuronNode, namespace: str) -> dict[str, Any]:
    """The pod that checks a node: the one of the settings, with all devices of the node, on the node."""
    inventory = node.inventory
    if isinstance(inventory, Rejection):
        raise TypeError(f"node {node.name} has no inventory")
    geometry = inventory.geometry
    ask = CheckAsk(*_all_of(node, inventory), check_variables(geometry, geometry.all_mask))
    digest = hashlib.sha256(node.name.encode()).hexdigest()[:_DIGEST]
    short = node.name if len(node.name) <= _LONGEST_NAME else f"{node.name[:_LONGEST_NAME]}-{digest}"
    metadata = {"name": short, "labels": {PREFLIGHT_KEY: "node"}, "annotations": {BOOT_KEY: node.boot_id}}
    return pod_on_node(settings, node, namespace, metadata, ask)


def check_variables(geometry: Geometry, mask: CoreMask) -> dict[str, object]:
    """The variables of each check: how many devices and cores it has."""
    devices = geometry.devices_touched(mask)
    return {"NEURON_PREFLIGHT_DEVICES": len(devices), "NEURON_PREFLIGHT_CORES": mask.bit_count()}


def pod_on_node(
    settings: PreflightSettings, node: NeuronNode, namespace: str, metadata: Mapping[str, Any], ask: CheckAsk
) -> dict[str, Any]:
    """The settings' pod on a node; its name begins with a common prefix.

    Its owner is the node, so that it goes with the node, and a drain does not stop at it. Its first container gets the
    devices, and the variables.
    """
    spec = msgspec.json.decode(msgspec.json.encode(settings.pod))
    first = spec["containers"][0]
    resources = first.setdefault("resources", {})
    if node.rules.claim_driver:
        spec["resourceClaims"] = [{"name": CLAIM, "resourceClaimTemplateName": settings.claim_template}]
        resources["claims"] = [{"name": CLAIM}]
    else:
        resources.setdefault("limits", {})[ask.resource.value] = str(ask.amount)
    variables = ({"name": name, "value": str(value)} for name, value in ask.variables.items())
    first["env"] = [*first.get("env", ()), *variables]
    for container in spec["containers"]:
        container["terminationMessagePolicy"] = "FallbackToLogsOnError"  # so no right to read logs is needed
    owner = {"apiVersion": "v1", "kind": "Node", "name": node.name, "uid": node.uid, "controller": True}
    evictable = {"cluster-autoscaler.kubernetes.io/safe-to-evict": "true"}
    return {
        "metadata": {
            **metadata,
            "name": f"neuron-preflight-{metadata['name']}",
            "namespace": namespace,
            "annotations": {**metadata["annotations"], **evictable},
            "ownerReferences": [owner],
        },
        "spec": {"terminationGracePeriodSeconds": _GRACE_SECONDS}
        | spec
        | {
            "nodeName": node.name,
            "restartPolicy": "Never",
            "activeDeadlineSeconds": round(settings.timeout),
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            "tolerations": [{"operator": "Exists"}],
        },
    }


def _all_of(node: NeuronNode, inventory: NodeInventory) -> tuple[Resource, int]:
    """All of a node, by a name under which its kubelet offers it."""
    offered: Mapping[str, int] = dict(node.rules.neuron)
    known = [resource for resource in Resource if offered.get(resource.value)]
    resource = next((one for one in known if one.unit is Unit.DEVICE), known[0] if known else Resource.NEURON)
    geometry = inventory.geometry
    return resource, geometry.device_count if resource.unit is Unit.DEVICE else geometry.core_count


def check_results(pod: NeuronPod, inventory: NodeInventory, mask: CoreMask) -> Results:
    """These cores as the claim of a check's pod has them: whole devices as such, where all are."""
    geometry = inventory.geometry
    is_whole = geometry.devices_mask(geometry.whole_devices(mask)) == mask
    unit = Unit.DEVICE if is_whole else Unit.CORE
    devices = devices_of(geometry, unit, mask, inventory.logical_core_size)
    results = tuple(ClaimResult(CLAIM, pool_of(pod.node), device.name) for device in devices)
    return tuple((claim.claim, results) for claim in pod.claims if claim.name == CLAIM)


# The pods of groups' checks.


class CheckedPlace(ReserveRecord, frozen=True, rename="camel"):
    """A place of a checked group: an annotation of its check's pod. ``at`` is when the check began.

    ``rank`` is its number among the ``size`` places, ``resource`` the resource of its member's request.
    """

    rank: int = 0
    size: int = 0
    resource: str = Resource.NEURON


def read_place(pod: Pod) -> CheckedPlace | None:
    """The place that a pod checks; None if the pod does not name one."""
    try:
        return msgspec.json.decode(pod.annotations.get(PREFLIGHT_GROUP_KEY, ""), type=CheckedPlace)
    except msgspec.MsgspecError:
        return None


def group_check_manifest(
    settings: PreflightSettings,
    node: NeuronNode,
    namespace: str,
    place: CheckedPlace,
    nodes: Sequence[tuple[str, str]],
    dialects: Collection[Dialect],
) -> dict[str, Any]:
    """The pod that checks a place of a group with those at its other places; ``nodes`` are all, with their addresses.

    It is assigned exactly the devices that the member will have.
    """
    inventory = node.inventory
    if isinstance(inventory, Rejection):
        raise TypeError(f"node {node.name} has no inventory")
    pod = {**settings.pod, "hostNetwork": True} if settings.group.host_network else dict(settings.pod)
    first, *others = pod["containers"]
    pod["containers"] = [{**first, "command": settings.group.command}, *others]
    geometry, mask, resource = inventory.geometry, place.reservation.mask, Resource(place.resource)
    ids = geometry.ids_of(resource.unit, mask)
    request = ContainerRequest(first.get("name", ""), ContainerKind.APP, resource, len(ids))
    assignment = Assignment((ContainerAssignment(request, ids),), round(place.at * 1e9))
    names, addresses = (",".join(texts) for texts in zip(*nodes, strict=True))
    values = {"RANK": place.rank, "SIZE": place.size, "NODES": names, "ADDRESSES": addresses}
    variables = check_variables(geometry, mask) | {f"NEURON_PREFLIGHT_{key}": value for key, value in values.items()}
    digest = hashlib.sha256(f"{place.group} {place.at}".encode()).hexdigest()[:_DIGEST]
    metadata = {
        "name": f"group-{digest}-{place.rank}",
        "labels": {PREFLIGHT_KEY: "group"},
        "annotations": {
            PREFLIGHT_GROUP_KEY: msgspec.json.encode(place).decode(),
            **({} if node.rules.claim_driver else write_assignment(assignment, dialects)),
        },
    }
    changed = msgspec.structs.replace(settings, pod=pod)
    return pod_on_node(changed, node, namespace, metadata, CheckAsk(resource, len(ids), variables))


def group_standings(pods: Iterable[Pod]) -> dict[GroupName, GroupStanding]:
    """The state of groups by the pods of their checks alone."""
    found = defaultdict[GroupName, list[tuple[CheckedPlace, CheckPod]]](list)
    for pod in pods:
        if place := read_place(pod):
            found[place.group_name].append((place, check_pod(pod, 0.0)))
    standings = {}
    for group, checks in found.items():
        running = {place.at: place.size for place, check in checks if check.end is CheckEnd.RUNS}
        ended = sum(place.at in running and check.end is not CheckEnd.RUNS for place, check in checks)
        failed = (place.node for place, check in checks if place.at not in running and check.end is CheckEnd.FAILED)
        waits = running_text(ended, max(running.values())) if running else ""
        standings[group] = GroupStanding(waits, frozenset(failed))
    return standings
