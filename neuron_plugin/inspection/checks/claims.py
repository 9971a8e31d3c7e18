"""Do claims get their devices here: is the driver followed, are its files right, and does its slice say what is true?

The kubelet asks the driver for what was allocated, and the container runtime finds the devices in a CDI file. Claims
are allocated from the driver's slice as the API server has kept it, which may be less than was sent.
"""

from __future__ import annotations

from collections.abc import Iterator

from neuron_plugin.allocation import Resource
from neuron_plugin.allocation.claims import PLACED_TAINT, UNHEALTHY_TAINT, ClaimDevice
from neuron_plugin.allocation.resources import ranges
from neuron_plugin.inspection.facts import Facts
from neuron_plugin.inspection.findings import Finding, Findings, Unknown, known, known_or, problem, warning
from neuron_plugin.wording import plural

_AGAIN = "run this again in 10 s; if it stays, see the plugin's log"


def followed(facts: Facts, driver: str) -> Iterator[Finding]:
    """A driver of claims is followed, and no device plugin offers the same devices by count."""
    if not known(facts.daemon.registered):
        yield problem(
            f"the kubelet does not follow the driver {driver}",
            "pods with its claims wait, and ended ones stay Terminating",
            "see the plugin's log for 'registered', and the kubelet's for the driver's name; compare the mount of "
            "plugins_registry",
        )
    allocatable = known_or(facts.kubelet.allocatable, {})
    if counted := [resource.value for resource in Resource if allocatable.get(resource.value)]:
        yield problem(
            f"the kubelet offers {', '.join(counted)}, though this node gives devices by claims",
            "another plugin hands out the same devices without knowing of claims",
            "leave one plugin on the node: look for a second DaemonSet, and for the vendor's device plugin",
        )


def check_claims(facts: Facts) -> Findings:
    """The kubelet's file of prepared claims, and the CDI file that its entries name devices of."""
    prepared, daemon = facts.kubelet.prepared, facts.daemon
    if isinstance(prepared, Unknown):
        yield problem(
            f"the kubelet's file of prepared claims cannot be read: {prepared.why}",
            "who has what by claims is then known by the API server alone; a corrupt file also stops the kubelet when "
            "it starts next",
            prepared.action or "see the kubelet's log; drain the node before the file is deleted",
        )
        return ""
    if not daemon.driver:
        for claim in prepared:
            yield warning(
                f"claim {claim.namespace}/{claim.name} has devices of this node, which offers them by count",
                "without a driver its pods cannot end, and the plugin may not see what they have",
                f"let the driver {claim.driver} serve this node until its pods are gone: drain before the mode changes",
            )
        return "no pod of this node has Neuron devices by claims"
    names = daemon.cdi
    if isinstance(names, Unknown):
        yield problem(names.why, "containers with claims fail with CreateContainerError", names.action)
        return ""
    devices = facts.machine.geometry.device_count if facts.machine.geometry else 0
    if lacking := [device for device in range(devices) if not any(name.startswith(f"{device}-") for name in names)]:
        yield problem(
            f"the CDI file lacks devices {ranges(lacking)} of this machine",
            "containers with them fail with CreateContainerError",
            "see the plugin's log; it writes the file again when it starts",
        )
    return f"{plural(len(prepared), 'claim')} prepared; the CDI file names {plural(devices, 'device')}"


def check_slice(facts: Facts) -> Findings:
    """The node's devices in the API server's ResourceSlices, with the taints that they should have."""
    driver = facts.daemon.driver
    if not driver:
        return "this node offers its devices by count, and needs no slice"
    shown, geometry = known(known(facts.cluster).slice), known(facts.geometry)
    if shown is None:
        yield problem(
            f"the API server has no ResourceSlice of {driver} for this node",
            "no allocator can give a device of it",
            "run this again in 10 s; if it stays, see the plugin's log for 'slice', and its right to write them",
        )
        return ""
    expected = {ClaimDevice(device).name: device for device in range(geometry.device_count)}
    if odd := expected.keys() ^ shown.keys():
        yield problem(
            f"the slice of {driver} and this machine differ by {', '.join(sorted(odd)[:4])}",
            "devices are allocated that are not there, or never",
            _AGAIN,
        )
    if facts.daemon.placed_claims and not all(PLACED_TAINT in taints for taints in shown.values()):
        yield problem(
            f"not all devices in the slice have the taint {PLACED_TAINT}",
            "kube-scheduler allocates them beside the placement controller: two pods can get one device",
            "before Kubernetes 1.36 device taints are a feature gate (DRADeviceTaints) of API server and scheduler: "
            "switch it on, or gates.claims of the chart off",
        )
    snapshot = facts.holders.snapshot
    usable_mask = snapshot.published_inventory.healthy_mask if snapshot else facts.machine.usable_mask
    sick = set(geometry.devices_touched(geometry.all_mask & ~usable_mask))
    untainted = [expected[name] for name, taints in shown.items() if name in expected and UNHEALTHY_TAINT not in taints]
    if unnoticed := sorted(sick & set(untainted)):
        yield warning(
            f"devices {ranges(unnoticed)} are unhealthy, missing, disabled or held down, without a taint in the slice",
            "they are still allocated to new pods; an API server before 1.36 drops device taints silently",
            _AGAIN,
        )
    return f"the slice of {driver} has {plural(len(shown), 'device')}"
