"""Which pod has which claim prepared, read from the kubelet's own file.

The kubelet's DRA manager writes ``dra_manager_state`` in its root directory (pkg/kubelet/cm/dra/state, 1.36). Before it
calls a driver it writes the claims and the pods that wait for them. It writes what drivers have answered after all
drivers and claims of a pod have succeeded. So a claim without devices is one that is being prepared. The kubelet also
removes lines of pods that run (kubernetes#140212), so a line that goes ends nothing. Never write this file.
"""

from __future__ import annotations

import os
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

import msgspec

from neuron_plugin.kubelet.checkpoint import MOST_BYTES, CheckpointError, Version

API_VERSION = "checkpoint.dra.kubelet.k8s.io/v1"
_CANNOT_STAT: Version = (0, 0, 0)


@dataclass(frozen=True, slots=True)
class PreparedClaim:
    """A claim that a driver has prepared: its pods, and the devices as that driver has named them."""

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
class DraStateFile:
    """The kubelet's file at ``path``; `read` returns the claims of ``drivers`` only."""

    path: Path
    drivers: Collection[str]

    def version(self) -> Version | None:
        """Modification time in nanoseconds, size and inode, by one stat; None if there is no file.

        (0, 0, 0) if the stat fails for another reason: that is no version of any file, so `read` is called and raises.
        """
        try:
            status = os.stat(self.path)  # noqa: PTH116 - half the time of Path.stat, in every call of the kubelet
        except FileNotFoundError:
            return None
        except OSError:
            return _CANNOT_STAT
        return status.st_mtime_ns, status.st_size, status.st_ino

    def read(self) -> DraState:
        """Read the whole file. ``version`` is that of the file which was read, also if it is replaced meanwhile.

        Raises:
            CheckpointError: the file cannot be opened, is larger than 64 MiB, or has an unknown shape.
        """
        try:
            with self.path.open("rb") as file:
                status = os.fstat(file.fileno())
                data = file.read(MOST_BYTES + 1)
            claims = parse_dra_state(data, self.drivers)
        except FileNotFoundError:
            return DraState((), None)
        except (OSError, CheckpointError) as error:
            raise CheckpointError(f"cannot read the kubelet's file of claims {self.path}: {error}") from error
        return DraState(claims, (status.st_mtime_ns, status.st_size, status.st_ino))


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
    """A kubelet always writes the key, with null for no claims: without it the shape is unknown."""

    api_version: str = msgspec.field(name="apiVersion")
    claims: tuple[_Claim, ...] | None = msgspec.field(name="ClaimInfoStateList")


class _File(msgspec.Struct, frozen=True):
    """``Data`` is JSON in a text. The kubelet itself refuses to start with a wrong checksum."""

    data: str = msgspec.field(name="Data")


def parse_dra_state(data: bytes, drivers: Collection[str]) -> tuple[PreparedClaim, ...]:
    """The claims in the text of the file that have devices of one of ``drivers``.

    Raises:
        CheckpointError: the text has another shape than that of Kubernetes 1.34 to 1.36.
    """
    if len(data) > MOST_BYTES:
        raise CheckpointError(f"more than {MOST_BYTES} bytes, expected less")
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
