"""Is what pods hold sound, and do processes and annotations agree with it?

The kubelet counts each resource name for itself and knows nothing of links, so this is where double booking and
unlinked sets show. The extender plans with the annotations: where they differ from what pods hold, it gives away
devices that another pod has.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations

from neuron_plugin.allocation import (
    Allocation,
    Assignment,
    ContainerKind,
    InventoryError,
    NeuronPod,
    Rejection,
    Resource,
)
from neuron_plugin.allocation.inventory import read_inventory
from neuron_plugin.allocation.keys import INVENTORY_KEY
from neuron_plugin.allocation.rejection import set_kind
from neuron_plugin.allocation.resources import ranges
from neuron_plugin.inspection.facts import ClusterFacts, Facts, NoSuchNode
from neuron_plugin.inspection.findings import (
    Finding,
    Findings,
    Unknown,
    known,
    known_or,
    note,
    problem,
    unchecked,
    warning,
)
from neuron_plugin.topology import cores_in
from neuron_plugin.wording import named, plural

PATIENCE_SECONDS = 120
"""How long an assignment may wait for its Allocate: admission follows the binding within seconds."""
_NAMES = frozenset(resource.value for resource in Resource)
_SEE_LOG = "see the plugin's log, and that it may reach and patch the API server"


def check_holders(facts: Facts) -> Findings:
    """No ids that do not exist, no core held twice, sets linked, devices present and healthy."""
    snapshot = known(facts.snapshot)
    ledger, geometry = snapshot.ledger, snapshot.inventory.geometry
    for text in facts.holders.foreign:
        yield problem(
            f"{text}, which this machine does not have",
            "another plugin gave it, or LNC was changed under it: what the pod really uses is not known",
            "delete the pod; leave one plugin on the node, and drain the node before LNC is changed",
        )
    for allocation, other in combinations(ledger.allocations, 2):
        # Within a pod and a resource the kubelet gives ids again only if a plain init container had them. Pods that
        # share a claim share its devices.
        reused = allocation.pod.uid == other.pod.uid and allocation.resource is other.resource
        reused |= bool(allocation.claim) and (allocation.pod.namespace, allocation.claim) == (
            other.pod.namespace,
            other.claim,
        )
        if (shared := allocation.mask & other.mask) and not reused:
            devices = geometry.devices_touched(shared)
            whole = geometry.devices_mask(devices) == shared
            both = named("device", devices) if whole else named("core", cores_in(shared))
            yield problem(
                f"{_container(allocation)} and {_container(other)} both hold {both}",
                "the second to start fails, or one disturbs the other's work",
                "delete one of the two, unless one has ended (kubelets before 1.34 still list it); if it comes again, "
                "see that one plugin alone serves this node",
            )
    for allocation in ledger.allocations:
        unit = allocation.resource.unit
        ids = geometry.ids_of(unit, allocation.mask)
        if ids and snapshot.unlinked_text(allocation.resource, allocation.mask):
            kind = set_kind(geometry, unit)
            fails = (
                "the Neuron runtime needs consecutive ids, and collectives need linked devices: it may fail at start"
            )
            if kind == "aligned":
                fails = "a slice of cores that does not begin at a multiple of its size may fail in warm-up"
            choose = "ask for a count that has a set (see the README) and let neuron-plugin choose"
            if allocation.claim:
                choose = "let its devices match in one resource.aws.com/devicegroupN_id, or neuron-plugin allocate"
            yield warning(
                f"{_container(allocation)} holds {allocation.resource} {ranges(ids)}, which is no {kind} set here",
                fails,
                f"{choose}; then delete the pod",
            )
        has = map(int, geometry.devices_touched(allocation.mask))
        if broken := [device for device in has if device in snapshot.inventory.unhealthy]:
            yield warning(
                f"{_container(allocation)} runs on {snapshot.broken_text(allocation.mask)}",
                "running pods are left alone and keep their devices, which no other pod gets; its work may fail",
                "delete the pod, so that its controller makes another one on good devices; where it would go: "
                f"neuron-plugin repair NODE --device {ranges(broken)} --dry-run",
            )
    cores = plural(len(cores_in(ledger.used_mask)), "logical core")
    return f"{plural(len(ledger.by_pod), 'pod')} with {cores}, none twice"


def _container(held: Allocation) -> str:
    return f"{held.pod} by claim {held.claim}" if held.claim else f"{held.pod}/{held.container} ({held.resource})"


def check_annotations(facts: Facts) -> Findings:
    """Each live pod of this node: its annotations are readable, confirmed, and say what it holds."""
    cluster = known(facts.cluster)
    live = [pod for pod in cluster.pods if pod.request and not pod.ended]
    for pod in live:
        yield from _annotated(facts, pod)
    names = {str(pod.reference) for pod in cluster.pods}
    listed = known_or(facts.kubelet.pods, ())
    having = [str(pod) for pod in listed if any(held.resource in _NAMES for held in pod.containers)]
    if ledger := facts.holders.ledger:
        having += [str(allocation.pod) for allocation in ledger.allocations]
    for name in dict.fromkeys(having):
        if name not in names:
            yield warning(
                f"the kubelet lists {name} with devices, the API server has no such pod here",
                "it was deleted by force, or this is not the API server of this node",
                "run this again in 10 s; see that --node-name is this node's; if it stays, see the kubelet's log",
            )
    return f"{plural(len(live), 'pod')} with Neuron, as annotated"


def _annotated(facts: Facts, pod: NeuronPod) -> Iterator[Finding]:
    """Whether a pod's annotations can be read, are confirmed, and say what its app containers and sidecars hold."""
    rejected = next((answer for answer in (pod.request, pod.assignment) if isinstance(answer, Rejection)), None)
    if rejected:
        yield problem(
            str(rejected) if str(pod.reference) in str(rejected) else f"pod {pod.reference}: {rejected}",
            "the assignment of this pod is not known: the extender gives this node no further multi-device pod",
            "correct or delete the pod",
        )
        return
    assignment, runs = pod.assignment, pod.phase == "Running"
    if not isinstance(assignment, Assignment):
        if runs:
            yield warning(
                f"{pod.reference} runs without an annotation of its devices",
                "the extender does not know what it holds, and gives this node no further multi-device pod",
                f"the plugin writes it within 10 s: {_SEE_LOG}",
            )
        return
    waited_ns = facts.now_ns - assignment.alloc_time_ns
    if not assignment.allocated and runs:
        yield warning(
            f"{pod.reference} runs, and its NEURON_ALLOCATED is still false",
            "no plugin has confirmed that it holds what its annotation says; the vendor's plugin never does for one "
            "device or all of them",
            f"neuron-plugin confirms within 10 s: {_SEE_LOG}",
        )
    elif not assignment.allocated and assignment.alloc_time_ns and waited_ns > PATIENCE_SECONDS * 10**9:
        minutes = plural(waited_ns // (60 * 10**9), "minute")
        yield warning(
            f"{pod.reference} was assigned devices {minutes} ago and has not been admitted",
            "they are reserved for it",
            "see 'kubectl describe pod' for what holds it up, and the kubelet's log; delete it if nothing will change",
        )
    if isinstance(snapshot := facts.snapshot, Unknown):
        return
    inventory, geometry = snapshot.inventory, snapshot.inventory.geometry
    if isinstance(facts.kubelet.recorded, Unknown) and any(
        container.kind is ContainerKind.INIT for container in pod.requests
    ):
        return  # without the checkpoint it is not known what was given of a re-used init container's set
    given = {
        (key.container, key.resource): geometry.ids_of(key.resource.unit, entry.on(inventory, pod.reference).mask)
        for key, entry in snapshot.inputs.recorded.entries.items()
        if key.uid == pod.kubelet_uid and not (entry.annotated or key.claim)
    }
    for container in assignment.containers:
        resource, ids = container.request.resource, given.get((container.request.name, container.request.resource))
        # Before the pod runs, a container that holds nothing may still be in admission.
        if container.request.kind is not ContainerKind.INIT and ids != container.ids and (ids or runs):
            yield problem(
                f"{pod.reference}/{container.request.name}: annotated {resource} {ranges(container.ids)}, "
                f"the kubelet gave {ranges(ids) if ids else 'nothing'}",
                "the extender plans with the annotation: it may give these devices to another pod",
                "the plugin corrects it within 10 s: see its log; if it does not run here, delete the pod",
            )


def check_node_annotations(facts: Facts) -> Findings:
    """Our inventory of the node, against the machine."""
    if isinstance(facts.cluster, NoSuchNode):
        yield problem(
            facts.cluster.why,
            "by this name the plugin sees none of the node's pods, and nothing that it writes about the node arrives",
            "set --node-name or NODE_NAME to this node's name, as 'kubectl get nodes' shows it",
        )
        return ""
    cluster = known(facts.cluster)
    text, here, node = cluster.annotations.get(INVENTORY_KEY), facts.machine.node_inventory, cluster.node_name
    see = "run this again in 10 s; if it stays, see the plugin's log for 'API server'"
    if text is None:
        if facts.we_serve and here:
            yield warning(
                f"node {node} has no annotation {INVENTORY_KEY}",
                "the extender has to guess what this node has, and does not learn of unhealthy devices",
                "see the plugin's log: it needs the right to patch nodes; with --no-cluster it writes none",
            )
        return f"node {node} has no inventory, and neuron-plugin serves no device here"
    if not facts.we_serve and not facts.kubelet.unreadable:
        yield note(
            f"node {node} has an inventory, and neuron-plugin does not run here",
            "it says what was true when the plugin last ran",
            f"if it was uninstalled: kubectl annotate node {node} {INVENTORY_KEY}-",
        )
        return ""
    try:
        published = read_inventory(text)
    except InventoryError as error:
        yield problem(
            f"the inventory of node {node} cannot be read: {error}",
            "the extender gives this node no pods",
            "use plugin and extender of one release; the plugin writes it again when it starts",
        )
        return ""
    if here and published.geometry != here.geometry:
        there, machine = (
            f"{instance.instance_type}, {plural(instance.device_count, 'device')} of "
            f"{instance.cores_per_device} logical cores"
            for instance in (published.geometry, here.geometry)
        )
        yield problem(
            f"the inventory of node {node} is of {there}, this machine is {machine}",
            "the extender chooses sets that do not exist here",
            f"{see}; is --node-name this node's?",
        )
    elif here:
        unhealthy = here.geometry.devices_touched(published.healthy_mask & ~here.healthy_mask)
        if devices := set(unhealthy) - {device.id for device in facts.machine.inventory.skipped}:
            seen = f"the inventory of node {node} lacks missing or unhealthy devices: {ranges(devices)}"
            yield warning(seen, "the extender goes on choosing them", see)
    return f"the inventory of node {node} is true"


def check_processes(facts: Facts) -> Findings:
    """Every process with a device open is of a live pod that holds the device."""
    users, cluster, snapshot = known(facts.users), facts.cluster, facts.holders.snapshot
    if users.hidden:
        yield unchecked(users.hidden)
    live = (
        {uid for pod in cluster.pods for uid in (pod.uid, pod.kubelet_uid)}
        if isinstance(cluster, ClusterFacts)
        else None
    )
    for user in users.users:
        name, devices = f"process {user.pid} ({user.command or 'its name is not known'})", named("device", user.devices)
        if not user.pod_uid:
            yield warning(
                f"{name} has {devices} open and belongs to no pod",
                "Kubernetes does not know of it: a pod that gets the device finds its cores busy",
                f"end it if it is not a monitor: kill {user.pid}",
            )
        elif live is not None and user.pod_uid not in live:
            yield warning(
                f"{name} has {devices} open and is of pod {user.pod_uid}, which has ended",
                "the pod was deleted by force and its container lives on: the next pod finds the cores busy",
                f"wait for its end, or: kill {user.pid}",
            )
        elif snapshot:
            held = {int(device) for device in snapshot.inventory.geometry.devices_touched(snapshot.ledger.used_mask)}
            if idle := [device for device in user.devices if device not in held]:
                yield warning(
                    f"{name} has {named('device', idle)} open, which the kubelet gave to no pod",
                    "its pod got it around the kubelet (privileged, or /dev mounted), or has ended",
                    "see 'crictl ps' for its pod; it should ask for aws.amazon.com/neurondevice or neuroncore",
                )
    count = len(users.users)
    pods, processes = "of a pod" if count == 1 else "all of pods", plural(count, "process has", "processes have")
    return f"{processes} devices open, {pods}" if count else "no process has a device open"
