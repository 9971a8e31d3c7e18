"""Do processes use devices that no pod of theirs holds?"""

from __future__ import annotations

from collections.abc import Iterator

from neuron_plugin.allocation.ledger import Holder
from neuron_plugin.cli.doctor_facts import Cluster, DeviceUser, Facts, Unknown
from neuron_plugin.cli.doctor_findings import Finding, or_ok, unchecked, warning
from neuron_plugin.cli.text import named


def check_processes(facts: Facts) -> Iterator[Finding]:
    """Every process with a device open: of a pod that lives and holds it?"""
    users = facts.users
    if isinstance(users, Unknown):
        yield unchecked(users)
        return
    if not users.complete:
        yield unchecked(
            Unknown(
                "processes of other users or containers cannot be seen from here",
                "run this as root on the node itself; in the plugin's pod it takes devicePlugin.watchProcesses of the "
                "chart (the host's /proc and CAP_SYS_PTRACE)",
            )
        )
    findings = (finding for user in users.users for finding in _judged(facts, user))
    if users.users or users.complete:
        yield from or_ok(findings, _quiet(len(users.users)))


def _quiet(count: int) -> str:
    if not count:
        return "no process has a device open"
    return "1 process has devices open, of a pod" if count == 1 else f"{count} processes have devices open, all of pods"


def _judged(facts: Facts, user: DeviceUser) -> Iterator[Finding]:
    name = f"process {user.pid} ({user.command or 'its name is not known'})"
    devices = named("device", user.devices)
    if not user.pod_uid:
        yield warning(
            f"{name} has {devices} open and belongs to no pod",
            "Kubernetes does not know of it: a pod that gets the device finds its cores busy",
            f"end it if it is not a monitor: kill {user.pid}",
        )
        return
    if isinstance(facts.cluster, Cluster) and user.pod_uid not in _live_uids(facts.cluster):
        yield warning(
            f"{name} has {devices} open and is of pod {user.pod_uid}, which has ended",
            "the pod was deleted by force and its container lives on: the next pod finds the cores busy",
            f"wait for its end, or: kill {user.pid}",
        )
        return
    if idle := [device for device in user.devices if _holders(facts, device) == ()]:
        yield warning(
            f"{name} has {named('device', idle)} open, which the kubelet gave to no pod",
            "its pod got it around the kubelet (privileged, or /dev mounted), is an init container, or has ended",
            "see 'crictl ps' for its pod; it should ask for aws.amazon.com/neurondevice or neuroncore",
        )


def _live_uids(cluster: Cluster) -> frozenset[str]:
    return frozenset(uid for pod in cluster.pods for uid in (pod.pod.uid, *pod.uids))


def _holders(facts: Facts, device: int) -> tuple[Holder, ...] | None:
    """Who holds a part of the device; None where that is not known."""
    ledger, geometry = facts.ledger, facts.machine.geometry
    if isinstance(ledger, Unknown) or geometry is None or device >= geometry.device_count:
        return None
    return ledger.holders_of(geometry.device_mask(device))
