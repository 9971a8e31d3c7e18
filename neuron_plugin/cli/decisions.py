"""``neuron-plugin decisions``: the latest sets that a daemon chose, the alternatives, and the reasons."""

from __future__ import annotations

import json
from argparse import ArgumentParser, Namespace
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from neuron_plugin.allocation.resources import ranges
from neuron_plugin.cli.cluster import ROWS, add_cluster_flags
from neuron_plugin.cli.command import (
    VERSION,
    CommandError,
    Row,
    UsageError,
    add_output_flag,
    count,
    in_order,
    no_such,
    show,
    table,
)
from neuron_plugin.cli.target import settings_here
from neuron_plugin.inspection import Unknown, page_of

DESCRIPTION = """\
Show what the plugin of this node (or the extender) decided lately: it keeps the last few hundred
decisions in memory.

columns:
  STEP        preferred (answered to the kubelet), allocated, refused, corrected (the kubelet gave
              the pod another set), bound (by the extender)
  IDS         the set that was chosen, or that was refused
  CANDIDATES  the best sets there were, each with its cost: what it would take from later pods

JSON and YAML have what each choice was made from, too: the ids offered, demanded and usable."""

EXAMPLES = """
neuron-plugin decisions
neuron-plugin decisions --pod ml/train
kubectl -n kube-system exec ds/neuron-plugin -- neuron-plugin decisions
"""

SERVER = "127.0.0.1:12347"


def add_flags(parser: ArgumentParser) -> None:
    """Add flags for decisions and daemon."""
    add_output_flag(parser)
    add_cluster_flags(parser, *ROWS)
    pod = "only those about this pod; namespace default when none is given"
    parser.add_argument("--pod", metavar="[NAMESPACE/]POD", default="", help=pod)
    parser.add_argument("--last", metavar="NUMBER", type=count(1), default=0, help="only so many, the newest")
    server = f"a daemon's --health-address and --health-port (default: the daemon here by its settings, else {SERVER})"
    parser.add_argument("--server", metavar="HOST:PORT", help=server)


def run(arguments: Namespace) -> None:
    """Ask the daemon and print its decisions, oldest first."""
    if arguments.server is None:
        here = settings_here()
        host, port = here.health_address, here.health_port
    else:
        host, _, digits = arguments.server.rpartition(":")
        if not (host and digits.isascii() and digits.isdecimal()):
            raise UsageError(f"--server is {arguments.server!r}, expected HOST:PORT such as {SERVER}")
        host, port = host.strip("[]"), int(digits)
    page = page_of(host, port, "/decisions")
    if isinstance(page, Unknown):
        raise CommandError(f"{page.why}: {page.action}")
    try:
        decisions: Sequence[Mapping[str, Any]] = json.loads(page)["decisions"]
        wanted = arguments.pod if "/" in arguments.pod or not arguments.pod else f"default/{arguments.pod}"
        if wanted and wanted not in (known := {decision["pod"] for decision in decisions}):
            raise no_such("decision kept about pod", wanted, filter(None, known))
        about = [decision for decision in decisions if wanted in {"", decision["pod"]}]
        rows, chosen = list[Row](), in_order(about[-arguments.last :], arguments.sort_by)
        for decision in chosen:
            candidates = [f"{ranges(candidate['ids'])}({candidate['cost']})" for candidate in decision["candidates"]]
            if (more := decision["candidateCount"] - len(candidates)) > 0:
                candidates.append(f"+{more}")
            time = datetime.fromisoformat(decision["time"]).isoformat(timespec="milliseconds")
            rows.append(
                {
                    "TIME": time.replace("+00:00", "Z"),
                    "STEP": decision["step"],
                    "POD": decision["pod"],
                    "CONTAINER": decision["container"],
                    "RESOURCE": decision["resource"].rpartition("/")[2],
                    "IDS": ranges(decision["ids"]),
                    "CANDIDATES": ";".join(candidates),
                    "REASON": decision["reason"],
                }
            )
    except (ValueError, KeyError, TypeError):
        raise CommandError(f"{host}:{port} answers /decisions with something else: is it a neuron-plugin?") from None
    lines = table(rows, bare=arguments.no_headers)
    show(arguments.output, {"version": VERSION, "decisions": chosen}, lines, nothing="it has decided nothing yet")
