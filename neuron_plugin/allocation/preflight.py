"""The pre-flight check of a node: its result as an annotation, and whether it closes the node.

The controller writes the annotation, and every judgement of a node reads it, so no way of placement can forget it. A
check is valid for one boot of the machine, and only until a device becomes unhealthy.
"""

from __future__ import annotations

import enum
import json
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import NamedTuple

from neuron_plugin.allocation.inventory import NodeInventory
from neuron_plugin.allocation.rejection import PREFLIGHT_DUE, PREFLIGHT_FAILED, PREFLIGHT_UNABLE, Rejection
from neuron_plugin.allocation.resources import ranges

LONGEST_MESSAGE = 400
"""Characters of a check's output that are kept on the node."""
_SHOWN = 4
"""Lines of the output that are shown, from its end: there a check says what is wrong."""


class PreflightState(enum.StrEnum):
    """The state of a node's check."""

    PENDING = "pending"
    """The node has to be checked."""
    PASSED = "passed"
    UNHEALTHY = "unhealthy"
    """The node had passed, then a device became unhealthy: it is checked again once all devices are healthy."""
    FAILED = "failed"
    UNABLE = "unable"
    """The check could not run."""


@dataclass(frozen=True, slots=True)
class Preflight:
    """The annotation: the state since ``at``, in unix seconds, of the boot ``boot_id`` of the machine.

    ``devices`` are the devices that the check has named. ``message`` is the end of its output, or why it could not run.
    ``closes``: the node stays closed if the check cannot run.
    """

    state: PreflightState
    boot_id: str
    at: float
    devices: tuple[int, ...] = ()
    message: str = ""
    closes: bool = False

    @property
    def text(self) -> str:
        """Devices and message of a check that has not passed, for people."""
        devices = f"device{'s' * (len(self.devices) > 1)} {ranges(self.devices)}: " if self.devices else ""
        output = " | ".join(filter(None, map(str.strip, self.message.splitlines()[-_SHOWN:])))
        return f"{devices}{output or 'it has said nothing'}"


class CheckScope(NamedTuple):
    """Which checks the leader makes, as its Lease says: with pods in ``namespace``, and none without a namespace.

    ``groups``: groups that ask for it are checked, too. ``claims``: so are nodes whose devices are given by claims.
    """

    namespace: str = ""
    groups: bool = False
    claims: bool = False

    @classmethod
    def read(cls, text: str) -> CheckScope:
        """Read the text of ``text``."""
        namespace, *more = text.split() or [""]
        return cls(namespace, "groups" in more, "claims" in more)

    @property
    def text(self) -> str:
        """The namespace, followed by ``groups`` and ``claims`` if they are checked."""
        more = ("groups" if self.groups else "", "claims" if self.claims else "")
        return " ".join(filter(None, (self.namespace, *more))) if self.namespace else ""

    def covers(self, inventory: NodeInventory) -> bool:
        """Whether a node with these devices is checked before it takes pods."""
        return bool(self.namespace) and (self.claims or not inventory.claim_driver)

    def closure(
        self, record: Preflight | None, boot_id: str, inventory: NodeInventory, *, busy: bool
    ) -> Rejection | None:
        """Why the check closes a node; None if it does not. ``busy``: it has pods besides the check pod.

        A node with pods that was never checked stays open until it is empty: otherwise a running cluster would close
        when checks are turned on.
        """
        if not self.covers(inventory):
            return None
        if record is None:
            return None if busy else PREFLIGHT_DUE
        if record.boot_id != boot_id:
            return PREFLIGHT_DUE
        match record.state:
            case PreflightState.FAILED:
                return replace(PREFLIGHT_FAILED, detail=record.text)
            case PreflightState.UNABLE:
                return replace(PREFLIGHT_UNABLE, detail=record.text) if record.closes else None
            case PreflightState.UNHEALTHY:
                return None if broken_devices(inventory) else PREFLIGHT_DUE
            case PreflightState.PENDING:
                return PREFLIGHT_DUE
        return None


def write_preflight(record: Preflight) -> str:
    """The annotation's text: JSON with an RFC 3339 time, without empty fields."""
    at = datetime.fromtimestamp(record.at, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
    fields = {"state": record.state.value, "bootID": record.boot_id, "at": at}
    more = {"devices": record.devices, "message": record.message, "closes": record.closes}
    return json.dumps(fields | {name: value for name, value in more.items() if value}, separators=(",", ":"))


def read_preflight(text: str) -> Preflight | None:
    """Read the annotation; None for any other text, so that the node counts as never checked."""
    try:
        fields = json.loads(text)
        return Preflight(
            PreflightState(fields["state"]),
            str(fields["bootID"]),
            datetime.fromisoformat(fields["at"]).timestamp(),
            tuple(int(device) for device in fields.get("devices", ())),
            str(fields.get("message", "")),
            closes=bool(fields.get("closes")),
        )
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError):
        return None


def broken_devices(inventory: NodeInventory) -> tuple[int, ...]:
    """The devices that are missing or unhealthy, without those that are only held down after a pod."""
    gone = set(range(inventory.geometry.device_count)) - set(inventory.present)
    return tuple(sorted((gone | set(inventory.unhealthy)) - set(inventory.held_down)))


def preflight_seen(record: Preflight | None, before: Preflight | None, inventory: NodeInventory) -> Preflight | None:
    """The state of a node with ``record``, which was ``before``: passed becomes unhealthy once a device is broken.

    The change holds as soon as it is seen, without a time until it is written, so a failed write does not undo it.
    """
    if record and record.state is PreflightState.PASSED:
        doubted = replace(record, state=PreflightState.UNHEALTHY, at=0.0)
        return doubted if before == doubted or broken_devices(inventory) else record
    return record
