"""The keeper of verdicts: what every device of the node is, over time.

The one owner of all that is remembered of health. It is told what was seen, asked to judge at a moment, and says what
changed; it reads no file, waits for nothing and tells nobody. Unhealthy stops new allocations only: running pods keep
their devices, and a device that one of them holds is reported as it is.
"""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from neuron_plugin.hardware import Inventory, KernelError, Observation, Signal, device_key, observe, unreadable
from neuron_plugin.plugin.health.memory import Memory
from neuron_plugin.plugin.health.policy import HealthSettings, Recovery, policy_of
from neuron_plugin.plugin.health.record import DeviceRecord, Look
from neuron_plugin.plugin.health.status import Cause, DeviceHealth, Status
from neuron_plugin.plugin.machine import MISSING

_NAMED = "neuron"
"""How the key of a device without a serial number begins; serial numbers are hexadecimal."""

_MOST_PENDING = 1000
"""Messages that may wait for the first look at the hardware."""


@dataclass(frozen=True, slots=True)
class Transition:
    """Devices that became something else, for the same reason (empty when they are healthy again)."""

    devices: tuple[int, ...]
    before: Status
    after: Status
    reason: str


class HealthKeeper:
    """Traces of all devices of one node."""

    def __init__(self, settings: HealthSettings, memory: Memory, clock: Callable[[], float] = time.monotonic) -> None:
        """``clock`` gives seconds of CLOCK_MONOTONIC, in which kernel messages are dated, too."""
        self._settings = settings
        self._known = memory
        self._clock = clock
        self._started = clock()
        self._records: dict[int, DeviceRecord] = {}
        self._pending: deque[KernelError] = deque(maxlen=_MOST_PENDING)
        self._told: dict[int, tuple[Status, str]] = {}

    @property
    def devices(self) -> Mapping[int, DeviceHealth]:
        """Every device that was ever seen, as it was judged last."""
        return {device: record.health for device, record in sorted(self._records.items())}

    @property
    def unhealthy(self) -> dict[int, str]:
        """Devices that must not be handed out, and why."""
        return {device: health.reason for device, health in self.devices.items() if health.status is Status.UNHEALTHY}

    @property
    def next_change(self) -> float:
        """When to judge again if nothing happens before; infinity for never."""
        return min((record.next_change for record in self._records.values()), default=float("inf"))

    @property
    def memory(self) -> Memory:
        """What to know after a restart: of devices that were here once, and of those that are here, last."""
        return self._known.with_devices({record.key: record.memory for record in self._records.values()})

    def look(self, inventory: Inventory) -> None:
        """Take in a look at the hardware; a device that was here once and is not, is missing."""
        now = self._clock()
        keys = _keys(inventory)
        for device in inventory.devices:
            record = self._record(int(device.id), keys[int(device.id)], now)
            record.looked(Look(observe(device), unreadable(device)), now)
        skipped = {int(device.id): device.reason for device in inventory.skipped}
        here = {int(device) for device in inventory.device_ids}
        for number, record in self._records.items():
            if number not in here:
                text = skipped.get(number, MISSING)
                record.looked(Look((Observation(Signal.MISSING, text),), present=False), now)
        while here and self._pending:
            self._believe(self._pending.popleft())

    def kernel_error(self, error: KernelError) -> None:
        """Take in a hardware error of the kernel log, unless a process may have written it, or it is long past."""
        if not (error.by_kernel or self._settings.trust_user_messages):
            return
        if self._records:
            self._believe(error)
        else:
            self._pending.append(error)

    def judge(self) -> tuple[Transition, ...]:
        """Judge all devices now; what changed since the last time, devices with the same news together."""
        now = self._clock()
        news: dict[tuple[Status, Status, str], list[int]] = {}
        for device, record in sorted(self._records.items()):
            record.judge(now)
            before, after = self._told.get(device, (Status.HEALTHY, "")), _tellable(record.health)
            if before != after:
                self._told[device] = after
                news.setdefault((before[0], *after), []).append(device)
        return tuple(Transition(tuple(devices), *change) for change, devices in news.items())

    def _record(self, device: int, key: str, now: float) -> DeviceRecord:
        record = self._records.get(device)
        if record and _is_another(record.key, key):
            self._known = self.memory  # the chip that was here may come back under another number
            record = None
        if record is None:
            record = DeviceRecord(key, self._known.of(key), self._settings, now)
            self._records[device] = record
        elif record.key != key and not key.startswith(_NAMED):
            record.identified(key, self._known.of(key), now)  # firmware did not tell the serial number at first
        return record

    def _named(self, error: KernelError) -> set[int]:
        """Devices of this node that a message names; a serial number says more than any number."""
        if error.serial_number:
            return {device for device, record in self._records.items() if record.key == error.serial_number}
        return self._records.keys() & {int(device) for device in error.devices}

    def _believe(self, error: KernelError) -> None:
        named = self._named(error)
        signal = Signal.KERNEL_MESSAGE if error.proves and named else Signal.KERNEL_MESSAGE_UNNAMED
        policy = policy_of(self._settings, signal)
        if policy.recovery is Recovery.QUIET:
            too_old = self._clock() - error.at >= policy.recover_after_seconds
        else:
            too_old = error.at < self._started  # nobody can say whether what ends it has happened since
        if too_old:
            return
        where = f" of NEURON_HW_ERR={error.kind}" + ("" if named else ", naming no device of this node")
        for device in named or self._records.keys():
            self._records[device].told(signal, "kernel message", where, error.at)


def _keys(inventory: Inventory) -> dict[int, str]:
    """What each device's memory is kept under; a serial number that two devices give is none."""
    keys = {int(device.id): device_key(device) for device in inventory.devices}
    uses = Counter(keys.values())
    return {device: key if uses[key] == 1 else _name(device) for device, key in keys.items()}


def _is_another(known: str, key: str) -> bool:
    """Whether two keys are of two chips: a serial number that cannot be read just now says nothing."""
    return known != key and not known.startswith(_NAMED) and not key.startswith(_NAMED)


def _name(device: int) -> str:
    return f"{_NAMED}{device}"


def _tellable(health: DeviceHealth) -> tuple[Status, str]:
    """A health without what may pass by itself: that would be told each time it comes and goes."""
    causes: tuple[Cause, ...] = tuple(cause for cause in health.causes if cause.status is not Status.WAITING)
    lasting = DeviceHealth(causes[0].status, causes) if causes else DeviceHealth()
    return lasting.status, lasting.reason
