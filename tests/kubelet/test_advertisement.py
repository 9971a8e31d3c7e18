from __future__ import annotations

import asyncio

import pytest

from neuron_plugin.kubelet.advertisement import Advertisement, Edition, Subscription
from neuron_plugin.kubelet.devices import AdvertisedDevice
from tests.kubelet.fakes import devices


async def take(subscription: Subscription) -> Edition:
    async with asyncio.timeout(5):
        return await anext(subscription)


async def assert_silent(subscription: Subscription) -> None:
    pending = asyncio.ensure_future(anext(subscription))
    for _ in range(5):
        await asyncio.sleep(0)
    assert not pending.done()
    pending.cancel()
    await asyncio.gather(pending, return_exceptions=True)


async def test_p15_the_first_edition_is_the_full_list() -> None:
    with Advertisement(devices(3)).subscribe() as subscription:
        assert [device.id for device in (await take(subscription)).devices] == ["0", "1", "2"]


async def test_ids_are_listed_in_numeric_order() -> None:
    advertisement = Advertisement([AdvertisedDevice(each) for each in ("10", "9", "0", "100")])
    assert [device.id for device in advertisement.latest.devices] == ["0", "9", "10", "100"]


async def test_p16_no_edition_when_nothing_changed_but_the_order() -> None:
    advertisement = Advertisement(devices(3))
    with advertisement.subscribe() as subscription:
        await take(subscription)
        assert not advertisement.publish(reversed(devices(3)))
        await assert_silent(subscription)


async def test_p16_a_new_reason_is_no_edition_but_what_a_refusal_says() -> None:
    advertisement = Advertisement([AdvertisedDevice("0", healthy=False, reason="reset under way")])
    with advertisement.subscribe() as subscription:
        await take(subscription)
        assert not advertisement.publish([AdvertisedDevice("0", healthy=False, reason="ECC errors")])
        await assert_silent(subscription)
    assert advertisement.latest.devices[0].reason == "ECC errors"


async def test_p17_each_change_of_health_is_one_edition_with_all_devices() -> None:
    advertisement = Advertisement(devices(2))
    seen = []
    with advertisement.subscribe() as subscription:
        for state in (devices(2), devices(2, 1), devices(2)):
            advertisement.publish(state)
            seen.append([device.healthy for device in (await take(subscription)).devices])
        await assert_silent(subscription)
    assert seen == [[True, True], [True, False], [True, True]]


async def test_p18_every_subscriber_gets_every_change() -> None:
    advertisement = Advertisement(devices(1))
    with advertisement.subscribe() as one, advertisement.subscribe() as other:
        await take(one)
        await take(other)
        advertisement.publish(devices(2))
        assert await take(one) == await take(other) == advertisement.latest


async def test_a_subscriber_that_never_reads_delays_no_other() -> None:
    advertisement = Advertisement(devices(1))
    with advertisement.subscribe(), advertisement.subscribe() as reader:
        for count in range(2, 50):
            advertisement.publish(devices(count))
            assert len((await take(reader)).devices) == count


async def test_a_slow_subscriber_skips_to_the_latest_edition() -> None:
    advertisement = Advertisement(devices(1))
    with advertisement.subscribe() as subscription:
        await take(subscription)
        advertisement.publish(devices(2))
        advertisement.publish(devices(3))
        assert await take(subscription) == advertisement.latest
        await assert_silent(subscription)


async def test_a_change_of_numa_nodes_is_a_change() -> None:
    advertisement = Advertisement([AdvertisedDevice("0")])
    assert advertisement.publish([AdvertisedDevice("0", numa_nodes=(1,))])


async def test_an_id_given_twice_is_refused_by_name() -> None:
    advertisement = Advertisement(devices(2))
    with pytest.raises(ValueError, match="device ids 1 are advertised twice"):
        advertisement.publish([*devices(2), AdvertisedDevice("1")])
    assert len(advertisement.latest.devices) == 2


async def test_closing_ends_a_waiting_subscription() -> None:
    advertisement = Advertisement(devices(1))
    with advertisement.subscribe() as subscription:
        await take(subscription)
        waiting = asyncio.create_task(take(subscription))
        await asyncio.sleep(0)
        subscription.close()
        with pytest.raises(StopAsyncIteration):
            await waiting


async def test_a_closed_subscription_says_nothing_more() -> None:
    with Advertisement(devices(1)).subscribe() as subscription:
        subscription.close()
        assert [edition async for edition in subscription] == []


async def test_leaving_the_block_ends_the_subscription() -> None:
    advertisement = Advertisement(devices(1))
    with advertisement.subscribe() as subscription:
        await take(subscription)
    waiting = asyncio.create_task(take(subscription))
    await asyncio.sleep(0)
    advertisement.publish(devices(2))
    await asyncio.sleep(0)
    assert not waiting.done()
    waiting.cancel()
