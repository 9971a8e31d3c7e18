"""``neuron-plugin decisions``: which sets a daemon chose lately, what else there was, and why."""

from __future__ import annotations

import json
from argparse import ArgumentTypeError, Namespace
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from neuron_plugin.cli.command import CommandError, Exit, Subparsers, UsageError, add_command
from neuron_plugin.cli.configuration import settings_here
from neuron_plugin.cli.output import Form, add_output_flag, document
from neuron_plugin.cli.tables import print_table
from neuron_plugin.inspection.probes import page_of
from neuron_plugin.inspection.unknown import Unknown

DESCRIPTION = """\
Show what the plugin of this node (or the extender) decided lately: it keeps the last few hundred decisions in memory.

columns:
  STEP        preferred (what the kubelet was told to take), allocated, refused, corrected (the kubelet gave the pod
              another set), bound (by the extender)
  IDS         the set that was chosen, or that was refused
  CANDIDATES  the best sets there were, each with its cost: what it would take from later pods

JSON and YAML have what each choice was made from, too: the ids offered, demanded and usable."""

EXAMPLES = """
neuron-plugin decisions
neuron-plugin decisions --pod default/train
neuron-plugin decisions --last 10 -o json
kubectl -n kube-system exec ds/neuron-plugin -- neuron-plugin decisions
"""

VERSION = 1
HEADERS = ("TIME", "STEP", "POD", "CONTAINER", "RESOURCE", "IDS", "CANDIDATES", "REASON")
SERVER = "127.0.0.1:12347"

Decision = Mapping[str, Any]
"""One decision as ``allocation.decision_log.explain`` gives it."""


def register(subparsers: Subparsers) -> None:
    """Add the command."""
    parser = add_command(
        subparsers,
        "decisions",
        run,
        summary="show what the plugin of this node chose lately, what else there was, and why",
        description=DESCRIPTION,
        examples=EXAMPLES,
    )
    add_output_flag(parser)
    parser.add_argument("--pod", metavar="NAMESPACE/NAME", default="", help="only those about this pod")
    parser.add_argument("--last", metavar="NUMBER", type=_number, default=0, help="only so many, the newest")
    parser.add_argument(
        "--server",
        metavar="HOST:PORT",
        help=f"a daemon's --health-address and --health-port (default: the daemon here by its settings, else {SERVER})",
    )


def run(arguments: Namespace) -> int:
    """Ask the daemon and print."""
    found = chosen(ask(arguments.server), arguments.pod, arguments.last)
    if (form := Form(arguments.output)) is Form.TEXT:
        print_table(HEADERS, [[(cell, "") for cell in row_of(decision)] for decision in found])
    else:
        print(document(form, {"version": VERSION, "decisions": found}), end="")
    return Exit.FINE


def ask(server: str | None) -> Sequence[Decision]:
    """What the daemon remembers, oldest first; the one of this pod or machine if ``server`` is None.

    Raises:
        UsageError: ``server`` is no HOST:PORT.
        SettingsError: the settings of the daemon here cannot be used.
        CommandError: nobody answers there, or with something else than decisions.
    """
    host, port = _address(server)
    page = page_of(host, port, "/decisions")
    if isinstance(page, Unknown):
        raise CommandError(f"{page.why}: {page.action}")
    return _read(f"{host}:{port}", page)


def _address(server: str | None) -> tuple[str, int]:
    if server is None:
        here = settings_here()
        return here.health_address, here.health_port
    host, _, port = server.rpartition(":")
    if not (host and port.isascii() and port.isdecimal()):
        raise UsageError(f"--server is {server!r}, expected HOST:PORT such as {SERVER}")
    return host.strip("[]"), int(port)


def _number(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and int(text)):
        raise ArgumentTypeError(f"{text!r} is no number of 1 or more")
    return int(text)


def chosen(decisions: Sequence[Decision], pod: str, last: int) -> list[Decision]:
    """Those about a pod (of any, if that is empty), the ``last`` of them (all, if that is 0)."""
    about = [decision for decision in decisions if not pod or decision["pod"] == pod]
    return about[-last:] if last > 0 else about


def row_of(decision: Decision) -> tuple[str, ...]:
    """A decision as a row below ``HEADERS``."""
    at = datetime.fromtimestamp(decision["timeNs"] / 1e9, UTC)
    candidates = [f"{each['ids']}({each['cost']})" for each in decision["candidates"]]
    more = decision["candidateCount"] - len(candidates)
    return (
        at.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
        decision["step"],
        decision["pod"],
        decision["container"],
        decision["resource"].rpartition("/")[2],
        decision["ids"],
        ";".join(candidates) + (f";+{more}" if more > 0 else ""),
        decision["reason"],
    )


def _read(server: str, page: str) -> Sequence[Decision]:
    try:
        decisions: Sequence[Decision] = json.loads(page)["decisions"]
        for decision in decisions:
            row_of(decision)
    except (ValueError, KeyError, TypeError):
        raise CommandError(f"{server} answers /decisions with something else: is it a neuron-plugin?") from None
    return decisions
