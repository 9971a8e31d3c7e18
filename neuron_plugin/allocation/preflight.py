"""Whether a node was checked before it takes pods, as its annotation says, and what keeps it closed until then.

The controller writes the annotation, and everybody who judges a node reads it: so no door can forget it. A check is of
one boot of the machine. One that was good is not good any more once a device has been unhealthy.
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
"""Characters of what a check has said that are kept on the node."""
_SHOWN = 4
"""Lines of it that people are shown: a check says what is wrong at its end."""


class PreflightState(enum.StrEnum):
    """How a node stands."""

    PENDING = "pending"
    """It is to be checked."""
    PASSED = "passed"
    UNHEALTHY = "unhealthy"
    """It had passed, and a device is unhealthy since: it is checked once all of them are healthy again."""
    FAILED = "failed"
    UNABLE = "unable"
    """The check could not run."""


@dataclass(frozen=True, slots=True)
class Preflight:
    """The annotation: the state since ``at``, in unix seconds, of the boot ``boot_id`` of the machine.

    ``devices`` are those that the check has named, ``message`` is its last lines, or why it could not run. ``closes``:
    a check that could not run keeps the node closed.
    """

    state: PreflightState
    boot_id: str
    at: float
    devices: tuple[int, ...] = ()
    message: str = ""
    closes: bool = False

    @property
    def text(self) -> str:
        """What a person wants to know of a check that has not passed."""
        devices = f"device{'s' * (len(self.devices) > 1)} {ranges(self.devices)}: " if self.devices else ""
        said = " | ".join(filter(None, map(str.strip, self.message.splitlines()[-_SHOWN:])))
        return f"{devices}{said or 'it has said nothing'}"


class CheckScope(NamedTuple):
    """What the leader checks, which stands on its Lease. Its pods are in ``namespace``; without one, it checks nothing.

    ``groups`` that ask for it are checked, too, and nodes that give their devices by ``claims``.
    """

    namespace: str = ""
    groups: bool = False
    claims: bool = False

    @classmethod
    def read(cls, text: str) -> CheckScope:
        """Read what ``text`` has written."""
        namespace, *more = text.split() or [""]
        return cls(namespace, "groups" in more, "claims" in more)

    @property
    def text(self) -> str:
        """The namespace and what is checked besides nodes that give their devices by count."""
        more = ("groups" if self.groups else "", "claims" if self.claims else "")
        return " ".join(filter(None, (self.namespace, *more))) if self.namespace else ""

    def covers(self, inventory: NodeInventory) -> bool:
        """Whether a node with these devices is checked before it takes pods."""
        return bool(self.namespace) and (self.claims or not inventory.claim_driver)

    def closure(
        self, record: Preflight | None, boot_id: str, inventory: NodeInventory, *, busy: bool
    ) -> Rejection | None:
        """Why the check closes a node; None if it does not. ``busy``: it has pods besides that of the check.

        A node that was never checked and has pods stays open: else a running cluster would close when checks are
        switched on. It is closed and checked once it is empty.
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
    """The annotation's text: JSON, with a time of RFC 3339, and without what is empty."""
    at = datetime.fromtimestamp(record.at, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
    fields = {"state": record.state.value, "bootID": record.boot_id, "at": at}
    more = {"devices": record.devices, "message": record.message, "closes": record.closes}
    return json.dumps(fields | {name: value for name, value in more.items() if value}, separators=(",", ":"))


def read_preflight(text: str) -> Preflight | None:
    """Read the annotation; None for any other text: the node counts as never checked."""
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
    """The devices that are missing or unhealthy, without those that a pod which has ended still holds."""
    gone = set(range(inventory.geometry.device_count)) - set(inventory.present)
    return tuple(sorted((gone | set(inventory.unhealthy)) - set(inventory.held_down)))


def preflight_seen(record: Preflight | None, before: Preflight | None, inventory: NodeInventory) -> Preflight | None:
    """How a node stands that says ``record``, and stood as ``before``: once a device is broken it has passed no more.

    That counts from when it is seen. Until it is written it has no time, and no write that fails can make it forgotten.
    """
    if record and record.state is PreflightState.PASSED:
        doubted = replace(record, state=PreflightState.UNHEALTHY, at=0.0)
        return doubted if before == doubted or broken_devices(inventory) else record
    return record
