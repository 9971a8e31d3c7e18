"""Pods that cannot be judged are handed over without a node: wherever a scheduler sends them, they find a linked set.

The scheduler here goes by counts and by node affinity, and takes any node that these leave. While such a pod is on its
way no other ends: what an end leaves unlinked cannot be left out any more.
"""

from __future__ import annotations

from random import Random

import pytest

from neuron_plugin.allocation.placement import placement_mask
from neuron_plugin.simulation.api_server_kinds import PODS
from tests.placement.gates.bench import DOUBTFUL, NEURON, GatesBench

STEPS, DEVICES = 80, 16


class CountingScheduler:
    """Binds pods by counts, as kube-scheduler does, and gives each the best set of its node, as the plugin does."""

    def __init__(self, gated: GatesBench, chance: Random) -> None:
        self._gated = gated
        self._chance = chance
        self.chosen = 0
        """Pods that it has chosen a node for."""

    def names(self, *, bound: bool) -> list[str]:
        """The pods that are bound, or that it may bind."""
        pods = self._gated.server.objects(PODS)
        found = [pod["metadata"]["name"] for pod in pods if bool(pod["spec"].get("nodeName")) is bound]
        return [name for name in found if bound or not self._gated.gates(name)]

    def bind(self, name: str) -> None:
        """Bind a pod where it was placed, or where it fits by count."""
        gated, pod = self._gated, self._gated.record(name)
        if place := gated.place(name):
            gated.bind(name, place)
            return
        left = dict.fromkeys(gated.state.nodes, DEVICES)
        for other in gated.state.pods.values():
            if other.place:
                left[other.place] -= other.requests[0].count
        without = {value for term in gated.terms(name) for field in term["matchFields"] for value in field["values"]}
        asked = pod.requests[0].count
        if nodes := [node for node, count in left.items() if count >= asked and node not in without]:
            self.chosen += 1
            node = self._chance.choice(nodes)
            sets = gated.state.scene().place(pod, node)
            assert sets, f"pod {name} for {asked} has no linked set on node {node}"
            inventory = gated.state.nodes[node].inventory
            assert inventory
            devices = inventory.geometry.devices_touched(placement_mask(sets))
            assignment = {"NEURON_DEVS": ",".join(map(str, devices))}
            gated.server.patch_pod("default", name, {"metadata": {"annotations": assignment}})
            gated.bind(name, node)


@pytest.mark.parametrize("seed", range(20))
async def test_wherever_a_scheduler_sends_a_pod_that_was_let_go_it_finds_a_linked_set(
    gated: GatesBench, seed: int
) -> None:
    chance = Random(seed)  # noqa: S311 - repeats a test's chance, guards nothing
    for number in range(chance.randint(2, 4)):
        gated.node(f"n{number}")
    scheduler = CountingScheduler(gated, chance)
    for step in range(STEPS):
        match chance.choice(("new", "new", "place", "place", "bind", "bind", "end")):
            case "new":
                doubt = DOUBTFUL if chance.random() < 0.6 else {}
                gated.pod(f"p{step}", NEURON, chance.choice((1, 1, 4, 4, 8, 16)), spec=doubt)
            case "place":
                await gated.place_all()
            case "bind":
                if waiting := scheduler.names(bound=False):
                    scheduler.bind(chance.choice(waiting))
            case "end":
                if not gated.state.roaming and (bound := scheduler.names(bound=True)):
                    gated.server.delete_pod("default", chance.choice(bound), grace_seconds=0)
                    gated.sync()
    assert scheduler.chosen
