from __future__ import annotations

import random

import pytest

from neuron_plugin.allocation.requests import PodRequest
from neuron_plugin.extender import memo as module
from neuron_plugin.extender.memo import ByShape, VerdictMemo
from neuron_plugin.extender.reasons import STALE, UNKNOWN_NODE
from neuron_plugin.extender.shapes import AnyShape, closed_shape
from neuron_plugin.extender.verdicts import cost_on, judge
from neuron_plugin.simulation.manifests import pod_manifest
from tests.extender.world import DEVICE, World, record_of, request_of

TRN1 = "trn1.32xlarge"


def asking(amount: int) -> PodRequest:
    return request_of(record_of(pod_manifest("pod", DEVICE, amount)))


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
            assert world.memo.verdicts(request)[each] == judge(shape, request)
            assert world.memo.costs(request)[each] == cost_on(shape, request)


def test_nodes_in_one_state_are_judged_once(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    judged: list[AnyShape] = []
    monkeypatch.setattr(module, "judge", lambda shape, _: judged.append(shape))
    for number in range(50):
        world.node(f"node-{number}", TRN1)

    world.filter(pod_manifest("new", DEVICE, 4))

    assert len(judged) == 1


def test_names_of_no_node_are_not_remembered(world: World) -> None:
    table = world.memo.verdicts(asking(4))

    for number in range(100):
        found = table[f"ghost-{number}"]
        assert found is not None
        assert found.text == UNKNOWN_NODE.text

    assert len(table) == 0


def test_equal_misfits_are_one_object_and_their_code_is_found_by_text(world: World) -> None:
    for name in ("a", "b"):
        world.node(name, TRN1)
        world.held(f"holder-{name}", name, DEVICE, ",".join(str(device) for device in range(13 + (name == "b"))))

    first, second = (world.memo.verdicts(asking(4))[name] for name in ("a", "b"))

    assert first is second
    assert first is not None
    assert world.memo.code_of(first.text) == "not-free"
    assert world.memo.code_of("something else") == "other"


def test_the_oldest_request_is_forgotten_when_there_are_too_many(world: World) -> None:
    memo = VerdictMemo(world.state)
    verdicts, costs = memo.verdicts(asking(1)), memo.costs(asking(1))
    for amount in range(2, module.MOST_REQUESTS + 2):
        memo.verdicts(asking(amount))
        memo.costs(asking(amount))

    assert memo.verdicts(asking(1)) is not verdicts
    assert memo.costs(asking(1)) is not costs


def test_a_full_table_of_shapes_starts_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_SHAPES", 1)
    table = ByShape(repr)

    first = table[closed_shape(STALE)]
    table[closed_shape(UNKNOWN_NODE)]

    assert list(table) == [closed_shape(UNKNOWN_NODE)]
    assert table[closed_shape(STALE)] == first
