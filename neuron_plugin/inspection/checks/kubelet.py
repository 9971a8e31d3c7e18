"""Do kubelet and plugin work together, with no other device plugin or driver between them?

The plugin knows the hardware and the kubelet counts for the scheduler; nothing else compares the two. What a pod holds
under one resource name is rightly not allocatable under the others.
"""

from __future__ import annotations

from collections.abc import Iterator

from neuron_plugin.allocation import Ledger, Resource, ids_of, mask_of, mask_union
from neuron_plugin.inspection.facts import DRA_DRIVER, NO_DEVICE, VENDOR_SOCKETS, Cluster, Facts
from neuron_plugin.inspection.findings import Finding, Findings, note, ok, problem, unchecked, warning
from neuron_plugin.inspection.text import Unknown, plural, ranges
from neuron_plugin.topology import Geometry

_SEE_LOG = "run this again in 10 s; if it stays, see the plugin's log"
_SEE_KUBELET = "see 'systemctl status kubelet' and its log; compare the plugin's hostPath mount with this directory"


def check_kubelet(facts: Facts) -> Findings:
    """The kubelet's directory, its registration socket, PodResources and its checkpoint."""
    kubelet = facts.kubelet
    if kubelet.unreadable:
        yield unchecked(kubelet.unreadable)
        return ""
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
    yield ok(f"the kubelet answers on {kubelet.own_socket.path}")
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
    return ""


def check_plugin(facts: Facts) -> Findings:
    """One served socket for each resource, which answers GetDevicePluginOptions."""
    if facts.kubelet.unreadable:
        yield unchecked(facts.kubelet.unreadable)
    elif facts.kubelet.missing:
        yield unchecked(Unknown("there is no kubelet", "fix what the check 'kubelet' reports first"))
    elif not facts.we_serve:
        if any(socket.served and socket.name in VENDOR_SOCKETS for socket in facts.kubelet.plugins):
            yield note(
                "neuron-plugin does not run here, the vendor's device plugin does",
                "",
                "nothing, if that is intended; else see the check 'vendor-plugin'",
            )
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
        served = [socket for socket in facts.sockets_of(resource) if socket.served]
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
    return ""


def check_registration(facts: Facts) -> Findings:
    """Each resource's allocatable ids against the machine, and the node's counts against the kubelet's."""
    allocatable, geometry = facts.kubelet.allocatable, facts.machine.geometry
    if isinstance(allocatable, Unknown):
        yield unchecked(allocatable)
        return ""
    if geometry is None:
        yield unchecked(NO_DEVICE)
    elif not facts.we_serve and not any(allocatable.get(resource.value) for resource in Resource):
        yield problem(
            "the kubelet offers no Neuron resource",
            "no pod that asks for Neuron can run on this node",
            "get a device plugin running here: see the check 'plugin'",
        )
    else:
        for resource in Resource:
            yield from _resource(facts, geometry, resource, allocatable.get(resource.value, ()))
    # A node without any status, not even cpu, has no kubelet that writes one.
    if isinstance(facts.cluster, Cluster) and facts.cluster.allocatable:
        odd = []
        for resource in Resource:
            node, count = facts.cluster.allocatable.get(resource.value, "0"), len(allocatable.get(resource.value, ()))
            if node != str(count):
                odd.append(f"{resource} {node} (kubelet: {count})")
        if odd:
            yield warning(
                f"node {facts.cluster.node_name} shows {', '.join(odd)}",
                "the scheduler counts by the node; the kubelet writes it there every 10 s",
                "run this again in 10 s; if it stays, see the kubelet's log",
            )
    return ""


def _resource(facts: Facts, geometry: Geometry, resource: Resource, ids: tuple[str, ...]) -> Iterator[Finding]:
    numbers = {text: int(text) for text in ids if text.isascii() and text.isdecimal()}
    offered = {number for number in numbers.values() if mask_of(geometry, resource.unit, (number,))}
    if foreign := sorted(text for text in ids if numbers.get(text) not in offered):
        yield problem(
            f"the kubelet offers {resource} {', '.join(foreign[:5])}, which this machine does not have",
            "another plugin serves this resource, or the number of logical cores (LNC) has changed",
            "leave one plugin on the node; after a change of LNC drain the node and restart the plugin",
        )
    usable, expected = set(ids_of(geometry, resource.unit, facts.machine.usable_mask)), set[int]()
    if isinstance(ledger := facts.ledger, Ledger):
        elsewhere = mask_union(each for each in ledger.allocations if each.resource is not resource)
        expected = {each for each in usable if not mask_of(geometry, resource.unit, (each,)) & elsewhere}
    configured = facts.daemon.resources
    if not ids and not facts.is_served(resource):
        if configured is None:
            yield note(f"{resource} is not offered", "no plugin serves it", "fine if the setting 'resources' omits it")
        elif resource in configured:
            yield problem(
                f"{resource} is not offered, though the daemon's setting 'resources' has it",
                "no plugin serves it: pods that ask for it stay Pending",
                "see the plugin's log; were its settings changed since it was started?",
            )
        return
    if not ids and expected:
        yield problem(
            f"the plugin serves {resource}, and the kubelet has none of it",
            "the registration was lost, or every device of it is reported unhealthy",
            "see the plugin's log for 'registration'; delete its pod if that says nothing",
        )
        return
    unusable, withheld = offered - usable, expected - offered
    if unusable:
        yield warning(
            f"the kubelet still offers {resource} {ranges(unusable)} of devices that are missing or unhealthy",
            "pods that get them fail; the plugin needs up to one rescan (10 s) to notice",
            _SEE_LOG,
        )
    if withheld:
        yield warning(
            f"{resource} {ranges(withheld)} could be offered and is not",
            "the plugin advertises it as unhealthy: after an error, while an init container has it under another name, "
            "or while a process of an ended pod does",
            "see the plugin's log and the node's annotation neuron-plugin.io/inventory for the reason",
        )
    if not unusable and not withheld:
        yield ok(f"{resource}: {plural(len(offered), resource.unit.value)} allocatable")


def check_configuration(facts: Facts) -> Findings:
    """The daemon's file and environment, and its record of old errors."""
    daemon, memory = facts.daemon, facts.machine.memory
    if isinstance(daemon.fault, Unknown):
        yield unchecked(daemon.fault)
    elif daemon.fault:
        yield problem(
            daemon.fault,
            "the daemon does not start with it; the other checks assume its defaults",
            "correct it: 'neuron-plugin run --print-config' with the same file and environment says when it is right",
        )
    elif daemon.file is None:
        action = "give --config, or run this in the plugin's pod"
        yield unchecked(Unknown("no configuration of the daemon is known: its defaults are assumed", action))
    else:
        yield ok(f"{daemon.file} can be used")
        if isinstance(memory, Unknown):
            yield note(
                f"which errors are old is not known: {memory.why}",
                "errors that the daemon has accepted, or that are older than it, are reported like new ones",
                memory.action,
            )
    return ""


def check_sources(facts: Facts) -> Findings:
    """The daemon's sources work: uevents, sysfs, the kernel log, its record of old errors."""
    silent = facts.daemon.silent
    if isinstance(silent, Unknown):
        yield unchecked(silent)
        return ""
    why = "the daemon goes on without it: what only this source shows is not noticed, or noticed later"
    action = "do what it says, or leave it where the source is not wanted; the others go on"
    yield from (warning(line, why, action) for line in silent)
    return "the daemon hears every source"


def check_vendor_plugin(facts: Facts) -> Findings:
    """The sockets of the vendor's device plugin beside kubelet.sock."""
    sockets = [socket.name for socket in facts.kubelet.plugins if socket.served and socket.name in VENDOR_SOCKETS]
    yield _beside_ours(
        facts,
        "the vendor's device plugin",
        sockets,
        "both register the same resources: they hand out the same devices, and if one ends the kubelet drops both",
        "'kubectl -n kube-system delete daemonset neuron-device-plugin-daemonset' (from Helm: neuron-device-plugin)",
    )
    return ""


def check_dra_driver(facts: Facts) -> Findings:
    """The sockets of the vendor's DRA driver in the kubelet's plugin directories."""
    sockets = [str(each.path) for each in facts.kubelet.plugins if each.served and DRA_DRIVER in str(each.path)]
    if not sockets and not facts.kubelet.drivers_seen and not facts.kubelet.unreadable:
        registry = facts.kubelet.directory.parent / "plugins_registry"
        why = f"{registry}, where DRA drivers register, cannot be seen from here: it belongs to root"
        yield unchecked(Unknown(why, "run this as root on the node, or mount that directory in the plugin's pod"))
        return ""
    yield _beside_ours(
        facts,
        f"the DRA driver {DRA_DRIVER}",
        sockets,
        "each hands out all devices without knowing of the other: one device ends up with two pods",
        "keep it away by a nodeSelector, or uninstall it",
    )
    return ""


def _beside_ours(facts: Facts, what: str, sockets: list[str], why: str, removal: str) -> Finding:
    if facts.kubelet.unreadable:
        return unchecked(facts.kubelet.unreadable)
    if not sockets:
        return ok(f"{what} does not run here")
    if facts.we_serve:
        remedy = f"run one of the two on a node: {removal}; or remove neuron-plugin"
        return problem(f"{what} runs beside neuron-plugin ({', '.join(sockets)})", why, remedy)
    return note(f"{what} serves this node ({', '.join(sockets)})", "", "remove it before neuron-plugin is installed")
