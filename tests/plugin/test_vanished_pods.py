"""How a pod's end is told from its disappearance, by what the API server says of it."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
import pytest

from neuron_plugin.allocation import Holding, PodUid, Resource
from neuron_plugin.cluster import PODS
from neuron_plugin.plugin.node import NodeState
from neuron_plugin.plugin.pod_watch import _take_in, neuron_pod
from neuron_plugin.plugin.pods import NodePod
from neuron_plugin.plugin.quarantine import Quarantine
from neuron_plugin.plugin.vanished import LOST_NAME_SECONDS
from tests.plugin.world import FakeClock, FakeReport, app, devices, machine, pod, ref


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


# Before it was confirmed what they hold.


def unconfirmed(*names: str) -> NodeState:
    """Pods without a decision, and one stand-in for a device that one of them was given."""
    state = NodeState(quarantine=Quarantine(30.0))
    state.see_machine(machine())
    for name in names:
        state.see_pod(pod(name, app(1)))
    state.hold(state.new_stand_in(), Holding("", Resource.NEURON, devices(3)))
    return state


def let_go(state: NodeState) -> list[tuple[str, int]]:
    """The kubelet lists nothing of what the stand-ins have: whose it is suspected to be now."""
    for uid in list(state.ledger.holders):
        state.release(uid)
    assert state.quarantine is not None
    return [(suspect.pod.name, suspect.mask) for suspect in state.quarantine.suspects]


def test_p60_a_pod_that_vanished_before_it_was_confirmed_leaves_its_stand_in_suspect() -> None:
    state = unconfirmed("a")
    state.lose_pod(ref("a").uid)
    assert let_go(state) == [("a", devices(3))]


def test_p60_with_two_such_pods_any_process_is_doubtful() -> None:
    state = unconfirmed("a", "b")
    state.lose_pod(ref("a").uid)
    state.lose_pod(ref("b").uid)
    assert let_go(state) == [("", devices(3))]


def test_a_stand_in_that_no_vanished_pod_asked_for_and_one_of_nobody_are_just_let_go() -> None:
    state = unconfirmed()
    other = pod("other", app(2))
    state.see_pod(other)
    state.lose_pod(other.pod.uid)
    assert let_go(state) == []


def test_a_pod_that_ended_in_order_before_it_was_confirmed_leaves_nothing_suspect() -> None:
    state = unconfirmed("a")
    state.forget_pod(ref("a").uid)
    assert let_go(state) == []


def test_lost_names_are_remembered_for_a_while() -> None:
    state = NodeState(clock=(clock := FakeClock()))
    for name in ("a", "b"):
        state.see_pod(pod(name, app(1)))
    state.lose_pod(ref("a").uid)
    assert state.has_lost_name(ref("a", uid="uid-anew"))
    assert not state.has_lost_name(ref("b"))
    clock.now += LOST_NAME_SECONDS + 1
    assert not state.has_lost_name(ref("a"))
    state.lose_pod(ref("b").uid)
    assert list(state._vanished.names) == [("default", "b")]
