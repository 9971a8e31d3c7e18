"""Write the pages that are made from the code: settings, commands, metrics.

    python docs/generate.py           write them
    python docs/generate.py --check   exit 1 and name the pages that are out of date

The other pages are written by hand; a page made here says so at its top.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

os.environ["COLUMNS"] = "110"  # argparse wraps help to the terminal's width, which must not decide what is committed

import health_reference
import msgspec

from neuron_plugin.allocation.resources import ranges
from neuron_plugin.cli.main import build_parser
from neuron_plugin.metrics import Table
from neuron_plugin.monitor import use
from neuron_plugin.placement import ExtenderSettings
from neuron_plugin.placement import metrics as extender_metrics
from neuron_plugin.plugin import metrics as plugin_metrics
from neuron_plugin.plugin.settings import PluginSettings
from neuron_plugin.settings import ENVIRONMENT_PREFIX, as_text, description_of
from neuron_plugin.topology import Geometry, Unit, catalogue, sets_by_count

DIRECTORY = Path(__file__).parent
NOTICE = "<!-- Made by docs/generate.py from the code: change the code, then run `make docs`. -->"

_OTHER_HELP = (3, 13)
"""From here on argparse lays out help differently: commands.md is made and checked by an older Python."""

CONFIGURATION = """\
A setting is the flag `--name`, the environment variable `{prefix}NAME` (dashes as underscores) and the key `name` of
the YAML file given by `--config`. A flag wins over the environment, the environment over the file, the file over the
default. Lists are comma separated in flags and variables. An unknown key or a value out of range ends the start with
one line that names it. `--print-config` prints the settings in force as such a file; they are logged at every start,
too."""

METRICS_INTRODUCTION = """\
Both daemons serve `/metrics` in the Prometheus text format beside `/healthz` and `/readyz`. Gauges are read from the
state at each scrape, so the series of a pod or device that is gone goes with it."""

OFFERED = frozenset(
    f"{family}.{size}"
    for family, sizes in {
        "inf1": "xlarge 2xlarge 6xlarge 24xlarge",
        "inf2": "xlarge 8xlarge 24xlarge 48xlarge",
        "trn1": "2xlarge 32xlarge",
        "trn1n": "32xlarge",
        "trn2": "3xlarge 48xlarge",
        "trn2u": "48xlarge",
        "trn3": "48xlarge",
        "trn3n": "48xlarge",
        "trn3en": "24xlarge",
        "trn3s-es": "48xlarge",
    }.items()
    for size in sizes.split()
)
"""The types on which AWS's own chart (1.10, SDK 2.32) runs its plugin."""

HOLDERS = """\
**Which pod has a device?** Join by `neuron_plugin_core_holder`, as the dashboard does:
`neuroncore_utilization_ratio * on (node, neuroncore) group_left (namespace, pod) neuron_plugin_core_holder`. The
kubelet's PodResources can name other devices than a container has. A container that re-uses what its pod's init
containers had is given linked devices of theirs where the kubelet drew some that are not, or some that a later
container was assigned. PodResources shows what the kubelet drew, and no plain init containers at all."""

TYPES_INTRODUCTION = """\
What is known about each type. The machine's own sysfs comes first; describe a further type in a file for
`--instance-types` (`neuron_plugin/instance_file.py` says in which form). Cores are physical; `neuroncore`s are logical,
at the product's default LNC. Types with * are not in AWS's own chart (1.10): the Neuron driver's source or the SDK
names them, and EC2 may not offer them. *Aligned*: a power of two of cores begins at a multiple of itself, also inside a
device, any other number of them at a device."""


def configuration() -> str:
    """Both daemons' settings."""
    parts = [
        "# Configuration",
        CONFIGURATION.format(prefix=ENVIRONMENT_PREFIX),
        "## The plugin: `neuron-plugin run`",
        _settings(PluginSettings, "run"),
        "### health: what each signal means",
        health_reference.HOW,
        _table(("key of a signal", "meaning"), health_reference.keys()),
        _table(health_reference.HEAD, health_reference.signals()),
        _table(("further key", "default", "meaning"), health_reference.others()),
        "## The extender: `neuron-plugin extender`",
        _settings(ExtenderSettings, "extender"),
    ]
    return "\n\n".join(parts)


def commands() -> str:
    """Every command's own help, without what several commands say in the same words: that stands once, before them."""
    parser = build_parser()
    helps = {f"## neuron-plugin {name}": command for name, command in _commands(parser).items()}
    for command in list(helps.values()):
        helps |= {f"### {nested.prog}": nested for nested in _nested(command)}
    texts = {title: _entries(command) for title, command in helps.items()}
    counts = Counter(" ".join(entry.split()) for entries in texts.values() for entry in entries if _is_flag(entry))
    several = {said for said, count in counts.items() if count > 2}  # noqa: PLR2004 - several are three
    shared = {" ".join(entry.split()): entry for entries in texts.values() for entry in entries}
    parts = ["# Commands", f"```text\n{parser.format_help().strip()}\n```", "Flags of several commands:"]
    parts.append("```text\n{}\n```".format("\n".join(shared[said] for said in sorted(several, key=str.lower))))
    for title, entries in texts.items():
        is_daemon = title.endswith((" run", " extender"))
        kept = [
            entry for entry in entries if not _is_flag(entry) or not (is_daemon or " ".join(entry.split()) in several)
        ]
        text = re.sub(r"(options|which cluster):\n(  As for kubectl.\n)?\n*(?=\n\S|$)", "", "\n".join(kept))
        text = re.sub(r"\A.*?\n\n", "", text, flags=re.DOTALL) if is_daemon else text
        text = re.sub(r"\n{3,}", "\n\n", text).strip()
        parts += [title, f"```text\n{text}\n```"]
        parts += ["Its flags are its [settings](configuration.md)."] if is_daemon else []
    return "\n\n".join(parts)


def _entries(command: argparse.ArgumentParser) -> list[str]:
    """The lines of a help text but for the exit status, which is every command's; those of one flag together."""
    entries = list[str]()
    for line in command.format_help().partition("\nexit status:")[0].strip().splitlines():
        if entries and _is_flag(entries[-1]) and line.startswith(" " * 8):
            entries[-1] += f"\n{line}"
        else:
            entries.append(line)
    return entries


def _is_flag(entry: str) -> bool:
    return entry.startswith("  -")


def metrics() -> str:
    """Every metric of both daemons."""
    parts = [
        "# Metrics",
        METRICS_INTRODUCTION,
        "## The plugin",
        _metric_table(plugin_metrics.METRICS),
        HOLDERS,
        "## The extender",
        _metric_table(extender_metrics.METRICS, use.METRICS),
    ]
    return "\n\n".join(parts)


def instance_types() -> str:
    """The catalogue."""
    rows = [
        (
            f"`{one.name}`" if one.name in OFFERED else f"`{one.name}` *",
            one.device_name,
            str(one.devices),
            str(one.cores_per_device),
            str(one.devices * one.cores_per_device // one.logical_core_size),
            f"{one.memory_gib} GiB",
            one.topology.value,
            ", ".join(map(str, one.block_sizes)) or "any",
            _core_counts(one.geometry),
        )
        for one in catalogue().values()
    ]
    head = (
        "type",
        "product",
        "devices",
        "cores a device",
        "`neuroncore`s",
        "memory a device",
        "links",
        "device counts",
        "`neuroncore` counts",
    )
    parts = [
        "# Instance types",
        TYPES_INTRODUCTION,
        _table(head, rows),
    ]
    return "\n\n".join(parts)


def _core_counts(geometry: Geometry) -> str:
    if not (geometry.core_block_sizes or geometry.block_sizes):
        return "any"
    counts = ranges(sets_by_count(geometry, Unit.CORE)).replace(",", ", ")
    return f"{counts}, aligned" if geometry.core_block_sizes else counts


PAGES: dict[str, Callable[[], str]] = {
    "configuration.md": configuration,
    "commands.md": commands,
    "metrics.md": metrics,
    "instance-types.md": instance_types,
}


def main() -> int:
    """Write the pages, or check them."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="write nothing, exit 1 if a page is out of date")
    check = parser.parse_args().check
    pages = dict(PAGES)
    if sys.version_info >= _OTHER_HELP:
        del pages["commands.md"]
        print("docs/commands.md is left as it is: it takes Python 3.11 or 3.12", file=sys.stderr)  # noqa: T201 - a script
    stale = [name for name, page in pages.items() if _stale(DIRECTORY / name, page)]
    for name in stale:
        if check:
            print(f"docs/{name} is out of date: run make docs", file=sys.stderr)  # noqa: T201 - a script
        else:
            (DIRECTORY / name).write_text(_page(PAGES[name]), encoding="utf-8")
    return 1 if check and stale else 0


def _stale(path: Path, page: Callable[[], str]) -> bool:
    return not path.exists() or path.read_text(encoding="utf-8") != _page(page)


def _page(page: Callable[[], str]) -> str:
    return f"{NOTICE}\n\n{page().strip()}\n"


def _settings(settings: type[msgspec.Struct], command: str) -> str:
    flags = {flag: action for action in _commands(build_parser())[command]._actions for flag in action.option_strings}  # noqa: SLF001 - argparse offers no other way to its arguments
    rows = [
        (
            f"`{field.encode_name}`",
            _values(flags.get(f"--{field.encode_name}")),
            f"`{as_text(field.default)}`" if as_text(field.default) else "-",
            description_of(field),
        )
        for field in msgspec.structs.fields(settings)
    ]
    return _table(("setting", "values", "default", "meaning"), rows)


def _values(flag: argparse.Action | None) -> str:
    """What a setting takes, as its flag says; a section of the file has none."""
    if flag is None:
        return "see below"
    if isinstance(flag, argparse.BooleanOptionalAction):
        return "`true`, `false`"
    return ", ".join(f"`{each}`" for each in flag.choices) if flag.choices else str(flag.metavar).lower()


def _commands(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    actions = parser._actions  # noqa: SLF001 - argparse offers no other way to its commands
    return dict(next(action for action in actions if isinstance(action, argparse._SubParsersAction)).choices)  # noqa: SLF001 - as above


def _nested(parser: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    for action in parser._actions:  # noqa: SLF001 - as above
        if isinstance(action, argparse._SubParsersAction):  # noqa: SLF001 - as above
            for nested in action.choices.values():
                yield nested
                yield from _nested(nested)


def _metric_table(*tables: Table) -> str:
    rows = [
        (f"`{table.prefix}{name}`", kind, ", ".join(labels) or "-", text)
        for table in tables
        for name, (kind, labels, text) in table.rows.items()
    ]
    return _table(("metric", "type", "labels", "meaning"), rows)


def _table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    lines = [" | ".join(head), " | ".join("---" for _ in head), *(" | ".join(row) for row in rows)]
    return "\n".join(f"| {line} |" for line in lines)


if __name__ == "__main__":
    sys.exit(main())
