"""Is there a kubelet, and does it offer what the hardware has?

The plugin knows the hardware, the kubelet counts for the scheduler, and nobody compares the two. What a pod holds
under one resource name is rightly missing under the others.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

from neuron_plugin.allocation import HolderLedger, Resource, ids_of, mask_of
from neuron_plugin.inspection.facts import Cluster, Facts
from neuron_plugin.inspection.findings import Finding, note, ok, problem, unchecked, warning
from neuron_plugin.inspection.text import plural, ranges
from neuron_plugin.inspection.unknown import NO_DEVICE, Unknown
from neuron_plugin.topology import Geometry

Allocatable = Mapping[str, tuple[str, ...]]


def check_registration(facts: Facts) -> Iterator[Finding]:
    """Each resource's allocatable ids against the machine, and the node's count against the kubelet's."""
    allocatable, geometry = facts.kubelet.allocatable, facts.machine.geometry
    if isinstance(allocatable, Unknown):
        yield unchecked(allocatable)
        return
    offered = [resource for resource in Resource if allocatable.get(resource.value)]
    if geometry is None:
        yield unchecked(NO_DEVICE)
    elif not offered and not facts.we_serve:
        yield problem(
            "the kubelet offers no Neuron resource",
            "no pod that asks for Neuron can run on this node",
            "get a device plugin running here: see the check 'plugin'",
        )
    else:
        for resource in Resource:
            yield from _resource(facts, geometry, allocatable, resource)
    yield from _node(facts, allocatable)


def _resource(facts: Facts, geometry: Geometry, allocatable: Allocatable, resource: Resource) -> Iterator[Finding]:
    ids = allocatable.get(resource.value, ())
    known = {int(text) for text in ids if text.isascii() and text.isdecimal()}
    ours = {number for number in known if mask_of(geometry, resource.unit, (number,))}
    strange = sorted(text for text in ids if not (text.isascii() and text.isdecimal() and int(text) in ours))
    if strange:
        yield problem(
            f"the kubelet offers {resource} {', '.join(strange[:5])}, which this machine does not have",
            "another plugin serves this resource, or the number of logical cores (LNC) has changed",
            "leave one plugin on the node; after a change of LNC drain the node and restart the plugin",
        )
    expected = _expected(facts, geometry, resource)
    if not ids and not facts.is_served(resource):
        yield from _unserved(facts, resource)
    elif not ids and expected:
        yield problem(
            f"the plugin serves {resource}, and the kubelet has none of it",
            "the registration was lost, or every device of it is reported unhealthy",
            "see the plugin's log for 'registration'; delete its pod if that says nothing",
        )
    else:
        yield from _compared(facts, geometry, resource, ours, expected)


def _unserved(facts: Facts, resource: Resource) -> Iterator[Finding]:
    told = facts.daemon.resources
    if told is None:
        yield note(f"{resource} is not offered", "no plugin serves it", "fine if the setting 'resources' leaves it out")
    elif resource in told:
        yield problem(
            f"{resource} is not offered, though the daemon's setting 'resources' has it",
            "no plugin serves it: pods that ask for it stay Pending",
            "see the plugin's log; were its settings changed since it was started?",
        )


def _compared(
    facts: Facts, geometry: Geometry, resource: Resource, offered: set[int], expected: set[int]
) -> Iterator[Finding]:
    unusable = offered - _usable(facts, geometry, resource)
    withheld = expected - offered
    if unusable:
        yield warning(
            f"the kubelet still offers {_counted(resource, unusable)} of devices that are missing or unhealthy",
            "pods that get them fail; such news takes the plugin up to one rescan (10 s)",
            "run this again in 10 s; if it stays, see the plugin's log",
        )
    if withheld:
        yield warning(
            f"{_counted(resource, withheld)} could be offered and is not",
            "the plugin holds it unhealthy: it waits after an error, an init container has it under another name, or "
            "a process of an ended pod does",
            "see the plugin's log and the node's annotation neuron-plugin.io/inventory for the reason",
        )
    if not unusable and not withheld:
        yield ok(f"{resource}: {plural(len(offered), resource.unit.value)} allocatable")


def _usable(facts: Facts, geometry: Geometry, resource: Resource) -> set[int]:
    mask = geometry.devices_mask(device for device, verdict in facts.machine.verdicts.items() if verdict.healthy)
    return set(ids_of(geometry, resource.unit, mask))


def _expected(facts: Facts, geometry: Geometry, resource: Resource) -> set[int]:
    """Usable ids of which nothing is held under another name; without knowing holders, none that is sure."""
    ledger = facts.ledger
    if not isinstance(ledger, HolderLedger):
        return set()
    elsewhere = ledger.used_mask & ~ledger.held_as(resource)
    return {
        number
        for number in _usable(facts, geometry, resource)
        if not mask_of(geometry, resource.unit, (number,)) & elsewhere
    }


def _node(facts: Facts, allocatable: Allocatable) -> Iterator[Finding]:
    """The API server's count, which the scheduler goes by, follows the kubelet's within 10 s.

    A node without any status, not even cpu, has no kubelet that writes one.
    """
    if not isinstance(facts.cluster, Cluster) or not facts.cluster.allocatable:
        return
    counts = {resource: len(allocatable.get(resource.value, ())) for resource in Resource}
    told = {resource: facts.cluster.allocatable.get(resource.value, "0") for resource in Resource}
    if odd := [resource for resource in Resource if told[resource] != str(counts[resource])]:
        said = ", ".join(f"{resource} {told[resource]} (kubelet: {counts[resource]})" for resource in odd)
        yield warning(
            f"node {facts.cluster.node_name} shows {said}",
            "the scheduler counts by the node; the kubelet writes it there every 10 s",
            "run this again in 10 s; if it stays, see the kubelet's log",
        )


def _counted(resource: Resource, ids: Collection[int]) -> str:
    return f"{resource} {ranges(ids)}"


def check_kubelet(facts: Facts) -> Iterator[Finding]:
    """Its directory, its registration socket, its account of who holds what."""
    kubelet = facts.kubelet
    if kubelet.trouble:
        yield unchecked(kubelet.trouble)
        return
    if kubelet.missing:
        yield problem(
            f"there is no directory {kubelet.directory}",
            "there is no kubelet here, or its directory is not mounted where this runs: nothing can be registered",
            "on a node: start the kubelet; in a container: mount that host directory; elsewhere: give --kubelet-dir",
        )
        return
    yield _registration_socket(facts)
    if isinstance(kubelet.allocatable, Unknown) and kubelet.own_socket and kubelet.own_socket.served:
        yield warning(
            f"the kubelet does not tell who holds what: {kubelet.allocatable.why}",
            "the plugin learns from there what pods hold; without it annotations cannot be confirmed or corrected",
            kubelet.allocatable.action or "mount /var/lib/kubelet/pod-resources, or give --pod-resources-socket",
        )


def _registration_socket(facts: Facts) -> Finding:
    socket, directory = facts.kubelet.own_socket, facts.kubelet.directory
    if socket is None:
        return problem(
            f"there is no kubelet.sock in {directory}",
            "the kubelet is not running, or another host directory is mounted here: nothing can be registered",
            "see 'systemctl status kubelet'; compare the plugin's hostPath mount with this directory",
        )
    if not socket.served:
        return problem(
            f"nobody answers on {socket.path}",
            "the kubelet has ended and left its socket, or is starting: nothing can be registered",
            "see 'systemctl status kubelet' and its log; run this again in some seconds",
        )
    return ok(f"the kubelet answers on {socket.path}")
