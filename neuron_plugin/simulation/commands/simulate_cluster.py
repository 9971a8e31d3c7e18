"""``neuron-plugin simulate cluster``: how much of an operator's demand is refused, by our plugin and by AWS's."""

from __future__ import annotations

from argparse import ArgumentTypeError, Namespace
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import astuple
from pathlib import Path
from statistics import mean, stdev
from typing import Annotated

import msgspec
from msgspec import Meta

from neuron_plugin.allocation import NodeInfo, PodRequest
from neuron_plugin.allocation.shapes import DemandError, parse_shape, shape_text
from neuron_plugin.cli.cluster_file import write_cluster
from neuron_plugin.cli.command import (
    VERSION,
    Row,
    Subparsers,
    UsageError,
    add_command,
    add_output_flag,
    count,
    plain,
    show,
    table,
)
from neuron_plugin.instance_file import load_catalogue
from neuron_plugin.planning import MoveRules
from neuron_plugin.settings import read_yaml
from neuron_plugin.simulation.api_server_kinds import AnyJson
from neuron_plugin.simulation.replay import (
    MIXES,
    AwsBoard,
    Board,
    ReplayOutcome,
    arrivals,
    read_trace,
    replay,
    simulated_node,
)
from neuron_plugin.topology import valid_sets

EXAMPLES = """
neuron-plugin simulate cluster --pods 2000
neuron-plugin simulate cluster --nodes inf2.48xlarge=10 --mix infer --waiting --pods 2000
neuron-plugin simulate cluster --nodes trn1.32xlarge=50 --trace jobs.csv -o json
neuron-plugin simulate cluster --nodes trn1.32xlarge=8 --pods 1000 --save cluster.json
"""

DESCRIPTION = """\
Let your pods come to your nodes on paper, and see how much is refused, here and with AWS's plugin.

Pods come at random, stay for a random time and go; or they are those of a trace, a CSV file with the
columns time, duration (both in hours) and devices or cores. A pod that fits nowhere is refused, or with
--waiting waits. Node and set are chosen by the placement controller's own code. What counts is
device-hours: those refused, in parts of those asked for.

rows, all with the same pods:
  aws-plugin           AWS's device plugin alone: kube-scheduler counts, and what asks for more than one
                       and less than all of a node is refused at admission
  aws-extension        with AWS's scheduler extension: the emptiest node, the lowest linked ids
  neuron-plugin        the placement controller
  neuron-plugin+moves  with make-room: act, a pod that fits nowhere is given room by one move of up to
                       {most} pods that fit elsewhere

mixes: {mixes}, or a YAML file of shapes with their shares, such as "neuron=4: 0.2"."""

OURS = "neuron-plugin"
_BOARDS: Mapping[str, Callable[[Sequence[NodeInfo]], Board]] = {
    "aws-plugin": lambda nodes: AwsBoard(nodes, extension=False),
    "aws-extension": lambda nodes: AwsBoard(nodes, extension=True),
    OURS: Board,
    f"{OURS}+moves": lambda nodes: Board(nodes, rules=MoveRules()),
}
_HEADERS = {
    "refused": "REFUSED",
    "refusedStandardError": "+-",
    "wait": "WAIT",
    "utilisation": "UTILISATION",
    "emptyNodes": "EMPTY-NODES",
    "movedPods": "MOVED-PODS",
    "lost": "LOST",
}
"""Column headers by document key."""


def add_cluster_command(actions: Subparsers) -> None:
    """Add ``cluster`` to the actions of ``simulate``."""
    text = DESCRIPTION.format(most=MoveRules().most_victims, mixes=", ".join(MIXES))
    summary = "how much of what your pods ask for your nodes would refuse, here and with AWS's plugin"
    parser = add_command(actions, "cluster", run, summary=summary, description=text, examples=EXAMPLES)
    parser.add_argument(
        "--nodes", default="trn1.32xlarge=25", metavar="TYPE=N,...", help="the nodes (default: %(default)s)"
    )
    parser.add_argument("--mix", default="train", metavar="MIX", help="what pods ask for (default: %(default)s)")
    asked = "devices asked for on average, in parts of all (default: %(default)s)"
    parser.add_argument("--load", type=_positive, default=0.85, metavar="SHARE", help=asked)
    parser.add_argument("--pods", type=count(1), default=3000, metavar="N", help="pods a run (default: %(default)s)")
    runs = "runs, each with pods of its own, the same for every row (default: %(default)s)"
    parser.add_argument("--seeds", type=count(1), default=2, metavar="N", help=runs)
    parser.add_argument("--waiting", action="store_true", help="a pod that fits nowhere waits until it fits")
    parser.add_argument("--trace", type=Path, metavar="FILE", help="pods from a CSV file, in place of --mix and --load")
    saved = f"write the last state of the first run under {OURS}, for: neuron-plugin plan --cluster FILE"
    parser.add_argument("--save", type=Path, metavar="FILE", help=saved)
    parser.add_argument("--instance-types", type=Path, metavar="FILE", help="YAML file of further instance types")
    add_output_flag(parser)


def run(arguments: Namespace) -> None:
    """Replay the same pods with each policy, and print a line for each policy.

    Raises:
        UsageError: an unknown type, or an unusable mix or trace.
    """
    nodes = _nodes(arguments)
    mix: Mapping[PodRequest, float]
    if arguments.trace:
        try:
            runs = [read_trace(arguments.trace.read_text(encoding="utf-8"))]
        except (UnicodeDecodeError, DemandError) as error:
            raise UsageError(f"--trace {arguments.trace}: {error}") from None
        if not runs[0]:
            raise UsageError(f"--trace {arguments.trace} has no pod: expected a line for each below the heading")
        mix = Counter(arrival.request for arrival in runs[0])
    else:
        mix = _mix(arguments.mix, nodes)
        geometries = [node.inventory.geometry for node in nodes if node.inventory]
        runs = [arrivals(geometries, mix, arguments.load, arguments.pods, seed=seed) for seed in range(arguments.seeds)]
    outcomes = {
        name: [replay(board(nodes), pods, waiting=arguments.waiting) for pods in runs]
        for name, board in _BOARDS.items()
    }
    reports = {name: _report(runs_of_one) for name, runs_of_one in outcomes.items()}
    counts = Counter(node.inventory.geometry.instance_type for node in nodes if node.inventory)
    shares = {} if arguments.trace else {shape_text(request): weight for request, weight in mix.items()}
    load = None if arguments.trace else arguments.load
    report: AnyJson = {"version": VERSION, "nodes": counts, "pods": len(runs[0]), "runs": len(runs), "load": load}
    report |= {"mix": shares, "policies": reports}
    if arguments.save:
        last = outcomes[OURS][0]
        write_cluster(arguments.save, last.last, last.last_pods, last.waiting, last.last_time)
    rows: list[Row] = []
    for name, summary in reports.items():
        in_parts = summary | {"emptyNodes": summary["emptyNodes"] / len(nodes)}
        texts = {head: "" if in_parts[key] is None else f"{in_parts[key]:.1%}" for key, head in _HEADERS.items()}
        rows.append({"POLICY": name, **texts})
    types = ", ".join(f"{number} {name}" for name, number in counts.items())
    asked = "" if load is None else f" at load {load:g}"
    title = f"{types}; {len(runs)} x {len(runs[0])} pods{asked}; refused, lost: parts of the device-hours asked for"
    show(arguments.output, report, [*plain(title), *table(rows)])


def _report(outcomes: Sequence[ReplayOutcome]) -> AnyJson:
    """Means over the runs. Refused and waited device-hours are shares of those asked for.

    ``byShape`` sums up all runs. One run has no standard error.
    """
    by_shape: AnyJson = {}
    for request in sorted({request for outcome in outcomes for request in outcome.by_request}, key=shape_text):
        tallies = [astuple(outcome.by_request[request]) for outcome in outcomes if request in outcome.by_request]
        pods, asked, refused_pods, refused, waited = map(sum, zip(*tallies, strict=True))
        counts = {"pods": pods, "asked": asked, "refusedPods": refused_pods}
        by_shape[shape_text(request)] = counts | {"refused": refused / asked, "wait": waited / asked}
    shares = [outcome.refused_share for outcome in outcomes]
    error = stdev(shares) / len(shares) ** 0.5 if len(shares) > 1 else None
    return {
        "refused": mean(shares),
        "refusedStandardError": error,
        "refusedByRun": shares,
        "wait": mean(outcome.mean_wait for outcome in outcomes),
        "utilisation": mean(outcome.busy / outcome.devices for outcome in outcomes),
        "emptyNodes": mean(outcome.empty for outcome in outcomes),
        "moves": mean(outcome.moves / (outcome.pods or 1) for outcome in outcomes),
        "movedPods": mean(outcome.moved_pods / (outcome.pods or 1) for outcome in outcomes),
        "lost": mean(outcome.lost / (outcome.asked or 1.0) for outcome in outcomes),
        "byShape": by_shape,
    }


# What the flags mean.


def _positive(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < 100:  # noqa: PLR2004 - a hundred times what there is
        raise ArgumentTypeError(f"{text!r} is no share above 0, such as 0.85")
    return value


def _nodes(arguments: Namespace) -> list[NodeInfo]:
    types, nodes = load_catalogue(arguments.instance_types), list[NodeInfo]()
    for word in arguments.nodes.split(","):
        name, _, number = word.partition("=")
        if name not in types:
            raise UsageError(f"--nodes {word}: the type is not known, see 'neuron-plugin simulate types'")
        if not (number.isascii() and number.isdecimal() and 0 < int(number) <= _MOST_NODES):
            raise UsageError(f"--nodes {word}: expected TYPE=N with N from 1 to {_MOST_NODES}")
        geometry = types[name].geometry
        nodes += [simulated_node(f"{name}-{index:05}", geometry) for index in range(int(number))]
    return nodes


_MOST_NODES = 10_000
"""Nodes of one type."""


def _mix(text: str, nodes: Sequence[NodeInfo]) -> Mapping[PodRequest, float]:
    if text in MIXES:
        mix = MIXES[text]
    else:
        try:
            shares = msgspec.convert(read_yaml(Path(text)), dict[str, _Share])
            mix = {parse_shape(shape): share for shape, share in shares.items()}
        except (msgspec.ValidationError, DemandError) as error:
            raise UsageError(f"--mix {text}: {error}; expected lines such as 'neuron=4: 0.2'") from None
    geometries = {node.inventory.geometry for node in nodes if node.inventory}
    for request in mix:
        if not any(valid_sets(geometry, request[0].resource.unit, request[0].count) for geometry in geometries):
            names = ", ".join(sorted(geometry.instance_type for geometry in geometries))
            raise UsageError(f"--mix {text}: {shape_text(request)} never fits {names}: take another mix or other nodes")
    if not mix:
        raise UsageError(f"--mix {text} is empty: expected lines such as 'neuron=4: 0.2'")
    return mix


_Share = Annotated[float, Meta(gt=0)]
