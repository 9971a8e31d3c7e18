"""What the simulated kubelet remembers of claims, and its file ``dra_manager_state``.

It follows ``pkg/kubelet/cm/dra`` of Kubernetes 1.36.2, faults included, because a driver has to live with them. It has
no sockets, no clock and no tasks: its user makes the calls of `Drivers`, writes the file, and may do anything while a
call is under way.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import msgspec

from neuron_plugin.kubelet.dra_state import API_VERSION
from neuron_plugin.simulation.api_server_kinds import AnyJson

ClaimKey = tuple[str, str]
"""Namespace and name: the kubelet keeps claims by name, not by UID."""


class KubeletStateError(Exception):
    """The file of claims cannot be loaded: the kubelet does not start."""


class NotPreparedError(Exception):
    """A pod's claims are not prepared. The pod waits, and the kubelet tries again; the text is the kubelet's."""


class DriverDevice(msgspec.Struct, frozen=True):
    """A device as its driver has answered for it, under the names of the file."""

    pool: str = msgspec.field(name="PoolName")
    name: str = msgspec.field(name="DeviceName")
    requests: tuple[str, ...] = msgspec.field(name="RequestNames")
    cdi_ids: tuple[str, ...] = msgspec.field(name="CDIDeviceIDs")


@dataclass(slots=True)
class ClaimInfo:
    """A claim that pods of this node have. ``prepared`` is not in the file: after a start no claim is."""

    uid: str
    key: ClaimKey
    pods: set[str]
    drivers: dict[str, list[DriverDevice]]
    prepared: bool = False

    def devices(self, request: str) -> Iterator[tuple[str, DriverDevice]]:
        """The devices for a request, or for all with an empty one, each with its driver."""
        for driver, devices in self.drivers.items():
            for device in devices:
                if not request or not device.requests or request in device.requests:
                    yield driver, device


class Drivers(Protocol):
    """The drivers, as the kubelet calls them. Either call may fail with a `NotPreparedError`."""

    async def prepare(self, driver: str, claims: Sequence[ClaimInfo]) -> Mapping[str, Sequence[DriverDevice] | str]:
        """The devices of each claim by its UID, or why it has none."""

    async def unprepare(self, driver: str, claims: Sequence[ClaimInfo]) -> None:
        """Give claims up."""


class _DriverState(msgspec.Struct, frozen=True):
    devices: list[DriverDevice] | None = msgspec.field(name="Devices")


class _Claim(msgspec.Struct, frozen=True):
    uid: str = msgspec.field(name="ClaimUID")
    name: str = msgspec.field(name="ClaimName")
    namespace: str = msgspec.field(name="Namespace")
    pods: dict[str, AnyJson] | None = msgspec.field(name="PodUIDs")
    drivers: dict[str, _DriverState] | None = msgspec.field(name="DriverState")


class _Data(msgspec.Struct, frozen=True):
    """``pkg/kubelet/cm/dra/state/checkpoint.go``."""

    claims: list[_Claim] | None = msgspec.field(name="ClaimInfoStateList")
    kind: str = "DRACheckpoint"
    version: str = msgspec.field(name="apiVersion", default=API_VERSION)


class _File(msgspec.Struct, frozen=True, rename="pascal"):
    data: str
    checksum: int


@dataclass
class ClaimMemory:
    """The memory of one kubelet process; ``write`` replaces its file."""

    claims: dict[ClaimKey, ClaimInfo] = field(default_factory=dict)
    write: Callable[[], None] = lambda: None

    async def prepare(self, claims: Iterable[AnyJson], pod_uid: str, drivers: Drivers) -> None:
        """Have all allocated claims of a pod prepared, by one call to each driver.

        The file is written before the calls, with the pod and the devices of earlier tries, and after all of them have
        succeeded. An error of any driver ends it, and nothing is taken back: each try after a failed one appends its
        devices to those of the earlier answers (kubernetes#140955).

        Raises:
            NotPreparedError: the pod has to wait, and to be prepared again.
        """
        known: list[ClaimInfo] = []
        by_driver: dict[str, list[ClaimInfo]] = {}
        for claim in claims:
            known.append(info := self._added(claim, pod_uid))
            self.write()
            for driver in () if info.prepared else info.drivers:
                by_driver.setdefault(driver, []).append(info)
        for driver, asked in by_driver.items():
            answer = await drivers.prepare(driver, asked)
            for info in asked:
                if info.uid not in answer:
                    raise NotPreparedError(f"NodePrepareResources skipped {len(asked) - len(answer)} ResourceClaims")
                devices = answer[info.uid]
                if isinstance(devices, str):
                    text = f"NodePrepareResources failed for ResourceClaim {info.key[1]}: {devices}"
                    raise NotPreparedError(text)
                for device in devices:
                    self.known(info.key).drivers.setdefault(driver, []).append(device)
        for info in known:
            self.known(info.key).prepared = True
        self.write()

    async def unprepare(self, keys: Iterable[ClaimKey], pod_uid: str, drivers: Drivers) -> None:
        """Give up claims of a pod that has ended; those of other pods, too, only lose this pod.

        The kubelet counts the pods of a claim and does not look which they are. So what a second call for one pod
        gives up is another's (kubernetes#140212).

        Raises:
            NotPreparedError: a driver is away or refuses, and the pod stays Terminating.
        """
        asked: dict[str, list[ClaimInfo]] = {}
        for claim in filter(None, map(self.claims.get, keys)):
            if len(claim.pods) > 1:
                claim.pods.discard(pod_uid)
                continue
            for driver in claim.drivers:
                asked.setdefault(driver, []).append(claim)
        for driver, claims in asked.items():
            await drivers.unprepare(driver, claims)
        for claim in (claim for claims in asked.values() for claim in claims):
            self.claims.pop(claim.key, None)
        self.write()

    def of_inactive(self, active: Collection[str]) -> dict[tuple[str, str], list[ClaimKey]]:
        """The claims of pods that the kubelet no longer has, by namespace and UID of the pod."""
        keys: dict[tuple[str, str], list[ClaimKey]] = {}
        for claim in self.claims.values():
            for uid in claim.pods.difference(active):
                keys.setdefault((claim.key[0], uid), []).append(claim.key)
        return keys

    def known(self, key: ClaimKey) -> ClaimInfo:
        """The claim of this name.

        Raises:
            NotPreparedError: it was given up.
        """
        claim = self.claims.get(key)
        if claim is None:
            text = f"unable to get claim info for ResourceClaim {key[1]} in namespace {key[0]}"
            raise NotPreparedError(f"internal error: {text}")
        return claim

    def _added(self, claim: AnyJson, pod_uid: str) -> ClaimInfo:
        """A pod is about to have an allocated claim."""
        metadata = claim["metadata"]
        key = metadata["namespace"], metadata["name"]
        known = self.claims.get(key)
        if known is None:
            results = claim["status"]["allocation"]["devices"].get("results") or ()
            drivers: dict[str, list[DriverDevice]] = {result["driver"]: [] for result in results}
            known = self.claims[key] = ClaimInfo(metadata["uid"], key, set(), drivers)
        elif known.uid != metadata["uid"]:
            raise NotPreparedError(
                f"old ResourceClaim with same name {key[1]} and different UID {known.uid} still exists "
                "(previous pod force-deleted?!)"
            )
        known.pods.add(pod_uid)
        return known

    # The file.

    def state_bytes(self) -> bytes:
        """The whole memory as ``dra_manager_state``."""
        entries = [
            _Claim(
                claim.uid,
                claim.key[1],
                claim.key[0],
                {uid: {} for uid in sorted(claim.pods)},
                {driver: _DriverState(devices or None) for driver, devices in claim.drivers.items()},
            )
            for claim in self.claims.values()
        ]
        text = msgspec.json.encode(_Data(entries))
        return msgspec.json.encode(_File(text.decode(), zlib.crc32(text)))

    def load(self, content: bytes | None) -> None:
        """Begin with the file of an earlier process; None is no file.

        Raises:
            KubeletStateError: it cannot be read, or its checksum is wrong.
        """
        self.claims.clear()
        if content is None:
            return
        try:
            file = msgspec.json.decode(content, type=_File)
            data = msgspec.json.decode(file.data, type=_Data)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise KubeletStateError(f"please drain node and remove DRA state file: {error!r}") from error
        if zlib.crc32(file.data.encode()) != file.checksum:
            raise KubeletStateError("checkpoint is corrupted: please drain node and remove DRA state file")
        for claim in data.claims or ():
            drivers = {driver: list(state.devices or ()) for driver, state in (claim.drivers or {}).items()}
            key = claim.namespace, claim.name
            self.claims[key] = ClaimInfo(claim.uid, key, set(claim.pods or ()), drivers)
