"""What containers of this node really use: processes with open devices, device numbers, the vendor's OCI hook."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import PurePosixPath

from neuron_plugin.allocation import Ledger
from neuron_plugin.inspection.facts import OCI_HOOK, Cluster, DeviceUser, DeviceUsers, Facts
from neuron_plugin.inspection.findings import Finding, Findings, note, problem, unchecked, warning
from neuron_plugin.inspection.text import Unknown, named, plural

FIRST_OFFSET_DRIVER = (2, 12, 14)
"""The first driver that adds the offset of a container's first device; plugin/container.py gives the source."""
_DEFAULT_RUNTIME = re.compile(r"""(?:default_runtime(?:_name)?|"default-runtime")\s*[=:]\s*["']neuron["']""")
_HOOK_PATH = re.compile(rf"""["']([^"']*{OCI_HOOK}[^"']*)["']""")


def check_processes(facts: Facts) -> Findings:
    """Every process with a device open is of a live pod that holds the device."""
    users = facts.users
    if isinstance(users, Unknown):
        yield unchecked(users)
        return ""
    if users.hidden:
        yield unchecked(users.hidden)
    for user in users.users:
        yield from _used(facts, user)
    count = len(users.users)
    pods = "of a pod" if count == 1 else "all of pods"
    processes = plural(count, "process has", "processes have")
    return f"{processes} devices open, {pods}" if count else "no process has a device open"


def _used(facts: Facts, user: DeviceUser) -> Iterator[Finding]:
    name = f"process {user.pid} ({user.command or 'its name is not known'})"
    devices, cluster, geometry = named("device", user.devices), facts.cluster, facts.machine.geometry
    if not user.pod_uid:
        yield warning(
            f"{name} has {devices} open and belongs to no pod",
            "Kubernetes does not know of it: a pod that gets the device finds its cores busy",
            f"end it if it is not a monitor: kill {user.pid}",
        )
        return
    live = {uid for pod in cluster.pods for uid in (pod.uid, pod.kubelet_uid)} if isinstance(cluster, Cluster) else None
    if live is not None and user.pod_uid not in live:
        yield warning(
            f"{name} has {devices} open and is of pod {user.pod_uid}, which has ended",
            "the pod was deleted by force and its container lives on: the next pod finds the cores busy",
            f"wait for its end, or: kill {user.pid}",
        )
        return
    if not isinstance(ledger := facts.ledger, Ledger) or geometry is None:
        return
    known = [device for device in user.devices if device < geometry.device_count]
    if idle := [device for device in known if not ledger.overlapping(geometry.device_mask(device))]:
        yield warning(
            f"{name} has {named('device', idle)} open, which the kubelet gave to no pod",
            "its pod got it around the kubelet (privileged, or /dev mounted), is an init container, or has ended",
            "see 'crictl ps' for its pod; it should ask for aws.amazon.com/neurondevice or neuroncore",
        )


def check_numbering(facts: Facts) -> Findings:
    """Containers see devices under the numbers that the driver expects.

    From driver 2.12.14 on the first device of a container is 0 there and the driver adds the host's number itself;
    before, both sides used host numbers. The wrong way marks another pod's cores.
    """
    version = facts.machine.inventory.driver_version
    if version is None:
        yield unchecked(Unknown("the driver's version is not known", "fix what the check 'driver' reports first"))
        return ""
    renumbers = version.at_least(*FIRST_OFFSET_DRIVER)
    users = facts.users.users if isinstance(facts.users, DeviceUsers) else ()
    seen = [(user, user.inside) for user in users if user.inside and user.pod_uid]
    for user, inside in seen:
        hosts = sorted(inside.values())
        expected = dict(enumerate(hosts)) if renumbers else {host: host for host in hosts}
        whole_machine = len(hosts) == len(facts.host.numbers) and all(number == host for number, host in inside.items())
        if inside != expected and not whole_machine:  # which looks the same either way, in a privileged container, too
            what = ", ".join(f"/dev/neuron{number} = host device {host}" for number, host in sorted(inside.items()))
            counts = "from the first device of a container" if renumbers else "host devices"
            yield problem(
                f"process {user.pid} ({user.command}) sees {what}",
                f"driver {version.text} counts {counts} (that began with 2.12.14): its runtime finds no device, "
                "or marks another pod's cores",
                "set the plugin's --numbering to auto and delete the pod; an image or pod must not mount /dev itself",
            )
    way = "from /dev/neuron0 on" if renumbers else "by their host numbers"
    looked = f"; {plural(len(seen), 'container')} looked into" if seen else ""
    return f"driver {version.text} wants containers to count devices {way}{looked}"


def check_oci_hook(facts: Facts) -> Findings:
    """No container runtime is set to use the vendor's OCI hook.

    The hook adds devices under host numbers to every container whose environment has AWS_NEURON_VISIBLE_DEVICES.
    Device plugins have not needed it since 2022.
    """
    files, installed, used = facts.host.runtime_files, facts.host.hook_files, False
    if isinstance(files, Unknown):
        yield unchecked(files)
    for path, text in {} if isinstance(files, Unknown) else files.items():
        if isinstance(text, Unknown):
            yield unchecked(Unknown(f"{path}: {text.why}", text.action))
            continue
        lines = "\n".join(line for line in text.splitlines() if not line.lstrip().startswith("#"))
        everywhere = _DEFAULT_RUNTIME.search(lines)
        if not everywhere and OCI_HOOK not in lines:
            continue
        used = True
        names = {PurePosixPath(file).name for file in installed}
        remedy = f"take the runtime 'neuron' out of {path} and restart the container runtime"
        if lost := [hook for hook in _HOOK_PATH.findall(lines) if PurePosixPath(hook).name not in names]:
            seen = f"{path} names {lost[0]}, which is not there"
            yield problem(seen, "containers that use this runtime do not start", remedy)
        else:
            yield warning(
                f"{path} makes {'every container' if everywhere else 'the runtime neuron'} use the OCI hook",
                "where AWS_NEURON_VISIBLE_DEVICES is set it adds devices under host numbers, beside those that the "
                "plugin gave under container numbers, even if another pod holds them",
                f"{remedy}; until then leave --visible-devices-env off",
            )
    if installed and not used:
        hidden = isinstance(files, Unknown)
        seen = "whether a runtime uses it cannot be seen from here" if hidden else "no runtime uses it"
        yield note(
            f"the OCI hook is installed ({installed[0]}); {seen}",
            "a runtime that uses it adds devices under host numbers where AWS_NEURON_VISIBLE_DEVICES is set",
            f"on the node: grep -rl {OCI_HOOK} /etc/containerd /etc/docker /etc/crio /etc/containers; unused, remove "
            "the package aws-neuronx-oci-hook when you like",
        )
    return "no OCI hook of the vendor's"
