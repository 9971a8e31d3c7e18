"""What the kubelet's own file adds to its answers: init containers, and whose an entry is."""

from __future__ import annotations

import pytest

from neuron_plugin.allocation import Holding
from neuron_plugin.plugin.answers import GRACE_SECONDS
from tests.plugin.desk import ROW0, ROW1, Desk
from tests.plugin.world import (
    CORE,
    NEURON,
    TRN1,
    app,
    at_once,
    decided,
    devices,
    init,
    pod,
    recorded,
    ref,
)


def test_what_a_call_that_was_cut_off_left_is_let_go_where_the_kubelets_file_tells_all() -> None:
    desk = Desk(cluster=False)
    desk.give(0)
    cut_off = next(iter(desk.state.ledger)).pod
    desk.state.hold(cut_off, Holding("#1", NEURON, devices(0, 1)))
    desk.kubelet.say("a", app=(NEURON, [0, 2]))
    desk.records += [recorded("uid-a", "init", NEURON, 0), recorded("uid-a", "app", NEURON, 0, 2)]
    desk.ask()
    assert desk.held == {"default/a": devices(0, 2)}


@pytest.mark.parametrize("cluster", [True, False])
def test_p61_after_a_crash_the_init_set_that_only_the_kubelets_file_has_is_held(cluster: bool) -> None:  # noqa: FBT001 - a table's column
    desk = Desk(cluster=cluster)
    desk.state.pods_known = False
    desk.kubelet.say("a", app=(NEURON, [1]))
    desk.records = [recorded("uid-a", "init", NEURON, *ROW0), recorded("uid-a", "app", NEURON, 1)]
    at_once(desk.confirmation.rebuild())
    assert desk.held == {"default/a": devices(*ROW0)}
    assert desk.strangers_but == {"uid-a"}
    if cluster:
        desk.state.see_pod(pod("a", init(4), app(1)))
        desk.state.see_all_pods({"uid-a"})
    desk.ask()
    desk.ask()
    assert desk.held == {"default/a": devices(*ROW0)}
    if cluster:
        assert desk.told == [("a", [devices(*ROW0), devices(1)])]


def test_p61_an_init_set_under_another_name_is_found_in_the_kubelets_file_by_its_pods_uid() -> None:
    desk = Desk()
    desk.state.see_pod(pod("a", init(2, CORE), app(4)))
    desk.kubelet.say("a", app=(NEURON, ROW0))
    desk.records = [recorded("uid-a", "init", CORE, 30, 31)]
    desk.ask()
    assert desk.held == {"default/a": devices(*ROW0) | TRN1.cores_mask((30, 31))}


def test_p61_a_pod_that_is_gone_holds_nothing_though_the_kubelets_file_still_has_it() -> None:
    desk = Desk()
    desk.state.pods_known = False
    desk.records = [recorded("uid-gone", "init", NEURON, *ROW1), recorded("uid-gone", "app", NEURON, *ROW1)]
    desk.kubelet.say("a", app=(NEURON, ROW0))
    at_once(desk.confirmation.rebuild())
    assert desk.held == {"default/a": devices(*ROW0)}


def test_p61_what_another_pod_certainly_holds_is_not_taken_from_it_by_the_kubelets_file() -> None:
    desk = Desk()
    for name in ("a", "b"):
        desk.state.see_pod(pod(name, init(4), app(1)) if name == "b" else pod(name, app(4)))
    desk.kubelet.say("a", app=(NEURON, ROW0))
    desk.ask()
    desk.records = [recorded("uid-b", "init", NEURON, *ROW0), recorded("uid-b", "app", NEURON, 4)]
    desk.kubelet.say("b", app=(NEURON, [4]))
    desk.ask()
    assert desk.held == {"default/a": devices(*ROW0), "default/b": devices(4)}


def test_p61_an_entry_of_another_size_than_the_container_asks_for_is_passed_over() -> None:
    desk = Desk()
    desk.state.see_pod(pod("a", init(4), app(1)))
    desk.records = [recorded("uid-a", "init", NEURON, 0, 1), recorded("uid-a", "init", NEURON, 98, 99, 0, 1)]
    desk.kubelet.say("a", app=(NEURON, [1]))
    desk.ask()
    assert desk.held == {"default/a": devices(1)}


def test_a_pod_in_which_only_an_init_container_asks_holds_its_set_for_its_life(desk: Desk) -> None:
    """The kubelet lists nothing for it, and keeps its devices until the pod ends."""
    desk.state.see_pod(pod("a", init(4)))
    desk.kubelet.say("a")
    desk.ask()
    assert not desk.told
    desk.give(*ROW0)
    desk.records = [recorded("uid-a", "init", NEURON, *ROW0)]
    desk.ask()
    desk.ask(after=2 * GRACE_SECONDS)
    assert desk.told == [("a", [devices(*ROW0)])]
    assert desk.held == {"default/a": devices(*ROW0)}


@pytest.mark.parametrize("admitted", ["a", "b"])
def test_p56_a_decided_pod_in_which_only_an_init_container_asks_is_confirmed_by_the_kubelets_file(
    desk: Desk, admitted: str
) -> None:
    for time, name in enumerate(("a", "b")):
        desk.state.see_pod(decided(name, init(4), sets=[ROW1 if time else ROW0], time=time))
        desk.kubelet.say(name)
    desk.state.hold(ref("a"), Holding("init", NEURON, devices(*ROW0)))  # its token, with whomever it was admitted
    desk.ask()
    assert not desk.told
    desk.records = [recorded(f"uid-{admitted}", "init", NEURON, *ROW0)]
    desk.ask()
    assert desk.told == [(admitted, [devices(*ROW0)])]
    assert desk.held == {f"default/{admitted}": devices(*ROW0)}


def test_p56_equal_pods_with_init_containers_alone_are_told_apart_by_the_kubelets_file() -> None:
    desk = Desk()
    desk.state.see_pod(pod("a", init(4)))
    desk.state.see_pod(pod("b", init(4)))
    for name in ("a", "b"):
        desk.kubelet.say(name)
    desk.give(*ROW0)
    desk.records = [recorded("uid-b", "init", NEURON, *ROW0)]
    desk.ask(after=0.05)
    assert desk.held == {"default/b": devices(*ROW0)}
    desk.give(*ROW1)
    desk.records.append(recorded("uid-a", "init", NEURON, *ROW1))
    desk.ask(after=0.05)
    assert desk.held == {"default/a": devices(*ROW1), "default/b": devices(*ROW0)}


def test_p61_the_kubelets_file_is_read_for_a_pod_with_init_containers_though_no_list_is_called(desk: Desk) -> None:
    desk.state.see_pod(pod("a", init(2, CORE), app(4)))
    desk.kubelet.say("a", app=(NEURON, ROW0))
    desk.records = [recorded("uid-a", "init", CORE, 30, 31)]
    desk.ask(after=0.05)
    assert desk.kubelet.calls == ["get a"]
    assert desk.told == [("a", [TRN1.cores_mask((30, 31)), devices(*ROW0)])]
