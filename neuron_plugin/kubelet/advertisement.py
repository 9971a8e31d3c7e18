"""The list of devices of one resource, in versions.

Any number of streams may follow it. Each remembers the last version it sent and wakes when there is a newer one, so a
stream that nobody reads delays no other and swallows no news, as one shared queue would. Messages are always the whole
list, so a slow stream may skip versions: what it sends next is the truth of that moment.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from neuron_plugin.kubelet.devices import AdvertisedDevice, in_numeric_order


@dataclass(frozen=True, slots=True)
class Edition:
    """One version of the list, in numeric order of ids."""

    version: int
    devices: tuple[AdvertisedDevice, ...]


class Subscription:
    """One stream's place in the versions: iterate it for each newer edition, beginning with the present one."""

    def __init__(self, advertisement: Advertisement) -> None:
        self._advertisement = advertisement
        self._seen: int | None = None
        self._closed = False
        self._news = asyncio.Event()

    def __aiter__(self) -> Subscription:
        """Itself."""
        return self

    async def __anext__(self) -> Edition:
        """Wait for an edition not seen yet. No deadline: a stream lives until its reader or `close` ends it."""
        while not self._closed:
            latest = self._advertisement.latest
            if latest.version != self._seen:
                self._seen = latest.version
                return latest
            self._news.clear()
            await self._news.wait()
        raise StopAsyncIteration

    def wake(self) -> None:
        """Look again at the latest edition."""
        self._news.set()

    def close(self) -> None:
        """End the iteration, now or at its next step."""
        self._closed = True
        self._news.set()


class Advertisement:
    """What is advertised of one resource; the daemon publishes, streams subscribe.

    Construct it with the devices already known, so that no stream begins with an empty list while devices exist.
    """

    def __init__(self, devices: Iterable[AdvertisedDevice] = ()) -> None:
        self._latest = Edition(1, _in_order(devices))
        self._subscriptions: set[Subscription] = set()

    @property
    def latest(self) -> Edition:
        """The newest edition."""
        return self._latest

    def publish(self, devices: Iterable[AdvertisedDevice]) -> bool:
        """Make ``devices`` the list, in any order; whether that changed anything.

        Raises:
            ValueError: an id occurs twice. The kubelet would count it once without a word.
        """
        ordered = _in_order(devices)
        if ordered == self._latest.devices:
            self._latest = Edition(self._latest.version, ordered)  # reasons may be new, which is no news to a kubelet
            return False
        self._latest = Edition(self._latest.version + 1, ordered)
        for subscription in self._subscriptions:
            subscription.wake()
        return True

    @contextmanager
    def subscribe(self) -> Iterator[Subscription]:
        """Follow the editions for the length of the block."""
        subscription = Subscription(self)
        self._subscriptions.add(subscription)
        try:
            yield subscription
        finally:
            self._subscriptions.discard(subscription)


def _in_order(devices: Iterable[AdvertisedDevice]) -> tuple[AdvertisedDevice, ...]:
    listed = list(devices)
    if twice := [each for each, count in Counter(device.id for device in listed).items() if count > 1]:
        raise ValueError(f"device ids {', '.join(twice)} are advertised twice, expected each once")
    by_id = {device.id: device for device in listed}
    return tuple(by_id[device_id] for device_id in in_numeric_order(by_id))
