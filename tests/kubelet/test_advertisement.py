from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from neuron_plugin.kubelet.advertisement import AdvertisedDevice, Advertisement, in_numeric_order
from tests.kubelet.fakes import devices
from tests.support.stories import Scene, rows


class Story(Scene):
    """Three devices that are advertised, and streams that follow them as ListAndWatch does: ``a`` and ``b``."""

    def __init__(self) -> None:
        self.it = Advertisement(devices(3))
        self._sent: dict[str, int] = {}

    def publish(self, text: str, is_news: str = "yes") -> None:
        """``3``, or ``3 sick 1``."""
        count, _, sick = text.partition(" sick ")
        assert self.it.publish(devices(int(count), *map(int, sick.split()))) is (is_news == "yes")

    def rewrite(self) -> None:
        self.it.rewrite()

    async def next(self, stream: str, expected: str) -> None:
        async with asyncio.timeout(5):
            while self.it.latest.version == self._sent.get(stream):
                await self.it.changed()
        self._sent[stream] = self.it.latest.version
        assert " ".join(f"{one.id}{'!' * (not one.healthy)}" for one in self.it.latest.devices) == expected

    async def silent(self, streams: str) -> None:
        for stream in streams.split():
            pending = asyncio.ensure_future(self.next(stream, ""))
            for _ in range(5):
                await asyncio.sleep(0)
            assert not pending.done()
            pending.cancel()
            await asyncio.gather(pending, return_exceptions=True)


STORIES = rows("""
    p15 the first edition is the full list: next a -> 0 1 2
    p16 no edition when nothing changed: next a -> 0 1 2; publish 3 -> no; silent a
    p17 each change of health is one edition with all devices:
        next a -> 0 1 2; publish 3 sick 1; next a -> 0 1! 2; publish 3; next a -> 0 1 2; silent a
    p18 every stream gets every change: next a -> 0 1 2; next b -> 0 1 2; publish 2; next a -> 0 1; next b -> 0 1
    a stream that never reads delays no other:
        next a -> 0 1 2; next b -> 0 1 2; publish 2; next b -> 0 1; publish 1; next b -> 0
    a slow stream skips to the latest edition: next a -> 0 1 2; publish 2; publish 1; next a -> 0; silent a
    a rewrite is one edition with the same devices for every stream:
        publish 2 sick 1; next a -> 0 1!; next b -> 0 1!; rewrite; next a -> 0 1!; next b -> 0 1!; silent a b
    rewrites that come faster than a stream sends are one edition:
        next a -> 0 1 2; rewrite; rewrite; next a -> 0 1 2; silent a
    a change after a rewrite is still a change: rewrite; publish 3 -> no; publish 3 sick 0
""")
"""What is published, and what each stream sends next; ``!`` marks a device that is unhealthy."""


@pytest.mark.parametrize("steps", STORIES)
async def test_what_streams_send(steps: str) -> None:
    await Story().play(steps)


async def test_p16_a_new_reason_is_no_edition_but_what_a_refusal_says() -> None:
    advertisement = Advertisement([AdvertisedDevice("0", healthy=False, reason="reset under way")])
    version = advertisement.latest.version
    assert not advertisement.publish([AdvertisedDevice("0", healthy=False, reason="ECC errors")])
    assert (advertisement.latest.version, advertisement.latest.devices[0].reason) == (version, "ECC errors")


def test_a_change_of_numa_nodes_is_a_change() -> None:
    assert Advertisement([AdvertisedDevice("0")]).publish([AdvertisedDevice("0", numa_nodes=(1,))])


async def test_waking_lets_a_stream_look_without_an_edition() -> None:
    advertisement = Advertisement(devices(1))
    version = advertisement.latest.version
    waiting = asyncio.create_task(advertisement.changed())
    await asyncio.sleep(0)
    advertisement.wake()
    await asyncio.wait_for(waiting, 5)
    assert advertisement.latest.version == version


@given(st.lists(st.text(), unique=True))
def test_any_text_has_a_place_in_the_order(ids: list[str]) -> None:
    ordered = in_numeric_order(ids)
    assert sorted(ordered) == sorted(ids)
    assert in_numeric_order(reversed(ordered)) == ordered


def test_numbers_come_before_other_texts() -> None:
    assert in_numeric_order(["b", "10", "a", "9"]) == ["9", "10", "a", "b"]
