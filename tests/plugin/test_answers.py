"""What follows from the kubelet's account of its pods."""

from __future__ import annotations

from neuron_plugin.allocation import Holding
from neuron_plugin.kubelet import PodDevices
from neuron_plugin.plugin.answers import GRACE_SECONDS, QUIET_SECONDS
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
    ref,
    sidecar,
)


def test_a_pod_that_is_still_being_admitted_is_not_confirmed(desk: Desk) -> None:
    second = type(app(1))("second", app(1).kind, app(1).limits)
    desk.state.see_pod(decided("a", app(1), second, sets=[[0], [1]]))
    desk.kubelet.say("a", app=(NEURON, [0]))
    desk.ask()
    assert not desk.told
    desk.kubelet.say("a", app=(NEURON, [0]), second=(NEURON, [1]))
    desk.ask()
    assert desk.told == [("a", [devices(0), devices(1)])]


def test_a_pod_the_kubelet_does_not_know_or_that_has_nothing_yet_is_not_confirmed(desk: Desk) -> None:
    desk.state.see_pod(pod("a", app(1)))
    desk.ask()
    desk.kubelet.say("a")
    desk.ask()
    assert not desk.told


def test_p59_a_pod_whose_init_container_comes_after_its_sidecar_is_not_confirmed_in_between(desk: Desk) -> None:
    """A preference may take seconds, and nothing that is listed comes after a plain init container here."""
    desk.state.see_pod(decided("a", sidecar(1), init(4), sets=[[8], ROW0]))
    desk.state.called()
    desk.state.hold(ref("a"), Holding("sidecar", NEURON, devices(8)))
    desk.kubelet.say("a", sidecar=(NEURON, [8]))
    desk.ask(after=5)
    assert not desk.told
    assert [decision.mask for decision in desk.state.waiting()] == [devices(*ROW0)]
    desk.state.hold(ref("a"), Holding("init", NEURON, devices(*ROW0)))
    desk.ask(after=0.05)
    assert desk.told == [("a", [devices(8), devices(*ROW0)])]


def test_p61_such_a_pod_is_confirmed_without_what_nobody_knows_of_once_no_admission_can_be_under_way(
    desk: Desk,
) -> None:
    desk.state.see_pod(pod("a", sidecar(1), init(4)))
    desk.kubelet.say("a", sidecar=(NEURON, [8]))
    desk.ask()
    assert desk.told == [("a", [devices(8)])]


def test_p61_what_the_kubelet_lists_at_start_is_held_by_name_before_any_pod_is_known() -> None:
    desk = Desk()
    desk.state.pods_known = False
    desk.kubelet.say("a", app=(NEURON, ROW0))
    desk.kubelet.say("other", app=(CORE, [30]))
    at_once(desk.confirmation.rebuild())
    assert desk.held == {"default/a": devices(*ROW0), "default/other": TRN1.cores_mask((30,))}


def test_ids_and_resources_of_others_are_passed_over() -> None:
    desk = Desk(cluster=False)
    desk.kubelet.say("a", app=(NEURON, [99]))
    at_once(desk.confirmation.rebuild())
    assert desk.held == {}


def test_a_pod_without_a_decision_takes_over_from_its_stand_in(desk: Desk) -> None:
    desk.give(*ROW0)
    desk.state.see_pod(pod("a", app(4)))
    desk.kubelet.say("a", app=(NEURON, ROW0))
    desk.ask(after=0.05)
    assert desk.held == {"default/a": devices(*ROW0)}


def test_p46_p61_the_init_set_of_an_unknown_pod_moves_with_it(desk: Desk) -> None:
    desk.give(*ROW0)
    desk.state.see_pod(pod("a", init(4), app(1)))
    desk.kubelet.say("a", app=(NEURON, [2]))
    desk.ask(after=0.05)
    assert desk.told == [("a", [devices(*ROW0), devices(2)])]
    assert desk.held == {"default/a": devices(*ROW0)}


def test_p56_the_init_set_of_a_pod_that_was_admitted_with_another_ones_token_moves_with_it(desk: Desk) -> None:
    desk.state.see_pod(decided("a", init(4), app(4), sets=[ROW0, ROW0], time=1))
    desk.state.see_pod(decided("b", init(4), app(4), sets=[ROW1, ROW1], time=2))
    desk.state.hold(ref("a"), Holding("init", NEURON, devices(*ROW0)))
    desk.state.hold(ref("a"), Holding("app", NEURON, devices(*ROW0)))
    desk.kubelet.say("b", app=(NEURON, ROW0))
    desk.ask(after=0.05)
    assert desk.told == [("b", [devices(*ROW0)] * 2)]
    assert desk.held == {"default/b": devices(*ROW0)}


def test_a_stand_in_that_the_kubelet_does_not_list_is_let_go(desk: Desk) -> None:
    desk.give(*ROW0)
    desk.ask()
    assert desk.held == {}


def test_a_stand_in_that_may_be_an_init_container_is_kept_for_the_time_of_an_admission(desk: Desk) -> None:
    desk.give(*ROW0)
    desk.state.see_pod(pod("a", init(4), app(1)))
    desk.ask()
    assert list(desk.held.values()) == [devices(*ROW0)]
    desk.ask(after=GRACE_SECONDS)
    assert desk.held == {}


def test_a_stand_in_that_may_be_an_init_container_of_a_pod_that_no_watch_has_shown_is_kept_so_long(desk: Desk) -> None:
    desk.give(8)
    desk.give(*ROW0)
    desk.kubelet.say("unseen", sidecar=(NEURON, [8]))
    desk.ask(after=5)
    assert desk.state.ledger.used_mask == devices(8, *ROW0)
    desk.ask(after=GRACE_SECONDS)
    assert desk.state.ledger.used_mask == devices(8)


def test_a_stand_in_whose_pod_no_watch_has_shown_is_kept_while_the_kubelet_lists_its_ids(desk: Desk) -> None:
    desk.give(*ROW0)
    desk.kubelet.say("static", app=(NEURON, ROW0))
    desk.ask(after=GRACE_SECONDS + 1)
    assert list(desk.held.values()) == [devices(*ROW0)]
    desk.kubelet.forget("static")
    desk.ask()
    assert desk.held == {}


def test_without_a_cluster_pods_are_held_by_name_and_freed_when_they_are_not_listed() -> None:
    desk = Desk(cluster=False)
    desk.give(*ROW0)
    desk.kubelet.say("a", app=(NEURON, ROW0))
    desk.ask()
    assert desk.held == {"default/a": devices(*ROW0)}
    desk.kubelet.forget("a")
    desk.ask()
    assert desk.held == {}
    assert "get a" not in desk.kubelet.calls


def test_without_a_cluster_an_init_containers_larger_set_stays_with_its_pod() -> None:
    desk = Desk(cluster=False)
    desk.give(*ROW0)
    desk.kubelet.say("a", app=(NEURON, [1, 2]))
    desk.ask()
    desk.ask()
    assert desk.held == {"default/a": devices(*ROW0)}


def test_kubelets_before_1_34_list_completed_pods_which_hold_nothing() -> None:
    desk = Desk()
    desk.state.pods_known = False
    desk.kubelet.say("completed", app=(NEURON, ROW0))
    desk.kubelet.say("alive", app=(NEURON, ROW1))
    at_once(desk.confirmation.rebuild())
    desk.state.see_pod(pod("alive", app(4)))
    desk.state.see_all_pods({"uid-alive"})
    desk.ask()
    assert desk.held == {"default/alive": devices(*ROW1)}


async def test_a_look_again_lets_go_of_those_holders_that_are_gone_and_of_no_others(desk: Desk) -> None:
    desk.state.see_pod(decided("gone", app(4), sets=[ROW0], allocated=True))
    desk.state.see_pod(decided("alive", app(4), sets=[ROW1], allocated=True))
    desk.kubelet.say("alive", app=(NEURON, ROW1))
    await desk.confirmation.look_again(tuple(desk.state.ledger))
    assert desk.held == {"default/alive": devices(*ROW1)}
    assert list(desk.state.pods) == ["uid-alive"]


async def test_a_look_again_lets_go_of_what_was_noted_for_a_pod_that_the_kubelet_lists_without_it(desk: Desk) -> None:
    """It would list an app container by now, and never lists an init container."""
    desk.state.see_pod(pod("later", app(4)))
    desk.state.see_pod(pod("starting", init(4), app(4)))
    desk.give(*ROW0, name="later")
    desk.state.hold(ref("starting"), Holding("init", NEURON, devices(*ROW1)))
    desk.kubelet.say("later")
    desk.kubelet.say("starting")
    await desk.confirmation.look_again(tuple(desk.state.ledger))
    assert desk.held == {"default/starting": devices(*ROW1)}


async def test_p60_a_new_pod_of_an_old_name_does_not_keep_what_the_old_one_held(desk: Desk) -> None:
    desk.state.see_pod(pod("same", app(4)))
    desk.state.confirm(ref("same"), [Holding("app", NEURON, devices(*ROW0))])
    desk.kubelet.say("same", app=(NEURON, ROW1))
    await desk.confirmation.look_again(tuple(desk.state.ledger))
    assert desk.held["default/same"] == devices(*ROW1)


def test_p61_what_the_kubelet_recorded_of_a_pod_it_has_not_done_admitting_is_held_after_a_restart(desk: Desk) -> None:
    desk.state.see_pod(pod("a", app(4), app(4, name="second")))
    desk.kubelet.say("a", app=(NEURON, ROW0))
    desk.ask()
    assert desk.held == {"default/a": devices(*ROW0)}
    assert not desk.told


def test_a_pod_of_which_nothing_is_listed_takes_nothing_that_was_given_to_another(desk: Desk) -> None:
    desk.state.see_pod(pod("not-admitted", init(4)))
    desk.state.see_pod(pod("other", app(4)))
    desk.kubelet.say("not-admitted")
    desk.give(*ROW0)
    desk.kubelet.say("other", app=(NEURON, ROW0))
    desk.ask(after=0.05)
    assert desk.held == {"default/other": devices(*ROW0)}


def test_what_is_given_while_a_list_is_under_way_is_not_missed_in_it(desk: Desk) -> None:
    desk.give(*ROW1)
    desk.clock.now += QUIET_SECONDS
    answer = desk.kubelet.list

    async def list_slowly() -> tuple[PodDevices, ...]:
        listed = await answer()
        desk.clock.now += 0.01
        desk.give(*ROW0)
        return listed

    desk.kubelet.list = list_slowly  # type: ignore[method-assign]  # an Allocate comes while it answers
    at_once(desk.confirmation._ask())
    assert list(desk.held.values()) == [devices(*ROW0)]


def test_p56_a_pod_made_anew_under_its_name_that_got_the_old_ones_account_is_put_right(desk: Desk) -> None:
    desk.state.see_pod(decided("a", app(4), sets=[ROW1]))
    desk.kubelet.say("a", app=(NEURON, ROW0))  # of the pod that had this name until just now
    desk.ask(after=0.05)
    assert desk.held == {"default/a": devices(*ROW0)}
    desk.give(*ROW1)  # now the kubelet admits the new one
    desk.kubelet.say("a", app=(NEURON, ROW1))
    desk.ask()
    desk.ask()
    assert desk.held == {"default/a": devices(*ROW1)}
    assert desk.told[-1] == ("a", [devices(*ROW1)])


def test_p56_the_kubelets_account_of_a_vanished_pod_is_not_taken_for_the_one_of_its_name(desk: Desk) -> None:
    desk.state.see_pod(decided("a", app(4), sets=[ROW0]))
    desk.give(*ROW0, name="a")
    desk.kubelet.say("a", app=(NEURON, ROW0))
    desk.ask(after=0.05)
    desk.state.lose_pod(ref("a").uid)
    anew = pod("a", app(4), uid="uid-anew")
    desk.state.see_pod(anew)
    desk.ask(after=0.05)
    assert desk.held == {}
    desk.give(*ROW0)  # the kubelet has heard of it, too, and admits the new one with the same ids
    desk.ask(after=0.05)
    assert desk.state.confirmed == {"uid-anew"}


def test_p61_what_a_pod_of_the_same_name_had_is_let_go_when_the_kubelet_lists_the_new_one() -> None:
    desk = Desk()
    desk.state.pods_known = False
    desk.kubelet.say("a", app=(NEURON, ROW0))
    at_once(desk.confirmation.rebuild())
    desk.state.see_pod(decided("a", app(4), sets=[ROW1]))
    desk.state.see_all_pods({"uid-a"})
    desk.give(*ROW1, name="a")
    desk.kubelet.say("a", app=(NEURON, ROW1))
    desk.ask()
    assert desk.state.ledger.used_mask == devices(*ROW1)


def test_stand_ins_that_were_made_while_a_list_was_under_way_are_not_missed_in_it_however_many(desk: Desk) -> None:
    desk.give(8)
    desk.clock.now += QUIET_SECONDS
    answer = desk.kubelet.list

    async def list_slowly() -> tuple[PodDevices, ...]:
        listed = await answer()
        for device in (9, 10):
            desk.clock.now += 0.01
            desk.give(device)
        return listed

    desk.kubelet.list = list_slowly  # type: ignore[method-assign]  # two Allocates come while it answers
    at_once(desk.confirmation._ask())
    assert desk.state.ledger.used_mask == devices(9, 10)


async def test_a_look_again_lets_go_of_a_confirmed_pod_that_is_not_listed_any_more(desk: Desk) -> None:
    desk.state.see_pod(pod("a", app(4)))
    desk.state.confirm(ref("a"), [Holding("app", NEURON, devices(*ROW0))])
    await desk.confirmation.look_again(tuple(desk.state.ledger))
    assert desk.held == {}


async def test_a_look_again_keeps_the_stand_in_of_a_moment_ago_whose_pod_is_just_being_admitted(desk: Desk) -> None:
    """Its init container was given this a moment ago; the preference is for its next container."""
    desk.give(8)
    desk.clock.now += 0.1
    desk.give(*ROW0)
    desk.clock.now += 0.1
    await desk.confirmation.look_again(tuple(desk.state.ledger))
    assert desk.state.ledger.used_mask == devices(*ROW0)


def test_a_confirmed_pod_is_not_told_of_again_when_it_is_listed(desk: Desk) -> None:
    desk.state.see_pod(pod("a", app(4)))
    desk.kubelet.say("a", app=(NEURON, ROW0))
    desk.ask()
    desk.give(8)
    desk.ask()
    assert desk.kubelet.calls == ["get a", "list"]
    assert len(desk.told) == 1
