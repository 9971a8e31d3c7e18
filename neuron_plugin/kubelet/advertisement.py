"""The device list of one resource, in versions.

Any number of ListAndWatch streams may follow it. Each stream remembers its last sent version and wakes up for a newer
one. So an unread stream delays no other stream and loses no change, as it would with one shared queue. Each message is
the whole list, so a slow stream may skip versions.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple


@dataclass(frozen=True, slots=True)
class AdvertisedDevice:
    """One unit of a resource as ListAndWatch lists it.

    ``reason`` says why a device is unhealthy: not for the kubelet, but for the error of a refused request.
    ``numa_nodes`` is empty unless NUMA alignment is configured and the NUMA node is known: with a topology the kubelet
    may fill a request without asking for a preference (``dm/manager.go``, ``devicesToAllocate``).
    """

    id: str
    healthy: bool = True
    numa_nodes: tuple[int, ...] = ()
    reason: str = field(default="", compare=False)


class Edition(NamedTuple):
    """One version of the list, in numeric order of ids."""

    version: int
    devices: tuple[AdvertisedDevice, ...]


class Advertisement:
    """The advertised devices of one resource: the daemon publishes, streams send `latest` and wait for `changed`.

    Construct it with the known devices, so that no stream begins with an empty list while devices exist. Devices must
    be in numeric order and each id unique: the kubelet would silently count a duplicate once.
    """

    def __init__(self, devices: Iterable[AdvertisedDevice] = ()) -> None:
        self.latest = Edition(1, tuple(devices))
        self.streams = 0
        """How many streams are open."""
        self._changed = asyncio.Event()

    def publish(self, devices: Iterable[AdvertisedDevice]) -> bool:
        """Make ``devices`` the list, and send it if it differs from the last one. Returns whether it differs."""
        version, before = self.latest
        after = tuple(devices)
        differs = after != before  # reasons may differ; the kubelet never sees them
        self.latest = Edition(version + differs, after)
        if differs:
            self.wake()
        return differs

    def rewrite(self) -> None:
        """Send the same list on every open stream, so that the kubelet writes its checkpoint.

        Any ListAndWatch message, even an identical one, makes the kubelet write its whole state (``dm/manager.go``,
        ``genericDeviceUpdateCallback``). Several calls may become one message of a stream.
        """
        self.latest = self.latest._replace(version=self.latest.version + 1)
        self.wake()

    async def changed(self) -> None:
        """Wait until `latest` is newer, or `wake` is called. No deadline: a stream lives until one side ends it."""
        await self._changed.wait()

    def wake(self) -> None:
        """Let every waiting stream look again."""
        self._changed.set()
        self._changed = asyncio.Event()


def in_numeric_order(ids: Iterable[str]) -> list[str]:
    """Sort ids so that 10 comes after 9; ids that are no decimal numbers follow, as text."""
    return sorted(ids, key=lambda text: (not text.isdecimal(), int(text) if text.isdecimal() else 0, text))
