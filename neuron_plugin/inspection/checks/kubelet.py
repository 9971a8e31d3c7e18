"""Do kubelet and plugin work together, with nothing of the vendor's between them?

The plugin knows the hardware and the kubelet counts for the scheduler; nothing else compares the two. Devices that a
pod holds under one resource name are rightly not allocatable under the others.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from neuron_plugin.allocation import Resource
from neuron_plugin.allocation.resources import ranges
from neuron_plugin.inspection.checks.claims import followed
from neuron_plugin.inspection.facts import OCI_HOOK, OUR_SOCKETS, VENDOR_DRIVER, VENDOR_SOCKETS, ClusterFacts, Facts
from neuron_plugin.inspection.findings import (
    Finding,
    Findings,
    NotCheckedError,
    Unknown,
    known,
    note,
    ok,
    problem,
    unchecked,
    warning,
)
from neuron_plugin.wording import plural

_AGAIN = "run this again in 10 s; if it stays, see the {} log"
_SEE_KUBELET = "see 'systemctl status kubelet' and its log; compare the plugin's hostPath mount with this directory"
_DEFAULT_RUNTIME = re.compile(r"""(?:default_runtime(?:_name)?|"default-runtime")\s*[=:]\s*["']neuron["']""")


def check_kubelet(facts: Facts) -> Findings:
    """The kubelet's directory, its registration socket, PodResources and its checkpoint."""
    kubelet = facts.kubelet
    if kubelet.unreadable:
        raise NotCheckedError(kubelet.unreadable)
    if kubelet.missing:
        yield problem(
            f"there is no directory {kubelet.directory}",
            "there is no kubelet here, or its directory is not mounted where this runs: nothing can be registered",
            "on a node: start the kubelet; in a container: mount that host directory; elsewhere: give --kubelet-dir",
        )
        return ""
    if kubelet.own_socket is None:
        why = "the kubelet is not running, or another host directory is mounted here: nothing can be registered"
        yield problem(f"there is no kubelet.sock in {kubelet.directory}", why, _SEE_KUBELET)
        return ""
    if not kubelet.own_socket.served:
        why = "the kubelet has ended and left its socket, or is starting: nothing can be registered"
        yield problem(f"nothing answers on {kubelet.own_socket.path}", why, _SEE_KUBELET)
        return ""
    if isinstance(kubelet.allocatable, Unknown):
        yield warning(
            f"PodResources does not answer: {kubelet.allocatable.why}",
            "where the checkpoint cannot be read, the plugin learns only from there what pods hold",
            kubelet.allocatable.action or "mount /var/lib/kubelet/pod-resources, or give --pod-resources-socket",
        )
    if isinstance(kubelet.recorded, Unknown):
        yield warning(
            f"the kubelet's checkpoint cannot be read: {kubelet.recorded.why}",
            "who has what then comes from PodResources, which does not list plain init containers",
            kubelet.recorded.action or "see the kubelet's log",
        )
    return f"the kubelet answers on {kubelet.own_socket.path}"


def check_plugin(facts: Facts) -> Findings:
    """One served socket for each resource, which answers GetDevicePluginOptions."""
    if facts.kubelet.unreadable:
        raise NotCheckedError(facts.kubelet.unreadable)
    if facts.kubelet.missing:
        raise NotCheckedError(Unknown("there is no kubelet", "fix what the check 'kubelet' reports first"))
    if not facts.we_serve:
        if any(socket.served and socket.name in VENDOR_SOCKETS for socket in facts.kubelet.plugins):
            action = "nothing, if that is intended; else see the check 'vendor-plugin'"
            yield note("neuron-plugin does not run here, the vendor's device plugin does", "", action)
        elif facts.machine.geometry is None:
            yield note(
                "none of neuron-plugin's sockets is served",
                "it offers nothing before there is a device, so it may run or not",
                "fix what the checks 'driver' and 'devices' report first",
            )
        else:
            yield problem(
                "neuron-plugin does not run here: none of its sockets is served",
                "Kubernetes knows of no Neuron device on this node",
                "see the DaemonSet's pod on this node: is it scheduled, running, with the kubelet's directory mounted?",
            )
    for resource in Resource:
        served = facts.sockets_of(resource)
        if len(served) > 1:
            yield problem(
                f"{len(served)} plugins serve {resource}: {', '.join(socket.name for socket in served)}",
                "the kubelet follows the newer one and drops both when the older one's stream ends",
                "leave one: look for a second DaemonSet or release, or a plugin that was started by hand",
            )
        for socket in served:
            if socket.fault:
                yield problem(
                    f"the plugin for {resource} does not answer on {socket.path}: {socket.fault}",
                    "the kubelet waits for it without a deadline: no pod of this node is admitted meanwhile",
                    "see the log of the plugin's pod on this node, or delete that pod",
                )
            elif len(served) == 1:
                yield ok(f"{resource} answers on {socket.name}")
    for socket in facts.driver_sockets:
        if socket.fault:
            yield problem(
                f"the driver of claims does not answer on {socket.path}: {socket.fault}",
                "pods with claims wait, and ended ones stay Terminating",
                "see the log of the plugin's pod on this node, or delete that pod",
            )
        elif facts.daemon.driver:
            yield ok(f"the driver {facts.daemon.driver} answers on {socket.name}")
        if not facts.daemon.driver and any(map(facts.sockets_of, Resource)):
            yield problem(
                f"neuron-plugin offers devices both by count and by claims here ({socket.name})",
                "two plugins hand out the same devices without knowing of the other",
                "leave one: look for a second DaemonSet or release, or a plugin that was started by hand",
            )
    return ""


def check_registration(facts: Facts) -> Findings:
    """Each resource's allocatable ids against the machine, and the node's counts against the kubelet's."""
    if facts.daemon.driver:
        yield from followed(facts, facts.daemon.driver)
        return f"the kubelet follows the driver {facts.daemon.driver}"
    allocatable = known(facts.kubelet.allocatable)
    known(facts.geometry)
    if not facts.we_serve and not any(allocatable.get(resource.value) for resource in Resource):
        yield problem(
            "the kubelet offers no Neuron resource",
            "no pod that asks for Neuron can run on this node",
            "get a device plugin running here: see the check 'plugin'",
        )
    else:
        for resource in Resource:
            yield from _resource(facts, resource, allocatable.get(resource.value, ()))
    # A node without any status, not even cpu, has no kubelet that writes one.
    if isinstance(facts.cluster, ClusterFacts) and facts.cluster.allocatable:
        counts = {resource.value: str(len(allocatable.get(resource.value, ()))) for resource in Resource}
        shown = {name: facts.cluster.allocatable.get(name, "0") for name in counts}
        if odd := [
            f"{name} {shown[name]} (kubelet: {count})" for name, count in counts.items() if shown[name] != count
        ]:
            yield warning(
                f"node {facts.cluster.node_name} shows {', '.join(odd)}",
                "the scheduler counts by the node; the kubelet writes it there every 10 s",
                _AGAIN.format("kubelet's"),
            )
    return ""


def _resource(facts: Facts, resource: Resource, ids: tuple[str, ...]) -> Iterator[Finding]:
    geometry, unit = known(facts.geometry), resource.unit
    here = {str(number): number for number in geometry.ids_of(unit, geometry.all_mask)}
    offered = {here[text] for text in ids if text in here}
    if foreign := sorted(set(ids) - set(here)):
        yield problem(
            f"the kubelet offers {resource} {', '.join(foreign[:5])}, which this machine does not have",
            "another plugin serves this resource, or the number of logical cores (LNC) has changed",
            "leave one plugin on the node; after a change of LNC drain the node and restart the plugin",
        )
    snapshot, unusable, withheld = facts.holders.snapshot, dict[str, list[int]](), list[int]()
    if snapshot:
        # What a pod has under this name may be offered or not: it depends on whether the plugin sees an end coming.
        counted = set(geometry.ids_of(unit, snapshot.ledger.used_as(resource)))
        for device in snapshot.advertised(resource):
            number = int(device.id)
            if (
                device.healthy
                and number not in offered
                and not geometry.mask_of(unit, (number,)) & ~snapshot.offered_mask
            ):
                withheld.append(number)
            elif not device.healthy and number in offered - counted:
                unusable.setdefault(device.reason, []).append(number)
    configured, served = facts.daemon.resources, facts.sockets_of(resource)
    if not ids and not served:
        if configured is None:
            yield note(f"{resource} is not offered", "no plugin serves it", "fine if the setting 'resources' omits it")
        elif resource in configured:
            yield problem(
                f"{resource} is not offered, though the daemon's setting 'resources' has it",
                "no plugin serves it: pods that ask for it stay Pending",
                "see the plugin's log; were its settings changed since it was started?",
            )
        return
    if not ids and withheld:
        yield problem(
            f"the plugin serves {resource}, and the kubelet has none of it",
            "the registration was lost, or every device of it is reported unhealthy",
            "see the plugin's log for 'registration'; delete its pod if that says nothing",
        )
        return
    for reason, numbers in unusable.items():
        yield warning(
            f"the kubelet still offers {resource} {ranges(numbers)}: {reason}",
            "pods that get them fail; the plugin needs up to one rescan (10 s) to notice",
            _AGAIN.format("plugin's"),
        )
    if withheld:
        yield warning(
            f"{resource} {ranges(withheld)} could be offered and is not",
            "the plugin advertises it as unhealthy: after an error, or while a process of an ended pod uses it",
            "see the plugin's log and the node's annotation neuron-plugin.io/inventory for the reason",
        )
    if not unusable and not withheld:
        yield ok(f"{resource}: {plural(len(offered), unit.value)} allocatable")


def check_configuration(facts: Facts) -> Findings:
    """The daemon's file and environment, and its record of old errors."""
    daemon, memory = facts.daemon, facts.machine.memory
    if known(daemon.fault):
        yield problem(
            str(daemon.fault),
            "the daemon does not start with it; the other checks assume its defaults",
            "correct it: 'neuron-plugin run --print-config' with the same file and environment says when it is right",
        )
    elif daemon.file is None:
        action = "give --config, or run this in the plugin's pod"
        yield unchecked(Unknown("no configuration of the daemon is known: its defaults are assumed", action))
    elif isinstance(memory, Unknown):
        yield note(
            f"which errors are old is not known: {memory.why}",
            "errors that the daemon has accepted, or that are older than it, are reported like new ones",
            memory.action,
        )
    return f"{daemon.file} can be used"


def check_sources(facts: Facts) -> Findings:
    """The daemon's sources work: uevents, firmware's notices, sysfs, the kernel log, its record of old errors."""
    why = "the daemon goes on without it: what only this source shows is not noticed, or noticed later"
    action = "do what it says, or leave it where the source is not wanted; the others go on"
    yield from (warning(line, why, action) for line in known(facts.daemon.silent))
    return "the daemon hears every source"


def check_vendor(facts: Facts) -> Findings:
    """The sockets of the vendor's device plugin and of its DRA driver."""
    kubelet = facts.kubelet
    if kubelet.unreadable:
        raise NotCheckedError(kubelet.unreadable)
    sockets = [plugin.name for plugin in kubelet.plugins if plugin.served and plugin.name in VENDOR_SOCKETS]
    registered = [plugin.name for plugin in kubelet.plugins if plugin.served and VENDOR_DRIVER in plugin.name]
    drivers = [name for name in registered if not name.startswith(OUR_SOCKETS)]
    for what, signs, removal in (
        (
            "the vendor's device plugin",
            sockets,
            "'kubectl -n kube-system delete daemonset neuron-device-plugin-daemonset'",
        ),
        (f"the vendor's DRA driver {VENDOR_DRIVER}", drivers, "keep it away by a nodeSelector, or uninstall it"),
    ):
        if signs and facts.we_serve:
            yield problem(
                f"{what} runs beside neuron-plugin ({', '.join(signs)})",
                "both hand out the same devices without knowing of the other: one device ends up with two pods",
                f"run one of the two on a node: {removal}; or remove neuron-plugin",
            )
        elif signs:
            action = "remove it before neuron-plugin is installed"
            yield note(f"{what} serves this node ({', '.join(signs)})", "", action)
    if not kubelet.registry_seen:
        return "the vendor's device plugin does not run here; a socket of its DRA driver could not be seen from here"
    return "neither the vendor's device plugin nor its DRA driver runs here"


def check_oci_hook(facts: Facts) -> Findings:
    """No container runtime is set to use the vendor's OCI hook.

    The hook adds devices under host numbers to every container whose environment has AWS_NEURON_VISIBLE_DEVICES, which
    the daemon sets unless it is switched off. Device plugins have not needed the hook since 2022.
    """
    files, installed, used = facts.host.runtime_files, facts.host.hook_files, False
    sets_it = facts.daemon.visible_devices_env
    why = "where AWS_NEURON_VISIBLE_DEVICES is set it adds devices under host numbers, even if another pod holds them"
    if sets_it:
        why += "; the daemon sets it for containers that ask for devices, which then see them twice"
    until_then = "; until then run the daemon with --no-visible-devices-env" if sets_it else ""
    if isinstance(files, Unknown):
        yield unchecked(files)
    for path, text in files.items() if isinstance(files, Mapping) else ():
        if isinstance(text, Unknown):
            yield unchecked(Unknown(f"{path}: {text.why}", text.action))
            continue
        lines = "\n".join(line for line in text.splitlines() if not line.lstrip().startswith("#"))
        everywhere = _DEFAULT_RUNTIME.search(lines)
        if everywhere or OCI_HOOK in lines:
            used = True
            yield warning(
                f"{path} makes {'every container' if everywhere else 'the runtime neuron'} use the OCI hook",
                why,
                f"take the runtime 'neuron' out of {path} and restart the container runtime{until_then}",
            )
    if installed and not used:
        hidden = isinstance(files, Unknown) or any(isinstance(text, Unknown) for text in files.values())
        seen = "whether a runtime uses it cannot be seen from here" if hidden else "no runtime uses it"
        yield (warning if hidden and sets_it else note)(
            f"the OCI hook is installed ({installed[0]}); {seen}",
            why,
            f"on the node: grep -rl {OCI_HOOK} /etc/containerd /etc/docker /etc/crio /etc/containers; unused, remove "
            f"the package aws-neuronx-oci-hook when you like{until_then if hidden else ''}",
        )
    return "no OCI hook of the vendor's"
