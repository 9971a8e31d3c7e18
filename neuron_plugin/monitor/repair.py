"""The plan for a repair of devices: the pods that have them, their next places, and whether the devices are empty.

``neuron-plugin repair`` prints it. Nothing is decided here: where a pod would go is the search of moves and drains.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

import msgspec

from neuron_plugin.allocation import NeuronPod
from neuron_plugin.allocation.pod import mask_union
from neuron_plugin.monitor.plan import UnknownNodeError, move_report, unknown_node
from neuron_plugin.placement.state import ClusterState
from neuron_plugin.planning import drain
from neuron_plugin.topology import cores_in
from neuron_plugin.wording import named, unit_of


class DevicePod(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A pod that has one of the devices, with all its devices there. Without ``controller`` it is not made again.

    ``target`` is the node where it would go now, maybe the same one. The units are ``device`` of whole devices, else
    ``core``. ``reason`` says why it cannot move. ``evictable``: an eviction moves it. It is False if the pod ends
    anyway, is not bound yet or is static.
    """

    namespace: str
    name: str
    uid: str
    devices: tuple[int, ...]
    cores: tuple[int, ...]
    unit: str
    controller: str
    target: str = ""
    target_devices: tuple[int, ...] = ()
    target_cores: tuple[int, ...] = ()
    target_unit: str = ""
    reason: str = ""
    evictable: bool = True


class RepairReport(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The document. ``disabled``: no new pod gets the devices. ``unhealthy`` says by device why it is not handed out.

    ``held_down`` devices still have a process of an ended pod. ``warnings`` name obstacles to evictions. ``empty``: no
    pod has any of the devices. ``evicted`` are pods that end now; ``refused`` says by pod why it was not evicted.
    """

    version: int = 1
    node: str
    devices: tuple[int, ...]
    disabled: bool = False
    unhealthy: dict[int, str]
    held_down: tuple[int, ...]
    pods: tuple[DevicePod, ...]
    warnings: tuple[str, ...]
    empty: bool
    evicted: tuple[str, ...] = ()
    refused: dict[str, str] = {}


def repair_report(state: ClusterState, name: str, devices: Collection[int]) -> RepairReport:
    """Look at a state of the caller's own; in it, ``devices`` of the node are disabled from now on.

    Raises:
        UnknownNodeError: there is no such node or device, or the node's devices are unknown.
    """
    info = state.nodes.get(name)
    if info is None or (inventory := info.inventory) is None:
        raise unknown_node(state, name)
    if unknown := [device for device in sorted(devices) if device >= inventory.geometry.device_count]:
        there = f"its devices are 0 to {inventory.geometry.device_count - 1}"
        raise UnknownNodeError(f"node {name} has no {named('device', unknown)}: {there}")
    disabled = tuple(sorted({*inventory.disabled, *devices}))
    state.put_node(replace(info.node, inventory=replace(inventory, disabled=disabled)))
    cluster, geometry = state.snapshot(), inventory.geometry
    outcome = drain(cluster, name, devices)
    moved = {relocation.pod.uid: move_report(cluster, relocation) for relocation in outcome.moved}
    stuck = {pod.uid: reason for pod, reason in outcome.stuck}
    mask, pods = geometry.devices_mask(devices), []
    for uid, allocations in info.ledger.by_pod.items():
        had = mask_union(allocations)
        if not had & mask or (pod := cluster.pods.get(uid)) is None:
            continue
        move, never = moved.get(uid), _never_evicted(pod)
        pods.append(
            DevicePod(
                namespace=pod.reference.namespace,
                name=pod.reference.name,
                uid=uid,
                devices=tuple(geometry.devices_touched(had)),
                cores=tuple(cores_in(had)),
                unit=unit_of(geometry, had),
                controller=pod.controller if pod.made_again else "",
                target=move.target if move else "",
                target_devices=move.devices if move else (),
                target_cores=move.cores if move else (),
                target_unit=move.unit if move else "",
                reason=never or stuck.get(uid, "") or _not_made_again(pod),
                evictable=not never,
            )
        )
    held_down = tuple(device for device in inventory.held_down if device in devices)
    unclear = tuple(f"what pod {pod} has is not known: {rejection}" for pod, rejection in info.unclear)
    return RepairReport(
        node=name,
        devices=tuple(sorted(devices)),
        disabled=set(devices) <= set(inventory.disabled),
        unhealthy={device: why for device, why in sorted(inventory.unhealthy.items()) if device in devices},
        held_down=held_down,
        pods=tuple(sorted(pods, key=lambda pod: (pod.namespace, pod.name))),
        warnings=outcome.warnings + unclear,
        empty=not (pods or held_down or unclear),
    )


def _not_made_again(pod: NeuronPod) -> str:
    if pod.made_again:
        return ""
    return "its DaemonSet makes it here again" if pod.controller else "no controller makes it again"


def _never_evicted(pod: NeuronPod) -> str:
    """Why an eviction does not move a pod; empty where it does."""
    if pod.terminating:
        return "it is being deleted"
    if not pod.node:
        return "it is not bound yet: the placement controller gives it another set"
    if pod.static_uid:
        return "it is static: its manifest has to go from the node"
    return ""
