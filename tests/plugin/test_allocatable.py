"""Lower counts on the Node object, written where devices went out of service."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace

import pytest

from neuron_plugin.allocation import NodeInventory
from neuron_plugin.allocation.pod import PodLife
from neuron_plugin.plugin.allocatable import AllocatableKeeper
from neuron_plugin.plugin.inputs import NodePods
from neuron_plugin.plugin.node import LocalNode
from neuron_plugin.plugin.publisher import Publisher
from tests.plugin.desk import FakeCgroups, MemoryKubelet
from tests.plugin.world import CORE, DEVICE, NEURON, FakeClock, app, inventory, pod, uid_of

A = uid_of("a")
FULL = {NEURON.value: 16, DEVICE.value: 16, CORE.value: 32}


@dataclass
class Kept:
    """A node whose pod a has some devices, what its Node object shows, and what is written of it."""

    shown: dict[str, int] = field(default_factory=lambda: dict(FULL))
    kubelet: MemoryKubelet = field(default_factory=MemoryKubelet)
    publisher: Publisher = field(default_factory=lambda: Publisher("worker-1"))

    def __post_init__(self) -> None:
        self.node = LocalNode(self.kubelet.file, FakeCgroups({A}), clock=FakeClock())
        self.keeper = AllocatableKeeper("worker-1", self.node, self.publisher)
        self.follow(streams=1)

    def follow(self, streams: int) -> None:
        for advertisement in self.node.advertisements.values():
            advertisement.streams = streams

    def has(self, *ids: int) -> None:
        self.kubelet.record(A, "app", NEURON, ids)
        self.see_pod(ending=False)

    def see_pod(self, *, ending: bool) -> None:
        self.node.see_pods(NodePods().with_pod(replace(pod("a", app(8)), life=PodLife(ending=ending))))
        self.node.look_at_checkpoint()

    def writes(self, seen: NodeInventory | None = None) -> dict[str, str]:
        """The counts that are written after a change."""
        if seen:
            self.node.see_inventory(seen)
        self.node.advertise()
        assert self.node.snapshot
        self.keeper.look(self.node.snapshot, self.shown)
        unsent = self.publisher.queue._unsent
        request = unsent.pop("allocatable", None)
        found: dict[str, str] = json.loads(json.dumps(request.body))["status"]["allocatable"] if request else {}
        return found


def test_a_free_device_that_breaks_lowers_every_count_at_once_and_once() -> None:
    kept = Kept()
    assert kept.writes(inventory()) == {}
    lower = {NEURON.value: "15", DEVICE.value: "15", CORE.value: "30"}
    assert kept.writes(inventory(unhealthy={3: "sick"})) == lower
    assert kept.writes() == {}, "until the Node shows it"
    kept.shown |= {name: int(count) for name, count in lower.items()}
    assert kept.writes() == {}
    assert kept.writes(inventory(unhealthy={3: "sick", 4: "sick"}))[NEURON.value] == "14"


def test_a_device_that_breaks_beneath_a_pod_lowers_a_count_when_the_pods_end_begins() -> None:
    kept = Kept()
    kept.writes(inventory())
    kept.has(*range(8))
    assert kept.writes() == {}, "what is in use under another name is the kubelet's to count"
    kept.shown |= {DEVICE.value: 8, CORE.value: 16}
    assert kept.writes() == {}
    assert kept.writes(inventory(unhealthy={3: "sick"})) == {}
    kept.see_pod(ending=True)
    assert kept.writes() == {NEURON.value: "15"}


@pytest.mark.parametrize(("shown", "streams"), [({NEURON.value: 15}, 1), ({}, 1), (FULL, 0)])
def test_no_count_is_raised_nor_written_for_a_kubelet_that_does_not_follow(shown: dict[str, int], streams: int) -> None:
    kept = Kept(shown=dict(shown))
    kept.follow(streams)
    kept.writes(inventory())
    assert kept.writes(inventory(unhealthy={3: "sick"})) == {}
    kept.shown = dict(FULL)
    kept.follow(1)
    assert kept.writes() == {}, "that moment is over: the kubelet's own count comes"


def test_a_device_that_has_recovered_and_breaks_again_lowers_the_count_again() -> None:
    kept = Kept()
    kept.writes(inventory(unhealthy={3: "sick"}))
    kept.shown[NEURON.value] = 15
    kept.writes(inventory())
    kept.shown[NEURON.value] = 16
    assert kept.writes(inventory(unhealthy={3: "sick"}))[NEURON.value] == "15"
