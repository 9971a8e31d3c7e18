from __future__ import annotations

import asyncio

from hypothesis import given
from hypothesis import strategies as st

from neuron_plugin.kubelet.advertisement import AdvertisedDevice, Advertisement, Edition, in_numeric_order
from tests.kubelet.fakes import devices


class Stream:
    """Follows an advertisement as ListAndWatch does."""

    def __init__(self, advertisement: Advertisement) -> None:
        self.advertisement = advertisement
        self.sent: int | None = None

    async def next(self) -> Edition:
        async with asyncio.timeout(5):
            while self.advertisement.latest.version == self.sent:
                await self.advertisement.changed()
        self.sent = self.advertisement.latest.version
        return self.advertisement.latest

    async def assert_silent(self) -> None:
        pending = asyncio.ensure_future(self.next())
        for _ in range(5):
            await asyncio.sleep(0)
        assert not pending.done()
        pending.cancel()
        await asyncio.gather(pending, return_exceptions=True)


async def test_p15_the_first_edition_is_the_full_list() -> None:
    stream = Stream(Advertisement(devices(3)))
    assert [device.id for device in (await stream.next()).devices] == ["0", "1", "2"]


async def test_p16_no_edition_when_nothing_changed() -> None:
    advertisement = Advertisement(devices(3))
    stream = Stream(advertisement)
    await stream.next()
    assert not advertisement.publish(devices(3))
    await stream.assert_silent()


async def test_p16_a_new_reason_is_no_edition_but_what_a_refusal_says() -> None:
    advertisement = Advertisement([AdvertisedDevice("0", healthy=False, reason="reset under way")])
    stream = Stream(advertisement)
    await stream.next()
    assert not advertisement.publish([AdvertisedDevice("0", healthy=False, reason="ECC errors")])
    await stream.assert_silent()
    assert advertisement.latest.devices[0].reason == "ECC errors"


async def test_p17_each_change_of_health_is_one_edition_with_all_devices() -> None:
    advertisement = Advertisement(devices(2))
    seen = []
    stream = Stream(advertisement)
    for state in (devices(2), devices(2, 1), devices(2)):
        advertisement.publish(state)
        seen.append([device.healthy for device in (await stream.next()).devices])
    await stream.assert_silent()
    assert seen == [[True, True], [True, False], [True, True]]


async def test_p18_every_stream_gets_every_change() -> None:
    advertisement = Advertisement(devices(1))
    one = Stream(advertisement)
    other = Stream(advertisement)
    await one.next()
    await other.next()
    advertisement.publish(devices(2))
    assert await one.next() == await other.next() == advertisement.latest


async def test_a_stream_that_never_reads_delays_no_other() -> None:
    advertisement = Advertisement(devices(1))
    _unread = Stream(advertisement)
    reader = Stream(advertisement)
    for count in range(2, 50):
        advertisement.publish(devices(count))
        assert len((await reader.next()).devices) == count


async def test_a_slow_stream_skips_to_the_latest_edition() -> None:
    advertisement = Advertisement(devices(1))
    stream = Stream(advertisement)
    await stream.next()
    advertisement.publish(devices(2))
    advertisement.publish(devices(3))
    assert await stream.next() == advertisement.latest
    await stream.assert_silent()


async def test_a_change_of_numa_nodes_is_a_change() -> None:
    advertisement = Advertisement([AdvertisedDevice("0")])
    assert advertisement.publish([AdvertisedDevice("0", numa_nodes=(1,))])


async def test_a_rewrite_is_one_edition_with_the_same_devices_for_every_stream() -> None:
    advertisement = Advertisement(devices(3, 1))
    streams = [Stream(advertisement), Stream(advertisement)]
    before = [await stream.next() for stream in streams]
    advertisement.rewrite()
    after = [await stream.next() for stream in streams]
    assert [edition.devices for edition in after] == [edition.devices for edition in before]
    for stream in streams:
        await stream.assert_silent()


async def test_rewrites_that_come_faster_than_a_stream_sends_are_one_edition() -> None:
    advertisement = Advertisement(devices(3))
    stream = Stream(advertisement)
    await stream.next()
    advertisement.rewrite()
    advertisement.rewrite()
    await stream.next()
    await stream.assert_silent()


async def test_a_change_after_a_rewrite_is_still_a_change() -> None:
    advertisement = Advertisement(devices(3))
    advertisement.rewrite()
    assert not advertisement.publish(devices(3))
    assert advertisement.publish(devices(3, 0))


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
