"""How a pod's end is told from its disappearance, by what the API server says of it."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
import pytest

from neuron_plugin.allocation.ledger import Holding, PodUid
from neuron_plugin.allocation.resources import Resource
from neuron_plugin.cluster.kinds import PODS
from neuron_plugin.plugin.node import NodeState
from neuron_plugin.plugin.pod_watch import _take_in, neuron_pod
from neuron_plugin.plugin.pods import NodePod
from neuron_plugin.plugin.quarantine import Quarantine
from tests.plugin.world import FakeReport, devices, machine


def seen(phase: str, metadata: Mapping[str, str] | None = None) -> NodePod | None:
    limits = {"limits": {"aws.amazon.com/neuron": "1"}}
    manifest = {
        "metadata": {"name": "train", "namespace": "default", "uid": "uid-train", **(metadata or {})},
        "spec": {"nodeName": "n", "containers": [{"name": "app", "resources": limits}]},
        "status": {"phase": phase},
    }
    return neuron_pod(PODS.decode(msgspec.json.encode(manifest)))


class Watch:
    """Events about one pod that has device 3."""

    def __init__(self) -> None:
        self.state = NodeState(quarantine=Quarantine(30.0))
        self.state.see_machine(machine())
        self.last: NodePod | None = None
        self.tell(seen("Running"))
        assert self.last is not None
        self.state.confirm(self.last.pod, [Holding("app", Resource.NEURON, devices(3))])

    def tell(self, pod: NodePod | None) -> None:
        _take_in(self.state, FakeReport(), lambda: None, "uid-train", self.last, pod)
        self.last = pod

    @property
    def suspects(self) -> int:
        assert self.state.quarantine is not None
        return len(self.state.quarantine.suspects)


@pytest.mark.parametrize("phase", ["Succeeded", "Failed"])
def test_p60_a_terminal_pod_has_ended_and_stays_ended_when_it_is_deleted(phase: str) -> None:
    watch = Watch()
    watch.tell(seen(phase))
    watch.tell(None)
    assert watch.suspects == 0
    assert not watch.state.ledger.holders


def test_p60_a_pod_that_is_gone_without_an_end_is_suspect() -> None:
    watch = Watch()
    watch.tell(seen("Running", {"deletionTimestamp": "2026-01-01T00:00:00Z"}))
    watch.tell(None)
    assert watch.suspects == 1
    assert not watch.state.ledger.holders


def test_a_pod_being_deleted_still_holds_what_it_has() -> None:
    watch = Watch()
    watch.tell(seen("Running", {"deletionTimestamp": "2026-01-01T00:00:00Z"}))
    assert watch.state.ledger.holders[PodUid("uid-train")].mask == devices(3)


def test_an_ended_pod_is_not_taken_for_a_live_one_at_the_next_list() -> None:
    watch = Watch()
    watch.tell(seen("Failed"))
    assert not watch.state.pods
