"""Is what pods hold sound, and do pods and node say the same in their annotations?

The kubelet counts each resource name for itself and knows nothing of links, so this is where double booking and
unlinked sets show. The extender plans with the annotations: where they differ from what pods hold, it gives away
devices that another pod has.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations

from neuron_plugin.allocation import (
    INVENTORY_KEY,
    Allocation,
    Assignment,
    ContainerKind,
    InventoryError,
    NeuronPod,
    Rejection,
    ids_of,
    mask_of,
    read_inventory,
)
from neuron_plugin.inspection.facts import NO_DEVICE, Cluster, Facts
from neuron_plugin.inspection.findings import Finding, Findings, note, problem, unchecked, warning
from neuron_plugin.inspection.text import Unknown, named, plural, ranges
from neuron_plugin.topology import Geometry, Unit, cores_in, valid_sets

PATIENCE_SECONDS = 120
"""How long an assignment may wait for its Allocate: admission follows the binding within seconds."""
_SEE_LOG = "see the plugin's log, and that it may reach and patch the API server"
VENDOR_MAPS = {"NEURON_DEV_USAGE_MAP": Unit.DEVICE, "NEURON_CORE_USAGE_MAP": Unit.CORE}


def check_holders(facts: Facts) -> Findings:
    """No ids that do not exist, no core held twice, sets linked, devices present and healthy."""
    ledger, geometry = facts.ledger, facts.machine.geometry
    if isinstance(ledger, Unknown) or geometry is None:
        yield unchecked(ledger if isinstance(ledger, Unknown) else NO_DEVICE)
        return ""
    held = ledger.allocations
    for text in facts.holders.foreign:
        yield problem(
            f"{text}, which this machine does not have",
            "another plugin gave it, or LNC was changed under it: what the pod really uses is not known",
            "delete the pod; leave one plugin on the node, and drain the node before LNC is changed",
        )
    for one, other in combinations(held, 2):
        # Within a pod and a resource the kubelet gives ids again only if a plain init container had them.
        reused = one.pod.uid == other.pod.uid and one.resource is other.resource
        if (shared := one.mask & other.mask) and not reused:
            devices = geometry.devices_touched(shared)
            whole = geometry.devices_mask(devices) == shared
            both = named("device", devices) if whole else named("core", cores_in(shared))
            yield problem(
                f"{_container(one)} and {_container(other)} both hold {both}",
                "the second to start fails, or one disturbs the other's work",
                "delete one of the two, unless one has ended (kubelets before 1.34 still list it); if it comes again, "
                "see that one plugin alone serves this node",
            )
    pods = facts.cluster.pods if isinstance(facts.cluster, Cluster) else ()
    reusing = {str(pod.reference) for pod in pods if any(part.kind is ContainerKind.INIT for part in pod.requests)}
    for each in held:
        ids, unit = ids_of(geometry, each.resource.unit, each.mask), each.resource.unit
        # Where an init container's set is re-used, the kubelet's ids are not the set that was given.
        if ids and str(each.pod) not in reusing and each.mask not in valid_sets(geometry, unit, len(ids)):
            yield warning(
                f"{_container(each)} holds {each.resource} {ranges(ids)}, which is no linked set here",
                "the Neuron runtime needs consecutive ids, and collectives need linked devices: it may fail at start",
                "ask for a count that has a set (see the README) and let neuron-plugin choose; then delete the pod",
            )
        if lost := geometry.devices_touched(each.mask & ~facts.machine.usable_mask):
            yield warning(
                f"{_container(each)} runs on {named('device', lost)}, missing or unhealthy",
                "running pods are left alone; its work may fail, and it cannot be admitted again as it is",
                "delete the pod, so that its controller makes another one on good devices",
            )
    cores = plural(len(cores_in(ledger.used_mask)), "logical core")
    return f"{plural(len(ledger.by_pod), 'pod')} with {cores}, none twice"


def _container(held: Allocation) -> str:
    return f"{held.pod}/{held.container} ({held.resource})"


def check_annotations(facts: Facts) -> Findings:
    """Each live pod of this node: its annotations are readable, confirmed, and say what it holds."""
    if isinstance(facts.cluster, Unknown):
        yield unchecked(facts.cluster)
        return ""
    live = [pod for pod in facts.cluster.pods if pod.request and not pod.ended]
    for pod in live:
        yield from _annotated(facts, pod)
    known = {(pod.reference.namespace, pod.reference.name) for pod in facts.cluster.pods}
    ledger = facts.ledger
    for reference in dict.fromkeys(each.pod for each in ([] if isinstance(ledger, Unknown) else ledger.allocations)):
        if (reference.namespace, reference.name) not in known:
            yield warning(
                f"the kubelet lists {reference} with devices, the API server has no such pod here",
                "it was deleted by force, or this is not the API server of this node",
                "run this again in 10 s; see that --node-name is this node's; if it stays, see the kubelet's log",
            )
    return f"{plural(len(live), 'pod')} with Neuron, as annotated"


def _annotated(facts: Facts, pod: NeuronPod) -> Iterator[Finding]:
    rejected = next((each for each in (pod.request, pod.assignment) if isinstance(each, Rejection)), None)
    if rejected:
        yield problem(
            str(rejected) if str(pod.reference) in str(rejected) else f"pod {pod.reference}: {rejected}",
            "the assignment of this pod is not known: the extender gives this node no further multi-device pod",
            "correct or delete the pod",
        )
        return
    if not isinstance(pod.assignment, Assignment):
        if pod.phase == "Running":
            yield warning(
                f"{pod.reference} runs without an annotation of its devices",
                "the extender does not know what it holds, and gives this node no further multi-device pod",
                f"the plugin writes it within 10 s: {_SEE_LOG}",
            )
        return
    waited_ns = facts.now_ns - pod.assignment.alloc_time_ns
    if not pod.assignment.allocated and pod.phase == "Running":
        yield warning(
            f"{pod.reference} runs, and its NEURON_ALLOCATED is still false",
            "no plugin has confirmed that it holds what its annotation says; the vendor's plugin never does for one "
            "device or all of them",
            f"neuron-plugin confirms within 10 s: {_SEE_LOG}",
        )
    elif not pod.assignment.allocated and pod.assignment.alloc_time_ns and waited_ns > PATIENCE_SECONDS * 10**9:
        yield warning(
            f"{pod.reference} was assigned devices {plural(waited_ns // (60 * 10**9), 'minute')} ago and has not been "
            "admitted",
            "they are reserved for it",
            "see 'kubectl describe pod' for what holds it up, and the kubelet's log; delete it if nothing will change",
        )
    yield from _compared(facts, pod, pod.assignment)


def _compared(facts: Facts, pod: NeuronPod, assignment: Assignment) -> Iterator[Finding]:
    """App containers and sidecars, against what they hold.

    Before the pod runs, one that holds nothing may still be in admission. One that re-uses its init container's ids may
    have been given others than the kubelet's.
    """
    ledger, geometry = facts.ledger, facts.machine.geometry
    if isinstance(ledger, Unknown) or geometry is None:
        return
    own = (pod.reference.namespace, pod.reference.name)
    given = {
        (each.container, each.resource): ids_of(geometry, each.resource.unit, each.mask)
        for each in ledger.allocations
        if (each.pod.namespace, each.pod.name) == own
    }
    reuses = any(part.kind is ContainerKind.INIT for part in pod.requests)
    for part in assignment.containers:
        ids = given.get((part.request.container, part.request.resource))
        as_many = bool(ids) and reuses and len(ids or ()) == len(part.ids)
        if part.request.kind is ContainerKind.INIT or ids == part.ids or as_many:
            continue
        if ids or pod.phase == "Running":
            yield problem(
                f"{pod.reference}/{part.request.container}: annotated {part.request.resource} {ranges(part.ids)}, "
                f"the kubelet gave {ranges(ids) if ids else 'nothing'}",
                "the extender plans with the annotation: it may give these devices to another pod",
                "the plugin corrects it within 10 s: see its log; if it does not run here, delete the pod",
            )


def check_node_annotations(facts: Facts) -> Findings:
    """Our inventory against the machine, the vendor's usage maps against who holds what.

    The vendor's extender keeps its account in two annotations of the node, which outlive it: after a restart or a new
    installation it believes them, and devices stay "used" that no pod has.
    """
    if isinstance(facts.cluster, Unknown):
        yield unchecked(facts.cluster)
        return ""
    yield from _inventory(facts, facts.cluster)
    yield from _vendor_maps(facts, facts.cluster)
    return f"the annotations of node {facts.cluster.node_name} are true"


def _inventory(facts: Facts, cluster: Cluster) -> Iterator[Finding]:
    text, here, node = cluster.annotations.get(INVENTORY_KEY), facts.machine.node_inventory, cluster.node_name
    if text is None:
        if facts.we_serve and here:
            yield warning(
                f"node {node} has no annotation {INVENTORY_KEY}",
                "the extender has to guess what this node has, and does not learn of unhealthy devices",
                "see the plugin's log: it needs the right to patch nodes; with --no-cluster it writes none",
            )
        return
    if not facts.we_serve and not facts.kubelet.unreadable:
        yield note(
            f"node {node} has an inventory, and neuron-plugin does not run here",
            "it says what was true when the plugin last ran",
            f"if it was uninstalled: kubectl annotate node {node} {INVENTORY_KEY}-",
        )
        return
    see = "run this again in 10 s; if it stays, see the plugin's log for 'API server'"
    try:
        published = read_inventory(text)
    except InventoryError as error:
        yield problem(
            f"the inventory of node {node} cannot be read: {error}",
            "the extender gives this node no pods",
            "use plugin and extender of one release; the plugin writes it again when it starts",
        )
        return
    if here and published.geometry != here.geometry:
        yield problem(
            f"the inventory of node {node} is of {_shape(published.geometry)}, this machine is {_shape(here.geometry)}",
            "the extender chooses sets that do not exist here",
            f"{see}; is --node-name this node's?",
        )
    elif here and (unhealthy := published.healthy_mask & ~here.healthy_mask):
        devices = set(here.geometry.devices_touched(unhealthy)) - {
            device.id for device in facts.machine.inventory.skipped
        }
        if devices:
            yield warning(
                f"the inventory of node {node} lacks missing or unhealthy devices: {ranges(devices)}",
                "the extender goes on choosing them",
                see,
            )


def _shape(geometry: Geometry) -> str:
    devices, cores = plural(geometry.device_count, "device"), plural(geometry.cores_per_device, "logical core")
    return f"{geometry.instance_type}, {devices} of {cores}"


def _vendor_maps(facts: Facts, cluster: Cluster) -> Iterator[Finding]:
    ledger, geometry, node = facts.ledger, facts.machine.geometry, cluster.node_name
    for key, unit in VENDOR_MAPS.items():
        if (value := cluster.annotations.get(key)) is None:
            continue
        used = [number for number, word in enumerate(value.split(",")) if word.strip().lower() == "true"]
        stale = []
        if not isinstance(ledger, Unknown) and geometry:
            stale = [number for number in used if not mask_of(geometry, unit, (number,)) & ledger.used_mask]
        remedy = f"without the vendor's extender in this cluster: kubectl annotate node {node} {key}-"
        if stale:
            yield warning(
                f"{key} of node {node} has {named(unit.value, stale)} in use, held by no pod",
                "the vendor's extender believes it and leaves pods Pending; neuron-plugin does not look at it",
                remedy + "; with it: the same, then restart it",
            )
        else:
            yield note(
                f"node {node} has the vendor's {key}",
                "the vendor's extender runs or has run here; neuron-plugin does not look at it",
                remedy,
            )
