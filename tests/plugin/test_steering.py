"""Which ids the kubelet is told to prefer, and when somebody is asked first."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from neuron_plugin.allocation import Holder, Holding, Resource
from neuron_plugin.plugin.node import NodeState
from neuron_plugin.plugin.quarantine import Quarantine, Users
from neuron_plugin.plugin.steering import Offer, Steering
from tests.plugin.world import (
    CORE,
    INF2,
    NEURON,
    TRN1,
    a_state,
    app,
    decided,
    devices,
    init,
    no_look,
    pod,
    ref,
    unit_ids,
)

ROW0, ROW1, ROW2, ROW3 = (tuple(range(first, first + 4)) for first in (0, 4, 8, 12))


class Watch:
    """The API server, which has pods that the watch has not shown yet."""

    def __init__(self, state: NodeState, *pods: object) -> None:
        self.state = state
        self.pods = pods
        self.looks = 0

    async def look(self) -> None:
        self.looks += 1
        for each in self.pods:
            self.state.see_pod(each)  # type: ignore[arg-type]  # NodePods


async def preferred(
    steering: Steering,
    size: int,
    *,
    resource: Resource = NEURON,
    available: Sequence[int] | None = None,
    must: Sequence[int] = (),
) -> tuple[int, ...]:
    machine = steering.state.machine
    assert machine is not None
    offered = tuple(unit_ids(machine.geometry, resource.unit)) if available is None else tuple(available)
    return await steering.preferred(machine, Offer(resource, offered, tuple(must), size))


async def test_p30_the_oldest_waiting_decision_of_that_size_comes_first() -> None:
    pods = decided("b", app(4), sets=[ROW1], time=2), decided("a", app(4), sets=[ROW3], time=1)
    steering = Steering(a_state(TRN1, *pods), None, no_look)
    assert await preferred(steering, 4) == ROW3
    assert await preferred(steering, 4, available=range(12)) == ROW1


async def test_p36_a_pod_that_the_watch_has_not_shown_is_looked_for_once_and_followed() -> None:
    state = a_state(TRN1)
    watch = Watch(state, decided("a", app(4), sets=[ROW2]))
    assert await preferred(Steering(state, watch.look, no_look), 4) == ROW2
    assert watch.looks == 1


async def test_a_pod_without_a_decision_explains_the_call_so_nobody_is_asked() -> None:
    state = a_state(TRN1, pod("a", app(4)))
    watch = Watch(state)
    assert await preferred(Steering(state, watch.look, no_look), 4) == ROW0
    assert watch.looks == 0


async def test_one_pod_explains_one_call_so_the_next_is_looked_for() -> None:
    state = a_state(TRN1, pod("a", app(4)))
    state.hold(state.new_stand_in(), Holding("", NEURON, devices(*ROW0)))
    watch = Watch(state, decided("b", app(4), sets=[ROW2]))
    assert await preferred(Steering(state, watch.look, no_look), 4, available=range(4, 16)) == ROW2


async def test_p49_an_earlier_pod_without_a_decision_is_not_given_a_later_pods_set() -> None:
    malformed = pod("a", app(4), annotations={"NEURON_DEVS": "garbage"})
    steering = Steering(a_state(TRN1, malformed, decided("b", app(4), sets=[ROW0])), None, no_look)
    assert await preferred(steering, 4) == ROW1


async def test_an_earlier_decision_is_followed_though_a_pod_without_one_waits_too() -> None:
    steering = Steering(a_state(TRN1, decided("b", app(4), sets=[ROW2]), pod("a", app(4))), None, no_look)
    assert await preferred(steering, 4) == ROW2


async def test_a_pod_whose_name_the_kubelet_lists_is_served_already() -> None:
    state = a_state(TRN1, pod("a", app(4)), decided("b", app(4), sets=[ROW2]))
    state.confirm(
        type(ref("a"))(type(ref("a").uid)("stand-in/default/a"), "default", "a"),
        [Holding("app", NEURON, devices(*ROW0))],
    )
    assert await preferred(Steering(state, None, no_look), 4, available=range(4, 16)) == ROW2


async def test_p46_nobody_else_is_steered_into_a_set_that_an_app_container_is_to_have_from_its_init_container() -> None:
    """The kubelet draws it there unasked, so a question about so many new ids is another pod's."""
    waiting = decided("a", init(4, CORE), app(1, CORE), sets=[[4, 5, 6, 7], [4]])
    steering = Steering(a_state(TRN1, waiting), None, no_look)
    (core,) = await preferred(steering, 1, resource=CORE)
    assert core not in {4, 5, 6, 7}
    assert await preferred(steering, 4, resource=CORE) == (4, 5, 6, 7)


async def test_p31_sets_that_wait_for_others_are_left_alone() -> None:
    state = a_state(TRN1, decided("b", app(8), sets=[(*ROW0, *ROW1)]))
    assert await preferred(Steering(state, None, no_look), 4) == ROW2


async def test_what_must_be_included_tells_whose_decision_it_is() -> None:
    other = decided("other", app(4), sets=[ROW0], time=1)
    own = decided("own", init(1), app(4), sets=[[5], ROW1], time=2)
    state = a_state(TRN1, other, own)
    state.hold(ref("own"), Holding("init", NEURON, devices(5)))
    steering = Steering(state, None, no_look)
    assert await preferred(steering, 4, must=[5]) == ROW1
    assert await preferred(steering, 4, must=[0]) != ROW0  # nobody's, and the other's set is left alone
    state.hold(state.new_stand_in(), Holding("", NEURON, devices(8)))
    assert await preferred(steering, 4, must=[8], available=range(16)) == ROW2


async def test_the_first_of_several_containers_goes_where_all_fit() -> None:
    second = type(app(1))("second", app(1).kind, {CORE.value: "1"})
    state = a_state(INF2, pod("a", app(11), second))
    first = await preferred(Steering(state, None, no_look), 11)
    assert first in {tuple(range(11)), tuple(range(1, 12))}


async def test_a_plan_that_the_offer_does_not_allow_is_dropped() -> None:
    second = type(app(1))("second", app(1).kind, app(1).limits)
    state = a_state(TRN1, pod("a", app(4), second))
    assert await preferred(Steering(state, None, no_look), 4, available=range(8, 16)) == ROW2


async def test_p34_what_others_hold_is_taken_only_after_the_kubelet_was_asked_about_them() -> None:
    state = a_state(TRN1, pod("gone", app(16)))
    state.hold(ref("gone"), Holding("app", NEURON, TRN1.all_mask))
    asked: list[str] = []

    async def look(disputed: Collection[Holder]) -> None:
        asked.extend(holder.pod.name for holder in disputed)
        state.end(ref("gone").uid)
        state.see_pod(decided("next", app(4), sets=[ROW3]))

    assert await preferred(Steering(state, None, look), 4) == ROW3
    assert asked == ["gone"]


async def test_nobody_is_asked_while_there_is_a_free_choice() -> None:
    async def look(disputed: Collection[Holder]) -> None:
        raise AssertionError(disputed)

    state = a_state(TRN1)
    state.hold(ref("a"), Holding("app", NEURON, devices(*ROW0)))
    assert await preferred(Steering(state, None, look), 4) == ROW1
    state.hold(ref("b"), Holding("init", NEURON, devices(4)))
    assert await preferred(Steering(state, None, look), 1, must=[4], available=[4]) == (4,)


async def test_a_full_node_still_gets_an_answer_of_the_right_size() -> None:
    state = a_state(TRN1)
    state.hold(ref("a"), Holding("app", NEURON, TRN1.all_mask))
    assert len(set(await preferred(Steering(state, None, no_look), 4))) == 4


async def test_p61_a_daemon_that_started_before_its_kubelet_asks_who_holds_what_before_it_chooses() -> None:
    state = a_state(TRN1)
    state.holders_known = False

    async def look(disputed: Collection[Holder]) -> None:
        assert not disputed
        state.hold(ref("old"), Holding("app", CORE, devices(0)))
        state.holders_known = True

    steering = Steering(state, None, look)

    assert await preferred(steering, 1) == (1,)


async def test_p60_a_decision_on_what_a_vanished_pod_has_left_is_passed_over_while_anything_else_would_do() -> None:
    state = a_state(TRN1, decided("late", app(1), sets=[[0]]))
    state.quarantine = Quarantine(30.0).with_suspect(ref("gone"), devices(0), state.clock())

    assert await preferred(Steering(state, None, no_look), 1) == (1,)


async def test_p60_where_only_suspect_devices_are_left_their_users_are_looked_at_before_a_pod_is_lost() -> None:
    state = a_state(TRN1)
    state.quarantine = Quarantine(30.0).with_suspect(ref("gone"), devices(*ROW0), state.clock())

    async def look(disputed: Collection[Holder]) -> None:
        assert not disputed
        state.see_users(Users({}, complete=True, moment=state.clock()))

    assert await preferred(Steering(state, None, look), 4, available=(0, 1, 2, 3, 8)) == ROW0
    assert not state.quarantine.suspects


async def test_p30_what_a_container_re_uses_of_its_init_containers_is_no_answer_to_another_call() -> None:
    """A call for an app container whose init container has all it needs never comes as a preference."""
    state = a_state(TRN1, decided("a", init(4), app(1), sets=[ROW0, [0]], time=1))
    state.see_pod(decided("b", app(1), sets=[[8]], time=2))

    assert await preferred(Steering(state, None, no_look), 1) == (8,)
