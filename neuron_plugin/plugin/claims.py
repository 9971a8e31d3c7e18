"""The kubelet's question about claims: which CDI devices the containers of a pod get for its allocated devices.

``NodePrepareResources`` chooses nothing. The devices stand in the claim's allocation, and their names say which silicon
they are. This module decides whether that silicon is free: the API server frees a claim when its pod is deleted by
force, while the pod's processes live on. Prepare then waits until they are gone, and if they stay the kubelet asks
again: a pod waits, and fails for nothing.

How the devices are numbered inside a container depends on all that the container uses, so it is worked out over all
claims of a pod. The CDI devices of a request are the same for each container that uses the request. Where they would
have to differ, the claim is refused with the reason.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from neuron_plugin.allocation import NeuronPod
from neuron_plugin.allocation.claims import ClaimDevice, ClaimResult, NeuronClaim, pool_of, read_device_name
from neuron_plugin.allocation.resources import format_ids
from neuron_plugin.kubelet.dra_service import ClaimReference, PreparedDevice, ReportedHealth
from neuron_plugin.metrics import MetricCounts
from neuron_plugin.plugin.container import (
    CDI_KIND,
    ContainerStyle,
    cdi_cores_name,
    cdi_device_name,
    cdi_size_name,
    cdi_ultraserver_name,
    container_style,
    core_windows,
    ultraserver_variables,
    write_cdi_files,
)
from neuron_plugin.plugin.inputs import named
from neuron_plugin.plugin.node import LocalNode
from neuron_plugin.plugin.settings import PluginSettings
from neuron_plugin.plugin.snapshot import Snapshot
from neuron_plugin.topology import CoreMask, Unit, cores_in

logger = logging.getLogger(__name__)

Part = tuple[str, ClaimResult]
"""A device of a claim: the claim's UID and one result of its allocation."""


@dataclass(frozen=True, slots=True)
class PrepareTimes:
    """Seconds. ``wait`` is how long Prepare waits for ended pods' processes, and for the API server.

    The kubelet gives up after 45 s (pkg/kubelet/cm/dra/plugin), and asks again after 60 to 90 s (kubernetes#139836).
    ``poll`` is between two looks at what a claim waits for, ``reread`` between two reads of a claim that waits.
    """

    wait: float = 35.0
    poll: float = 0.1
    reread: float = 2.0


class NotNumberedError(Exception):
    """Why the devices of a pod's claims cannot be given to its containers; the text names the containers."""


def cdi_devices(
    pods: Iterable[NeuronPod], claims: Mapping[tuple[str, str], NeuronClaim], style: ContainerStyle, snapshot: Snapshot
) -> Mapping[Part, tuple[str, ...]]:
    """The CDI devices for each device of the claims of some pods.

    Example: a container uses devices 4 and 5 by one claim and device 9 by another. A driver that counts from
    /dev/neuron0 inside a container shows them as 0, 1 and 2, so the names are ``4-0``, ``5-1`` and ``9-2``.

    Raises:
        NotNumberedError: containers would need different names for one device, or one variable would need two values.
    """
    given: dict[Part, tuple[str, ...]] = {}
    first_user: dict[Part, str] = {}
    for pod in pods:
        used: dict[str, list[Part]] = {"": []}
        for pod_claim in pod.claims:
            claim = claims.get((pod.reference.namespace, pod_claim.claim))
            if claim is None:
                continue
            for container, request in pod_claim.users or (("", ""),):
                names = (request, f"{request}/")  # ``request/alternative`` is one of its alternatives
                parts = [
                    (claim.uid, result)
                    for result in claim.results
                    if not request or result.request == request or result.request.startswith(names[1])
                ]
                used.setdefault(container, []).extend(parts)
        sizes = {claim.uid: claim.logical_core_size for claim in claims.values()}
        shared = {claim.uid for claim in claims.values() if len(claim.reserved_for) > 1}
        variables = ultraserver_variables(pod, snapshot.inventory)
        for container, parts in used.items():
            user = f"container {container} of {named(pod.reference)}"
            by_part = _names(parts, sizes, style, snapshot, user)
            if variables and by_part and not any(uid in shared for uid, _ in by_part):
                first = next(iter(by_part))
                by_part[first] = (*by_part[first], cdi_ultraserver_name(pod))
            for part, names_of_part in by_part.items():
                if given.setdefault(part, names_of_part) != names_of_part:
                    text = f"{part[1].device} would have other numbers in {first_user[part]} than in {user}"
                    raise NotNumberedError(f"{text}: let both use the same requests, or give each a claim of its own")
                first_user.setdefault(part, user)
    return given


def _names(
    parts: Sequence[Part], sizes: Mapping[str, int], style: ContainerStyle, snapshot: Snapshot, user: str
) -> dict[Part, tuple[str, ...]]:
    """The CDI devices for each device that one container uses."""
    inventory = snapshot.inventory
    devices: dict[Part, ClaimDevice] = {}
    for part in dict.fromkeys(parts):
        device = read_device_name(part[1].device)
        if device is None or device.device >= inventory.geometry.device_count:
            last = inventory.geometry.device_count - 1
            raise NotNumberedError(f"{part[1].device} is no device of this node, expected neuron-0 to neuron-{last}")
        devices[part] = device
    inside = style.numbers_inside(sorted({device.device for device in devices.values()}))
    names = {part: [cdi_device_name(device.device, inside[device.device])] for part, device in devices.items()}
    in_cores = [part for part, device in devices.items() if device.unit is Unit.CORE]
    if in_cores:
        per_device, cores = inventory.geometry.cores_per_device, list[int]()
        for device in devices.values():
            own = cores_in(device.mask_on(inventory.geometry, inventory.logical_core_size))
            cores += [inside[device.device] * per_device + core % per_device for core in own]
        cores.sort()
        if cores != list(range(cores[0], cores[-1] + 1)):
            raise NotNumberedError(f"the cores {format_ids(cores)} of {user} are not consecutive")
        if (cores[0], cores[-1]) not in core_windows(inventory.geometry):
            raise NotNumberedError(f"the cores {format_ids(cores)} of {user} are no set that this node hands out")
        names[in_cores[0]].append(cdi_cores_name(cores[0], cores[-1]))
    wanted = {sizes.get(uid, 0) for uid, _ in devices} or {0}
    if style.logical_core_size is None:
        if wanted != {0}:
            raise NotNumberedError(f"{user} asks for a logicalNeuronCore, which {inventory.device_name} does not have")
    elif devices:
        if len(wanted) > 1:
            raise NotNumberedError(f"the claims of {user} ask for different values of logicalNeuronCore")
        size = wanted.pop() or style.logical_core_size
        if in_cores and size != style.logical_core_size:
            text = f"cores of this node are of logicalNeuronCore {style.logical_core_size}"
            raise NotNumberedError(f"{user} asks for {size}, and {text}: ask for whole devices")
        names[next(iter(devices))].append(cdi_size_name(size))
    return {part: tuple(listed) for part, listed in names.items()}


def held_by_others(snapshot: Snapshot, claim: NeuronClaim, mask: CoreMask) -> str:
    """Who else has some of a claim's cores, or may still use them; empty if there is none.

    The other pods of a claim that is shared have the same cores by right.
    """
    inputs, geometry = snapshot.inputs, snapshot.inventory.geometry
    held = [
        entry.on(snapshot.inventory, inputs.reference(key.uid))
        for key, entry in inputs.recorded.entries.items()
        if key.claim != claim.uid
    ]
    for allocation in (*held, *(answer.on(snapshot.inventory) for answer in inputs.pending)):
        if allocation.mask & mask:
            devices = format_ids(geometry.devices_touched(allocation.mask & mask))
            by_claim = f" by claim {allocation.claim}" if allocation.claim else ""
            return f"{named(allocation.pod)} has neuron devices {devices}{by_claim}"
    for hold_down in inputs.hold_downs:
        if hold_down.mask & mask:
            devices = format_ids(geometry.devices_touched(hold_down.mask & mask))
            return f"neuron devices {devices} are held down: {hold_down.reason}"
    return ""


def health_of(snapshot: Snapshot, node_name: str) -> tuple[ReportedHealth, ...]:
    """The health of all devices and of the devices of claims. The kubelet shows it in the status of pods."""
    inventory, pool = snapshot.inventory, pool_of(node_name)
    names = {f"neuron-{device}" for device in range(inventory.geometry.device_count)}
    names |= {name for entry in snapshot.inputs.recorded.entries.values() for name in entry.claim_devices}
    missing = dict.fromkeys(range(inventory.geometry.device_count), "it is not there")
    faults = {**missing, **dict.fromkeys(inventory.present, ""), **inventory.unhealthy}
    return tuple(
        ReportedHealth(pool, name, f"neuron{device.device}: {fault}" if fault else "")
        for name in sorted(names)
        if (device := read_device_name(name))
        for fault in (faults.get(device.device, ""),)
    )


@dataclass(frozen=True, slots=True)
class ClaimSource:
    """Where claims and pods are read: the API server, as functions of the link to it."""

    claim: Callable[[str, str], Awaitable[NeuronClaim | None]]
    list_pods: Callable[[], Awaitable[None]]


class ClaimsUnreadError(Exception):
    """The API server did not show a claim; the text says why."""


@dataclass(frozen=True, slots=True)
class _Call:
    """The claims of one Prepare, and the CDI devices of each of their devices."""

    wanted: tuple[NeuronClaim, ...]
    names: Mapping[Part, tuple[str, ...]]


class ClaimPreparer:
    """Answers the kubelet for the claims of this node's pods."""

    def __init__(
        self,
        node: LocalNode,
        settings: PluginSettings,
        source: ClaimSource,
        counts: MetricCounts,
        times: PrepareTimes = PrepareTimes(),
    ) -> None:
        self._node = node
        self._settings = settings
        self._source = source
        self._counts = counts
        self._times = times

    async def prepare(self, claims: Sequence[ClaimReference]) -> Mapping[str, Sequence[PreparedDevice] | str]:
        """See ``ClaimHandler.prepare``.

        Claims are read again after a wait: the pod may have been deleted meanwhile, and its claim given away.
        """
        started, loop = time.perf_counter(), asyncio.get_running_loop()
        deadline, reported = loop.time() + self._times.wait, ""
        await self._node.disabled_known.wait()
        while True:
            call = None
            try:
                call = await self._read_all(claims)
                text = self._conflict(call)
            except (ClaimsUnreadError, NotNumberedError) as error:
                text = str(error)
            if call and not text:
                break
            if text != reported:
                logger.info("claims wait", extra={"claims": [str(claim) for claim in claims], "reason": text})
            reported = text
            until = loop.time() + self._times.reread
            while text and loop.time() < until:
                if loop.time() >= deadline:
                    return {claim.uid: text for claim in claims}
                await asyncio.sleep(self._times.poll)
                self._node.look_again()
                if call:
                    text = self._conflict(call)
        self._counts.observe("prepare_seconds", self._settings.dra_driver, seconds=time.perf_counter() - started)
        for claim in call.wanted:
            self._node.prepared(claim)
            names = [result.device for result in claim.results]
            logger.info("claim prepared", extra={"claim": str(claim), "uid": claim.uid, "devices": names})
        return {
            claim.uid: [
                PreparedDevice(
                    result.request,
                    result.pool,
                    result.device,
                    tuple(f"{CDI_KIND}={name}" for name in call.names[claim.uid, result]),
                )
                for result in claim.results
            ]
            for claim in call.wanted
        }

    async def unprepare(self, claims: Sequence[ClaimReference]) -> None:
        """Say so in the log. An end is seen by pods and cgroups: the kubelet counts pods, not which (#140212)."""
        for claim in claims:
            logger.info("claim no longer needed, says the kubelet", extra={"claim": str(claim), "uid": claim.uid})

    async def _read_all(self, wanted: Sequence[ClaimReference]) -> _Call:
        """Read the claims of a call, and the other claims that decide about numbers inside the containers."""
        claims = {}
        for reference in wanted:
            claim = await self._read(reference.namespace, reference.name)
            if claim.uid != reference.uid:
                raise ClaimsUnreadError(
                    f"claim {reference} has UID {claim.uid} now, expected {reference.uid}: it was made again"
                )
            if not claim.results:
                raise ClaimsUnreadError(f"claim {reference} has no device of {self._settings.dra_driver} allocated")
            # A pod that names its node itself may come with a claim of another node.
            pool = pool_of(self._settings.node_name)
            if others := sorted({result.pool for result in claim.results} - {pool}):
                raise ClaimsUnreadError(f"claim {reference} has devices of pool {', '.join(others)}, expected {pool}")
            claims[reference.namespace, reference.name] = claim
        read = tuple(claims.values())
        uids = {uid for claim in read for uid in claim.reserved_for}
        if not uids <= self._node.pods.pods.keys():
            await self._source.list_pods()  # the watch may be behind the kubelet
        for _ in range(2):  # the pods of these claims, and those that share another claim with one of them
            uids = {uid for claim in claims.values() for uid in claim.reserved_for}
            pods = [pod for uid, pod in self._node.pods.pods.items() if uid in uids]
            for pod in pods:
                for pod_claim in pod.claims:
                    key = (pod.reference.namespace, pod_claim.claim)
                    if pod_claim.claim and key not in claims:
                        claims[key] = await self._read(*key)
        self._node.see_claims({**self._node.claims, **claims})
        snapshot = self._snapshot()
        names = cdi_devices(pods, claims, container_style(self._settings, snapshot.inventory), snapshot)
        try:  # somebody may have removed the files since the daemon last looked
            write_cdi_files(self._settings, snapshot.inventory, self._node.pods.pods.values())
        except OSError as error:
            raise ClaimsUnreadError(f"the CDI specification cannot be written: {error}") from error
        return _Call(read, names)

    def _conflict(self, call: _Call) -> str:
        """Why a call has to wait now; empty if it need not."""
        self._node.look_at_claims()
        self._node.look_at_checkpoint()
        snapshot = self._snapshot()
        geometry, pods = snapshot.inventory.geometry, snapshot.inputs.pods.pods
        for claim in call.wanted:
            if claim.fault:
                return claim.fault
            if not any(uid in pods for uid in claim.reserved_for):
                return f"the API server shows no pod of claim {claim} on this node"
            mask = claim.mask_on(geometry, snapshot.inventory.logical_core_size)
            if missing := [
                device for device in geometry.devices_touched(mask) if device not in snapshot.inventory.present
            ]:
                return f"neuron devices {format_ids(missing)} are not there"
            if text := held_by_others(snapshot, claim, mask):
                return text
        return ""

    def _snapshot(self) -> Snapshot:
        snapshot = self._node.snapshot
        if snapshot is None:
            raise ClaimsUnreadError("no Neuron device has been found on this node yet: is the driver loaded?")
        return snapshot

    async def _read(self, namespace: str, name: str) -> NeuronClaim:
        claim = await self._source.claim(namespace, name)
        if claim is None:
            raise ClaimsUnreadError(f"claim {namespace}/{name} could not be read from the API server")
        return claim
