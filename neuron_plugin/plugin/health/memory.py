"""What is worth knowing about devices after a restart: which errors are old, and what waits for a driver reload.

Kept per serial number, because a chip may be replaced. Losing the file costs no more than that errors which were
accepted count again where they count from zero, and that those from before a restart are taken for old elsewhere.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

logger = logging.getLogger(__name__)

FILE_NAME = "health.json"
VERSION = 1
MOST_DEVICES = 256
"""Of devices that were here once; the oldest are forgotten."""

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


class DeviceMemory(msgspec.Struct, frozen=True, omit_defaults=True):
    """Accepted counts, and the texts of what waits for a reload, each by the name of its signal."""

    accepted: Mapping[str, int] = {}
    latched: Mapping[str, str] = {}


class _File(msgspec.Struct, frozen=True):
    version: int
    boot: str
    devices: dict[str, DeviceMemory]


@dataclass(frozen=True, slots=True)
class Memory:
    """Of each device by its key."""

    devices: Mapping[str, DeviceMemory] = field(default_factory=dict)

    def of(self, key: str) -> DeviceMemory:
        """What is known of one device."""
        return self.devices.get(key, DeviceMemory())

    def with_devices(self, here: Mapping[str, DeviceMemory]) -> Memory:
        """With what is known of those that are here now."""
        others = [(key, known) for key, known in self.devices.items() if key not in here]
        return Memory(dict([*others, *here.items()][-MOST_DEVICES:]))


def boot_id() -> str:
    """The kernel's id of this boot; empty where it does not tell."""
    try:
        return _BOOT_ID.read_text(encoding="ascii").strip()
    except OSError:
        return ""


def load(path: Path, boot: str) -> Memory:
    """What was kept. Nothing where there is no usable file; what waited for a reload is over after a boot."""
    try:
        kept = msgspec.json.decode(path.read_bytes(), type=_File)
    except FileNotFoundError:
        return Memory()
    except (OSError, msgspec.DecodeError, UnicodeDecodeError) as error:
        logger.warning(
            "the health memory cannot be used, starting without", extra={"file": str(path), "why": str(error)}
        )
        return Memory()
    if kept.version != VERSION:
        return Memory()
    if kept.boot == boot:
        return Memory(kept.devices)
    return Memory({key: DeviceMemory(accepted=known.accepted) for key, known in kept.devices.items()})


def save(path: Path, memory: Memory, boot: str) -> None:
    """Replace the file as a whole.

    Raises:
        OSError: the directory cannot be made or written.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_name(f".{path.name}.{os.getpid()}")
    aside.write_bytes(msgspec.json.encode(_File(VERSION, boot, dict(memory.devices))))
    aside.replace(path)
