"""What the kernel log says of devices, as the keeper takes it."""

from __future__ import annotations

from dataclasses import replace

import pytest
from neuron_plugin.plugin.health.policy import HealthSettings, Recovery, SignalPolicy

from tests.plugin.health.world import HOUR, World, changed, error


def test_p67_a_message_that_names_a_device_stops_that_device_for_an_hour() -> None:
    world = World()
    world.see_first()
    world.keeper.kernel_error(error(1, at=world.now))
    assert changed(world.keeper.judge()) == [((1,), "unhealthy")]
    assert world.keeper.devices[1].reason == "1 kernel message of NEURON_HW_ERR=DMA_ERROR"
    assert world.wait(HOUR - 1) == ()
    assert changed(world.wait(1)) == [((1,), "healthy")]
    assert world.wait(1) == ()


def test_p67_a_message_that_names_none_is_a_warning_on_all() -> None:
    world = World()
    world.see_first()
    world.keeper.kernel_error(error(at=world.now))
    assert changed(world.keeper.judge()) == [((0, 1), "warning")]
    assert world.keeper.unhealthy == {}
    assert changed(world.wait(HOUR)) == [((0, 1), "healthy")]


def test_p67_a_device_that_is_not_here_is_as_good_as_none() -> None:
    world = World()
    world.see_first()
    world.keeper.kernel_error(error(9, at=world.now))
    assert changed(world.keeper.judge()) == [((0, 1), "warning")]


def test_p67_a_hang_on_a_named_device_is_a_warning_on_that_device() -> None:
    world = World()
    world.see_first()
    world.keeper.kernel_error(error(1, at=world.now, kind="HANG_ON_COLLECTIVES"))
    assert changed(world.keeper.judge()) == [((1,), "warning")]


def test_p67_a_line_that_a_process_wrote_is_believed_on_request_only() -> None:
    for trust, news in ((False, []), (True, [((1,), "unhealthy")])):
        world = World(HealthSettings(trust_user_messages=trust))
        world.see_first()
        world.keeper.kernel_error(error(1, at=world.now, by_kernel=False))
        assert changed(world.keeper.judge()) == news


def test_messages_from_before_the_daemon_count_as_if_it_had_been_there() -> None:
    world = World()
    world.keeper.kernel_error(error(0, at=world.now - HOUR))
    world.keeper.kernel_error(error(1, at=world.now - HOUR + 100))
    assert changed(world.see_first()) == [((1,), "unhealthy")]
    assert world.wait(99) == ()
    assert changed(world.wait(1)) == [((1,), "healthy")]


def test_messages_wait_for_the_first_device_and_not_for_the_first_look() -> None:
    world = World()
    world.keeper.kernel_error(error(1, at=world.now))
    assert world.see() == ()
    assert changed(world.see_first()) == [((1,), "unhealthy")]


def test_p83_messages_that_wait_for_a_device_do_not_gather() -> None:
    world = World()
    for _ in range(1100):
        world.keeper.kernel_error(error(1, at=world.now))
    world.see_first()
    assert world.keeper.devices[1].reason.startswith("1000 kernel messages")


def test_old_messages_do_not_latch_again_what_a_reload_has_ended() -> None:
    policy = SignalPolicy(recovery=Recovery.RELOAD)
    world = World(HealthSettings(kernel_message=policy))
    world.keeper.kernel_error(error(1, at=world.now - 1))
    assert world.see_first() == ()


def test_messages_count_towards_a_threshold_while_they_come_close_together() -> None:
    policy = SignalPolicy(threshold=2, recovery=Recovery.QUIET, recover_after_seconds=60)
    world = World(HealthSettings(kernel_message=policy))
    world.see_first()
    for pause, news in ((0, []), (61, []), (59, [((1,), "unhealthy")])):
        world.now += pause
        world.keeper.kernel_error(error(1, at=world.now))
        assert changed(world.keeper.judge()) == news


def test_p69_many_messages_are_little_news() -> None:
    world = World()
    world.see_first()
    news = 0
    for _ in range(2000):
        world.keeper.kernel_error(error(1, at=world.now))
        news += len(world.keeper.judge())
        world.now += 1
    assert news <= 12  # told when the count has doubled


@pytest.mark.parametrize(("serial", "unhealthy"), [(f"{1:016x}", [1]), ("ff", [])])
def test_p67_a_message_with_a_serial_number_stops_that_device_and_one_with_a_strangers_none(
    serial: str, unhealthy: list[int]
) -> None:
    world = World()
    world.see_first()
    world.keeper.kernel_error(replace(error(at=world.now), serial_number=serial))
    world.keeper.judge()
    assert list(world.keeper.unhealthy) == unhealthy
    assert world.keeper.devices[1].reason.startswith("1 kernel message of NEURON_HW_ERR=DMA_ERROR")
