"""Pods, nodes and the kubelet's record as values, for the tests of the node daemon."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from hypothesis import strategies as st

from neuron_plugin.allocation import (
    ContainerKind,
    ContainerSet,
    NeuronPod,
    NodeInventory,
    PodReference,
    PodUid,
    Resource,
)
from neuron_plugin.allocation.assignment import write_assignment
from neuron_plugin.allocation.claims import PodClaim
from neuron_plugin.allocation.placement import assignment_of
from neuron_plugin.allocation.requests import ContainerSpec, pod_request
from neuron_plugin.allocation.resources import format_ids, parse_ids
from neuron_plugin.cluster import Pod
from neuron_plugin.cluster.objects import Metadata, Owner
from neuron_plugin.cluster.pod_wire import (
    Container,
    ContainerRunning,
    ContainerState,
    ContainerStatus,
    PodSpec,
    PodStatus,
    Resources,
)
from neuron_plugin.cluster.pods import neuron_pod
from neuron_plugin.hardware.health_signals import MISSING
from neuron_plugin.kubelet import ContainerAllocation
from neuron_plugin.plugin.answers import PreferenceRequest
from neuron_plugin.plugin.container import VISIBLE_CORES, reply_for
from neuron_plugin.plugin.inputs import (
    AllocationKey,
    HoldDown,
    Inputs,
    NodePods,
    PendingAnswer,
    Recorded,
    RecordedAllocation,
    claim_allocations,
)
from neuron_plugin.plugin.settle import pods_to_look_at, settle, with_lost_records
from neuron_plugin.plugin.snapshot import Snapshot
from neuron_plugin.topology import CoreMask, Geometry, Topology, Unit, catalogue

NEURON = Resource.NEURON
DEVICE = Resource.NEURONDEVICE
CORE = Resource.NEURONCORE

TRN1 = Geometry("trn1.32xlarge", Topology.TORUS, 16, 2, (1, 4, 8, 16))
TRN2 = catalogue()["trn2.48xlarge"].geometry
INF2 = Geometry("inf2.48xlarge", Topology.RING, 12, 2)
LINE = Geometry("inf1.6xlarge", Topology.LINE, 4, 4)

HOLD_DOWN_SECONDS = 30.0
STATIC_UID = PodUid("0123456789abcdef0123456789abcdef")


def app(count: int, resource: Resource = NEURON, name: str = "app") -> ContainerSpec:
    return ContainerSpec(name, ContainerKind.APP, {resource.value: str(count)})


def uid_of(name: str) -> PodUid:
    """A pod's UID as the API server makes them."""
    return PodUid(str(uuid.uuid5(uuid.NAMESPACE_DNS, name)))


def ref(name: str, uid: str = "") -> PodReference:
    return PodReference(PodUid(uid) if uid else uid_of(name), "default", name)


@dataclass
class ApiPod:
    """A pod object as the API server has it."""

    name: str
    specs: Sequence[ContainerSpec] = ()
    annotations: Mapping[str, str] = field(default_factory=dict)
    uid: str = ""
    phase: str = "Pending"
    started: bool = False
    running: bool = False
    namespace: str = "default"
    node_name: str = "worker-1"
    priority: int = 0
    terminating: bool = False
    controller: tuple[str, str] = ("", "")
    labels: Mapping[str, str] = field(default_factory=dict)

    @property
    def wire(self) -> Pod:
        """The object as it is decoded from the server's answer."""
        states = [ContainerState(running=ContainerRunning())] if self.running else []
        states += [ContainerState()] if self.started and not self.running else []
        owner = Owner(*self.controller, controller=True)
        return Pod(
            metadata=Metadata(
                name=self.name,
                namespace=self.namespace,
                uid=self.uid,
                deletion_timestamp="2026-01-01T00:00:00Z" if self.terminating else None,
                annotations=dict(self.annotations),
                labels=dict(self.labels),
                owner_references=(owner,) if self.controller[0] else None,
            ),
            spec=PodSpec(
                node_name=self.node_name,
                priority=self.priority,
                containers=tuple(_container(spec) for spec in self.specs if spec.kind is ContainerKind.APP),
                init_containers=tuple(_container(spec) for spec in self.specs if spec.kind is not ContainerKind.APP),
            ),
            status=PodStatus(
                phase=self.phase,
                container_statuses=tuple(ContainerStatus(started=self.started, state=state) for state in states),
            ),
        )


def _container(spec: ContainerSpec) -> Container:
    policy = "Always" if spec.kind is ContainerKind.SIDECAR else None
    return Container(spec.name, policy, Resources(dict(spec.limits), dict(spec.requests)))


def pod(
    name: str, *containers: ContainerSpec, annotations: Mapping[str, str] | None = None, **fields: Any
) -> NeuronPod:
    uid = fields.pop("uid", "") or uid_of(name)
    return neuron_pod(ApiPod(name, containers, annotations or {}, uid, **fields).wire)


def assigned(
    name: str,
    *containers: ContainerSpec,
    sets: Sequence[Sequence[int]],
    time: int = 1,
    allocated: bool = False,
    geometry: Geometry = TRN1,
    **fields: Any,
) -> NeuronPod:
    """A pod with an assignment: one list of ids for each requesting container."""
    annotations = assignment(geometry, containers, sets, time)
    annotations |= {"NEURON_ALLOCATED": "true"} if allocated else {}
    return pod(name, *containers, annotations=annotations, **fields)


def assignment(
    geometry: Geometry, containers: Sequence[ContainerSpec], sets: Sequence[Sequence[int]], time: int = 1
) -> dict[str, str]:
    request = pod_request(containers)
    masks = [geometry.mask_of(part.resource.unit, tuple(ids)) for part, ids in zip(request, sets, strict=True)]
    placement = tuple(ContainerSet(part, mask) for part, mask in zip(request, masks, strict=True))
    return write_assignment(assignment_of(geometry, placement, time))


def devices(*ids: int, geometry: Geometry = TRN1) -> CoreMask:
    return geometry.devices_mask(ids)


def inventory(geometry: Geometry = TRN1, **fields: Any) -> NodeInventory:
    return NodeInventory(geometry, fields.pop("present", tuple(range(geometry.device_count))), **fields)


def entry(
    uid: str,
    container: str,
    resource: Resource,
    *ids: int,
    given: Sequence[int] | None = None,
    ours: bool = True,
    node: NodeInventory | None = None,
    seen_at: float = 0.0,
) -> RecordedAllocation:
    """An entry of the kubelet's checkpoint with our reply; ``given`` where it gave other ids than were drawn."""
    node = node or inventory()
    mask = node.geometry.mask_of(resource.unit, tuple(given or ids))
    reply = reply_for(node, f"reply of {uid} {container} {ids}", mask) if ours else None
    return RecordedAllocation(AllocationKey(PodUid(uid), container, resource), ids, reply, seen_at=seen_at)


RESOURCES = {"neuron": NEURON, "device": DEVICE, "core": CORE}


def ids_of(text: str) -> tuple[Resource, tuple[int, ...]]:
    """``core:0-3`` or ``device:2,5``; without a name it is ``neuron``."""
    name, _, ids = text.rpartition(":")
    return RESOURCES[name or "neuron"], parse_ids(ids)


def holder(text: str) -> tuple[PodUid, str]:
    """``a/init`` is pod a's container init, ``static`` container app of the pod of which only the kubelet knows."""
    name, _, container = text.partition("/")
    return STATIC_UID if name == "static" else uid_of(name), container or "app"


def records(text: str, node: NodeInventory | None = None, *, ours: bool = True) -> list[RecordedAllocation]:
    """Entries of the checkpoint, such as ``a/init=0-3 a=3>0 b=core:6``; after ``>`` is what our reply really gave."""
    made = []
    for word in text.split():
        who, _, has = word.partition("=")
        drawn, _, given = has.partition(">")
        resource, ids = ids_of(drawn)
        made.append(
            entry(*holder(who), resource, *ids, given=parse_ids(given) if given else None, ours=ours, node=node)
        )
    return made


def inputs(
    *pods: NeuronPod,
    recorded: Sequence[RecordedAllocation] | str = (),
    node: NodeInventory | None = None,
    **fields: Any,
) -> Inputs:
    """Inputs in which ``recorded`` was read at time 0 and pods were listed at ``listed_at`` (never, by default)."""
    listed_at = fields.pop("listed_at", None)
    ended = fields.pop("ended", {})
    entries = records(recorded, node) if isinstance(recorded, str) else recorded
    return Inputs(
        node or inventory(),
        NodePods({one.uid: one for one in pods}, ended, listed_at),
        replace(Recorded().with_file(entries, 0.0), **fields.pop("file", {})),
        **fields,
    )


@dataclass
class FakeClock:
    now: float = 1000.0

    def __call__(self) -> float:
        return self.now


def texts(ids: Iterable[int]) -> list[str]:
    return [str(number) for number in ids]


def given_mask(geometry: Geometry, allocation: ContainerAllocation) -> CoreMask:
    """The cores that a container was given, read from what it received in host numbering."""
    cores = allocation.envs.get(VISIBLE_CORES)
    if cores is not None:
        return geometry.mask_of(Unit.CORE, parse_ids(cores))
    return geometry.devices_mask(int(node.host_path.removeprefix("/dev/neuron")) for node in allocation.devices)


def settled(
    before: Inputs, now: float = 10.0, populated: Mapping[PodUid, bool | None] | None = None, **alive: bool | None
) -> Inputs:
    """``alive`` says by name of a pod whether a process of it lives; False for every other pod."""
    by_uid = {uid_of(name): value for name, value in alive.items()} | dict(populated or {})
    seen = {uid: by_uid.get(uid, False) for uid in pods_to_look_at(before)}
    return settle(replace(before, now=now), seen, HOLD_DOWN_SECONDS)


def healthy(snapshot: Snapshot, resource: Resource) -> set[str]:
    return {one.id for one in snapshot.advertised(resource) if one.healthy}


def reasons(snapshot: Snapshot, resource: Resource = NEURON) -> dict[str, str]:
    return {one.id: one.reason for one in snapshot.advertised(resource) if one.reason}


MACHINES = {"trn1": TRN1, "trn2": TRN2, "inf2": INF2, "inf1": LINE}


def pod_of(text: str, geometry: Geometry = TRN1, **fields: Any) -> NeuronPod:
    """A pod as ``a init:4=0-3 app.serve:core:2=0,1 @9``: containers, what they ask for and are assigned, and when.

    Also ``NEURON_DEVS=x`` and ``deny-devices=2``, which are annotations, ``both:app`` (a container that asks for two
    resources), ``privileged:app``, ``claims:app`` (a claim that the container uses), and ``started``, ``running``,
    ``terminating``, ``ending``, ``failed``, ``succeeded``, or ``allocated`` of its assignment. ``mirror`` is the mirror
    of the pod ``static``, of which otherwise only the kubelet knows.
    """
    name, *words = text.split()
    time, phase, annotations, containers, sets = 1, "Pending", dict(fields.pop("annotations", {})), [], []
    claims, life = tuple[PodClaim, ...](), dict[str, Any]()
    for word in words:
        asked, equals, said = word.partition("=")
        kind, _, count = asked.partition(":")
        if word.startswith("@"):
            time = int(word[1:])
        elif word in {"failed", "succeeded"}:
            phase = word.title()
        elif word == "allocated":
            annotations["NEURON_ALLOCATED"] = "true"
        elif word == "ending":
            life["ending"] = True
        elif kind == "privileged":
            life["privileged"] = (count,)
        elif kind == "claims":
            claims = (PodClaim("devices", f"{name}-devices", ((count, ""),)),)
        elif kind == "both":
            limits = {Resource.NEURON.value: "1", Resource.NEURONCORE.value: "1"}
            containers.append(ContainerSpec(count, ContainerKind.APP, limits))
        elif word.isalpha():
            fields[word] = True
        elif equals and ":" not in asked:
            annotations[asked if asked.isupper() else f"neuron-plugin.io/{asked}"] = said
        else:
            resource, _, count = count.rpartition(":")
            kind, _, own_name = kind.partition(".")
            limits = {RESOURCES[resource or "neuron"].value: count}
            containers.append(ContainerSpec(own_name or kind, ContainerKind[kind.upper()], limits))
            sets += [parse_ids(said)] if said else []
    if name == "mirror":
        name, annotations = "static", {"kubernetes.io/config.hash": STATIC_UID} | annotations
    if sets:
        annotations = assignment(geometry, containers, sets, time) | annotations
    made = pod(name, *containers, annotations=annotations, phase=phase, **fields)
    return replace(made, claims=claims or made.claims, life=replace(made.life, **life))


def answers(text: str, node: NodeInventory) -> tuple[PendingAnswer, ...]:
    """``3 a/app=core:5@9``: ids that were answered at 0 for a pod that is not known, and for one that is at 9."""
    made = []
    for word in text.split():
        said, _, at = word.partition("@")
        who, _, has = said.rpartition("=")
        resource, ids = ids_of(has)
        name, _, container = who.partition("/")
        reply = reply_for(node, f"answer {word}", node.geometry.mask_of(resource.unit, ids))
        whose = (ref("static" if name == "mirror" else name), container) if who else (None, "")
        made.append(PendingAnswer(reply, resource, ids, float(at or 0), *whose))
    return tuple(made)


CLAUSES = {
    *(
        "has",
        "theirs",
        "prepared",
        "answers",
        "broken",
        "missing",
        "off",
        "rests",
        "unknown",
        "product",
        "listed",
        "now",
    ),
    *("stopped", "killed", "forgets", "lost", "doubts", "rewritten", "unreadable", "read", "alone", "settled"),
}


def moment(text: str) -> Inputs:
    """Inputs as ``inf2 | a app:2=3,4 | has b=device:0 | off 5``: machine (trn1), pods, and what is said of them.

    Of devices: ``broken``, ``missing``, ``off`` (disabled), ``rests`` (held down), ``unknown`` (by a pod that nobody
    knows), and their ``product``. Of the kubelet's file, which was read at 0: ``has``, ``theirs`` (of another plugin),
    ``prepared a=neuron-3`` (a claim), ``forgets a`` (a file that was written on request at 5 lacks the pod, or
    ``forgets a late``, not on request), ``lost`` (who runs counts by annotations), ``read 5``, ``rewritten 5`` (on
    request), ``unreadable``. Of pods: ``listed 5``, ``stopped a`` and ``killed a`` have ended, ``doubts a``, and
    ``alone`` is a node without an API server. ``answers`` are those of `answers`. It may be ``settled`` at 10.
    """
    clauses = [clause.strip() for clause in text.split("|") if clause.strip()]
    geometry = MACHINES[clauses.pop(0)] if clauses and clauses[0] in MACHINES else TRN1
    said = {word: rest for word, _, rest in (clause.partition(" ") for clause in clauses) if word in CLAUSES}

    def numbers(word: str) -> tuple[int, ...]:
        return parse_ids(said[word]) if word in said else ()

    def words(word: str) -> list[str]:
        return said.get(word, "").split()

    node = inventory(
        geometry,
        present=tuple(sorted({*range(geometry.device_count)}.difference(numbers("missing")))),
        unhealthy=dict.fromkeys(numbers("broken"), "sick") | dict.fromkeys(numbers("missing"), MISSING),
        disabled=numbers("off"),
        device_name=said.get("product", ""),
    )
    recorded = records(said.get("has", ""), node) + records(said.get("theirs", ""), node, ours=False)
    for name, _, device in (word.partition("=") for word in words("prepared")):
        recorded += claim_allocations([uid_of(name)], "claim-uid", f"{name}-devices", [device])
    held = [resting(*numbers("rests"))] if "rests" in said else []
    if "unknown" in said:
        unknown = resting(*numbers("unknown"), name="a")
        held.append(replace(unknown, pod=replace(unknown.pod, namespace="", name=""), unknown=True))
    file: dict[str, Any] = {"unreadable": "future"} if "unreadable" in said else {}
    file |= {f"{word}_at": float(said[word]) for word in ("read", "rewritten") if word in said}
    made = inputs(
        *(pod_of(clause, geometry) for clause in clauses if clause.split()[0] not in CLAUSES),
        recorded=recorded,
        node=node,
        hold_downs=tuple(held),
        pending=answers(said.get("answers", ""), node),
        listed_at=float(said["listed"]) if "listed" in said else None,
        ended={uid_of(name): word == "stopped" for word in ("stopped", "killed") for name in words(word)},
        doubted=frozenset(holder(name)[0] for name in words("doubts")),
        file=file,
        cluster="alone" not in said,
        now=float(said.get("now", 0)),
    )
    if "forgets" in said:
        name, *late = words("forgets")
        made = forgotten(made, holder(name)[0], rewritten=not late)
    if "lost" in said:
        made = with_lost_records(made)
    return settled(made) if "settled" in said else made


def devices_by_pod(masks: Iterable[tuple[PodUid, CoreMask, str]]) -> str:
    """``a=3 static=4+``: which devices each pod of some has, with a mark; ``?`` is a pod that is not known."""
    names = {uid_of(name): name for name in "abc"} | {STATIC_UID: "static", PodUid("default/static"): "static"}
    names[uid_of("static")] = "mirror"
    sets = (f"{names.get(uid, '?')}={format_ids(TRN1.devices_touched(mask))}{mark}" for uid, mask, mark in masks)
    return " ".join(sorted(sets))


def who_has(snapshot: Snapshot) -> str:
    return devices_by_pod((uid, snapshot.ledger.mask_of(uid), "") for uid in snapshot.ledger.by_pod)


def who_holds_down(inputs: Inputs) -> str:
    """A hold-down that is shown to the cluster has a ``+``, one that is shown to the kubelet, too, a ``!``."""
    return devices_by_pod(
        (one.uid, one.mask, "!" if one in inputs.advertised_hold_downs else "+" * (one in inputs.published_hold_downs))
        for one in inputs.hold_downs
    )


def asked_by(text: str, before: Inputs) -> PreferenceRequest:
    """``core:2 of 1-3 must 1``: the count under one name, what is offered (all of it by default), what is the pod's."""
    first, *rest = text.split()
    name, _, size = first.rpartition(":")
    resource = RESOURCES[name or "neuron"]
    ids = {word: parse_ids(text) for word, text in zip(rest[::2], rest[1::2], strict=True)}
    geometry = before.inventory.geometry
    everything = geometry.ids_of(resource.unit, geometry.all_mask)
    return PreferenceRequest(resource, ids.get("of", everything), ids.get("must", ()), int(size))


def resting(*ids: int, name: str = "b", why: str = "why", resource: Resource = NEURON) -> HoldDown:
    """A hold-down of what pod ``name`` had, shown to everybody."""
    mask = TRN1.mask_of(resource.unit, ids)
    return HoldDown(uid_of(name), ref(name), mask, 0.0, 0.0, 0.0, 0.0, 99.0, why)


def forgotten(before: Inputs, uid: PodUid, *, rewritten: bool = True, now: float = 5.0) -> Inputs:
    """A later file without a pod's entries."""
    left = [one for key, one in before.recorded.entries.items() if key.uid != uid]
    return replace(before, recorded=before.recorded.with_file(left, now, rewritten_at=now if rewritten else None))


@st.composite
def some_inputs(draw: st.DrawFn) -> Inputs:
    """Few pods on few devices, in any state."""
    names = draw(st.lists(st.sampled_from("abcd"), unique=True))
    device = st.integers(0, 5)
    pods: list[NeuronPod] = []
    recorded: list[RecordedAllocation] = []
    ended: dict[PodUid, bool] = {}
    for name in names:
        where = draw(device)
        if draw(st.booleans()):
            pods.append(draw(st.sampled_from([pod(name, app(1)), assigned(name, app(1), sets=[[where]])])))
        elif draw(st.booleans()):
            ended[uid_of(name)] = draw(st.booleans())
        if draw(st.booleans()):
            recorded.append(entry(uid_of(name), "app", draw(st.sampled_from([NEURON, DEVICE])), draw(device)))
    if draw(st.booleans()):
        recorded.append(entry(STATIC_UID, "app", CORE, draw(device)))
    made = inputs(
        *pods,
        recorded=recorded,
        ended=ended,
        listed_at=draw(st.sampled_from([None, 0.0, 5.0])),
        cluster=bool(pods) or draw(st.booleans()),
    )
    for uid in draw(st.sets(st.sampled_from([STATIC_UID, uid_of("a"), uid_of("b")]))):
        made = forgotten(made, uid, rewritten=draw(st.booleans()))
    return made
