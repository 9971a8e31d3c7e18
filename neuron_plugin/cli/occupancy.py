"""Who has which core, as letters: the marks of a drawing and their legend."""

from __future__ import annotations

import string
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from neuron_plugin.allocation import Holder, HolderLedger
from neuron_plugin.cli.drawing import Mark
from neuron_plugin.inspection.machine import Machine
from neuron_plugin.inspection.text import ranges
from neuron_plugin.topology import Geometry, Unit, cores_in

FREE = Mark(".", "green")
UNUSABLE = Mark("!", "bold red")
ABSENT = Mark("x", "dim")
SHARED = Mark("#", "bold magenta")

_LETTERS = string.ascii_uppercase + string.ascii_lowercase + string.digits
_COLOURS = ("cyan", "yellow", "magenta", "blue", "bright_cyan", "bright_yellow", "bright_magenta", "bright_blue")


@dataclass(frozen=True, slots=True)
class LegendLine:
    """What a mark means."""

    mark: Mark
    text: str


class Occupancy:
    """Marks for the cores of one machine."""

    def __init__(self, machine: Machine, geometry: Geometry, ledger: HolderLedger | None) -> None:
        """``ledger`` is None where holders are not known."""
        self._machine = machine
        self._geometry = geometry
        self._ledger = HolderLedger() if ledger is None else ledger
        self._holders: Mapping[Mark, Holder] = dict(zip(_letters(), self._ledger, strict=False))
        self._meanings = (
            _MEANINGS
            if ledger is not None
            else {**_MEANINGS, FREE: "free unless a pod holds it (holders are not known)"}
        )

    def marks(self) -> dict[int, list[Mark]]:
        """A mark for each core, by device."""
        return {
            device: [self._mark(device, core) for core in cores_in(self._geometry.device_mask(device))]
            for device in range(self._geometry.device_count)
        }

    def legend(self) -> list[LegendLine]:
        """Every mark that is in the drawing, holders first."""
        used = {mark for marks in self.marks().values() for mark in marks}
        lines = [LegendLine(mark, self._held_by(holder)) for mark, holder in self._holders.items()]
        return lines + [LegendLine(mark, text) for mark, text in self._meanings.items() if mark in used]

    def _mark(self, device: int, core: int) -> Mark:
        if device not in self._machine.inventory.device_ids:
            return ABSENT
        holders = self._ledger.holders_of(1 << core)
        if len(holders) > 1:
            return SHARED
        if holders:
            return next((mark for mark, holder in self._holders.items() if holder is holders[0]), SHARED)
        return FREE if self._machine.usable_mask >> core & 1 else UNUSABLE

    def _held_by(self, holder: Holder) -> str:
        containers = ", ".join(
            f"{holding.container} {self._ids(holding.mask, holding.resource.unit)}" for holding in holder.holdings
        )
        return f"{holder.pod}: {containers}"

    def _ids(self, mask: int, unit: Unit) -> str:
        ids = self._geometry.whole_devices(mask) if unit is Unit.DEVICE else cores_in(mask)
        return f"{unit.value} {ranges(ids)}" if len(ids) == 1 else f"{unit.value}s {ranges(ids)}"


_MEANINGS = {
    SHARED: "held by more than one pod (see: neuron-plugin devices)",
    FREE: "free",
    UNUSABLE: "not handed out: unhealthy (see: neuron-plugin devices)",
    ABSENT: "device missing",
}


def _letters() -> Iterator[Mark]:
    for number, letter in enumerate(_LETTERS):
        yield Mark(letter, f"bold {_COLOURS[number % len(_COLOURS)]}")
