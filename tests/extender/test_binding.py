from __future__ import annotations

import asyncio

import pytest

from neuron_plugin.allocation.annotations import Dialect
from neuron_plugin.allocation.journal import explain
from neuron_plugin.extender.attempts import Ending, Outcome
from neuron_plugin.extender.binding import Binder, BindTimes
from neuron_plugin.simulation.manifests import container, pod_manifest
from tests.extender.pod_server import Manifest, PodServer, lost, never_sent, refused
from tests.extender.world import CORE, DEVICE, World, pod_of

TRN1 = "trn1.32xlarge"
NOW_NS = 1_700_000_000_000_000_000


class Bench:
    """A binder on a world and a pod server."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.server = PodServer()
        self.now = 100.0
        self.barred = ""
        self.dialects: tuple[Dialect, ...] = (Dialect.NEURON_PLUGIN, Dialect.VENDOR)
        self.binder = self.make()
        world.node("node", TRN1)
        world.node("other", TRN1)

    def make(self, answer: float = 4.0) -> Binder:
        return Binder(
            self.world.state,
            self.server,
            fence=lambda: self.barred,
            dialects=self.dialects,
            times=BindTimes(answer=answer),
            clock=lambda: self.now,
            unix_ns=lambda: NOW_NS,
        )

    def waiting(self, name: str, amount: int = 1) -> Manifest:
        """A pod that waits, known to the server and to the watch."""
        return self.server.add(self.world.pod(name, DEVICE, amount))

    async def bind(self, manifest: Manifest, node: str = "node") -> Outcome:
        return await self.binder.bind(pod_of(manifest), node)

    def used(self, node: str = "node") -> int:
        return self.world.state.nodes[node].used_mask.bit_count() // 2


@pytest.fixture
def bench(world: World) -> Bench:
    bench = Bench(world)
    bench.binder._annotation_check.merged = True
    return bench


async def test_a_bind_is_one_post_that_carries_the_assignment_in_both_dialects(bench: Bench) -> None:
    pod = bench.waiting("pod", 4)

    outcome = await bench.bind(pod)

    assert outcome.ending is Ending.BOUND
    assert outcome.error == ""
    assert bench.server.calls == ["bind"]
    assert pod["spec"]["nodeName"] == "node"
    assert pod["metadata"]["annotations"] == {
        "NEURON_DEVS": "0,1,2,3",
        "NEURON_ALLOC_TIME": str(NOW_NS),
        "NEURON_ALLOCATED": "false",
        "AWS_NEURON_IDS": "0,1,2,3",
        "NEURON_RESOURCE_TYPE": "aws.amazon.com/neuron",
    }
    assert bench.used() == 4


async def test_t20_t21_containers_get_disjoint_lists_under_both_keys(bench: Bench) -> None:
    containers = [container("a", DEVICE, 1), container("b", CORE, 1), container("c", CORE, 1)]
    pod = bench.server.add(bench.world.pod("pod", containers=containers))

    await bench.bind(pod)

    written = pod["metadata"]["annotations"]
    devices, cores = written["NEURON_DEVS"], written["NEURON_CORES"].split("|")
    silicon = {2 * int(devices), 2 * int(devices) + 1, *map(int, cores)}
    assert len(silicon) == 4
    assert "AWS_NEURON_IDS" not in written


async def test_t24_ids_are_in_numeric_order(bench: Bench) -> None:
    pod = bench.waiting("pod", 16)

    await bench.bind(pod)

    assert pod["metadata"]["annotations"]["NEURON_DEVS"] == "0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15"


async def test_t37_of_two_binds_for_the_last_set_one_wins_and_the_other_is_refused_by_its_next_filter(
    bench: Bench,
) -> None:
    first, second = bench.waiting("first", 16), bench.waiting("second", 16)
    assert bench.world.filter(first, ["node"]).passed == bench.world.filter(second, ["node"]).passed == ["node"]

    outcomes = await asyncio.gather(bench.bind(first), bench.bind(second))

    assert [outcome.ending for outcome in outcomes] == [Ending.BOUND, Ending.NO_SET]
    assert "16" in outcomes[1].error
    assert bench.world.filter(second, ["node"]).passed == []


async def test_t38_the_same_bind_again_gives_the_same_devices_and_is_counted_once(bench: Bench) -> None:
    pod = bench.waiting("pod", 4)

    first = await bench.bind(pod)
    again = await bench.bind(pod)
    bench.world.tell(pod)
    seen = await bench.bind(pod)

    assert (first.ending, again.ending, seen.ending) == (Ending.BOUND, Ending.REPEATED, Ending.REPEATED)
    assert first.annotations == again.annotations
    assert bench.server.calls == ["bind"]
    assert bench.used() == 4


async def test_t38_a_bind_of_ours_is_repeated_though_the_watch_shows_it_without_its_annotations(bench: Bench) -> None:
    """Where the API server drops them, the patch comes a moment after the binding."""
    pod = bench.waiting("pod", 4)
    first = await bench.bind(pod)
    bench.world.tell({**pod, "metadata": {**pod["metadata"], "annotations": {}}})

    again = await bench.bind(pod)

    assert (again.ending, again.annotations) == (Ending.REPEATED, first.annotations)


async def test_t38_concurrent_calls_for_a_pod_share_one_attempt(bench: Bench) -> None:
    pod = bench.waiting("pod", 4)

    outcomes = await asyncio.gather(*(bench.bind(pod) for _ in range(5)))

    assert {outcome.ending for outcome in outcomes} == {Ending.BOUND}
    assert bench.server.calls == ["bind"]


async def test_a_second_call_for_another_node_is_told_where_the_pod_goes(bench: Bench) -> None:
    pod = bench.waiting("pod")
    bench.server.gate = asyncio.Event()
    first = asyncio.ensure_future(bench.bind(pod))
    await asyncio.sleep(0)

    during = await bench.bind(pod, "other")
    bench.server.gate.set()
    await first
    afterwards = await bench.bind(pod, "other")

    assert during.ending is afterwards.ending is Ending.BOUND_ELSEWHERE
    assert bench.used("other") == 0


@pytest.mark.parametrize("known", [True, False])
async def test_t39_a_uid_that_is_not_the_pods_reserves_and_writes_nothing(bench: Bench, *, known: bool) -> None:
    bench.server.add(pod_manifest("pod", DEVICE, 1))
    stranger = bench.world.pod("stranger", DEVICE, 1) if known else pod_manifest("stranger", DEVICE, 1)
    stranger["metadata"]["name"] = "pod"

    outcome = await bench.bind(stranger)

    assert outcome.ending is Ending.NOT_THE_POD
    assert bench.server.calls == ["read"]
    assert bench.used() == 0


async def test_t39_a_pod_the_watch_has_not_shown_yet_is_read_first(bench: Bench) -> None:
    pod = bench.server.add(pod_manifest("pod", DEVICE, 4))

    outcome = await bench.bind(pod)

    assert outcome.ending is Ending.BOUND
    assert bench.server.calls == ["read", "bind"]
    assert bench.used() == 4


async def test_t02_an_unknown_pod_while_the_api_is_away_is_an_error(bench: Bench) -> None:
    bench.server.reading = [lost()]

    outcome = await bench.bind(pod_manifest("pod", DEVICE, 1))

    assert outcome.ending is Ending.REFUSED
    assert "cannot be read" in outcome.error


@pytest.mark.parametrize("error", [refused(500), refused(503), refused(504), lost()], ids=str)
async def test_t40_a_lost_answer_to_a_bind_that_was_done_is_a_success(bench: Bench, error: Exception) -> None:
    pod = bench.waiting("pod", 4)
    bench.server.after = [error]

    outcome = await bench.bind(pod)

    assert outcome.ending is Ending.ADOPTED
    assert outcome.error == ""
    assert bench.server.calls == ["bind", "read"]
    assert bench.used() == 4


@pytest.mark.parametrize("error", [refused(500), lost()], ids=str)
async def test_t40_t41_without_an_answer_an_unbound_pod_stays_reserved_until_its_write_cannot_land(
    bench: Bench, error: Exception
) -> None:
    pod = bench.waiting("pod", 4)
    bench.server.before = [error]

    outcome = await bench.bind(pod)
    assert outcome.ending is Ending.UNKNOWN
    assert outcome.error
    assert bench.used() == 4

    bench.now += 1
    await bench.binder.settle()
    assert bench.used() == 4

    bench.now += 10
    await bench.binder.settle()
    assert bench.used() == 0


async def test_t40_a_write_that_lands_late_is_kept(bench: Bench) -> None:
    pod = bench.waiting("pod", 4)
    bench.server.before = [lost()]
    await bench.bind(pod)
    held = bench.world.state.reservations[pod_of(pod).uid]
    bench.server.apply(pod_of(pod), "node", held.annotations)

    bench.now += 10
    await bench.binder.settle()

    assert bench.used() == 4
    assert (await bench.bind(pod)).ending is Ending.REPEATED


async def test_t40_a_retry_of_an_undecided_bind_sends_the_same_ids_again(bench: Bench) -> None:
    pod = bench.waiting("pod", 4)
    bench.server.before = [lost()]
    await bench.bind(pod)
    held = bench.world.state.reservations[pod_of(pod).uid].annotations

    assert bench.world.filter(pod, ["node", "other"]).passed == ["node"]
    outcome = await bench.bind(pod)

    assert outcome.ending is Ending.BOUND
    assert outcome.annotations == held
    assert bench.used() == 4


async def test_t40_a_retry_that_finds_its_first_write_done_adopts_it(bench: Bench) -> None:
    pod = bench.waiting("pod", 4)
    bench.server.before = [lost()]
    await bench.bind(pod)
    bench.server.apply(pod_of(pod), "node", bench.world.state.reservations[pod_of(pod).uid].annotations)

    outcome = await bench.bind(pod)

    assert outcome.ending is Ending.ADOPTED
    assert bench.used() == 4


async def test_t40_a_conflict_with_another_binder_adopts_or_releases(bench: Bench) -> None:
    same, elsewhere, bare = (bench.waiting(name, 4) for name in ("same", "elsewhere", "bare"))
    bench.server.apply(pod_of(same), "node", {"NEURON_DEVS": "12,13,14,15"})
    bench.server.apply(pod_of(elsewhere), "other", {"NEURON_DEVS": "0,1,2,3"})
    bench.server.apply(pod_of(bare), "node", {})

    endings = [(await bench.bind(pod)).ending for pod in (same, elsewhere, bare)]

    assert endings == [Ending.ADOPTED, Ending.BOUND_ELSEWHERE, Ending.BOUND_ELSEWHERE]
    assert bench.world.state.nodes["node"].used_mask == 0xFF << 24
    assert bench.used("other") == 0


@pytest.mark.parametrize("error", [refused(403), refused(409, "being deleted"), refused(422), never_sent()], ids=str)
async def test_t40_a_refusal_releases_at_once(bench: Bench, error: Exception) -> None:
    bench.server.before = [error]

    outcome = await bench.bind(bench.waiting("pod", 4))

    assert outcome.ending is Ending.REFUSED
    assert str(error) in outcome.error
    assert bench.used() == 0


async def test_t40_a_pod_that_is_gone_or_made_anew_releases(bench: Bench) -> None:
    gone, anew = bench.waiting("gone", 4), bench.waiting("anew", 4)
    del bench.server.pods["gone"]
    bench.server.add(pod_manifest("anew", DEVICE, 4))

    endings = [(await bench.bind(pod)).ending for pod in (gone, anew)]

    assert endings == [Ending.NOT_THE_POD, Ending.NOT_THE_POD]
    assert bench.used() == 0


async def test_t40_when_neither_write_nor_read_is_answered_the_silicon_stays_reserved(bench: Bench) -> None:
    pod = bench.waiting("pod", 4)
    bench.server.before, bench.server.reading = [lost()], [lost(), lost()]

    assert (await bench.bind(pod)).ending is Ending.UNKNOWN
    bench.now += 100
    await bench.binder.settle()
    assert bench.used() == 4

    await bench.binder.settle()
    assert bench.used() == 0


async def test_a_conflict_that_cannot_be_looked_into_stays_reserved(bench: Bench) -> None:
    bench.server.before, bench.server.reading = [refused(409)], [lost()]

    assert (await bench.bind(bench.waiting("pod", 4))).ending is Ending.UNKNOWN
    assert bench.used() == 4


async def test_a_refusal_that_cannot_be_looked_into_releases(bench: Bench) -> None:
    bench.server.before, bench.server.reading = [refused(403)], [lost()]

    assert (await bench.bind(bench.waiting("pod", 4))).ending is Ending.REFUSED
    assert bench.used() == 0


async def test_t42_a_pod_without_neuron_is_bound_without_a_decision_and_leaves_no_trace(bench: Bench) -> None:
    pod = bench.server.add(pod_manifest("plain", CORE, 0))

    first, again = await bench.bind(pod), await bench.bind(pod)

    assert (first.ending, again.ending) == (Ending.BOUND, Ending.REPEATED)
    assert pod["metadata"]["annotations"] == {}
    assert not bench.world.state.reservations


async def test_t42_a_lost_answer_for_a_pod_without_neuron_is_looked_up(bench: Bench) -> None:
    pod = bench.server.add(pod_manifest("plain", CORE, 0))
    bench.server.after = [lost()]

    assert (await bench.bind(pod)).ending is Ending.ADOPTED


async def test_a_node_that_closed_since_the_filter_is_refused_with_its_reason(bench: Bench) -> None:
    pod = bench.waiting("pod")
    bench.world.pod("stock", DEVICE, 1, node="node")

    outcome = await bench.bind(pod)

    assert outcome.ending is Ending.NO_SET
    assert outcome.error == "A pod on the node uses Neuron and its assignment is not known yet"
    assert bench.server.calls == []


async def test_t23_an_unreadable_request_is_refused_and_reserves_nothing(bench: Bench) -> None:
    pod = bench.server.add(bench.world.pod("pod", containers=[container("main", CORE, "1.5")]))

    outcome = await bench.bind(pod)

    assert outcome.ending is Ending.NO_SET
    assert "1.5" in outcome.error
    assert bench.server.calls == []


async def test_e04_behind_the_fence_nothing_is_reserved_or_written(bench: Bench) -> None:
    bench.barred = "another replica leads"

    outcome = await bench.bind(bench.waiting("pod"))

    assert outcome == Outcome(Ending.NOT_SERVING, "another replica leads")
    assert bench.server.calls == []
    assert bench.used() == 0


async def test_the_vendors_dialect_alone_cannot_say_two_resources(world: World) -> None:
    bench = Bench(world)
    bench.dialects = (Dialect.VENDOR,)
    bench.binder = bench.make()
    containers = [container("a", DEVICE, 1), container("b", CORE, 1)]
    pod = bench.server.add(world.pod("pod", containers=containers))

    outcome = await bench.bind(pod)

    assert outcome.ending is Ending.NO_SET
    assert "vendor's dialect" in outcome.error


async def test_a_caller_waits_no_longer_than_the_deadline_and_the_attempt_goes_on(bench: Bench) -> None:
    bench.binder = bench.make(answer=0.01)
    bench.server.gate = asyncio.Event()
    pod = bench.waiting("pod", 4)

    outcome = await bench.bind(pod)
    assert outcome.ending is Ending.UNKNOWN
    assert bench.binder.under_way == 1
    assert bench.used() == 4

    bench.server.gate.set()
    await bench.binder.drain()
    assert bench.binder.under_way == 0
    assert pod["spec"]["nodeName"] == "node"


async def test_a_fault_of_ours_ends_one_bind_and_not_the_daemon(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    bench.server.before = [ZeroDivisionError()]

    outcome = await bench.bind(bench.waiting("pod"))

    assert outcome.ending is Ending.FAILED
    assert "bind failed" in caplog.text


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


async def test_a_confirmed_binding_the_watch_never_shows_is_looked_up_and_freed_when_the_pod_is_gone(
    bench: Bench,
) -> None:
    pod = bench.server.add(pod_manifest("pod", DEVICE, 4))
    await bench.bind(pod)
    bench.now += 20
    await bench.binder.settle()
    assert bench.binder.unseen() == 0

    bench.now += 20
    assert bench.binder.unseen() == 1
    await bench.binder.settle()
    assert bench.used() == 4

    del bench.server.pods["pod"]
    bench.now += 40
    await bench.binder.settle()
    assert bench.used() == 0


async def test_what_the_watch_has_shown_is_not_looked_up(bench: Bench) -> None:
    pod = bench.waiting("pod", 4)
    await bench.bind(pod)
    bench.world.tell({**pod, "metadata": {**pod["metadata"], "annotations": {}}})

    bench.now += 1000
    await bench.binder.settle()

    assert bench.server.calls == ["bind"]
    assert bench.used() == 4


async def test_a_bind_is_remembered_with_what_else_there_was(bench: Bench) -> None:
    await bench.bind(bench.waiting("first", 4))
    await bench.bind(bench.waiting("second", 4))
    first, second = (explain(entry) for entry in bench.binder.journal.entries())
    assert (first["step"], first["node"], first["ids"]) == ("bound", "node", "0,1,2,3")
    assert first["candidateCount"] == 4
    assert (second["ids"], second["candidateCount"]) == ("4,5,6,7", 3)
    assert second["candidates"][0] == {"ids": "4,5,6,7", "cost": second["candidates"][0]["cost"]}  # type: ignore[index]  # plain values


async def test_a_bind_that_failed_is_not_remembered_as_one(bench: Bench) -> None:
    manifest = bench.waiting("pod", 4)
    bench.barred = "not the leader"
    await bench.bind(manifest)
    assert bench.binder.journal.entries() == ()
