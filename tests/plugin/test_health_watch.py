"""The watch over health: sources, timing, memory and words. The clock is the loop's, which does not wait."""

from __future__ import annotations

import asyncio
import errno
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from neuron_plugin.cluster import ApiRequest
from neuron_plugin.hardware import Inventory, ResetState, parse_driver_version
from neuron_plugin.hardware.device import CoreErrors, EccCounts, NodeState
from neuron_plugin.hardware.health_signals import Observation, Severity, Signal, Symptom, Verdict
from neuron_plugin.hardware.kernel_log import PERIODS, KernelError, KernelRecord, LogPeriods, parse_error
from neuron_plugin.plugin import health_watch, publisher
from neuron_plugin.plugin.health import (
    MOST_DEVICES,
    Action,
    Baseline,
    DeviceHealth,
    HealthRules,
    HealthState,
    SignalRule,
    Transition,
    health_after,
    load,
    save,
)
from neuron_plugin.plugin.health_watch import (
    KERNEL_LOG,
    MEMORY,
    SYSFS,
    UEVENTS,
    HealthWatch,
    health_event,
    log_transition,
    node_condition,
)
from neuron_plugin.plugin.publisher import Publisher
from neuron_plugin.plugin.settings import PluginSettings
from tests.plugin.health_world import device, machine

pytestmark = pytest.mark.looptime


class Log:
    """A kernel log that the test writes, in place of the reader of the real one."""

    last: Log

    def __init__(self, path: Path, _periods: LogPeriods = PERIODS) -> None:
        self.path, self.problem = path, ""
        self._news: asyncio.Queue[tuple[KernelError, ...]] = asyncio.Queue()
        Log.last = self

    async def news(self) -> AsyncIterator[tuple[KernelError, ...]]:
        while True:
            yield await self._news.get()

    async def fail(self, problem: str) -> None:
        self.problem = problem
        self._news.put_nowait(())
        await asyncio.sleep(0.01)

    async def error(self, text: str) -> None:
        error = parse_error(KernelRecord(asyncio.get_running_loop().time(), text, by_kernel=True))
        assert error
        self._news.put_nowait((error,))
        await asyncio.sleep(0.01)


@pytest.fixture(autouse=True)
def log(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health_watch, "KernelLog", Log)
    monkeypatch.setattr(publisher, "utc_now", lambda: START + timedelta(seconds=int(_loop_time())))


def _loop_time() -> float:
    return asyncio.get_running_loop().time()


CONDITION_SUBJECT = "condition NeuronDevicesHealthy"
START = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)


class Api(Publisher):
    """What was to be written, by subject and in order."""

    def __init__(self) -> None:
        super().__init__("worker-1")
        self.requests: list[tuple[str, ApiRequest]] = []

    def write(self, subject: str, request: ApiRequest) -> None:
        self.requests.append((subject, request))

    write_on_node = write

    @property
    def event_subjects(self) -> list[str]:
        return [subject for subject, _ in self.requests if subject.startswith("health event")]

    @property
    def conditions(self) -> list[Any]:
        bodies: list[Any] = [request.body for subject, request in self.requests if subject == CONDITION_SUBJECT]
        return [body["status"]["conditions"][0] for body in bodies]


class Counted(asyncio.Event):
    """An event that counts how often it was set."""

    times_set = 0

    def set(self) -> None:
        self.times_set += 1
        super().set()


class Run:
    """A running watch and what it reported."""

    def __init__(self, settings: PluginSettings) -> None:
        self.changed = Counted()
        self.api = Api()
        self.watch = HealthWatch(settings, self.changed, self.api)

    @property
    def changes(self) -> int:
        return self.changed.times_set


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


WITH_A_CONDITION = PluginSettings(node_name="worker-1", node_condition="NeuronDevicesHealthy")


async def test_the_first_reading_writes_the_condition_though_all_is_well() -> None:
    async with running(WITH_A_CONDITION) as run:
        run.watch.look(machine(device(0)))
        run.watch.look(machine(device(0)))
        assert [subject for subject, _ in run.api.requests] == [CONDITION_SUBJECT]
        assert run.changes == 0


async def test_p67_a_reading_gives_its_verdict_at_once() -> None:
    async with running() as run:
        run.watch.look(machine(device(0), device(1, node=NodeState.ABSENT)))
        assert run.watch.unhealthy == {1: "/dev/neuron1 is absent"}
        assert run.api.event_subjects == ["health event UNHEALTHY of 1"]
        assert run.watch.inventory is not None


async def test_an_unsent_event_is_replaced_by_one_on_the_same_devices_only() -> None:
    async with running(PluginSettings(health=HealthRules(flapping_window_seconds=0))) as run:
        for node in (NodeState.ABSENT, NodeState.PRESENT) * 2:
            run.watch.look(machine(device(0, node=node), device(1)))
        run.watch.look(machine(device(0), device(1, node=NodeState.ABSENT)))
        assert run.api.event_subjects == [
            *["health event UNHEALTHY of 0", "health event HEALTHY of 0"] * 2,
            "health event UNHEALTHY of 1",
        ]


async def test_no_condition_is_written_unless_one_is_named() -> None:
    async with running() as run:
        run.watch.look(machine(device(0, node=NodeState.ABSENT)))
        assert run.api.conditions == []


async def test_p67_the_condition_keeps_its_time_until_its_status_changes() -> None:
    async with running(WITH_A_CONDITION) as run:
        run.watch.look(machine(device(0), device(1)))
        await asyncio.sleep(60)
        run.watch.look(machine(device(0), device(1, node=NodeState.ABSENT)))
        run.watch.look(machine(device(0), device(1, node=NodeState.ABSENT)))
        await asyncio.sleep(60)
        run.watch.look(machine(device(0, reset=ResetState.FAILED), device(1, node=NodeState.ABSENT)))
        first, second, third = run.api.conditions
    assert (first["type"], first["status"], first["reason"]) == ("NeuronDevicesHealthy", "True", "AllDevicesHealthy")
    assert (second["status"], second["reason"]) == ("False", "UnhealthyDevices")
    assert [one["lastTransitionTime"] for one in (first, second, third)] == [
        "2026-11-21T12:00:00Z",
        "2026-11-21T12:01:00Z",
        "2026-11-21T12:01:00Z",
    ]
    assert third["lastHeartbeatTime"] == "2026-11-21T12:02:00Z"


async def test_without_an_api_server_the_log_is_all_there_is(caplog: pytest.LogCaptureFixture) -> None:
    watch = HealthWatch(WITH_A_CONDITION, asyncio.Event())
    watch.look(machine(device(0, node=NodeState.ABSENT)))
    assert len(caplog.records) == 1


async def test_p67_p68_a_kernel_message_takes_a_device_out_and_time_brings_it_back() -> None:
    async with running() as run:
        run.watch.look(machine(device(0), device(1)))
        await asyncio.sleep(0.01)
        await Log.last.error("nd1: NEURON_HW_ERR=DMA_ERROR on queue 3")
        await asyncio.sleep(0.01)
        assert list(run.watch.unhealthy) == [1]
        assert run.changes == 1
        await asyncio.sleep(3590)
        assert list(run.watch.unhealthy) == [1]
        await asyncio.sleep(20)
        assert run.watch.unhealthy == {}
        assert run.changes == 2


async def test_p68_a_reading_that_needs_time_is_judged_again_without_another_reading() -> None:
    settings = PluginSettings(health=HealthRules(node=SignalRule(for_seconds=30, keep_firing_for_seconds=60)))
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
        assert run.changes == 2


async def test_a_watch_with_nothing_to_wait_for_sleeps() -> None:
    async with running() as run:
        run.watch.look(machine(device(0, ecc=EccCounts(memory=1))))
        await asyncio.sleep(86_400)
        assert run.api.event_subjects == ["health event UNHEALTHY of 0"]
        assert run.changes == 0


async def test_p70_a_source_that_does_not_work_is_reported_once_and_the_others_go_on(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, health_watch.__name__)
    async with running() as run:
        run.watch.look(machine(device(0)))
        await asyncio.sleep(0.01)
        for _ in range(3):
            await Log.last.fail("/dev/kmsg cannot be opened")
        run.watch.look(machine(device(0, node=NodeState.ABSENT)))
        assert run.watch.silent_sources == {KERNEL_LOG: "/dev/kmsg cannot be opened"}
        assert list(run.watch.unhealthy) == [0]
        await Log.last.fail("")
        assert not run.watch.silent_sources
    messages = [record.message for record in caplog.records if record.name == health_watch.__name__]
    assert [message for message in messages if "source" in message] == [
        "a source of health does not work",
        "a source of health works again",
    ]


async def test_p70_uevents_and_reset_states_that_are_not_there_are_named() -> None:
    async with running() as run:
        run.watch.look(machine(device(0, reset=None), device(1)), "no uevents: no libudev")
        assert run.watch.silent_sources == {
            UEVENTS: "no uevents: no libudev",
            SYSFS: "the reset state of neuron0 cannot be read: it takes root",
        }


async def test_p70_counters_of_errors_that_are_not_there_are_named() -> None:
    """As with a driver that keeps them at another path."""
    async with running() as run:
        run.watch.look(machine(device(0), device(1, ecc=None)))
        assert run.watch.silent_sources[SYSFS] == (
            "neuron1 without counters of memory errors: see 'neuron-plugin doctor sysfs'"
        )
        run.watch.look(replace(machine(device(0, ecc=None)), driver_version=parse_driver_version("2.14.4.0")))
        assert not run.watch.silent_sources


async def test_p70_a_log_that_no_rule_needs_is_not_read() -> None:
    ignored = SignalRule(action=Action.IGNORE)
    settings = PluginSettings(health=HealthRules(kernel_message=ignored, kernel_message_unnamed=ignored))
    Log.last = Log(Path("none"))
    async with running(settings) as run:
        run.watch.look(machine(device(0)))
        await asyncio.sleep(0.01)
        assert Log.last.path == Path("none")


async def test_the_log_is_read_once_there_is_a_device_to_judge() -> None:
    Log.last = Log(Path("none"))
    async with running() as run:
        run.watch.look(Inventory(absence="no driver"))
        await asyncio.sleep(1)
        assert Log.last.path == Path("none")
        run.watch.look(machine(device(0)))
        await asyncio.sleep(0.01)
        assert Log.last.path == Path("/dev/kmsg")


@pytest.mark.parametrize(
    ("settings", "path"),
    [
        (PluginSettings(), "/dev/kmsg"),
        (PluginSettings(dev=Path("/host/dev")), "/host/dev/kmsg"),
        (PluginSettings(dev=Path("/host/dev"), kmsg=Path("/run/log")), "/run/log"),
    ],
)
async def test_the_log_is_beside_the_device_nodes_unless_set_otherwise(settings: PluginSettings, path: str) -> None:
    async with running(settings) as run:
        run.watch.look(machine(device(0)))
        await asyncio.sleep(0.01)
        assert Log.last.path == Path(path)


async def test_what_is_to_be_known_after_a_restart_is_written_when_it_changes(tmp_path: Path) -> None:
    settings = PluginSettings(state_dir=tmp_path / "state")
    async with running(settings) as run:
        run.watch.look(machine(device(0, core_errors=(CoreErrors(0, hw_error=4),))))
        await eventually((tmp_path / "state/health.json").is_file)
    assert load(tmp_path / "state/health.json")[f"{0:016x}"]["hw-error"] == 4
    async with running(settings) as again:
        again.watch.look(machine(device(0, core_errors=(CoreErrors(0, hw_error=5),))))
        assert again.watch.state.devices[0].verdict.reason == "5 hardware errors on physical core 0, 4 of them old"


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


async def test_p70_a_memory_that_cannot_be_written_is_named_until_it_can_and_nothing_else_stops(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    full = [OSError(errno.EROFS, "Read-only file system")]

    def fail(*_arguments: object) -> None:
        if full:
            raise full[0]

    monkeypatch.setattr(health_watch, "save", fail)
    async with running(PluginSettings(state_dir=tmp_path)) as run:
        run.watch.look(machine(device(0, core_errors=(CoreErrors(0, hw_error=4),))))
        await eventually(lambda: bool(run.watch.silent_sources))
        expected = {MEMORY: f"{tmp_path}/health.json cannot be written: Read-only file system"}
        assert run.watch.silent_sources == expected
        await Log.last.error("nd0: NEURON_HW_ERR=DMA_ERROR on queue 3")
        await asyncio.sleep(0.01)
        assert list(run.watch.unhealthy) == [0]
        full.clear()
        run.watch.look(machine(device(0, core_errors=(CoreErrors(0, hw_error=4),))))
        await eventually(lambda: not run.watch.silent_sources)


async def eventually(is_written: Callable[[], bool]) -> None:
    """A thread writes, so the loop's time does not show when."""
    for _ in range(1000):
        if is_written():
            return
        await asyncio.sleep(0.01)
        await asyncio.to_thread(lambda: None)
    raise TimeoutError("the memory was never written")


def starts(count: int) -> dict[int, Observation]:
    failed = Observation(Signal.FAILED_STARTS, "failed start", count=count, where=" of different pods")
    return {0: failed, 1: Observation(Signal.FAILED_STARTS, "failed start", count=0)}


async def test_failed_starts_make_a_device_pending_then_unhealthy_and_healthy_an_hour_after_the_last_one() -> None:
    async with running() as run:
        run.watch.look(machine(device(0), device(1)))
        run.watch.see_starts(starts(2))
        await asyncio.sleep(60)
        assert run.watch.unhealthy == {}
        run.watch.see_starts(starts(3))
        await asyncio.sleep(29)
        assert run.watch.unhealthy == {}
        assert run.watch.state.devices[0].verdict.severity is Severity.PASSING
        await asyncio.sleep(2)
        assert run.watch.unhealthy == {0: "3 failed starts of different pods"}
        assert run.changes
        run.watch.see_starts(starts(0))
        await asyncio.sleep(3590)
        assert run.watch.unhealthy
        await asyncio.sleep(20)
        assert run.watch.unhealthy == {}


async def test_failed_starts_that_are_refuted_in_time_have_no_consequence() -> None:
    async with running() as run:
        run.watch.look(machine(device(0), device(1)))
        run.watch.see_starts(starts(3))
        await asyncio.sleep(20)
        run.watch.see_starts(starts(0))
        await asyncio.sleep(60)
        assert run.watch.unhealthy == {}
        assert not run.api.event_subjects


@pytest.mark.parametrize(("count", "severity"), [(4, Severity.HEALTHY), (5, Severity.WARNING)])
async def test_failed_starts_may_be_counted_from_another_number_or_be_a_warning_only(
    count: int, severity: Severity
) -> None:
    rule = SignalRule(threshold=5, action=Action.WARN)
    async with running(PluginSettings(health=HealthRules(failed_starts=rule))) as run:
        run.watch.look(machine(device(0), device(1)))
        run.watch.see_starts(starts(count))
        assert run.watch.state.devices[0].verdict.severity is severity
        assert run.watch.unhealthy == {}


async def test_a_reset_that_fails_is_pending_then_unhealthy_and_old_ones_are_not() -> None:
    async with running() as run:
        run.watch.look(machine(device(0, core_errors=(CoreErrors(0, reset_fail_count=4),))))
        await asyncio.sleep(60)
        assert run.watch.unhealthy == {}
        run.watch.look(machine(device(0, core_errors=(CoreErrors(0, reset_fail_count=5),))))
        await asyncio.sleep(29)
        assert run.watch.unhealthy == {}
        await asyncio.sleep(2)
        assert run.watch.unhealthy == {0: "5 failed resets, 4 of them old"}
        await asyncio.sleep(3700)
        assert run.watch.unhealthy == {}


# Health in words: log lines, events on the node, and the node condition.


def node(**verdicts: Verdict) -> HealthState:
    return HealthState(devices={int(name[1:]): DeviceHealth(name, verdict=one) for name, one in verdicts.items()})


def found(severity: Severity, text: str) -> Verdict:
    return Verdict((Symptom(Signal.NODE, severity, text),))


SOUND = Verdict()
FELL = Transition((1,), Severity.HEALTHY, Severity.UNHEALTHY, "/dev/neuron1 is absent")
ROSE = Transition((1,), Severity.UNHEALTHY, Severity.HEALTHY, "")
WARNED = Transition((0, 1), Severity.HEALTHY, Severity.WARNING, "2 hardware errors")
CALMED = Transition((0, 1), Severity.WARNING, Severity.HEALTHY, "")


@pytest.mark.parametrize(
    ("transition", "reason", "note"),
    [
        (FELL, "NeuronDeviceUnhealthy", "neuron device 1 is not given to new pods: /dev/neuron1 is absent"),
        (ROSE, "NeuronDeviceHealthy", "neuron device 1 is healthy again and given to new pods"),
        (
            WARNED,
            "NeuronDeviceWarning",
            "neuron devices 0,1 are still given to pods, with a warning: 2 hardware errors",
        ),
        (CALMED, "NeuronDeviceHealthy", "neuron devices 0,1 are healthy again, the warning is over"),
    ],
)
def test_p67_every_change_is_an_event_on_the_node(transition: Transition, reason: str, note: str) -> None:
    assert health_event(transition) == (reason, note)


def test_every_change_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    for transition in (FELL, ROSE):
        log_transition(transition)
    assert [(record.levelno, record.__dict__["devices"]) for record in caplog.records] == [
        (logging.WARNING, "1"),
        (logging.INFO, "1"),
    ]
    assert caplog.records[0].__dict__["reason"] == "/dev/neuron1 is absent"
    assert (caplog.records[0].__dict__["was"], caplog.records[0].__dict__["is"]) == ("healthy", "unhealthy")


def test_p67_the_condition_is_true_while_all_is_well_and_false_when_not() -> None:
    assert node_condition(node(d0=SOUND, d1=SOUND))[:2] == (True, "AllDevicesHealthy")
    broken = node(d0=SOUND, d1=found(Severity.UNHEALTHY, "/dev/neuron1 is absent"))
    assert node_condition(broken) == (False, "UnhealthyDevices", "neuron device 1: /dev/neuron1 is absent")


def test_a_condition_names_every_reason_with_its_devices() -> None:
    first, second = found(Severity.UNHEALTHY, "a reset has failed"), found(Severity.UNHEALTHY, "/dev/neuron1 is absent")
    message = node_condition(node(d0=first, d1=second, d2=first))[2]
    assert message == "neuron devices 0,2: a reset has failed. neuron device 1: /dev/neuron1 is absent"


def test_a_condition_without_devices_is_unknown_and_one_with_warnings_true() -> None:
    assert node_condition(node())[:2] == (None, "NoDevices")
    warning = found(Severity.WARNING, "x")
    assert node_condition(node(d0=warning, d1=warning, d2=SOUND)) == (
        True,
        "DevicesWithWarnings",
        "neuron devices 0,1: x",
    )


def test_a_message_is_cut_to_what_a_condition_takes() -> None:
    many = {f"d{number}": found(Severity.UNHEALTHY, f"{number} " + "x" * 100) for number in range(64)}
    assert len(node_condition(node(**many))[2]) == 1024


# What is kept of devices over a restart, and that losing it costs nothing.


KNOWN: Baseline = {"aa": {"sram-ecc": 2}, "bb": {}}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "state" / "health.json"


def test_what_was_saved_is_loaded(file: Path) -> None:
    save(file, KNOWN)
    assert load(file) == KNOWN
    assert [path.name for path in file.parent.iterdir()] == ["health.json"]


def test_without_a_file_nothing_is_known(file: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert load(file) == {}
    assert caplog.records == []


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[]", b"\xff\xfe", b'{"version": 1}', b'{"version": 2, "devices": {"a": 3}}']
)
def test_a_file_that_cannot_be_used_is_logged_and_costs_nothing(
    file: Path, content: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    file.parent.mkdir()
    file.write_bytes(content)
    assert load(file) == {}
    assert [record.levelno for record in caplog.records] == [logging.WARNING]


def test_it_does_not_grow_with_every_chip_that_was_ever_here() -> None:
    before = {f"{number:x}": {"hw-error": 1} for number in range(2 * MOST_DEVICES)}
    here = device(0, serial="0e", core_errors=(CoreErrors(0, hw_error=7),))
    kept = health_after(HealthState(before), machine(here), 0.0, HealthRules()).baseline
    assert len(kept) == MOST_DEVICES
    assert kept["0e"]["hw-error"] == 7
    assert f"{2 * MOST_DEVICES - 1:x}" in kept  # the oldest are forgotten


def test_a_directory_that_cannot_be_made_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "state").touch()
    with pytest.raises(OSError, match="state"):
        save(tmp_path / "state" / "health.json", KNOWN)
