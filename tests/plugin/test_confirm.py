"""Asking the kubelet who holds what: when, and what follows from the answer."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from dataclasses import dataclass, field

import pytest

from neuron_plugin.allocation.ledger import Holding
from neuron_plugin.kubelet.checkpoint import RecordedDevices
from neuron_plugin.kubelet.pod_resources import (
    GetUnsupportedError,
    PodDevices,
    PodResourcesAbsentError,
    PodResourcesThrottledError,
)
from neuron_plugin.plugin import confirm
from neuron_plugin.plugin.answers import GRACE_SECONDS, QUIET_SECONDS
from neuron_plugin.plugin.confirm import Confirmation
from neuron_plugin.plugin.node import NodeState
from neuron_plugin.plugin.pods import NodePod
from tests.plugin.world import (
    CORE,
    NEURON,
    TRN1,
    FakeClock,
    FakePodResources,
    a_state,
    app,
    at_once,
    decided,
    devices,
    init,
    pod,
    recorded,
    ref,
)

ROW0, ROW1 = [0, 1, 2, 3], [4, 5, 6, 7]


@dataclass
class Desk:
    """A confirmation with everything around it, a second after the kubelet's last call."""

    cluster: bool = True
    clock: FakeClock = field(default_factory=FakeClock)
    kubelet: FakePodResources = field(default_factory=FakePodResources)
    told: list[tuple[str, list[int]]] = field(default_factory=list)
    records: list[RecordedDevices] = field(default_factory=list)
    strangers_but: set[str] = field(default_factory=set)
    looks: int = 0
    settled: bool = True

    def __post_init__(self) -> None:
        self.state = a_state(TRN1, clock=self.clock)
        self.state.pods_known, self.state.holders_known = self.cluster, False
        self.confirmation = self.another()

    def another(self) -> Confirmation:
        return Confirmation(
            self.state,
            self.kubelet,
            self.note,
            cluster=self.cluster,
            read_records=lambda: tuple(self.records),
            look_at_strangers=self.look_at_strangers,
        )

    async def look_at_strangers(self, known: Collection[str]) -> bool:
        self.looks += 1
        self.strangers_but = set(known)
        return self.settled

    def note(self, pod_: NodePod, holdings: tuple[Holding, ...]) -> None:
        self.told.append((pod_.pod.name, [holding.mask for holding in holdings]))

    def give(self, *ids: int, name: str = "") -> None:
        """An Allocate was answered just now, for a pod or for nobody known."""
        self.state.called()
        holder = ref(name) if name else self.state.new_stand_in()
        self.state.hold(holder, Holding("app" if name else "", NEURON, devices(*ids)))

    def ask(self, after: float = QUIET_SECONDS) -> None:
        self.clock.now += after
        at_once(self.confirmation._ask())

    @property
    def held(self) -> dict[str, int]:
        return {str(holder.pod): holder.mask for holder in self.state.ledger}


@pytest.fixture
def desk() -> Desk:
    desk = Desk()
    at_once(desk.confirmation.rebuild())
    desk.kubelet.calls.clear()
    return desk


def test_p55_after_an_allocate_get_names_the_pod_and_list_is_not_called(desk: Desk) -> None:
    desk.state.see_pod(decided("a", app(4), sets=[ROW0]))
    desk.give(*ROW0, name="a")
    desk.kubelet.say("a", app=(NEURON, ROW0))
    desk.ask(after=0.05)
    assert desk.kubelet.calls == ["get a"]
    assert desk.told == [("a", [devices(*ROW0)])]
    assert desk.state.confirmed == {"uid-a"}


def test_a_confirmed_pod_is_asked_about_and_told_of_once(desk: Desk) -> None:
    desk.state.see_pod(decided("a", app(4), sets=[ROW0]))
    desk.kubelet.say("a", app=(NEURON, ROW0))
    desk.ask()
    desk.ask()
    assert desk.kubelet.calls == ["get a"]
    assert len(desk.told) == 1


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


def test_a_rebuild_that_failed_is_made_up_for_as_soon_as_the_kubelet_is_there() -> None:
    desk = Desk()
    desk.kubelet.trouble = PodResourcesAbsentError("nobody answers")
    at_once(desk.confirmation.rebuild())
    assert desk.confirmation._pause_seconds() == QUIET_SECONDS
    desk.kubelet.trouble = None
    desk.kubelet.say("a", app=(NEURON, ROW0))
    desk.state.pods_known = False
    desk.ask()
    assert desk.held == {"default/a": devices(*ROW0)}


def test_p55_list_is_never_called_within_a_second_of_a_call_from_the_kubelet(desk: Desk) -> None:
    desk.give(*ROW0)
    desk.ask(after=QUIET_SECONDS - 0.01)
    assert "list" not in desk.kubelet.calls
    assert desk.confirmation._pause_seconds() == QUIET_SECONDS
    desk.ask(after=0.01)
    assert desk.kubelet.calls == ["list"]


def test_p55_list_is_not_called_when_the_kubelet_has_asked_for_something_while_its_file_was_read(desk: Desk) -> None:
    def read_meanwhile() -> tuple[RecordedDevices, ...]:
        desk.state.called()
        return ()

    confirmation = Confirmation(desk.state, desk.kubelet, desk.note, cluster=True, read_records=read_meanwhile)
    desk.give(*ROW0)
    desk.clock.now += QUIET_SECONDS
    at_once(confirmation._ask())
    assert desk.kubelet.calls == []


def test_a_preference_call_counts_as_a_call_too(desk: Desk) -> None:
    desk.give(*ROW0)
    desk.clock.now += QUIET_SECONDS
    desk.state.called()
    at_once(desk.confirmation._ask())
    assert "list" not in desk.kubelet.calls


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


def test_p62_without_get_the_list_is_used_in_a_quiet_moment() -> None:
    desk = Desk()
    at_once(desk.confirmation.rebuild())
    desk.kubelet.get_trouble = GetUnsupportedError("no Get here")
    desk.state.see_pod(pod("a", app(4)))
    desk.kubelet.say("a", app=(NEURON, ROW0))
    desk.ask()
    assert desk.held == {"default/a": devices(*ROW0)}
    desk.kubelet.calls.clear()
    desk.ask()
    assert desk.kubelet.calls == []


@pytest.mark.parametrize("trouble", [PodResourcesThrottledError("limit"), PodResourcesAbsentError("away")])
def test_p62_a_kubelet_that_does_not_answer_is_asked_again(desk: Desk, trouble: Exception) -> None:
    desk.state.see_pod(pod("a", app(4)))
    desk.kubelet.say("a", app=(NEURON, ROW0))
    desk.kubelet.trouble = trouble  # type: ignore[assignment]  # both are PodResourcesErrors
    desk.ask()
    assert not desk.told
    desk.kubelet.trouble = None
    desk.ask()
    assert desk.told


def test_without_hardware_the_kubelet_is_left_alone() -> None:
    kubelet = FakePodResources()
    confirmation = Confirmation(NodeState(clock=FakeClock()), kubelet, lambda _pod, _holdings: None, cluster=False)
    at_once(confirmation._ask())
    assert kubelet.calls == []


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


def test_what_a_call_that_was_cut_off_left_is_let_go_where_the_kubelets_file_tells_all() -> None:
    desk = Desk(cluster=False)
    desk.give(0)
    cut_off = next(iter(desk.state.ledger)).pod
    desk.state.hold(cut_off, Holding("#1", NEURON, devices(0, 1)))
    desk.kubelet.say("a", app=(NEURON, [0, 2]))
    desk.records += [recorded("uid-a", "init", NEURON, 0), recorded("uid-a", "app", NEURON, 0, 2)]
    desk.ask()
    assert desk.held == {"default/a": devices(0, 2)}


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


async def test_a_look_again_that_gets_no_answer_lets_go_of_nobody(desk: Desk) -> None:
    desk.state.see_pod(decided("a", app(4), sets=[ROW0], allocated=True))
    desk.kubelet.trouble = PodResourcesAbsentError("away")
    await desk.confirmation.look_again(tuple(desk.state.ledger))
    assert desk.held == {"default/a": devices(*ROW0)}


async def test_news_are_asked_about_at_once_and_the_rest_by_the_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(confirm, "SETTLE_SECONDS", 0.0)
    monkeypatch.setattr(confirm, "PERIOD_SECONDS", 0.01)
    desk = Desk()
    await desk.confirmation.rebuild()
    running = asyncio.create_task(desk.confirmation.run())
    desk.state.see_pod(pod("a", app(4)))
    desk.confirmation.notify()
    async with asyncio.timeout(5):
        while desk.kubelet.calls.count("get a") < 2:
            await asyncio.sleep(0.001)
        desk.kubelet.say("a", app=(NEURON, ROW0))
        while not desk.told:
            await asyncio.sleep(0.001)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running


# The kubelet's own file.


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


def test_a_pod_of_which_nothing_is_listed_takes_nothing_that_was_given_to_another(desk: Desk) -> None:
    desk.state.see_pod(pod("not-admitted", init(4)))
    desk.state.see_pod(pod("other", app(4)))
    desk.kubelet.say("not-admitted")
    desk.give(*ROW0)
    desk.kubelet.say("other", app=(NEURON, ROW0))
    desk.ask(after=0.05)
    assert desk.held == {"default/other": devices(*ROW0)}


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


# Races.


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


async def test_a_look_again_is_over_in_time_though_a_look_at_processes_is_slow(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The preference has a deadline, and its replacement knows nothing of waiting decisions."""
    monkeypatch.setattr(confirm, "LOOK_SECONDS", 0.05)

    async def for_ever() -> None:
        await asyncio.Event().wait()

    desk.state.see_pod(decided("gone", app(4), sets=[ROW0], allocated=True))
    slow = Confirmation(desk.state, desk.kubelet, desk.note, cluster=True, look_at_users=for_ever)
    async with asyncio.timeout(10):
        await slow.look_again(tuple(desk.state.ledger))
    assert desk.held == {}


async def test_p61_a_look_in_a_preference_reads_the_kubelets_file_anew(desk: Desk) -> None:
    desk.state.see_pod(pod("a", init(2, CORE), app(4)))
    desk.kubelet.say("a", app=(NEURON, ROW0))
    desk.records = [recorded("uid-a", "init", CORE, 30, 31)]
    await desk.confirmation.look_again(())
    assert desk.told == [("a", [TRN1.cores_mask((30, 31)), devices(*ROW0)])]


def test_p60_strangers_are_looked_for_once_after_the_first_list_when_the_kubelet_is_settled() -> None:
    desk = Desk(settled=False)
    desk.kubelet.trouble = PodResourcesAbsentError("nobody answers")
    at_once(desk.confirmation.rebuild())
    desk.ask()
    assert desk.looks == 0
    desk.kubelet.trouble = None
    desk.ask()
    desk.ask()
    assert desk.looks == 2
    desk.settled = True
    desk.ask()
    desk.ask()
    assert desk.looks == 3
