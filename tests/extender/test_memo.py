from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from neuron_plugin.allocation import PodRequest
from neuron_plugin.extender import memo as module
from neuron_plugin.extender.memo import ByShape, VerdictMemo
from neuron_plugin.extender.reasons import STALE, UNKNOWN_NODE
from neuron_plugin.extender.shapes import AnyShape, closed_shape
from neuron_plugin.extender.verdicts import Verdict, cost_on, judge
from neuron_plugin.simulation import container, pod_manifest
from tests.extender.world import DEVICE, World, record_of, request_of

TRN1 = "trn1.32xlarge"


def asking(amount: int) -> PodRequest:
    return request_of(record_of(pod_manifest("pod", DEVICE, amount)))


def verdict_on(world: World, request: PodRequest, name: str) -> Verdict:
    passed, misfits = world.memo.verdicts(request).split([name])
    return None if passed else next(iter(misfits))


def test_answers_follow_every_change_of_a_node(world: World) -> None:
    chance = random.Random(3)  # noqa: S311 - a reproducible history
    nodes = [f"node-{number}" for number in range(4)]
    held: dict[str, dict[str, object]] = {}
    for step in range(300):
        name, node = f"pod-{chance.randrange(20)}", chance.choice(nodes)
        match chance.randrange(4):
            case 0:
                world.node(node, chance.choice((TRN1, "inf2.48xlarge")))
            case 1 if node in world.state.nodes:
                world.state.remove_node(node, world.state.nodes[node].facts.uid)
            case 2 if name in held:
                world.gone(held.pop(name))
            case _ if name not in held:
                held[name] = world.held(name, node, DEVICE, str(chance.randrange(12)))
        request = asking(1 + step % 4)
        for each in [*nodes, "ghost"]:
            shape = world.state.shapes[each]
            assert verdict_on(world, request, each) == judge(shape, request)
            assert world.memo.costs(request)[each] == cost_on(shape, request)


def test_nodes_in_one_state_are_judged_once(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    judged: list[AnyShape] = []
    monkeypatch.setattr(module, "judge", lambda shape, _: judged.append(shape))
    for number in range(50):
        world.node(f"node-{number}", TRN1)

    world.filter(pod_manifest("new", DEVICE, 4))

    assert len(judged) == 1


@settings(deadline=None)
@given(st.data())
def test_t06_names_are_split_by_the_verdict_on_their_node_whatever_was_asked_before(data: st.DataObject) -> None:
    world = World()
    known = [f"node-{number}" for number in range(6)]
    for name in known:
        world.node(name, data.draw(st.sampled_from((TRN1, "inf1.xlarge", "inf2.48xlarge"))))
    for number in range(data.draw(st.integers(0, 8))):
        world.held(f"pod-{number}", data.draw(st.sampled_from(known)), DEVICE, str(number))
    request = asking(data.draw(st.sampled_from((1, 2, 4, 7))))
    for _ in range(3):
        names = data.draw(st.lists(st.sampled_from([*known, "ghost", "spirit"]), unique=True))
        verdicts = {name: judge(world.state.shapes[name], request) for name in names}

        passed, misfits = world.memo.verdicts(request).split(names)

        assert passed == [name for name in names if verdicts[name] is None]
        assert {name: misfit for misfit, found in misfits.items() for name in found} == {
            name: verdict for name, verdict in verdicts.items() if verdict
        }
        assert all(misfits.values())
        world.held(f"late-{data.draw(st.integers(0, 99))}", data.draw(st.sampled_from(known)), DEVICE, "0")


@pytest.mark.parametrize("amount", [4, 7], ids=["fits", "refused"])
def test_t06_a_name_that_comes_twice_has_one_verdict(world: World, amount: int) -> None:
    world.node("node", TRN1)
    for _ in range(2):
        passed, misfits = world.memo.verdicts(asking(amount)).split(["node", "node"])
        assert [set(passed), *misfits.values()].count({"node"}) == 1


def test_pods_whose_containers_have_other_names_share_their_answers(world: World) -> None:
    one, other = (
        request_of(record_of(pod_manifest("pod", containers=[container(name, DEVICE, 4)]))) for name in ("a", "b")
    )

    assert world.memo.verdicts(one) is world.memo.verdicts(other)
    assert world.memo.costs(one) is world.memo.costs(other)


def test_names_of_no_node_are_not_remembered(world: World) -> None:
    table = world.memo.verdicts(asking(4))

    passed, misfits = table.split([f"ghost-{number}" for number in range(100)])

    assert passed == []
    assert [(misfit.text, len(names)) for misfit, names in misfits.items()] == [(UNKNOWN_NODE.text, 100)]
    assert table._unfit == {}
    assert world.memo.costs(asking(4))["ghost"] is None
    assert "ghost" not in world.memo.costs(asking(4))


def test_nothing_is_left_of_a_verdict_that_no_node_has_any_more(world: World) -> None:
    world.node("node", TRN1)
    pod = world.held("holder", "node", DEVICE, "0,4,8,12")
    table = world.memo.verdicts(asking(4))
    table.split(["node"])
    assert table._unfit

    world.gone(pod)

    assert table._unfit == {}


def test_the_request_that_was_asked_for_longest_ago_is_forgotten_when_there_are_too_many(world: World) -> None:
    memo = VerdictMemo(world.state)
    verdicts, costs = [memo.verdicts(asking(amount)) for amount in (1, 2)], memo.costs(asking(1))
    for amount in range(3, module.MOST_REQUESTS + 2):
        assert memo.verdicts(asking(1)) is verdicts[0]
        memo.verdicts(asking(amount))
    for amount in range(2, module.MOST_REQUESTS + 2):
        memo.costs(asking(amount))

    assert memo.verdicts(asking(1)) is verdicts[0]
    assert memo.verdicts(asking(2)) is not verdicts[1]
    assert memo.costs(asking(1)) is not costs


def test_a_full_table_of_shapes_starts_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_SHAPES", 1)
    table = ByShape(repr)

    first = table[closed_shape(STALE)]
    table[closed_shape(UNKNOWN_NODE)]

    assert list(table) == [closed_shape(UNKNOWN_NODE)]
    assert table[closed_shape(STALE)] == first
