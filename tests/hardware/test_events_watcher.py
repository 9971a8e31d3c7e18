"""The inventory kept up to date: when the hardware is read, what is published, what is logged."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import AsyncIterator, Callable, Container
from dataclasses import dataclass, field, replace
from functools import partial

import pytest

from neuron_plugin.hardware.device import Device, NodeState, SkippedDevice
from neuron_plugin.hardware.events import InventoryWatcher, Settling, WatchPeriods
from neuron_plugin.hardware.inventory import Inventory, read_inventory
from neuron_plugin.hardware.sysfs import DriverVersion
from neuron_plugin.simulation import SimulatedNode
from neuron_plugin.topology import DeviceId

MakeNode = Callable[..., SimulatedNode]

NO_DRIVER = Inventory(absence="the driver is not loaded")
INCOMPLETE = Inventory(
    skipped=(SkippedDevice(DeviceId(0), "not yet", incomplete=True),), absence="none of 1 devices can be used"
)
DEADLINE = 3600


def machine(*devices: int) -> Inventory:
    return Inventory(
        devices=tuple(
            Device(DeviceId(device), 2, "Inferentia2", "NDv3", frozenset(), NodeState.PRESENT) for device in devices
        ),
        driver_version=DriverVersion("2.26.5.0", (2, 26, 5, 0)),
    )


@dataclass
class Machine:
    """Reads as ``inventory`` says, and remembers which devices had had their time at each read."""

    inventory: Inventory | Exception
    looks: list[frozenset[DeviceId]] = field(default_factory=list)
    after: dict[int, Inventory] = field(default_factory=dict)

    def __call__(self, *, settled: Container[DeviceId]) -> Inventory:
        self.looks.append(frozenset(DeviceId(device) for device in range(4) if DeviceId(device) in settled))
        self.inventory = self.after.get(len(self.looks), self.inventory)
        if isinstance(self.inventory, Exception):
            raise self.inventory
        return self.inventory


def watch(read: Machine, changed: asyncio.Event | None = None) -> AsyncIterator[Inventory]:
    return aiter(InventoryWatcher(read, changed or asyncio.Event()).changes())


async def following(changes: AsyncIterator[Inventory]) -> Inventory:
    async with asyncio.timeout(DEADLINE):
        return await anext(changes)


pytestmark = pytest.mark.looptime


async def test_p22_the_first_inventory_comes_at_once_even_without_a_driver() -> None:
    assert await following(watch(Machine(NO_DRIVER))) == NO_DRIVER


async def test_p22_devices_appear_when_the_driver_is_loaded_later() -> None:
    changes = watch(Machine(NO_DRIVER, after={4: machine(0, 1)}))
    await following(changes)
    assert await following(changes) == machine(0, 1)


async def test_what_did_not_change_is_not_published() -> None:
    read = Machine(machine(0), after={20: machine(0, 1)})
    changes = watch(read)
    assert [await following(changes), await following(changes)] == [machine(0), machine(0, 1)]
    assert len(read.looks) == 20


async def test_without_events_a_change_is_found_by_the_next_rescan() -> None:
    loop = asyncio.get_running_loop()
    changes = watch(Machine(machine(0), after={2: machine(0, 1)}))
    await following(changes)
    begun = loop.time()
    await following(changes)
    assert 4.9 < loop.time() - begun < 5.5


async def test_an_event_brings_the_next_read_forward() -> None:
    loop = asyncio.get_running_loop()
    changed = asyncio.Event()
    changes = watch(Machine(machine(0), after={2: machine(0, 1)}), changed)
    await following(changes)
    begun = loop.time()
    loop.call_later(0.5, changed.set)
    await following(changes)
    assert 0.4 < loop.time() - begun < 1.0


async def test_an_event_is_one_more_read_and_not_one_after_the_other() -> None:
    changed, read = asyncio.Event(), Machine(machine(0))
    watching = asyncio.create_task(_drain(InventoryWatcher(read, changed)), name="watch under test")
    await asyncio.sleep(0.5)
    changed.set()
    await asyncio.sleep(4)
    watching.cancel()
    await asyncio.gather(watching, return_exceptions=True)
    assert len(read.looks) == 2


async def test_p69_a_storm_of_events_leaves_most_of_the_time_to_others() -> None:
    changed = asyncio.Event()
    read = Machine(machine(0))
    watcher = InventoryWatcher(read, changed, WatchPeriods(rescan_seconds=10.0))

    async def storm() -> None:
        while True:
            changed.set()
            await asyncio.sleep(0.01)

    stormy = asyncio.create_task(storm(), name="storm")
    following_it = asyncio.create_task(_drain(watcher), name="watch under test")
    await asyncio.sleep(40)
    for task in (stormy, following_it):
        task.cancel()
    await asyncio.gather(stormy, following_it, return_exceptions=True)
    assert 100 <= len(read.looks) <= 201  # five a second


async def _drain(watcher: InventoryWatcher) -> None:
    async for _ in watcher.changes():
        pass


async def test_p23_an_incomplete_device_is_looked_at_again_soon() -> None:
    loop = asyncio.get_running_loop()
    changes = watch(Machine(INCOMPLETE, after={3: machine(0)}))
    begun = loop.time()
    assert await following(changes) == INCOMPLETE
    assert await following(changes) == machine(0)
    assert loop.time() - begun < 1.0


async def test_p23_a_device_that_stays_incomplete_is_settled_after_its_time() -> None:
    read = Machine(INCOMPLETE, after={15: machine(0)})
    changes = watch(read)
    await following(changes)
    await following(changes)
    assert read.looks[0] == frozenset()
    assert read.looks[-1] == {0}
    first_settled = read.looks.index(frozenset({DeviceId(0)}))
    assert 8 <= first_settled <= 14  # 0.05 s doubling up to 5 s, for 30 s: no busy loop


async def test_a_machine_that_cannot_be_read_leaves_what_was_known_and_is_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    read = Machine(machine(0))
    changes = watch(read)
    await following(changes)
    read.inventory = RuntimeError("a bug")
    read.after = {3: machine(0, 1)}
    assert await following(changes) == machine(0, 1)
    assert [record.levelno for record in caplog.records if record.exc_info] == [logging.ERROR]


async def test_a_machine_that_could_never_be_read_is_one_without_devices() -> None:
    inventory = await following(watch(Machine(RuntimeError("a bug"))))
    assert inventory == Inventory(absence="the hardware cannot be read: a bug")


async def test_cancellation_passes_through() -> None:
    changes = watch(Machine(machine(0)))
    await following(changes)
    waiting = asyncio.create_task(following(changes), name="wait for a change")
    await asyncio.sleep(1)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting


async def test_p22_a_missing_driver_and_its_return_are_logged_once_each(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    later = replace(NO_DRIVER, instance_type="trn1.2xlarge")  # a change, but no news about the driver
    changes = watch(Machine(NO_DRIVER, after={3: later, 6: machine(0, 1), 9: NO_DRIVER, 12: machine(0, 1)}))
    for _ in range(5):
        await following(changes)
    assert [record.message for record in caplog.records] == [
        "no Neuron device to offer",
        "found Neuron devices",
        "no Neuron device to offer",
        "found Neuron devices",
    ]
    assert caplog.records[0].__dict__["reason"] == "the driver is not loaded"
    assert caplog.records[1].__dict__["devices"] == [0, 1]
    assert caplog.records[1].__dict__["driver_version"] == "2.26.5.0"


async def test_p27_a_problem_is_logged_once_and_again_only_after_it_was_gone(caplog: pytest.LogCaptureFixture) -> None:
    garbage = replace(machine(0), skipped=(SkippedDevice(DeviceId(1), "core_count reads 'x'"),))
    worse = replace(garbage, problems=("no version",))
    changes = watch(Machine(garbage, after={2: worse, 3: machine(0), 4: garbage}))
    for _ in range(4):
        await following(changes)
    logged = [record.__dict__["problem"] for record in caplog.records]
    assert logged == [
        "neuron1 is skipped: core_count reads 'x'",
        "no version",
        "neuron1 is skipped: core_count reads 'x'",
    ]


async def test_a_device_that_is_still_being_made_is_no_problem_to_log(caplog: pytest.LogCaptureFixture) -> None:
    changes = watch(Machine(replace(machine(1), skipped=INCOMPLETE.skipped), after={2: machine(0, 1)}))
    await following(changes)
    await following(changes)
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


async def test_a_slow_read_does_not_hold_the_loop() -> None:
    loop_went_on = threading.Event()

    def slow(*, settled: Container[DeviceId]) -> Inventory:
        assert not list(filter(lambda device: device in settled, range(4)))
        assert loop_went_on.wait(10)  # set by the loop, so a read on the loop would never end
        return machine(0)

    changes = aiter(InventoryWatcher(slow, asyncio.Event()).changes())
    asyncio.get_running_loop().call_soon(loop_went_on.set)
    assert await following(changes) == machine(0)


async def test_a_real_tree_is_followed_through_faults(make_node: MakeNode) -> None:
    node = make_node("inf2.xlarge")
    changes = aiter(InventoryWatcher(partial(read_inventory, node.paths), asyncio.Event()).changes())
    assert (await following(changes)).device_ids == (0,)
    node.remove_node(0)
    assert (await following(changes)).devices[0].node is NodeState.ABSENT
    node.unload_driver()
    assert (await following(changes)).devices == ()
    node.load_driver()
    node.restore_node(0)
    while not (found := await following(changes)).devices:
        pass
    assert found.device_ids == (0,)


PERIODS = WatchPeriods(rescan_seconds=5.0, settle_seconds=30.0, first_retry_seconds=0.05)


MACHINES = {"incomplete": INCOMPLETE, "complete": machine(0), "gone": NO_DRIVER}
SETTLINGS = {
    "retries double up to the rescan period": "0 incomplete 0.05 0.1 0.2 0.4 0.8 1.6 3.2 5 5 5",
    "a machine at rest is looked at in the rescan period": "0 complete 5 5 5",
    "an event makes retries frequent again": "0 incomplete 0.05 0.1 0.2 0.4 0.8; 10 soon 0.05",
    "a device has its time": "0 incomplete unsettled; 30 - settled",
    "one that returns has its time again": "0 incomplete; 30 - settled; 31 gone; 32 incomplete; 40 - unsettled",
    "it stays settled while it is taken as it is": "0 incomplete; 31 complete settled 5",
    "one that became complete in time is not settled": "0 incomplete; 1 complete; 100 - unsettled",
}
"""At each time what was read, or that there was an event (``soon``); whether device 0 is settled; then the pauses."""


@pytest.mark.parametrize("steps", SETTLINGS.values(), ids=SETTLINGS)
async def test_when_a_device_that_is_still_made_is_looked_at_again(steps: str) -> None:
    settling = Settling(PERIODS)
    for step in steps.split("; "):
        at, what, *expected = step.split(" ")
        now = float(at)
        if what in MACHINES:
            settling.note(MACHINES[what], now)
        elif what == "soon":
            settling.retry_soon()
        for one in expected:
            if one.endswith("settled"):
                assert settling.settled(now) == ({0} if one == "settled" else frozenset()), step
            else:
                assert settling.pause(now) == float(one), step
                now += float(one)
