"""Which pods may have made a call."""

from __future__ import annotations

from neuron_plugin.allocation import ContainerSpec, Holding, Resource
from neuron_plugin.plugin.callers import Callers
from neuron_plugin.plugin.node import NodeState
from neuron_plugin.plugin.standins import named_stand_in
from tests.plugin.world import CORE, DEVICE, NEURON, TRN1, a_state, app, decided, devices, init, pod, ref


def callers(state: NodeState, count: int, resource: Resource = NEURON) -> Callers:
    return Callers(TRN1, state.pods, state.ledger, resource, count)


def names(found: list[object]) -> list[str]:
    return [each.pod.name for each in found]  # type: ignore[attr-defined]  # NodePods


def twice(count: int) -> tuple[ContainerSpec, ContainerSpec]:
    return app(count), ContainerSpec("second", app(1).kind, app(count).limits)


def test_who_asks_for_exactly_this_and_holds_nothing_may_have_called() -> None:
    state = a_state(TRN1, pod("a", app(4)), pod("b", app(4, DEVICE)), pod("c", app(1)), pod("d", init(4), app(1)))
    state.hold(ref("d"), Holding("init", NEURON, devices(0, 1, 2, 3)))
    assert names(list(callers(state, 4).asking())) == ["a"]


def test_a_pod_that_is_held_by_name_has_been_served() -> None:
    state = a_state(TRN1, pod("a", app(4)))
    state.confirm(named_stand_in("default", "a"), [Holding("app", NEURON, devices(0, 1, 2, 3))])
    assert callers(state, 4).asking() == []


def test_each_stand_in_stands_for_the_first_pods_without_a_decision() -> None:
    state = a_state(TRN1, pod("a", app(1)), decided("b", app(1), sets=[[5]]), pod("c", app(1)))
    assert names(list(callers(state, 1).undecided())) == ["a", "c"]
    state.hold(state.new_stand_in(), Holding("", NEURON, devices(0)))
    assert names(list(callers(state, 1).undecided())) == ["c"]
    state.hold(state.new_stand_in(), Holding("", CORE, devices(1)))
    assert names(list(callers(state, 1).undecided())) == ["c"]


def test_a_pod_of_two_equal_containers_calls_twice() -> None:
    state = a_state(TRN1, pod("a", *twice(1)))
    state.hold(state.new_stand_in(), Holding("", NEURON, devices(0)))
    assert names(list(callers(state, 1).undecided())) == ["a"]
    state.hold(state.new_stand_in(), Holding("", NEURON, devices(1)))
    assert callers(state, 1).undecided() == []


def test_a_part_of_an_init_set_counts_as_the_call_of_a_smaller_container() -> None:
    state = a_state(TRN1, pod("a", init(4), app(2)))
    stand_in = state.new_stand_in()
    state.hold(stand_in, Holding("", NEURON, devices(0, 1, 2, 3)))
    assert names(list(callers(state, 2).undecided())) == ["a"]
    state.hold(stand_in, Holding("#1", NEURON, devices(0, 1)))
    assert callers(state, 2).undecided() == []


def test_who_came_before_counts_by_arrival() -> None:
    state = a_state(TRN1, pod("a", app(1)), decided("b", app(1), sets=[[5]], time=1), pod("c", app(1)))
    assert callers(state, 1).undecided_before(ref("b").uid)
    state.hold(state.new_stand_in(), Holding("", NEURON, devices(0)))
    assert not callers(state, 1).undecided_before(ref("b").uid)


def test_only_where_nobody_else_may_have_called_it_was_the_pod_that_cannot_be_served() -> None:
    spec = ContainerSpec("app", app(1).kind, {NEURON.value: "1", CORE.value: "2"})
    state = a_state(TRN1, pod("bad", spec))
    found = callers(state, 1).unservable()
    assert found is not None
    assert found.pod.name == "bad"
    assert callers(state, 2).unservable() is None
    state.see_pod(pod("good", app(1)))
    assert callers(state, 1).unservable() is None


def test_callers_in_words() -> None:
    state = a_state(TRN1, pod("b", app(1)), pod("a", app(1)))
    assert callers(state, 1).described() == "pod default/a or default/b"
    assert callers(state, 2).described() == "a pod without a decision"
