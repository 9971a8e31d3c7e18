"""The inventory kept up to date: when the hardware is read, what is published, what is logged."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import AsyncIterator, Callable, Container, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial

import pytest

from neuron_plugin.hardware.device import Device, NodeState, SkippedDevice
from neuron_plugin.hardware.events import InventoryWatcher, Settling, WatchPeriods
from neuron_plugin.hardware.inventory import Inventory, read_inventory
from neuron_plugin.hardware.sysfs import DriverVersion
from neuron_plugin.simulation import SimulatedNode
from neuron_plugin.topology import DeviceId
from tests.support.stories import rows

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
    """Reads as ``reads`` say, one after the other, and then as the last; ``looks``: who had had their time at each."""

    reads: Sequence[Inventory | Exception]
    looks: list[frozenset[DeviceId]] = field(default_factory=list)

    def __call__(self, *, settled: Container[DeviceId]) -> Inventory:
        self.looks.append(frozenset(DeviceId(device) for device in range(4) if DeviceId(device) in settled))
        found = self.reads[min(len(self.looks), len(self.reads)) - 1]
        if isinstance(found, Exception):
            raise found
        return found


def watch(*reads: Inventory) -> AsyncIterator[Inventory]:
    return aiter(InventoryWatcher(Machine(reads), asyncio.Event()).changes())


async def following(changes: AsyncIterator[Inventory]) -> Inventory:
    async with asyncio.timeout(DEADLINE):
        return await anext(changes)


async def published(watcher: InventoryWatcher, seconds: float) -> list[tuple[float, Inventory]]:
    """What is published within so many seconds, and when."""
    loop, found = asyncio.get_running_loop(), list[tuple[float, Inventory]]()
    began = loop.time()
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            async for inventory in watcher.changes():
                found.append((loop.time() - began, inventory))
    return found


pytestmark = pytest.mark.looptime

LOOKS: dict[str, Inventory | Exception] = {
    "none": NO_DRIVER,
    "new": INCOMPLETE,
    "0": machine(0),
    "0,1": machine(0, 1),
    "broken": RuntimeError("a bug"),
}
PUBLISHED = rows("""
    p22 the first inventory comes at once even without a driver: none => 0 none
    p22 devices appear when the driver is loaded later: none none none 0,1 => 0 none; 15 0,1
    what did not change is not published: 0 0 0 0,1 0,1 => 0 0; 15 0,1
    an event brings the next read forward: 0 0,1 event=0.5 => 0 0; 0.5 0,1
    an event is one more read and not one after the other: 0 0 0,1 event=0.5 => 0 0; 5.5 0,1
    p23 an incomplete device is looked at again soon: new new 0 => 0 new; 0.2 0
    a machine that cannot be read leaves what was known: 0 broken 0,1 => 0 0; 10 0,1
""")
"""What the machine is read as, one look after the other, and when there is an event; what is published when."""


@pytest.mark.parametrize(("reads", "expected"), PUBLISHED)
async def test_what_is_published_and_when(reads: str, expected: str, caplog: pytest.LogCaptureFixture) -> None:
    looks, _, event = reads.partition(" event=")
    changed = asyncio.Event()
    if event:
        asyncio.get_running_loop().call_later(float(event), changed.set)
    found = await published(InventoryWatcher(Machine([LOOKS[look] for look in looks.split()]), changed), 20)
    wanted = [step.split(" ") for step in expected.split("; ")]
    assert [inventory for _, inventory in found] == [LOOKS[look] for _, look in wanted]
    assert [at for at, _ in found] == [pytest.approx(float(at), abs=0.4) for at, _ in wanted]
    assert [record.levelno for record in caplog.records if record.exc_info] == [logging.ERROR] * ("broken" in looks)


async def test_a_machine_that_could_never_be_read_is_one_without_devices() -> None:
    found = await published(InventoryWatcher(Machine([LOOKS["broken"]]), asyncio.Event()), 20)
    assert [inventory for _, inventory in found] == [Inventory(absence="the hardware cannot be read: a bug")]


async def test_p69_a_storm_of_events_leaves_most_of_the_time_to_others() -> None:
    changed, read = asyncio.Event(), Machine([machine(0)])

    async def storm() -> None:
        while True:
            changed.set()
            await asyncio.sleep(0.01)

    stormy = asyncio.create_task(storm(), name="storm")
    await published(InventoryWatcher(read, changed, WatchPeriods(rescan_seconds=10.0)), 40)
    stormy.cancel()
    assert 100 <= len(read.looks) <= 201  # five a second


async def test_p23_a_device_that_stays_incomplete_is_settled_after_its_time() -> None:
    read = Machine([INCOMPLETE])
    await published(InventoryWatcher(read, asyncio.Event()), 40)
    first_settled = read.looks.index(frozenset({DeviceId(0)}))
    assert 8 <= first_settled <= 14  # 0.05 s doubling up to 5 s, for 30 s: no busy loop
    assert set(read.looks[:first_settled]) == {frozenset()}


async def test_p22_a_missing_driver_and_its_return_are_logged_once_each(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    later = replace(NO_DRIVER, instance_type="trn1.2xlarge")  # a change, but no news about the driver
    changes = watch(NO_DRIVER, later, machine(0, 1), NO_DRIVER, machine(0, 1))
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
    changes = watch(garbage, worse, machine(0), garbage)
    for _ in range(4):
        await following(changes)
    logged = [record.__dict__["problem"] for record in caplog.records]
    assert logged == [
        "neuron1 is skipped: core_count reads 'x'",
        "no version",
        "neuron1 is skipped: core_count reads 'x'",
    ]


async def test_a_device_that_is_still_being_made_is_no_problem_to_log(caplog: pytest.LogCaptureFixture) -> None:
    changes = watch(replace(machine(1), skipped=INCOMPLETE.skipped), machine(0, 1))
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
SETTLINGS = rows("""
    retries double up to the rescan period: 0 incomplete 0.05 0.1 0.2 0.4 0.8 1.6 3.2 5 5 5
    a machine at rest is looked at in the rescan period: 0 complete 5 5 5
    an event makes retries frequent again: 0 incomplete 0.05 0.1 0.2 0.4 0.8; 10 soon 0.05
    a device has its time: 0 incomplete unsettled; 30 - settled
    one that returns has its time again: 0 incomplete; 30 - settled; 31 gone; 32 incomplete; 40 - unsettled
    it stays settled while it is taken as it is: 0 incomplete; 31 complete settled 5
    one that became complete in time is not settled: 0 incomplete; 1 complete; 100 - unsettled
""")
"""At each time what was read, or that there was an event (``soon``); whether device 0 is settled; then the pauses."""


@pytest.mark.parametrize("steps", SETTLINGS)
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
