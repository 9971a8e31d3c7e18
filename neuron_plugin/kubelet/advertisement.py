"""The device list of one resource, in versions.

Any number of ListAndWatch streams may follow it. Each stream remembers the last version it sent and wakes when there is
a newer one. So a stream that is not read delays no other stream and loses no change, as one shared queue would. Each
message is the whole list, so a slow stream may skip versions.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class AdvertisedDevice:
    """One unit of a resource as ListAndWatch lists it.

    ``reason`` says why a device is unhealthy; the kubelet never sees it, the error of a refused request contains it.
    ``numa_nodes`` is empty unless NUMA alignment was asked for and the node is known: with a topology the kubelet may
    fill a request without asking for a preference (``dm/manager.go``, ``devicesToAllocate``).
    """

    id: str
    healthy: bool = True
    numa_nodes: tuple[int, ...] = ()
    reason: str = field(default="", compare=False)


@dataclass(frozen=True, slots=True)
class Edition:
    """One version of the list, in numeric order of ids."""

    version: int
    devices: tuple[AdvertisedDevice, ...]
    by_id: Mapping[str, AdvertisedDevice] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "by_id", {device.id: device for device in self.devices})


class Advertisement:
    """What is advertised of one resource: the daemon publishes, streams send `latest` and wait for `changed`.

    Construct it with the devices already known, so that no stream begins with an empty list while devices exist.
    """

    def __init__(self, devices: Iterable[AdvertisedDevice] = ()) -> None:
        self.latest = Edition(1, _in_order(devices))
        self.streams = 0
        """How many streams are open."""
        self._changed = asyncio.Event()

    def publish(self, devices: Iterable[AdvertisedDevice]) -> bool:
        """Make ``devices`` the list, in any order, and send it if it differs from the last one; whether it did.

        Raises:
            ValueError: an id occurs twice. The kubelet would silently count it once.
        """
        ordered = _in_order(devices)
        if ordered == self.latest.devices:
            self.latest = Edition(self.latest.version, ordered)  # reasons may differ; the kubelet never sees them
            return False
        self._send(ordered)
        return True

    def rewrite(self) -> None:
        """Send the same list again on every open stream, so that the kubelet writes its checkpoint.

        Any ListAndWatch message makes the kubelet write its whole memory, an identical one too (``dm/manager.go``,
        ``genericDeviceUpdateCallback``). Calls made before a stream has sent the last one become one message.
        """
        self._send(self.latest.devices)

    def _send(self, devices: tuple[AdvertisedDevice, ...]) -> None:
        self.latest = Edition(self.latest.version + 1, devices)
        self.wake()

    async def changed(self) -> None:
        """Wait until `latest` is newer, or `wake` is called. No deadline: a stream lives until one side ends it."""
        await self._changed.wait()

    def wake(self) -> None:
        """Let every waiting stream look again."""
        self._changed.set()
        self._changed = asyncio.Event()


def _in_order(devices: Iterable[AdvertisedDevice]) -> tuple[AdvertisedDevice, ...]:
    listed = list(devices)
    if twice := [each for each, count in Counter(device.id for device in listed).items() if count > 1]:
        raise ValueError(f"device ids {', '.join(twice)} are advertised twice, expected each once")
    by_id = {device.id: device for device in listed}
    return tuple(by_id[device_id] for device_id in in_numeric_order(by_id))


def in_numeric_order(ids: Iterable[str]) -> list[str]:
    """Sort ids so that 10 comes after 9; ids that are no decimal numbers follow, as text."""
    return sorted(ids, key=lambda text: (not text.isdecimal(), int(text) if text.isdecimal() else 0, text))
