"""The watch over health: sources, timing, memory. The clock is the loop's, which does not wait."""

from __future__ import annotations

import asyncio
import errno
import logging
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from neuron_plugin.plugin.health.keeper import Transition
from neuron_plugin.plugin.health.memory import load
from neuron_plugin.plugin.health.policy import Action, HealthSettings, SignalPolicy
from neuron_plugin.plugin.health.status import DeviceHealth
from neuron_plugin.plugin.health.watch import KERNEL_LOG, MEMORY, SYSFS, UEVENTS, HealthWatch

from neuron_plugin.hardware import EccCounts, KernelRecord, parse_driver_version
from neuron_plugin.hardware.device import CoreErrors, NodeState
from neuron_plugin.hardware.events import NoUevents
from neuron_plugin.plugin.health import watch as health_watch
from neuron_plugin.plugin.settings import PluginSettings
from tests.plugin.health.world import device, machine

pytestmark = pytest.mark.looptime


class Log:
    """A kernel log in the hand of the test; stands in for the reader of the file."""

    last: Log

    def __init__(
        self, path: Path, on_record: Callable[[KernelRecord], None], on_trouble: Callable[[str], None]
    ) -> None:
        self.path, self.say, self.fail = path, on_record, on_trouble
        Log.last = self

    async def run(self) -> None:
        self.fail("")
        await asyncio.Event().wait()

    def error(self, text: str) -> None:
        self.say(KernelRecord(asyncio.get_running_loop().time(), text, by_kernel=True))


@pytest.fixture(autouse=True)
def log(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health_watch, "KernelLog", Log)


class Run:
    """A running watch and what it told."""

    def __init__(self, settings: PluginSettings) -> None:
        self.judgements: list[tuple[Transition, ...]] = []
        self.verdicts = 0
        self.watch = HealthWatch(settings, self._count, self._judged, asyncio.get_running_loop().time)

    def _count(self) -> None:
        self.verdicts += 1

    def _judged(self, devices: Mapping[int, DeviceHealth], transitions: Sequence[Transition]) -> None:
        assert devices
        self.judgements.append(tuple(transitions))


@asynccontextmanager
async def running(settings: PluginSettings | None = None) -> AsyncIterator[Run]:
    run = Run(settings or PluginSettings())
    task = asyncio.create_task(run.watch.run(), name="watch under test")
    await asyncio.sleep(0.01)
    try:
        yield run
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_the_first_look_is_told_though_all_is_well() -> None:
    async with running() as run:
        run.watch.look(machine(device(0)))
        run.watch.look(machine(device(0)))
        assert run.judgements == [()]
        assert run.verdicts == 0


async def test_p67_a_look_gives_its_verdict_at_once() -> None:
    async with running() as run:
        run.watch.look(machine(device(0), device(1, node=NodeState.ABSENT)))
        assert run.watch.unhealthy == {1: "/dev/neuron1 is absent"}
        assert [transition.devices for transition in run.judgements[0]] == [(1,)]
        assert run.watch.inventory is not None


async def test_p67_p68_a_kernel_message_takes_a_device_out_and_time_brings_it_back() -> None:
    async with running() as run:
        run.watch.look(machine(device(0), device(1)))
        Log.last.error("nd1: NEURON_HW_ERR=DMA_ERROR on queue 3")
        await asyncio.sleep(0.01)
        assert list(run.watch.unhealthy) == [1]
        assert run.verdicts == 1
        await asyncio.sleep(3590)
        assert list(run.watch.unhealthy) == [1]
        await asyncio.sleep(20)
        assert run.watch.unhealthy == {}
        assert run.verdicts == 2


async def test_p68_a_look_that_needs_time_is_judged_again_without_another_look() -> None:
    settings = PluginSettings(health=HealthSettings(node=SignalPolicy(after_seconds=30, recover_after_seconds=60)))
    async with running(settings) as run:
        run.watch.look(machine(device(0, node=NodeState.ABSENT)))
        assert run.watch.unhealthy == {}
        await asyncio.sleep(31)
        assert list(run.watch.unhealthy) == [0]
        run.watch.look(machine(device(0)))
        await asyncio.sleep(59)
        assert list(run.watch.unhealthy) == [0]
        await asyncio.sleep(2)
        assert run.watch.unhealthy == {}
        assert run.verdicts == 2


async def test_a_watch_with_nothing_to_wait_for_sleeps() -> None:
    async with running() as run:
        run.watch.look(machine(device(0, ecc=EccCounts(memory=1))))
        await asyncio.sleep(86_400)
        assert len(run.judgements) == 1


async def test_p70_a_source_that_does_not_work_is_told_once_and_the_others_go_on(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, health_watch.__name__)
    async with running() as run:
        for _ in range(3):
            Log.last.fail("/dev/kmsg cannot be opened")
        run.watch.look(machine(device(0, node=NodeState.ABSENT)))
        assert run.watch.silent_sources == {KERNEL_LOG: "/dev/kmsg cannot be opened"}
        assert list(run.watch.unhealthy) == [0]
        Log.last.fail("")
        assert not run.watch.silent_sources
    assert [record.message for record in caplog.records] == [
        "a source of health does not work",
        "a source of health works again",
    ]


async def test_p70_uevents_and_reset_states_that_are_not_there_are_named(tmp_path: Path) -> None:
    async with running() as run:
        with run.watch.listening(tmp_path, NoUevents("no uevents: no libudev")):
            run.watch.look(machine(device(0, reset=None), device(1)))
        assert run.watch.silent_sources == {
            UEVENTS: "no uevents: no libudev",
            SYSFS: "the reset state of neuron0 cannot be read: it takes root",
        }


async def test_p70_counters_of_errors_that_are_not_there_are_named() -> None:
    """As with a driver that keeps them where nobody looks."""
    async with running() as run:
        run.watch.look(machine(device(0), device(1, ecc=None)))
        assert run.watch.silent_sources[SYSFS] == (
            "neuron1 without counters of memory errors: see 'neuron-plugin doctor sysfs'"
        )
        run.watch.look(replace(machine(device(0, ecc=None)), driver_version=parse_driver_version("2.14.4.0")))
        assert not run.watch.silent_sources


async def test_p70_a_log_that_no_policy_asks_for_is_not_read() -> None:
    ignored = SignalPolicy(action=Action.IGNORE)
    settings = PluginSettings(health=HealthSettings(kernel_message=ignored, kernel_message_unnamed=ignored))
    Log.last = Log(Path("none"), lambda _record: None, lambda _trouble: None)
    async with running(settings):
        assert Log.last.path == Path("none")


@pytest.mark.parametrize(
    ("settings", "path"),
    [
        (PluginSettings(), "/dev/kmsg"),
        (PluginSettings(dev=Path("/host/dev")), "/host/dev/kmsg"),
        (PluginSettings(dev=Path("/host/dev"), kmsg=Path("/run/log")), "/run/log"),
    ],
)
async def test_the_log_is_beside_the_device_nodes_unless_told_otherwise(settings: PluginSettings, path: str) -> None:
    async with running(settings):
        assert Log.last.path == Path(path)


async def test_the_driver_speaking_of_a_reset_is_a_hint_to_look(tmp_path: Path) -> None:
    async with running() as run:
        with run.watch.listening(tmp_path, NoUevents()) as hints:
            Log.last.error("nd3: reset request 4 failed")
            async with asyncio.timeout(1):
                await hints.wait()
        Log.last.error("nd3: reset request 4 failed")  # nobody listens any more


async def test_what_is_to_be_known_after_a_restart_is_written_when_it_changes(tmp_path: Path) -> None:
    settings = PluginSettings(state_dir=tmp_path / "state")
    async with running(settings) as run:
        run.watch.look(machine(device(0, core_errors=(CoreErrors(0, hw_error=4),))))
        await eventually((tmp_path / "state/health.json").is_file)
    assert load(tmp_path / "state/health.json", "").of(f"{0:016x}").accepted["hw-error"] == 4
    async with running(settings) as again:
        again.watch.look(machine(device(0, core_errors=(CoreErrors(0, hw_error=5),))))
        assert again.watch.devices[0].reason == "5 hardware errors on physical core 0, 4 of them old"


async def test_what_did_not_change_is_not_written_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writes: list[object] = []
    monkeypatch.setattr(health_watch, "save", lambda *arguments: writes.append(arguments))
    async with running(PluginSettings(state_dir=tmp_path)) as run:
        run.watch.look(machine(device(0, core_errors=(CoreErrors(0, hw_error=4),))))
        await eventually(lambda: bool(writes))
        for node in (NodeState.ABSENT, NodeState.PRESENT):
            run.watch.look(machine(device(0, node=node, core_errors=(CoreErrors(0, hw_error=4),))))
            await asyncio.sleep(0.01)
            await asyncio.to_thread(lambda: None)
    assert len(writes) == 1


async def test_p70_a_memory_that_cannot_be_written_is_named_and_nothing_else_stops(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_arguments: object) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(health_watch, "save", fail)
    async with running(PluginSettings(state_dir=tmp_path)) as run:
        run.watch.look(machine(device(0, core_errors=(CoreErrors(0, hw_error=4),))))
        await eventually(lambda: bool(run.watch.silent_sources))
        told = {MEMORY: f"{tmp_path}/health.json cannot be written: Read-only file system"}
        assert run.watch.silent_sources == told
        Log.last.error("nd0: NEURON_HW_ERR=DMA_ERROR on queue 3")
        await asyncio.sleep(0.01)
        assert list(run.watch.unhealthy) == [0]


async def eventually(is_written: Callable[[], bool]) -> None:
    """A thread writes, so the loop's time does not tell when."""
    for _ in range(1000):
        if is_written():
            return
        await asyncio.sleep(0.01)
        await asyncio.to_thread(lambda: None)
    raise TimeoutError("the memory was never written")
