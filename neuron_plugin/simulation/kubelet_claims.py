"""What the simulated kubelet remembers of claims, and its file ``dra_manager_state``.

It follows ``pkg/kubelet/cm/dra`` of Kubernetes 1.36.2, faults included, because a driver has to live with them. It has
no sockets, no clock and no tasks: its user makes the calls of `Drivers`, writes the file, and may do anything while a
call is under way.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import msgspec

from neuron_plugin.kubelet.dra_state import API_VERSION
from neuron_plugin.simulation.api_server_kinds import AnyJson

ClaimKey = tuple[str, str]
"""Namespace and name: the kubelet keeps claims by name, not by UID."""


class KubeletStateError(Exception):
    """The file of claims cannot be loaded: the kubelet does not start."""


class NotPreparedError(Exception):
    """A pod's claims are not prepared. The pod waits, and the kubelet tries again; the text is the kubelet's."""


@dataclass(frozen=True, slots=True)
class DriverDevice:
    """A device as its driver has answered for it."""

    pool: str
    name: str
    requests: tuple[str, ...]
    cdi_ids: tuple[str, ...]


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


@dataclass
class ClaimMemory:
    """The memory of one kubelet process; ``write`` replaces its file.

    ``looks_at_pod``: whether the end of a pod gives up a claim only if that pod had it. The real one counts the pods
    and does not look which (kubernetes#140212), so what a second call for one pod gives up is another's.
    """

    looks_at_pod: bool = False
    claims: dict[ClaimKey, ClaimInfo] = field(default_factory=dict)
    write: Callable[[], None] = lambda: None

    async def prepare(self, claims: Iterable[AnyJson], pod_uid: str, drivers: Drivers) -> None:
        """Have all allocated claims of a pod prepared, by one call to each driver.

        The file is written before the calls, with the pod and the devices of earlier tries, and after all of them have
        succeeded. An error of any driver ends it, and nothing is taken back.

        Raises:
            NotPreparedError: the pod has to wait, and to be prepared again.
        """
        known = []
        for claim in claims:
            known.append(self.add(claim, pod_uid))
            self.write()
        for driver, asked in self.unprepared(known).items():
            answer = await drivers.prepare(driver, asked)
            for info in asked:
                if info.uid not in answer:
                    raise NotPreparedError(f"NodePrepareResources skipped {len(asked) - len(answer)} ResourceClaims")
                devices = answer[info.uid]
                if isinstance(devices, str):
                    text = f"NodePrepareResources failed for ResourceClaim {info.key[1]}: {devices}"
                    raise NotPreparedError(text)
                for device in devices:
                    self.add_device(info.key, driver, device)
        self.mark_prepared(claim.key for claim in known)
        self.write()

    async def unprepare(self, keys: Iterable[ClaimKey], pod_uid: str, drivers: Drivers) -> None:
        """Give up claims of a pod that has ended.

        Raises:
            NotPreparedError: a driver is away or refuses, and the pod stays Terminating.
        """
        asked = self.given_up(keys, pod_uid)
        for driver, claims in asked.items():
            await drivers.unprepare(driver, claims)
        self.forget(claim.key for claims in asked.values() for claim in claims)
        self.write()

    def add(self, claim: AnyJson, pod_uid: str) -> ClaimInfo:
        """A pod is about to have an allocated claim.

        Raises:
            NotPreparedError: an earlier claim of this name is still there.
        """
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

    def unprepared(self, claims: Iterable[ClaimInfo]) -> dict[str, list[ClaimInfo]]:
        """The claims that each driver is to be asked for."""
        by_driver: dict[str, list[ClaimInfo]] = {}
        for claim in claims:
            for driver in () if claim.prepared else claim.drivers:
                by_driver.setdefault(driver, []).append(claim)
        return by_driver

    def add_device(self, key: ClaimKey, driver: str, device: DriverDevice) -> None:
        """Take in a part of a driver's answer.

        The devices of an earlier answer stay, so each try after a failed one appends (kubernetes#140955).

        Raises:
            NotPreparedError: the claim was given up meanwhile.
        """
        self._known(key).drivers.setdefault(driver, []).append(device)

    def mark_prepared(self, keys: Iterable[ClaimKey]) -> None:
        """All drivers have answered for all claims of a pod.

        Raises:
            NotPreparedError: one of the claims was given up meanwhile.
        """
        for key in keys:
            self._known(key).prepared = True

    def given_up(self, keys: Iterable[ClaimKey], pod_uid: str) -> dict[str, list[ClaimInfo]]:
        """The claims to unprepare by each driver when a pod ends; those of other pods, too, only lose this pod."""
        by_driver: dict[str, list[ClaimInfo]] = {}
        for key in keys:
            claim = self.claims.get(key)
            if claim is None or (self.looks_at_pod and pod_uid not in claim.pods):
                continue
            if len(claim.pods) > 1:
                claim.pods.discard(pod_uid)
                continue
            for driver in claim.drivers:
                by_driver.setdefault(driver, []).append(claim)
        return by_driver

    def forget(self, keys: Iterable[ClaimKey]) -> None:
        """The drivers know that claims are given up."""
        for key in keys:
            self.claims.pop(key, None)

    def of_inactive(self, active: Collection[str]) -> dict[tuple[str, str], list[ClaimKey]]:
        """The claims of pods that the kubelet no longer has, by namespace and UID of the pod."""
        keys: dict[tuple[str, str], list[ClaimKey]] = {}
        for claim in self.claims.values():
            for uid in claim.pods.difference(active):
                keys.setdefault((claim.key[0], uid), []).append(claim.key)
        return keys

    # The file.

    def state_bytes(self) -> bytes:
        """The whole memory as ``dra_manager_state`` (``pkg/kubelet/cm/dra/state/checkpoint.go``)."""
        entries = [
            {
                "ClaimUID": claim.uid,
                "ClaimName": claim.key[1],
                "Namespace": claim.key[0],
                "PodUIDs": {uid: {} for uid in sorted(claim.pods)},
                "DriverState": {
                    driver: {"Devices": [_written(device) for device in devices] or None}
                    for driver, devices in claim.drivers.items()
                },
            }
            for claim in self.claims.values()
        ]
        data = {"kind": "DRACheckpoint", "apiVersion": API_VERSION, "ClaimInfoStateList": entries}
        text = msgspec.json.encode(data)
        return msgspec.json.encode({"Data": text.decode(), "Checksum": zlib.crc32(text)})

    def load(self, content: bytes | None) -> None:
        """Begin with the file of an earlier process; None is no file.

        Raises:
            KubeletStateError: it cannot be read, or its checksum is wrong.
        """
        self.claims.clear()
        if content is None:
            return
        try:
            file = msgspec.json.decode(content)
            if zlib.crc32(file["Data"].encode()) != file["Checksum"]:
                raise KubeletStateError("checkpoint is corrupted: please drain node and remove DRA state file")
            for entry in msgspec.json.decode(file["Data"])["ClaimInfoStateList"] or ():
                drivers = {
                    driver: [_read(device) for device in state["Devices"] or ()]
                    for driver, state in (entry["DriverState"] or {}).items()
                }
                key = entry["Namespace"], entry["ClaimName"]
                self.claims[key] = ClaimInfo(entry["ClaimUID"], key, set(entry["PodUIDs"] or ()), drivers)
        except (msgspec.DecodeError, UnicodeDecodeError, KeyError, TypeError, AttributeError) as error:
            raise KubeletStateError(f"please drain node and remove DRA state file: {error!r}") from error

    def _known(self, key: ClaimKey) -> ClaimInfo:
        claim = self.claims.get(key)
        if claim is None:
            text = f"unable to get claim info for ResourceClaim {key[1]} in namespace {key[0]}"
            raise NotPreparedError(f"internal error: {text}")
        return claim


def _written(device: DriverDevice) -> AnyJson:
    return {
        "PoolName": device.pool,
        "DeviceName": device.name,
        "ShareID": None,
        "RequestNames": device.requests,
        "CDIDeviceIDs": device.cdi_ids,
    }


def _read(state: Mapping[str, Any]) -> DriverDevice:
    names, ids = state["RequestNames"] or (), state["CDIDeviceIDs"] or ()
    return DriverDevice(state["PoolName"], state["DeviceName"], tuple(names), tuple(ids))
