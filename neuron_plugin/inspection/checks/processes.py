"""What processes have devices open: is it their pod's, and do they number devices as the driver does?

From driver 2.12.14 on the first device of a container is 0 there, and the driver adds the host's number itself; before,
both sides spoke host numbers. The wrong way marks another pod's cores. What running containers really see is looked up
in /proc where that is allowed.
"""

from __future__ import annotations

from collections.abc import Iterator

from neuron_plugin.allocation import Holder, IdListError, parse_ids
from neuron_plugin.hardware import DriverVersion
from neuron_plugin.inspection.facts import Cluster, DeviceUser, DeviceUsers, Facts
from neuron_plugin.inspection.findings import Finding, note, or_ok, problem, unchecked, warning
from neuron_plugin.inspection.text import named, plural
from neuron_plugin.inspection.unknown import Unknown
from neuron_plugin.plugin.container import FIRST_OFFSET_DRIVER


def check_processes(facts: Facts) -> Iterator[Finding]:
    """Every process with a device open: of a pod that lives and holds it?"""
    users = facts.users
    if isinstance(users, Unknown):
        yield unchecked(users)
        return
    if users.unseen:
        yield unchecked(users.unseen)
    findings = (finding for user in users.users for finding in _judged(facts, user))
    if users.users or not users.unseen:
        yield from or_ok(findings, _quiet(len(users.users)))


def _quiet(count: int) -> str:
    if not count:
        return "no process has a device open"
    return (
        f"{plural(count, 'process has', 'processes have')} devices open, {'of a pod' if count == 1 else 'all of pods'}"
    )


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


_FIRST = ".".join(map(str, FIRST_OFFSET_DRIVER))


def check_numbering(facts: Facts) -> Iterator[Finding]:
    """What the driver asks for, against the device nodes and cores of the containers that use devices."""
    version = facts.machine.inventory.driver_version
    if version is None:
        yield unchecked(Unknown("the driver's version is not known", "mend what the check 'driver' reports first"))
        return
    renumbers = version.at_least(*FIRST_OFFSET_DRIVER)
    seen = [user for user in _users(facts) if user.inside and user.pod_uid]
    findings = [finding for user in seen for finding in _numbered(facts, user, version, renumbers=renumbers)]
    way = "from /dev/neuron0 on" if renumbers else "by their host numbers"
    looked = f"; {plural(len(seen), 'container')} looked into" if seen else ""
    yield from or_ok(findings, f"driver {version.text} wants containers to count devices {way}{looked}")


def _users(facts: Facts) -> tuple[DeviceUser, ...]:
    return facts.users.users if isinstance(facts.users, DeviceUsers) else ()


def _numbered(facts: Facts, user: DeviceUser, version: DriverVersion, *, renumbers: bool) -> Iterator[Finding]:
    inside = dict(user.inside or {})
    hosts = [inside[number] for number in sorted(inside)]
    right = dict(enumerate(sorted(hosts))) if renumbers else {host: host for host in hosts}
    what = ", ".join(f"/dev/neuron{number} = host device {host}" for number, host in sorted(inside.items()))
    if len(hosts) == len(facts.host.numbers) and inside == {host: host for host in hosts}:
        pass  # the whole machine looks the same either way, in a privileged container, too
    elif inside != right:
        yield problem(
            f"process {user.pid} ({user.command}) sees {what}",
            f"driver {version.text} counts {'from the first device of a container' if renumbers else 'host devices'} "
            f"({_FIRST} was the first that does): its runtime finds no device, or marks another pod's cores",
            "set the plugin's --numbering to auto and delete the pod; if the image or pod mounts /dev itself, end that",
        )
    elif renumbers and hosts != list(range(hosts[0], hosts[0] + len(hosts))):
        yield warning(
            f"process {user.pid} ({user.command}) has host devices {', '.join(map(str, hosts))}, not in a row",
            "the driver adds the number of the first one only: cores of other devices would be marked",
            "let neuron-plugin choose, or ask for a count that has a linked set; then delete the pod",
        )
    yield from _cores(facts, user, inside)


def _cores(facts: Facts, user: DeviceUser, inside: dict[int, int]) -> Iterator[Finding]:
    geometry = facts.machine.geometry
    if not user.visible_cores or geometry is None:
        return
    try:
        cores = parse_ids(user.visible_cores)
    except IdListError as error:
        yield note(
            f"process {user.pid} ({user.command}) has NEURON_RT_VISIBLE_CORES={user.visible_cores!r}", str(error)
        )
        return
    if lost := [core for core in cores if core // geometry.cores_per_device not in inside]:
        yield problem(
            f"process {user.pid} ({user.command}) has NEURON_RT_VISIBLE_CORES={user.visible_cores}, and no device for "
            f"core {lost[0]}",
            "a pod's own value wins over the plugin's; copied from another container it names cores that are not there",
            "take NEURON_RT_VISIBLE_CORES out of the pod's spec",
        )
