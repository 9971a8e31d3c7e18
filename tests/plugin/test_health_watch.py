"""The watch over health: sources, timing, memory and words. The clock is the loop's, which does not wait."""

from __future__ import annotations

import asyncio
import errno
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from neuron_plugin.allocation.resources import format_ids
from neuron_plugin.cluster import ApiRequest
from neuron_plugin.hardware import Inventory
from neuron_plugin.hardware.device import CoreErrors, NodeState
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
from neuron_plugin.plugin.health_watch import MEMORY, HealthWatch, health_event, log_transition, node_condition
from neuron_plugin.plugin.publisher import Publisher
from neuron_plugin.plugin.settings import PluginSettings
from tests.plugin import desk
from tests.plugin.health_world import device, devices_of, machine
from tests.support.stories import Scene, rows

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


class Run(Scene):
    """A running watch and what it reported."""

    def __init__(self, settings: PluginSettings) -> None:
        self.changed = Counted()
        self.api = Api()
        self.watch_ = HealthWatch(settings, self.changed, self.api)

    # What happens.

    def look(self, words: str = "", uevents: str = "") -> None:
        """``look absent``: how the first device is, and ``look sound / absent`` the second; else they are sound."""
        self.watch_.look(machine(*devices_of(words or "sound")), uevents)

    def empty(self) -> None:
        self.watch_.look(Inventory(absence="no driver"))

    async def error(self, text: str) -> None:
        await Log.last.error(text)

    async def fails(self, problem: str = "") -> None:
        """The log cannot be read, or can again."""
        await Log.last.fail(problem)

    def starts(self, count: str) -> None:
        """So many starts failed on the first device."""
        failed = Observation(Signal.FAILED_STARTS, "failed start", count=int(count), where=" of different pods")
        self.watch_.see_starts({0: failed, 1: Observation(Signal.FAILED_STARTS, "failed start", count=0)})

    # What follows.

    def unhealthy(self, devices: str = "") -> None:
        """``unhealthy 1``, or ``unhealthy 0 because ...``."""
        numbers, _, why = devices.partition(" because ")
        assert format_ids(self.watch_.unhealthy) == numbers
        assert why in " ".join(self.watch_.unhealthy.values())

    def severity(self, name: str) -> None:
        """Of the first device."""
        assert self.watch_.state.devices[0].verdict.severity.name.lower() == name

    def changes(self, count: str) -> None:
        assert self.changed.times_set == int(count)

    def told(self, events: str = "") -> None:
        """The events of the node so far."""
        assert ", ".join(each.removeprefix("health event ") for each in self.api.event_subjects) == events

    def conditions(self, expected: str = "") -> None:
        """``True AllDevicesHealthy 0``: each that was written, and how long after the start its status changed."""
        said = [
            f"{one['status']} {one['reason']} {datetime.fromisoformat(one['lastTransitionTime']) - START}"
            for one in self.api.conditions
        ]
        assert ", ".join(said) == expected

    def silent(self, expected: str = "") -> None:
        """``kernel-log: why, sysfs: why``."""
        assert ", ".join(f"{source}: {why}" for source, why in self.watch_.silent_sources.items()) == expected

    def log(self, path: str) -> None:
        """Where the log is that is read."""
        assert Log.last.path == Path(path)


@asynccontextmanager
async def running(settings: PluginSettings | None = None) -> AsyncIterator[Run]:
    run = Run(settings or PluginSettings())
    Log.last = Log(Path("none"))
    async with desk.running(run.watch_.run()):
        await asyncio.sleep(0.01)
        yield run


IGNORED = SignalRule(action=Action.IGNORE)
WITH_A_CONDITION = PluginSettings(node_name="n", node_condition="NeuronDevicesHealthy")
SETTINGS = {
    "usual": PluginSettings(),
    "condition": WITH_A_CONDITION,
    "undamped": PluginSettings(health=HealthRules(flapping_window_seconds=0)),
    "patient": PluginSettings(health=HealthRules(node=SignalRule(for_seconds=30, keep_firing_for_seconds=60))),
    "deaf": PluginSettings(health=HealthRules(kernel_message=IGNORED, kernel_message_unnamed=IGNORED)),
    "warns-of-starts": PluginSettings(health=HealthRules(failed_starts=SignalRule(threshold=5, action=Action.WARN))),
    "dev": PluginSettings(dev=Path("/host/dev")),
    "dev-and-kmsg": PluginSettings(dev=Path("/host/dev"), kmsg=Path("/run/log")),
}
STORIES = rows("""
    p67 a reading gives its verdict at once: usual =>
        look sound / absent; unhealthy 1 because /dev/neuron1 is absent; told UNHEALTHY of 1; conditions; changes 0
    an unsent event is replaced by one on the same devices only: undamped =>
        look absent; look; look absent; look; look sound / absent;
        told UNHEALTHY of 0, HEALTHY of 0, UNHEALTHY of 0, HEALTHY of 0, UNHEALTHY of 1
    the first reading writes the condition though all is well:
        condition => look; look; conditions True AllDevicesHealthy 0:00:00; changes 0
    p67 the condition keeps its time until its status changes: condition =>
        look; wait 60; look sound / absent; look sound / absent; wait 60; look reset-failed / absent;
        conditions True AllDevicesHealthy 0:00:00, False UnhealthyDevices 0:01:00, False UnhealthyDevices 0:01:00
    p67 p68 a kernel message takes a device out, and time brings it back: usual =>
        look; wait 0.01; error nd1: NEURON_HW_ERR=DMA_ERROR on queue 3; unhealthy 1; changes 1; wait 3590; unhealthy 1;
        wait 20; unhealthy; changes 2
    p68 a reading that needs time is judged again without another reading: patient =>
        look absent; unhealthy; wait 31; unhealthy 0; look; wait 59; unhealthy 0; wait 2; unhealthy; changes 2
    a watch with nothing to wait for sleeps: usual => look memory=1; wait 86400; told UNHEALTHY of 0; changes 0
    p70 a source that does not work is named until it works, and the others go on: usual =>
        look; wait 0.01; fails no kmsg; look absent; silent kernel-log: no kmsg; unhealthy 0; fails; silent
    p70 uevents and reset states that are not there are named: usual => look no-reset -> no libudev;
        silent uevents: no libudev, sysfs: the reset state of neuron0 cannot be read: it takes root
    p70 counters of errors that are not there are named: usual => look sound / no-counters;
        silent sysfs: neuron1 without counters of memory errors: see 'neuron-plugin doctor sysfs'
    p70 a log that no rule needs is not read: deaf => look; wait 0.01; log none
    the log is read once there is a device to judge: usual => empty; wait 1; log none; look; wait 1; log /dev/kmsg
    the log is beside the device nodes: dev => look; wait 0.01; log /host/dev/kmsg
    unless it is set otherwise: dev-and-kmsg => look; wait 0.01; log /run/log
    failed starts make a device pending, then unhealthy, and healthy an hour after the last one: usual =>
        look; starts 2; wait 60; unhealthy; starts 3; wait 29; unhealthy; severity passing; wait 2;
        unhealthy 0 because 3 failed starts of different pods; changes 1; starts 0; wait 3590; unhealthy 0; wait 20;
        unhealthy; changes 2
    failed starts that are refuted in time: usual => look; starts 3; wait 20; starts 0; wait 60; unhealthy; told
    failed starts may be counted from another number, and be a warning only:
        warns-of-starts => look; starts 4; severity healthy; starts 5; severity warning; unhealthy
    a reset that fails is pending, then unhealthy, and old ones are not: usual =>
        look reset_fail_count=4; wait 60; unhealthy; look reset_fail_count=5; wait 29; unhealthy; wait 2;
        unhealthy 0 because 5 failed resets, 4 of them old; wait 3700; unhealthy
""")
"""The settings, and steps that are methods of `Run`."""


@pytest.mark.parametrize(("settings", "steps"), STORIES)
async def test_what_is_seen_and_what_is_told_of_it(settings: str, steps: str) -> None:
    async with running(SETTINGS[settings]) as run:
        await run.play(steps)


async def test_p70_a_source_that_does_not_work_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, health_watch.__name__)
    async with running() as run:
        await run.play("look; wait 0.01; fails no kmsg; fails no kmsg; fails")
    messages = [record.message for record in caplog.records if record.name == health_watch.__name__]
    assert messages == ["a source of health does not work", "a source of health works again"]


async def test_without_an_api_server_the_log_is_all_there_is(caplog: pytest.LogCaptureFixture) -> None:
    watch = HealthWatch(WITH_A_CONDITION, asyncio.Event())
    watch.look(machine(device(0, node=NodeState.ABSENT)))
    assert len(caplog.records) == 1


async def test_what_is_to_be_known_after_a_restart_is_written_when_it_changes(tmp_path: Path) -> None:
    settings = PluginSettings(state_dir=tmp_path / "state")
    async with running(settings) as run:
        run.watch_.look(machine(device(0, core_errors=(CoreErrors(0, hw_error=4),))))
        await eventually((tmp_path / "state/health.json").is_file)
    assert load(tmp_path / "state/health.json")[f"{0:016x}"]["hw-error"] == 4
    async with running(settings) as again:
        again.watch_.look(machine(device(0, core_errors=(CoreErrors(0, hw_error=5),))))
        assert again.watch_.state.devices[0].verdict.reason == "5 hardware errors on physical core 0, 4 of them old"


async def test_what_did_not_change_is_not_written_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writes: list[object] = []
    monkeypatch.setattr(health_watch, "save", lambda *arguments: writes.append(arguments))
    async with running(PluginSettings(state_dir=tmp_path)) as run:
        run.watch_.look(machine(device(0, core_errors=(CoreErrors(0, hw_error=4),))))
        await eventually(lambda: bool(writes))
        for node in (NodeState.ABSENT, NodeState.PRESENT):
            run.watch_.look(machine(device(0, node=node, core_errors=(CoreErrors(0, hw_error=4),))))
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
        run.watch_.look(machine(device(0, core_errors=(CoreErrors(0, hw_error=4),))))
        await eventually(lambda: bool(run.watch_.silent_sources))
        expected = {MEMORY: f"{tmp_path}/health.json cannot be written: Read-only file system"}
        assert run.watch_.silent_sources == expected
        await Log.last.error("nd0: NEURON_HW_ERR=DMA_ERROR on queue 3")
        await asyncio.sleep(0.01)
        assert list(run.watch_.unhealthy) == [0]
        full.clear()
        run.watch_.look(machine(device(0, core_errors=(CoreErrors(0, hw_error=4),))))
        await eventually(lambda: not run.watch_.silent_sources)


async def eventually(is_written: Callable[[], bool]) -> None:
    """A thread writes, so the loop's time does not show when."""
    for _ in range(1000):
        if is_written():
            return
        await asyncio.sleep(0.01)
        await asyncio.to_thread(lambda: None)
    raise TimeoutError("the memory was never written")


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
CHANGES = [
    (FELL, "Unhealthy: neuron device 1 is not given to new pods: /dev/neuron1 is absent"),
    (ROSE, "Healthy: neuron device 1 is healthy again and given to new pods"),
    (WARNED, "Warning: neuron devices 0,1 are still given to pods, with a warning: 2 hardware errors"),
    (CALMED, "Healthy: neuron devices 0,1 are healthy again, the warning is over"),
]


@pytest.mark.parametrize(("transition", "said"), CHANGES)
def test_p67_every_change_is_an_event_on_the_node(transition: Transition, said: str) -> None:
    assert "NeuronDevice" + said == ": ".join(health_event(transition))


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


CONDITIONS = rows("""
    all is well: sound / sound => True AllDevicesHealthy
    one is unhealthy: sound / unhealthy absent => False UnhealthyDevices neuron device 1: absent
    each reason once, with its devices: unhealthy reset / unhealthy absent / unhealthy reset =>
        False UnhealthyDevices neuron devices 0,2: reset. neuron device 1: absent
    warnings: warning x / warning x / sound => True DevicesWithWarnings neuron devices 0,1: x
    no device: => None NoDevices
""")
"""What is found on each device; status, reason and message of the condition."""


@pytest.mark.parametrize(("devices", "expected"), CONDITIONS)
def test_p67_a_condition_is_true_while_nothing_is_unhealthy_and_names_every_reason_with_its_devices(
    devices: str, expected: str
) -> None:
    verdicts = {}
    for number, text in enumerate(devices.split(" / ") if devices else ()):
        severity, _, why = text.partition(" ")
        verdicts[f"d{number}"] = SOUND if severity == "sound" else found(Severity[severity.upper()], why)
    status, reason, message = node_condition(node(**verdicts))
    assert f"{status} {reason} {message}".startswith(expected)
    assert reason in {"AllDevicesHealthy", "NoDevices"} or f"{status} {reason} {message}" == expected


def test_a_message_is_cut_to_what_a_condition_takes() -> None:
    many = {f"d{number}": found(Severity.UNHEALTHY, f"{number} " + "x" * 100) for number in range(64)}
    assert len(node_condition(node(**many))[2]) == 1024


# What is kept of devices over a restart, and that losing it costs nothing.


KNOWN: Baseline = {"aa": {"sram-ecc": 2}, "bb": {}}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "state" / "health.json"


def test_what_was_saved_is_loaded_and_without_a_file_nothing_is_known(
    file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert load(file) == {}
    save(file, KNOWN)
    assert load(file) == KNOWN
    assert [path.name for path in file.parent.iterdir()] == ["health.json"]
    assert caplog.records == []


UNUSABLE = (b"", b"{", b"[]", b"\xff\xfe", b'{"version": 1}', b'{"version": 2, "devices": {"a": 3}}')


@pytest.mark.parametrize("content", UNUSABLE)
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
