"""A node of the cluster, as its plugin has published it, in the reports that are made of a machine.

The plugin's annotation has what the node has and how healthy it is; the holders follow from the pods' annotations. What
only the machine shows, such as serial numbers and processes, is left out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import msgspec

from neuron_plugin.allocation import Ledger, NodeInfo, NodeInventory, Rejection
from neuron_plugin.allocation.inventory import DISABLED_REASON
from neuron_plugin.allocation.keys import PREFLIGHT_KEY
from neuron_plugin.inspection.findings import Finding, Unknown, note, ok, problem, unchecked
from neuron_plugin.inspection.machine import DeviceUse
from neuron_plugin.inspection.reports import DeviceReport, Health, MachineReport, ShownNode, holders_on
from neuron_plugin.topology import cores_in, links_of
from neuron_plugin.wording import named


def published_links(node: NodeInventory) -> dict[int, frozenset[int]]:
    """The instance type's links between the devices that are present."""
    present, nominal = frozenset(node.present), links_of(node.geometry.topology, node.geometry.device_count)
    return {device: nominal[device] & present for device in node.present}


def published_node(node: NodeInventory, ledger: Ledger) -> ShownNode:
    """The node as its topology is shown."""
    free_mask = node.healthy_mask & ~ledger.used_mask
    return ShownNode(node, published_links(node), ledger, node.healthy_mask, free_mask)


def published_report(
    inventory: NodeInventory, ledger: Ledger, use: Mapping[int, DeviceUse] | None = None
) -> MachineReport:
    """The report of ``devices``. ``use`` has the devices whose use is known."""
    geometry, links = inventory.geometry, published_links(inventory)
    devices = []
    for device in range(geometry.device_count):
        mask, why = geometry.device_mask(device), inventory.unhealthy.get(device, "")
        health = Health.UNHEALTHY if why else Health.HEALTHY
        if device not in inventory.present:
            health, why = Health.MISSING, why or "the plugin does not find it"
        measured = (use or {}).get(device, DeviceUse())
        devices.append(
            DeviceReport(
                id=device,
                node=f"/dev/neuron{device}",
                health=health,
                reasons=(*([why] if why else []), *([DISABLED_REASON] if device in inventory.disabled else [])),
                cores=cores_in(mask) if health is not Health.MISSING else (),
                physical_cores=inventory.physical_cores_per_device,
                product=inventory.device_name,
                connected=tuple(sorted(links.get(device, ()))),
                holders=holders_on(ledger, mask),
                disabled=device in inventory.disabled,
                busy_percent=measured.busy_percent,
                used_memory_bytes=measured.memory_bytes,
            )
        )
    return MachineReport(
        instance_type=geometry.instance_type,
        topology=geometry.topology.value,
        device_count=geometry.device_count,
        cores_per_device=geometry.cores_per_device,
        logical_core_size=inventory.logical_core_size,
        driver_version=inventory.driver_version or None,
        links_from="instance-type",
        devices=tuple(devices),
        holders_known=True,
    )


def examine_published(info: NodeInfo, renewed: str, pod_problems: Mapping[str, str]) -> list[Finding]:
    """Findings about a node by its plugin, its Lease and its pods; each check has a finding.

    ``renewed`` is when the plugin last renewed its Lease, empty without a Lease. ``pod_problems`` are by pod.
    """
    unknown = unchecked(Unknown("what the node has is not known", "see what inventory says"))
    unseen = [unknown] if info.inventory is None else []
    checks: tuple[tuple[str, list[Finding], str], ...] = (
        ("inventory", [*_inventory(info)], "the plugin has published what the node has"),
        ("plugin", [*_plugin(info, renewed)], f"the plugin renewed its Lease at {renewed}"),
        ("health", unseen or [*_health(info)], "every device is there and healthy"),
        ("registration", unseen or [*_registration(info)], "the kubelet offers the devices"),
        ("holders", [*_holders(info, pod_problems)] or unseen, "what every pod has is known, and works"),
        ("node", [*_node(info)], "new pods are placed here"),
    )
    return [
        msgspec.structs.replace(finding, check=name) for name, found, fine in checks for finding in found or [ok(fine)]
    ]


def _inventory(info: NodeInfo) -> Iterator[Finding]:
    if isinstance(info.node.inventory, Rejection):
        why = "without an inventory no pod is placed here"
        yield problem(str(info.node.inventory), why, "see that the plugin runs here, and its log")


def _plugin(info: NodeInfo, renewed: str) -> Iterator[Finding]:
    if info.stale:
        seen = f"the plugin's Lease has run out, last renewed at {renewed or 'no time'}"
        why = "nobody knows the health of the devices; no new pod is placed here, pods keep what they have"
        yield problem(seen, why, "see why its pod does not run: kubectl -n kube-system get pods -o wide")
    elif not renewed:
        yield unchecked(Unknown("the plugin has no Lease, or it may not be read", "give the right to list Leases"))


def _health(info: NodeInfo) -> Iterator[Finding]:
    inventory = info.inventory
    if inventory is None:
        return
    holders = {
        device: sorted({str(held.pod) for held in info.ledger.overlapping(inventory.geometry.device_mask(device))})
        for device in range(inventory.geometry.device_count)
    }
    for device in range(inventory.geometry.device_count):
        why = inventory.unhealthy.get(device, "").removeprefix("missing: ")
        who = f"; {', '.join(holders[device])} has it" if holders[device] else ""
        if device in inventory.held_down:
            yield note(f"device {device} is held down: {why}", "a pod that has ended still has it open")
        elif device not in inventory.present or why:
            state = "is unhealthy" if device in inventory.present else "is missing"
            action = "run neuron-plugin doctor in the plugin's pod on this node"
            yield problem(f"device {device} {state}{f': {why}' if why else ''}{who}", "no new pod gets it", action)
    if inventory.disabled:
        action = f"neuron-plugin uncordon {info.name} puts them back"
        yield note(f"{named('device', inventory.disabled)} disabled", "an operator has done so", action)


def _registration(info: NodeInfo) -> Iterator[Finding]:
    inventory, offered = info.inventory, dict(info.node.rules.neuron)
    if inventory and not inventory.claim_driver and inventory.healthy_mask and not any(offered.values()):
        why = "pods that ask for Neuron are not scheduled here"
        yield problem("the kubelet offers no Neuron device", why, "run neuron-plugin doctor in the plugin's pod here")


def _holders(info: NodeInfo, pod_problems: Mapping[str, str]) -> Iterator[Finding]:
    for pod, reason in info.unclear:
        why = "what is free is not known for certain, so no new pod is placed here"
        yield problem(
            f"what {pod} has is not known: {reason}", why, "wait for the plugin to write it, or delete the pod"
        )
    for name, text in pod_problems.items():
        yield problem(f"{name}: {text}", "the pod may fail, or wait for ever", f"neuron-plugin describe pod {name}")


def _node(info: NodeInfo) -> Iterator[Finding]:
    if info.unchecked and info.unchecked.detail:
        action = f"repair the node; to check it again at once: kubectl annotate node {info.name} {PREFLIGHT_KEY}-"
        yield problem(f"no new pod is placed here: {info.unchecked.text}", info.unchecked.detail, action)
    elif info.closed:
        yield note(f"no new pod is placed here: {info.closed.text}", info.closed.detail)
