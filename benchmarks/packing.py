"""How well sets are chosen, policy beside policy: the table of docs/packing.md.

    python benchmarks/packing.py                         # twenty runs of 12 000 pods: some 15 minutes of CPU
    python benchmarks/packing.py --seeds 3 --pods 4000   # a minute

Every policy meets the same pods. Each figure is the mean of the runs with its standard error: device-hours refused in
parts of those asked for. ``neuron-plugin simulate cluster`` does the same for a cluster and a mix of your own.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from statistics import mean, stdev

from neuron_plugin.planning import BOUND, MIXES, POLICIES, Arrival, MoveRules, NodeState, Policy, arrivals, replay
from neuron_plugin.topology import catalogue

NODES = 25
LOADS = (0.7, 0.85, 1.0)
CELLS = {"trn1.32xlarge": "train", "inf2.48xlarge": "infer"}
MOVES = {"": None, "+moves=1": MoveRules(1), "+moves": MoveRules()}
ROWS = [(BOUND, ""), ("ours", "+moves"), ("ours", "+moves=1"), *((name, "") for name in reversed(list(POLICIES)))]


def main() -> None:
    """A line for each policy, as it stands in the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--pods", type=int, default=12_000)
    arguments = parser.parse_args()
    for instance_type, mix in CELLS.items():
        print(f"| {instance_type}, {mix} | " + " | ".join(f"load {load:.2f}" for load in LOADS) + " |")
        print("|---" * (len(LOADS) + 1) + "|")
        for name, moves in ROWS:
            cells = []
            policy = None if name == BOUND else Policy(name, MIXES[mix])  # one for the row: it remembers its choices
            for load in LOADS:
                come = runs(instance_type, mix, load, arguments.seeds, arguments.pods)
                found = [replay(nodes_of(instance_type), each, policy, rules=MOVES[moves]) for each in come]
                refused = [each.refused_share for each in found]
                error = stdev(refused) / len(refused) ** 0.5 if len(refused) > 1 else 0.0
                moved = mean(each.moved_pods for each in found) / arguments.pods
                lost = mean(each.lost / each.asked for each in found)
                costs = f"; {moved:.1%} moved, {lost:.1%} lost" if moves else ""
                cells.append(f"{mean(refused):.4f} ({error:.4f}{costs})")
            print(f"| {name}{moves} | " + " | ".join(cells) + " |", flush=True)


def nodes_of(instance_type: str) -> list[NodeState]:
    """Empty nodes of a type."""
    geometry = catalogue()[instance_type].geometry
    return [NodeState(f"node-{number:02}", geometry, geometry.all_mask) for number in range(NODES)]


def runs(instance_type: str, mix: str, load: float, seeds: int, pods: int) -> Iterator[list[Arrival]]:
    """Each seed's pods."""
    geometries = [catalogue()[instance_type].geometry] * NODES
    return (arrivals(geometries, MIXES[mix], load, pods, seed=seed) for seed in range(seeds))


if __name__ == "__main__":
    main()
