from __future__ import annotations

import pytest

from neuron_plugin.extender.attempts import Ending, SeenPod
from neuron_plugin.simulation import pod_manifest
from tests.extender.bench import Bench
from tests.extender.pod_server import lost, refused
from tests.extender.world import DEVICE, World, record_of


async def test_the_first_bind_finds_out_that_the_server_drops_annotations_and_patches_from_then_on(
    world: World,
) -> None:
    bench = Bench(world)
    bench.server.keeps_annotations = False
    first, second = bench.waiting("first", 4), bench.waiting("second", 4)

    outcomes = [await bench.bind(pod) for pod in (first, second)]

    assert [outcome.ending for outcome in outcomes] == [Ending.BOUND, Ending.BOUND]
    assert bench.server.calls == ["bind", "read", "annotate", "annotate", "bind"]
    assert first["metadata"]["annotations"]["NEURON_DEVS"] == "0,1,2,3"
    assert second["metadata"]["annotations"]["NEURON_DEVS"] == "4,5,6,7"


async def test_a_server_that_keeps_annotations_is_asked_only_once(world: World) -> None:
    bench = Bench(world)

    for name in ("first", "second"):
        await bench.bind(bench.waiting(name))

    assert bench.server.calls == ["bind", "read", "bind"]


async def test_leadership_lost_between_patch_and_binding_releases(bench: Bench) -> None:
    bench.binder._annotation_check.merged = False
    annotate = bench.server.annotate

    async def annotate_and_lose(*args: object, **kwargs: object) -> None:
        await annotate(*args, **kwargs)  # type: ignore[arg-type]  # passed on as they came
        bench.barred = "not the leader any more"

    bench.server.annotate = annotate_and_lose  # type: ignore[method-assign]  # one call of a stand-in

    outcome = await bench.bind(bench.waiting("pod"))

    assert outcome.ending is Ending.NOT_SERVING
    assert bench.server.calls == ["annotate"]
    assert bench.used() == 0


async def test_a_pod_without_an_assignment_is_bound_by_one_write_there_too(bench: Bench) -> None:
    bench.binder._annotation_check.merged = False

    outcome = await bench.bind(bench.server.add(pod_manifest("plain", DEVICE, 0)))

    assert outcome.ending is Ending.BOUND
    assert bench.server.calls == ["read", "bind"]


async def test_a_first_binding_whose_answer_is_lost_is_read_back_too(world: World) -> None:
    bench = Bench(world)
    bench.server.keeps_annotations = False
    bench.server.after = [lost()]
    pod = bench.waiting("pod", 4)

    assert (await bench.bind(pod)).ending is Ending.ADOPTED
    assert bench.server.calls == ["bind", "read", "read", "annotate"]
    assert pod["metadata"]["annotations"]["NEURON_DEVS"] == "0,1,2,3"


async def test_a_binding_that_was_refused_says_nothing_about_annotations(world: World) -> None:
    bench = Bench(world)
    bench.server.before = [refused(403)]

    assert (await bench.bind(bench.waiting("pod", 4))).ending is Ending.REFUSED
    assert bench.server.calls == ["bind", "read"]


async def test_a_pod_without_an_assignment_says_nothing_about_annotations(world: World) -> None:
    bench = Bench(world)

    await bench.bind(bench.server.add(pod_manifest("plain", DEVICE, 0)))

    assert bench.binder._annotation_check.merged is None


@pytest.mark.parametrize("gone", [True, False])
async def test_a_pod_that_is_not_found_bound_there_leaves_the_question_open(
    world: World, monkeypatch: pytest.MonkeyPatch, *, gone: bool
) -> None:
    """It was deleted at once, or an older state of it was read."""
    bench = Bench(world)
    pod = bench.waiting("pod", 4)
    older = None if gone else SeenPod(record_of(pod))

    async def read(*_: object, **__: object) -> SeenPod | None:
        return older

    monkeypatch.setattr(bench.server, "read", read)

    assert (await bench.bind(pod)).ending is Ending.BOUND
    assert bench.binder._annotation_check.merged is None
