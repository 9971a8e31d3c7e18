"""Printing what ``devices`` saw, in the form that was asked for: once, or again whenever it changed."""

from __future__ import annotations

import enum
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec

from neuron_plugin.cli.command import CommandError, Exit, complain
from neuron_plugin.cli.device_columns import columns_of, title_of
from neuron_plugin.cli.output import document
from neuron_plugin.cli.tables import clear_terminal, on_terminal, print_table
from neuron_plugin.inspection.devices import MachineReport
from neuron_plugin.inspection.machine import Machine
from neuron_plugin.inspection.neuron_ls import neuron_ls_of


class Form(enum.StrEnum):
    """What ``--output`` takes."""

    TEXT = "text"
    WIDE = "wide"
    JSON = "json"
    YAML = "yaml"
    NEURON_LS = "neuron-ls"


_WITH_NOTES_INSIDE = {Form.JSON, Form.YAML}


@dataclass(frozen=True, slots=True)
class Sight:
    """A machine, all that is told of it, and the /proc with its processes."""

    machine: Machine
    report: MachineReport
    proc: Path = Path("/proc")


def show(form: Form, sight: Sight) -> int:
    """Print what was seen; returns the exit status."""
    report = sight.report
    if form in _WITH_NOTES_INSIDE:
        print(document(form, report), end="")
    elif form is Form.NEURON_LS and not report.absence:
        print(msgspec.json.format(_neuron_ls(sight), indent=4).decode())
    elif form in {Form.TEXT, Form.WIDE} and report.devices:
        _print_table(form, report)
    for note in report.notes if form not in _WITH_NOTES_INSIDE else ():
        complain(f"note: {note}")
    if report.absence:
        raise CommandError(f"no Neuron device: {report.absence}")
    return Exit.FINE


def watch(form: Form, sights: Iterable[Sight]) -> None:
    """Print every sight as it comes; a note is told once for as long as it stays true."""
    told: frozenset[str] = frozenset()
    for number, sight in enumerate(sights):
        report = sight.report
        if form is Form.JSON:
            print(msgspec.json.encode(report).decode(), flush=True)
        elif form is Form.YAML:
            print(f"---\n{document(form, report)}", end="", flush=True)
        elif form is Form.NEURON_LS:
            print(_neuron_ls(sight).decode(), flush=True)
        else:
            _print_table_again(form, report, first=number == 0)
        notes = frozenset(_trouble(report)) if form not in _WITH_NOTES_INSIDE else frozenset()
        for note in sorted(notes - told):
            complain(f"note: {note}")
        told = notes


def _trouble(report: MachineReport) -> Iterator[str]:
    yield from report.notes
    if report.absence:
        yield f"no Neuron device: {report.absence}"


def _print_table(form: Form, report: MachineReport) -> None:
    columns = columns_of(report, wide=form is Form.WIDE)
    print_table(
        [column.heading for column in columns],
        [[(column.cell(device), column.style(device)) for column in columns] for device in report.devices],
        title=title_of(report),
    )


def _print_table_again(form: Form, report: MachineReport, *, first: bool) -> None:
    if on_terminal():
        clear_terminal()
    elif not first:
        print()
    if report.devices:
        _print_table(form, report)
    if on_terminal():
        print("Watching for changes; Ctrl-C ends.")
    sys.stdout.flush()


def _neuron_ls(sight: Sight) -> bytes:
    return msgspec.json.encode(neuron_ls_of(sight.machine, sight.report, sight.proc))
