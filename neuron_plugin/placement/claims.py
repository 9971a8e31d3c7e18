"""Pods that ask for Neuron by claims, as the state sees them: joined with their claims, they are pods like any other.

The request and the assignment of such a pod stand in its ResourceClaims. The watches of pods and of claims are not
ordered with each other, so a shown pod follows only from the known pods and claims. A pod with an unknown claim is not
shown while it is free to go anywhere. A gated one is shown: it waits for the claim, maybe for ever, and has to say so.
A bound one closes its node, like one without an assignment or one whose claim shows no allocation yet.

Pods may share a claim. Its devices count for the first live pod that it is reserved for; the others have them, too, and
only have to be on the same node.

Claims of a gated pod are allocated before the pod is handed to its scheduler, and taken back with its place.
kube-scheduler accepts an allocated claim as it is (pkg/scheduler/framework/plugins/dynamicresources). It runs no
allocator for it. It only reserves the claim for the pod. A taint on the devices keeps kube-scheduler's allocator off,
because nothing else keeps two allocators apart. An allocated claim has a finalizer, which is written first. Each write
carries the version that was read, so one of two writers gets a conflict. If a pod's claims were allocated but its own
PATCH was not sent, the claims give its place: the next leader completes it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from types import MappingProxyType

from neuron_plugin.allocation import (
    Assignment,
    Constraints,
    ContainerKind,
    ContainerRequest,
    NeuronPod,
    NodeInventory,
    Placement,
    PodUid,
    Rejection,
    Resource,
)
from neuron_plugin.allocation.claims import (
    DEVICE_RESOURCE,
    Attributes,
    ClaimResult,
    NeuronClaim,
    PodClaim,
    devices_of,
    devices_with,
    pool_of,
    read_device_name,
)
from neuron_plugin.allocation.node_rules import Requirement, pinned
from neuron_plugin.allocation.placement import ContainerAssignment
from neuron_plugin.allocation.rejection import INVALID_REQUEST, NO_ASSIGNMENT
from neuron_plugin.cluster import ApiError, ApiRequest, ApiServer
from neuron_plugin.cluster.api import MERGE_PATCH, JsonObject, send
from neuron_plugin.cluster.claims import FINALIZER, RESOURCE_CLAIMS, allocation_of
from neuron_plugin.cluster.pods import FinishedMember, PodUse
from neuron_plugin.topology import Geometry, Unit
from neuron_plugin.topology.instances import SHIPPED

_WITH_LNC = frozenset(instance.device_name.lower() for instance in SHIPPED if instance.logical_core_size > 1)
"""The products whose logical core size can be chosen."""

ClaimName = tuple[str, str]
"""Namespace and name of a claim."""


def part_name(claim: str, request: str) -> str:
    """The name of a claim's request among the pod's requesting containers: begins with the pod's name for the claim."""
    return f"{claim}/{request}"


def with_claims(
    pod: NeuronPod,
    claims: Mapping[ClaimName, NeuronClaim],
    driver: str,
    machines: Collection[Geometry],
    elsewhere: Collection[ClaimName] = (),
) -> NeuronPod | None:
    """A pod with the requests and allocations of its claims; None while one of its claims is unknown.

    A claim for all devices of a node asks for the most devices that one of the driver's ``machines`` has. The devices
    of the claims ``elsewhere`` count for other pods, which share them.
    """
    named = [(pod_claim, claims.get((pod.reference.namespace, pod_claim.claim))) for pod_claim in pod.claims]
    known = [(pod_claim, claim) for pod_claim, claim in named if claim is not None]
    if len(known) < len(named):
        return None
    ours = [(pod_claim, claim) for pod_claim, claim in known if claim.requests or claim.results]
    if not ours:
        return pod
    rules = replace(pod.rules, resource_claims=False, claim_driver=driver)
    if refusal := _refusal(pod, [claim for _, claim in ours]):
        return replace(pod, request=refusal, rules=rules)
    parts, judged, node = list[ContainerAssignment](), True, ""
    with_core_size = any(claim.logical_core_size for _, claim in ours)
    constraints = Constraints(_WITH_LNC) if with_core_size else None  # all claims of a pod are on one node
    for pod_claim, claim in ours:
        if (claim.namespace, claim.name) in elsewhere:
            node = claim.node
            continue
        asked = () if isinstance(claim.requests, Rejection) else claim.requests
        by_name = {request.name: request for request in asked}
        for name in dict.fromkeys(result.request for result in claim.results) if claim.allocated else by_name:
            request = by_name.get(name)
            unit, ids = _given(claim, name) if claim.allocated or request is None else (request.unit, ())
            judged &= request is not None
            attributes = request.attributes if request else ()
            container = ContainerRequest(
                part_name(pod_claim.name, name),
                ContainerKind.APP,
                Resource.NEURONCORE if unit is Unit.CORE else DEVICE_RESOURCE,
                len(ids) or (request.count if request else 0) or most_devices(machines, attributes),
                constraints=constraints,
                attributes=attributes,
            )
            parts.append(ContainerAssignment(container, ids))
    allocated = all(claim.allocated for _, claim in ours)
    allocated_ns = int(max(claim.allocated_at for _, claim in ours) * 1e9)
    if node and not allocated:  # it has to go to the node of the claim that it shares
        rules = replace(rules, terms=pinned(rules.terms, (Requirement("metadata.name", "In", (node,)),)))
    node = next((claim.node for _, claim in ours), "") if allocated else ""
    return replace(
        pod,
        request=tuple(container.request for container in parts),
        assignment=Assignment(tuple(parts), allocated_ns, allocated=bool(pod.node)) if allocated else None,
        promised="" if pod.node or pod.terminating else node,
        movable=pod.movable if judged else False,  # its replacement could not be placed here
        rules=rules,
    )


def most_devices(machines: Iterable[Geometry], attributes: Attributes) -> int:
    """The most devices with these attributes on one of the machines; if none has any, the most of all devices."""
    counts = {geometry: len(devices_with(geometry, attributes)) for geometry in machines}
    return max(counts.values(), default=0) or max((geometry.device_count for geometry in counts), default=0)


def _refusal(pod: NeuronPod, claims: Iterable[NeuronClaim]) -> Rejection | None:
    """Why the claims of a pod cannot be allocated here; None if any allocator has allocated them."""
    if pod.request:
        return replace(INVALID_REQUEST, detail=f"pod {pod.reference} asks for Neuron by count and by claim")
    for claim in claims:
        if claim.allocated:
            continue
        if isinstance(claim.requests, Rejection):
            return claim.requests
        if claim.others:
            text = f"claim {claim} asks for devices of another driver, too: give those a claim of their own"
            return replace(INVALID_REQUEST, detail=text)
    return None


def _given(claim: NeuronClaim, request: str) -> tuple[Unit, tuple[int, ...]]:
    """The allocation of a request, by any allocator: cores if all of it is cores, else whole devices."""
    names = [read_device_name(result.device) for result in claim.results if result.request == request]
    devices = [device for device in names if device]
    if devices and all(device.cores for device in devices):
        cores = (range(device.cores[0], device.cores[1] + 1) for device in devices if device.cores)
        return Unit.CORE, tuple(sorted({core for window in cores for core in window}))
    return Unit.DEVICE, tuple(sorted({device.device for device in devices}))


Shown = NeuronPod | PodUse | FinishedMember | None
Changed = Callable[[str, Shown, Shown], None]


class ClaimedPods:
    """The pods that have claims, the claims, and the shown state of each pod.

    ``shown`` is called like the listener of a watch: with a pod before and after the change.
    """

    def __init__(self, driver: str, shown: Changed) -> None:
        self.driver = driver
        self._shown = shown
        self._claims: dict[ClaimName, NeuronClaim] = {}
        self.claims: Mapping[ClaimName, NeuronClaim] = MappingProxyType(self._claims)
        self._pods: dict[str, NeuronPod] = {}
        self._users: defaultdict[ClaimName, dict[str, None]] = defaultdict(dict)
        self._last: dict[str, Shown] = {}
        self._machines: frozenset[Geometry] = frozenset()

    def put_pod(self, uid: str, before: Shown, pod: Shown) -> None:
        """A pod was added or changed, or is gone."""
        known = self._pods.pop(uid, None)
        for key in _keys(known):
            del self._users[key][uid]
        before, now = self._last.pop(uid, before), None
        if isinstance(pod, NeuronPod) and pod.claims:
            now = self._pods[uid] = pod
            for key in _keys(now):
                self._users[key][uid] = None
            pod = self._last[uid] = self._joined(now)
        if before is not None or pod is not None:
            self._shown(uid, before, pod)
        for key in dict.fromkeys((*_keys(known), *_keys(now))):
            self._show_users(key)

    def put_claim(self, key: ClaimName, claim: NeuronClaim | None) -> None:
        """A claim was added or changed, or is gone."""
        if claim:
            self._claims[key] = claim
        else:
            self._claims.pop(key, None)
        self._show_users(key)

    def see_machines(self, machines: frozenset[Geometry]) -> None:
        """The machines of the driver's nodes: the request of a claim for all devices depends on them."""
        if machines != self._machines:
            self._machines = machines
            self._show_again(self._pods)

    def is_shared(self, pod: NeuronPod) -> bool:
        """Whether another live pod shares a claim of this one, and so has its devices, too."""
        return any(uid != pod.uid for key in _keys(pod) for uid in self._live_users(key))

    def _show_users(self, key: ClaimName) -> None:
        self._show_again(self._users.get(key, ()))
        if not self._users.get(key):
            self._users.pop(key, None)

    def _show_again(self, uids: Iterable[str]) -> None:
        for uid in list(uids):
            before, after = self._last[uid], self._joined(self._pods[uid])
            if after != before:
                self._last[uid] = after
                self._shown(uid, before, after)

    def _live_users(self, key: ClaimName) -> Iterator[PodUid]:
        return (PodUid(uid) for uid in self._users.get(key, ()) if not self._pods[uid].ended)

    def _is_counted_elsewhere(self, key: ClaimName, pod: NeuronPod) -> bool:
        """Whether the devices of an allocated claim count for another live pod that uses it.

        They count for the first pod that the claim is reserved for. If it is reserved for none yet, they count for the
        oldest pod, bound pods first.
        """
        claim, users = self._claims.get(key), list(self._live_users(key))
        if claim is None or not claim.allocated or users in ([], [pod.uid]):
            return False
        reserved = next((uid for uid in claim.reserved_for if uid in users), None)
        return pod.uid != (reserved or min(users, key=self._seniority))

    def _seniority(self, uid: str) -> tuple[bool, float, str]:
        pod = self._pods[uid]
        return not pod.node, pod.created, uid

    def _joined(self, pod: NeuronPod) -> Shown:
        elsewhere = [key for key in _keys(pod) if self._is_counted_elsewhere(key, pod)]
        joined = with_claims(pod, self._claims, self.driver, self._machines, elsewhere)
        if joined is None:
            if pod.gated:
                return self._without_claim(pod)
            if not pod.node or pod.ended:
                return None
            text = f"pod {pod.reference} is bound, and its ResourceClaim {self._missing(pod).claim} is not known"
            return replace(pod, assignment=replace(NO_ASSIGNMENT, detail=text))
        if joined.request or joined.gated:
            return joined
        if not pod.node or pod.ended:
            return None
        return PodUse(pod.on(pod.node), pod.rules.needs, pod.rules.ports)

    def _missing(self, pod: NeuronPod) -> PodClaim:
        """An unknown claim of a pod."""
        namespace = pod.reference.namespace
        return next(pod_claim for pod_claim in pod.claims if (namespace, pod_claim.claim) not in self._claims)

    def _without_claim(self, pod: NeuronPod) -> NeuronPod:
        """A gated pod that waits for a claim."""
        missing = self._missing(pod)
        text = f"pod {pod.reference} waits for the ResourceClaim {missing.claim}, which does not exist"
        if not missing.claim:
            text = f"pod {pod.reference} waits for the ResourceClaim that its template for {missing.name} makes"
        return replace(pod, request=replace(INVALID_REQUEST, detail=text))


def _keys(pod: NeuronPod | None) -> list[ClaimName]:
    """The existing claims of a pod, each once."""
    claims = (pod_claim.claim for pod_claim in pod.claims if pod_claim.claim) if pod else ()
    return [(pod.reference.namespace, claim) for claim in dict.fromkeys(claims)] if pod else []


# Writing allocations.

Results = tuple[tuple[str, tuple[ClaimResult, ...]], ...]
"""The devices for each of a pod's claims, by the claim's name."""


def results_of(pod: NeuronPod, placement: Placement, inventory: NodeInventory, node: str) -> Results:
    """The devices of a placement, for each claim of the pod that it covers."""
    by_claim: dict[str, list[ClaimResult]] = {}
    names, pool = {pod_claim.name: pod_claim.claim for pod_claim in pod.claims}, pool_of(node)
    for container in placement:
        claim, _, request = container.request.name.partition("/")
        unit = container.request.resource.unit
        devices = devices_of(inventory.geometry, unit, container.mask, inventory.logical_core_size)
        by_claim.setdefault(names[claim], []).extend(ClaimResult(request, pool, device.name) for device in devices)
    return tuple((claim, tuple(results)) for claim, results in by_claim.items())


class ClaimWriter:
    """Writes the allocations of one driver. ``known`` are the claims as the watch shows them, by namespace and name."""

    def __init__(
        self,
        api: ApiServer,
        driver: str,
        known: Mapping[tuple[str, str], NeuronClaim],
        unix_ns: Callable[[], int],
    ) -> None:
        self._api = api
        self._driver = driver
        self._known = known
        self._unix_ns = unix_ns

    async def allocate(
        self, pod: NeuronPod, node: str, results: Results, *, timeout_seconds: float, check: Callable[[], None]
    ) -> None:
        """Allocate those claims of a pod that do not have this allocation yet; ``check`` is called before each.

        Raises:
            ClusterError: a claim was not written, or may not have been. The claims before it stay allocated.
        """
        for name, devices in results:
            claim = self._known.get((pod.reference.namespace, name))
            if claim is None or (claim.allocated and (claim.node, claim.results) == (node, devices)):
                continue
            check()
            if claim.allocated:
                claim = await self._write(claim, None, timeout_seconds)
            if FINALIZER not in claim.finalizers:
                finalizers = [*claim.finalizers, FINALIZER]
                claim = await self._patch(claim, "", {"metadata": {"finalizers": finalizers}}, timeout_seconds)
            time = datetime.fromtimestamp(self._unix_ns() // 10**9, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
            await self._write(claim, allocation_of(self._driver, node, devices, time), timeout_seconds)

    async def are_shown(self, namespace: str, results: Results, *, timeout_seconds: float) -> bool:
        """Whether the watch shows the claims as they are now, by consistent reads.

        Raises:
            ClusterError: one of them was not read.
        """
        for name, _ in results:
            request = ApiRequest("GET", RESOURCE_CLAIMS.item(name, namespace))
            try:
                now = RESOURCE_CLAIMS.decode(await send(self._api, request, timeout_seconds=timeout_seconds))
            except ApiError as error:
                if not error.missing:
                    raise
                continue
            known = self._known.get((namespace, name))
            if known is None or known.version != now.resource_version:
                return False
        return True

    async def free(self, pod: NeuronPod, *, timeout_seconds: float) -> None:
        """Take the allocation off the claims of a pod that are not reserved for any pod.

        Raises:
            ClusterError: one of them was not written, or that is not known.
        """
        for pod_claim in pod.claims:
            claim = self._known.get((pod.reference.namespace, pod_claim.claim))
            if claim and claim.results and not claim.reserved_for:
                await self._write(claim, None, timeout_seconds)

    async def _write(self, claim: NeuronClaim, allocation: JsonObject | None, timeout_seconds: float) -> NeuronClaim:
        return await self._patch(claim, "/status", {"status": {"allocation": allocation}}, timeout_seconds)

    async def _patch(
        self, claim: NeuronClaim, subresource: str, body: JsonObject, timeout_seconds: float
    ) -> NeuronClaim:
        """One PATCH of a claim as it was read; gives the claim with its new version."""
        metadata = body.get("metadata")
        versioned = {**(metadata if isinstance(metadata, dict) else {}), "resourceVersion": claim.version}
        path = RESOURCE_CLAIMS.item(claim.name, claim.namespace) + subresource
        request = ApiRequest("PATCH", path, body={**body, "metadata": versioned}, content_type=MERGE_PATCH)
        written = RESOURCE_CLAIMS.decode(await send(self._api, request, timeout_seconds=timeout_seconds))
        finalizers = written.metadata.finalizers or ()
        return replace(claim, version=written.resource_version, finalizers=finalizers)
