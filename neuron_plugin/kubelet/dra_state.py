"""The prepared claims of pods, read from the kubelet's file.

The kubelet's DRA manager writes ``dra_manager_state`` in its root directory (pkg/kubelet/cm/dra/state, 1.36). Before it
calls a driver it writes the claims and the pods that wait for them. It writes the drivers' answers once all drivers and
claims of a pod have succeeded. So a claim without devices is being prepared. The kubelet also removes entries of
running pods (kubernetes#140212), so a removed entry does not mean that the pod has ended. Never write this file.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import ClassVar

import msgspec

from neuron_plugin.kubelet.checkpoint import CheckpointError, KubeletFile, Version

API_VERSION = "checkpoint.dra.kubelet.k8s.io/v1"


@dataclass(frozen=True, slots=True)
class PreparedClaim:
    """A claim that a driver has prepared: its pods, and the names that the driver gave the devices."""

    driver: str
    uid: str
    namespace: str
    name: str
    pod_uids: tuple[str, ...]
    devices: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class DraState:
    """One version of the file. ``version`` is None while there is no file."""

    claims: tuple[PreparedClaim, ...]
    version: Version | None


@dataclass(frozen=True, slots=True)
class DraStateFile(KubeletFile[DraState]):
    """The kubelet's file of prepared claims; `read` returns the claims of ``drivers`` only."""

    drivers: Collection[str]
    what: ClassVar[str] = "file of claims"

    def content(self, data: bytes | None, version: Version | None) -> DraState:
        """The claims of the file."""
        return DraState(() if data is None else parse_dra_state(data, self.drivers), version)


class _Device(msgspec.Struct, frozen=True):
    name: str = msgspec.field(name="DeviceName")


class _Driver(msgspec.Struct, frozen=True):
    devices: tuple[_Device, ...] | None = msgspec.field(name="Devices", default=None)


class _Claim(msgspec.Struct, frozen=True):
    uid: str = msgspec.field(name="ClaimUID")
    name: str = msgspec.field(name="ClaimName")
    namespace: str = msgspec.field(name="Namespace")
    pod_uids: dict[str, object] | None = msgspec.field(name="PodUIDs")
    drivers: dict[str, _Driver] | None = msgspec.field(name="DriverState")


class _Data(msgspec.Struct, frozen=True):
    """The claims. A kubelet always writes the key, with null for no claims: a file without it has an unknown shape."""

    api_version: str = msgspec.field(name="apiVersion")
    claims: tuple[_Claim, ...] | None = msgspec.field(name="ClaimInfoStateList")


class _File(msgspec.Struct, frozen=True):
    """The file. ``Data`` is JSON in a text. The kubelet itself refuses to start with a wrong checksum."""

    data: str = msgspec.field(name="Data")


def parse_dra_state(data: bytes, drivers: Collection[str]) -> tuple[PreparedClaim, ...]:
    """The claims in the text of the file that have devices of one of ``drivers``.

    Raises:
        CheckpointError: the text does not have the shape of Kubernetes 1.34 to 1.36.
    """
    try:
        document = msgspec.json.decode(msgspec.json.decode(data, type=_File).data, type=_Data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise CheckpointError(f"expected a JSON object with Data of {API_VERSION}: {error}") from error
    if document.api_version != API_VERSION:
        raise CheckpointError(f"its apiVersion is {document.api_version!r}, expected {API_VERSION}")
    return tuple(
        PreparedClaim(
            driver,
            claim.uid,
            claim.namespace,
            claim.name,
            tuple(sorted(claim.pod_uids or ())),
            tuple(device.name for device in state.devices),
        )
        for claim in document.claims or ()
        for driver, state in (claim.drivers or {}).items()
        if driver in drivers and state.devices
    )
