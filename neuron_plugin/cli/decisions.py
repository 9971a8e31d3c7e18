"""``neuron-plugin decisions``: which sets a daemon chose lately, what else there was, and why."""

from __future__ import annotations

import json
from argparse import Namespace
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from neuron_plugin.cli.command import CommandError, Exit, Subparsers, UsageError, add_command
from neuron_plugin.cli.output import Form, add_output_flag, document
from neuron_plugin.cli.tables import print_table

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
TIMEOUT_SECONDS = 10.0

Decision = Mapping[str, Any]
"""One decision as ``allocation.journal.explain`` gives it."""


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
    parser.add_argument("--last", metavar="NUMBER", type=int, default=0, help="only so many, the newest")
    parser.add_argument(
        "--server",
        metavar="HOST:PORT",
        default=SERVER,
        help=f"a daemon's --health-address and --health-port (default: {SERVER}, the plugin; an extender has 12346)",
    )


def run(arguments: Namespace) -> int:
    """Ask the daemon and print."""
    found = chosen(ask(arguments.server), arguments.pod, arguments.last)
    if (form := Form(arguments.output)) is Form.TEXT:
        print_table(HEADERS, [[(cell, "") for cell in row_of(decision)] for decision in found])
    else:
        print(document(form, {"version": VERSION, "decisions": found}), end="")
    return Exit.FINE


def ask(server: str) -> Sequence[Decision]:
    """What the daemon remembers, oldest first.

    Raises:
        UsageError: ``server`` is no HOST:PORT.
        CommandError: nobody answers there, or with something else than decisions.
    """
    host, _, port = server.rpartition(":")
    if not (host and port.isascii() and port.isdecimal()):
        raise UsageError(f"--server is {server!r}, expected HOST:PORT such as {SERVER}")
    return _read(server, _page(host.strip("[]"), int(port)))


def chosen(decisions: Sequence[Decision], pod: str, last: int) -> list[Decision]:
    """Those about a pod (of any, if that is empty), the ``last`` of them (all, if that is 0)."""
    about = [decision for decision in decisions if not pod or decision["pod"] == pod]
    return about[-last:] if last > 0 else about


def row_of(decision: Decision) -> tuple[str, ...]:
    """A decision as a row below ``HEADERS``."""
    at = datetime.fromtimestamp(decision["time_ns"] / 1e9, UTC)
    candidates = [f"{each['ids']}({each['cost']})" for each in decision["candidates"]]
    more = decision["candidate_count"] - len(candidates)
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


def _page(host: str, port: int) -> bytes:
    import http.client  # noqa: PLC0415 - the daemons load every command's module and have no use for it

    connection = http.client.HTTPConnection(host, port, timeout=TIMEOUT_SECONDS)
    try:
        connection.request("GET", "/decisions")
        response = connection.getresponse()
        body = response.read()
    except (OSError, http.client.HTTPException) as error:
        raise CommandError(
            f"nobody tells decisions on {host}:{port} ({error}): does the plugin run here, with --health-port {port}?"
        ) from error
    finally:
        connection.close()
    if response.status != http.client.OK:
        raise CommandError(
            f"{host}:{port} answers {response.status} {response.reason} to /decisions: is it a neuron-plugin?"
        )
    return body


def _read(server: str, body: bytes) -> Sequence[Decision]:
    try:
        decisions: Sequence[Decision] = json.loads(body)["decisions"]
    except (ValueError, KeyError, TypeError):
        raise CommandError(f"{server} answers /decisions with something else: is it a neuron-plugin?") from None
    return decisions
