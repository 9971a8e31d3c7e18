"""How well sets are chosen, beside other ways of choosing: the table of docs/packing.md.

    python benchmarks/packing.py                         # twenty runs of 12 000 pods: some 15 minutes of CPU
    python benchmarks/packing.py --seeds 3 --pods 4000   # a minute

Every policy meets the same pods. Each figure is the mean of the runs with its standard error: device-hours refused in
parts of those asked for.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from statistics import mean, stdev

from packing_parts.rivals import RIVALS, Bound, RivalBoard

from neuron_plugin.allocation import NodeInfo, PlacementStrategy
from neuron_plugin.planning import MoveRules
from neuron_plugin.simulation.replay import MIXES, Arrival, Board, arrivals, replay, simulated_node
from neuron_plugin.topology import catalogue

NODES = 25
LOADS = (0.7, 0.85, 1.0)
CELLS = {"trn1.32xlarge": "train", "inf2.48xlarge": "infer"}
MOVES = {"pack+moves": MoveRules(), "pack+moves=1": MoveRules(1)}
ROWS = ("bound", *MOVES, *PlacementStrategy, *list(RIVALS)[::-1])


def main() -> None:
    """A line for each policy, as it stands in the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--pods", type=int, default=12_000)
    arguments = parser.parse_args()
    for instance_type, mix in CELLS.items():
        print(f"| {instance_type}, {mix} | " + " | ".join(f"load {load:.2f}" for load in LOADS) + " |")
        print("|---" * (len(LOADS) + 1) + "|")
        for name in ROWS:
            cells = []
            for load in LOADS:
                come = runs(instance_type, mix, load, arguments.seeds, arguments.pods)
                outcomes = [replay(board(name, instance_type, mix), pods) for pods in come]
                refused = [outcome.refused_share for outcome in outcomes]
                error = stdev(refused) / len(refused) ** 0.5 if len(refused) > 1 else 0.0
                moved = mean(outcome.moved_pods for outcome in outcomes) / arguments.pods
                lost = mean(outcome.lost / outcome.asked for outcome in outcomes)
                costs = f"; {moved:.1%} moved, {lost:.1%} lost" if name in MOVES else ""
                cells.append(f"{mean(refused):.4f} ({error:.4f}{costs})")
            print(f"| {name} | " + " | ".join(cells) + " |", flush=True)


def board(name: str, instance_type: str, mix: str) -> Board:
    """Empty nodes under one way of choosing."""
    nodes = nodes_of(instance_type)
    if name == "bound":
        return Bound(nodes)
    if name in RIVALS:
        return RivalBoard(nodes, name, MIXES[mix])
    return Board(nodes, PlacementStrategy.PACK if name in MOVES else PlacementStrategy(name), MOVES.get(name))


def nodes_of(instance_type: str) -> list[NodeInfo]:
    """Empty nodes of a type."""
    geometry = catalogue()[instance_type].geometry
    return [simulated_node(f"node-{number:02}", geometry) for number in range(NODES)]


def runs(instance_type: str, mix: str, load: float, seeds: int, pods: int) -> Iterator[list[Arrival]]:
    """Each seed's pods."""
    geometries = [catalogue()[instance_type].geometry] * NODES
    return (arrivals(geometries, MIXES[mix], load, pods, seed=seed) for seed in range(seeds))


if __name__ == "__main__":
    main()
