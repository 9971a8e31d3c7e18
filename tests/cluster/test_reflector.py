from __future__ import annotations

import asyncio
import logging
from contextlib import AsyncExitStack

import pytest

from neuron_plugin.backoff import Clock
from neuron_plugin.cluster import Pod
from neuron_plugin.cluster.api import ApiError, ClusterError, DecodeError, UnreachableError
from neuron_plugin.cluster.client import KubernetesApi
from neuron_plugin.cluster.objects import NODES, Node
from neuron_plugin.cluster.pods import PODS
from neuron_plugin.cluster.reflector import Pace, Reflector
from tests.cluster.conftest import Recorder
from tests.cluster.reflecting import LISTS, Follow, Following, Manifest, lists, watches
from tests.support.api_server import Fault, StandInApiServer
from tests.support.scripted_server import ScriptedServer

# The first state.


async def test_the_first_state_is_a_list_and_the_watch_goes_on_from_its_version(
    server: StandInApiServer, follow: Follow, pod: Manifest
) -> None:
    server.create_pod(pod("a"))
    listed = server._objects.versions.current
    async with follow(clock=Clock(now=lambda: 42.0)) as followed:
        assert not followed.reflector.synced.is_set()
        await followed.until(followed.reflector.synced.is_set)
        assert followed.names == ["a"]
        assert followed.reflector.listed_at == 42.0
        server.create_pod(pod("b"))
        await followed.until(lambda: followed.names == ["a", "b"])
    assert len(lists(server)) == 1
    assert [query["resourceVersion"] for query in watches(server)] == [str(listed)]


STORIES = {
    "an empty cluster is a synced one": "follow; has; newest",
    "a list of 1200 pods is read in pages of one version": (
        "many 1200; follow; counts 1200; lists 1 -> 1200; pages 500 500+ 500+"
    ),
    "pods created between two pages come by the watch": (
        "many 600; pass_list; hold list; begin; asked 2; make late; let; counts 601; lists 1 -> 600"
    ),
    "p36 a node daemon follows its own node only": (
        "make mine@n1 other@n2 waiting; scope spec.nodeName=n1; follow; has mine; "
        "bind waiting n1; sees mine waiting; decided waiting"
    ),
    "a selector and a namespace narrow the scope": (
        "make yes no@n1 other/elsewhere; scope default spec.nodeName=; follow; has yes; bind yes n1; sees"
    ),
    # Ends of objects.
    "t26 a deleted event alone frees the uid": "make a; follow; delete a; sees; changes +a -a",
    "t27 a deletion time alone frees nothing": "make a@n1; follow; end a; terminating a",
    "t31 the same name with a new uid is another record": (
        "make web=first; follow; delete web; make web=second; uids second; changes +first -first +second"
    ),
    "t31 a pod created again during a gap frees the old uid": (
        "make web=first; follow; down; delete web; make web=second; compact; up; "
        "uids second; changes +first -first +second"
    ),
    # Consistent lists.
    "p36 a consistent list shows what the watch has not sent yet": (
        "follow; watches mute; make decided; has; relist; has decided"
    ),
    "a consistent list that the watch overtook changes nothing": (
        "make a; follow; hold_stale; relist_meanwhile; asked 2; delete a; make b; sees b; let; relisted; has b"
    ),
    "events older than a consistent list change nothing": (
        "follow; hold watch; watches end; causes end; make a; delete a; make b; relist; has b; "
        "let; make c; sees b c; changes +b +c"
    ),
    # Ends of lists and watches.
    "t32 410 inside the stream lists again": (
        "make a; follow; watches expire; make b; delete a; sees b; causes expired; lists 2"
    ),
    "t32 410 as a status lists again": (
        "follow; expire_next_watch; watches end; lists 2; causes end expired; make a; sees a"
    ),
    "t32 a watch too old for a compacted history lists again": (
        "make a; follow; hold watch; watches end; causes end; delete a; compact; let; sees; causes end expired"
    ),
    "t32 a list whose version was compacted between two pages begins again": (
        "many 600; pass_list; hold list; begin; asked 2; delete p0; compact; let; watching; "
        "causes expired; lists 1 -> 599"
    ),
    # So that a watch that ends after a quiet hour goes on from the bookmark, not from the hour before.
    "t32 a bookmark moves the version on": (
        "scope spec.nodeName=n1; follow; bookmark; newest; watches end; watched_from_newest"
    ),
    "t32 after a cut connection the watch goes on without a list": (
        "make a; follow; watches cut; make b; sees a b; lists 1 -> 1; causes unreachable"
    ),
    "an API server that is down at the start is waited for": (
        "make a; down; begin; failures 3; unsynced; up; watching; has a"
    ),
    # From the same version it would only come again.
    "a garbled event lists again": (
        "follow; garble_next_watch; watches end; make a; sees a; causes end unreadable; lists 2"
    ),
}


@pytest.mark.parametrize("steps", STORIES.values(), ids=STORIES)
async def test_what_a_reflector_has(server: StandInApiServer, follow: Follow, pod: Manifest, steps: str) -> None:
    async with AsyncExitStack() as stack:
        await Following(server, follow, pod, stack).play(steps)


async def test_only_what_keep_returns_is_held(server: StandInApiServer, api: KubernetesApi) -> None:
    server.create_node({"metadata": {"name": "n1", "labels": {"neuron": "yes"}}})
    server.create_node({"metadata": {"name": "n2"}})

    def keep(node: Node) -> str | None:
        return node.name if node.labels.get("neuron") else None

    changes: list[tuple[str | None, str | None]] = []
    reflector = Reflector(api, NODES, keep)
    reflector.subscribe(lambda _uid, old, new: changes.append((old, new)))
    await reflector.list_consistently(5)
    assert list(reflector.values.values()) == ["n1"]
    server.patch_node("n1", {"metadata": {"labels": {"neuron": None}}})
    server.patch_node("n2", {"metadata": {"labels": {"neuron": "yes"}}})
    await reflector.list_consistently(5)
    assert list(reflector.values.values()) == ["n2"]
    assert changes == [(None, "n1"), ("n1", None), (None, "n2")]


# Age.


async def test_age_is_the_time_since_anything_was_heard(api: KubernetesApi) -> None:
    now = 100.0
    reflector = Reflector(api, PODS, lambda pod: pod, clock=Clock(now=lambda: now))
    await reflector.list_consistently(5)
    now = 142.0
    assert reflector.age_seconds() == 42.0
    await reflector.list_consistently(5)
    assert reflector.age_seconds() == 0.0


async def test_a_watch_is_followed_from_its_opening_to_its_end(server: StandInApiServer, api: KubernetesApi) -> None:
    reflector = Reflector(api, PODS, lambda pod: pod)
    assert reflector.followed_seconds() == 0.0
    running = asyncio.create_task(reflector.run(), name="reflector")
    async with asyncio.timeout(10):
        while not reflector.followed_seconds():
            await asyncio.sleep(0.005)
        server.fail(Fault(status=500, times=1000))
        server.end_watches()
        while reflector.followed_seconds():
            await asyncio.sleep(0.005)
        server.forgive()
        while not reflector.followed_seconds():
            await asyncio.sleep(0.005)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def test_a_consistent_list_is_a_quorum_read(server: StandInApiServer, api: KubernetesApi) -> None:
    await Reflector(api, PODS, lambda pod: pod).list_consistently(5)
    (query,) = lists(server)
    assert "resourceVersion" not in query


async def test_a_consistent_list_keeps_its_deadline_on_a_slow_server(
    server: StandInApiServer, api: KubernetesApi
) -> None:
    server.fail(Fault(LISTS, gate=(gate := asyncio.Event())))
    reflector = Reflector(api, PODS, lambda pod: pod)
    with pytest.raises(UnreachableError, match=r"no consistent list within 0\.05 s"):
        await reflector.list_consistently(0.05)
    assert not reflector.synced.is_set()
    gate.set()


async def test_a_consistent_list_raises_its_failures(server: StandInApiServer, api: KubernetesApi) -> None:
    reflector = Reflector(api, PODS, lambda pod: pod)
    server.fail(Fault(LISTS, status=500))
    with pytest.raises(ClusterError, match="500"):
        await reflector.list_consistently(5)
    server.fail(Fault(LISTS, body=b"<html>"))
    with pytest.raises(ClusterError, match="cannot be read"):
        await reflector.list_consistently(5)


async def test_a_consistent_list_before_the_first_watch_is_a_first_state(
    server: StandInApiServer, api: KubernetesApi, pod: Manifest
) -> None:
    server.create_pod(pod("a"))
    reflector = Reflector(api, PODS, lambda pod: pod.name)
    await reflector.list_consistently(5)
    assert reflector.synced.is_set()
    assert list(reflector.values.values()) == ["a"]


async def test_the_time_of_the_last_consistent_list_is_that_of_its_request(
    server: StandInApiServer, api: KubernetesApi
) -> None:
    now = 100.0
    reflector = Reflector(api, PODS, lambda pod: pod, clock=Clock(now=lambda: now))
    assert reflector.listed_at is None
    server.fail(Fault(LISTS, gate=(gate := asyncio.Event())))
    slow = asyncio.create_task(reflector.list_consistently(5), name="list")
    while not lists(server):
        await asyncio.sleep(0.001)
    assert reflector.listed_at is None
    now = 110.0
    await reflector.list_consistently(5)
    assert reflector.listed_at == 110.0
    now = 120.0
    gate.set()
    await slow
    assert reflector.listed_at == 110.0, "the slow list was asked for before"


# Waits.

UNREACHABLE = UnreachableError("GET", "/api/v1/pods", "refused", may_have_arrived=False)


def refusal(status: int, retry_after_seconds: float | None = None) -> ApiError:
    return ApiError(
        status=status, reason="R", message="m", method="GET", path="/", retry_after_seconds=retry_after_seconds
    )


@pytest.fixture
def recorder() -> Recorder:
    return Recorder()


@pytest.fixture
def reflector(recorder: Recorder) -> Reflector[Pod, Pod]:
    """Its chance is always the longest wait."""
    pace, clock = Pace(backoff_first=1, backoff_limit=30), Clock(chance=lambda: 1.0)
    return Reflector(ScriptedServer(), PODS, lambda pod: pod, observer=recorder, pace=pace, clock=clock)


@pytest.mark.parametrize(
    ("error", "cause"),
    [
        (None, "end"),
        (refusal(410), "expired"),
        (refusal(403), "refused"),
        (UNREACHABLE, "unreachable"),
        (DecodeError("x"), "unreadable"),
    ],
)
def test_each_end_is_counted_by_its_cause_with_the_wait(
    reflector: Reflector[Pod, Pod], recorder: Recorder, error: ClusterError | None, cause: str
) -> None:
    assert reflector._wait_after(error) == 1.0
    assert recorder.interruptions == [(cause, 1.0)]


def test_waits_grow_until_a_watch_has_lasted(reflector: Reflector[Pod, Pod]) -> None:
    assert [reflector._wait_after(None) for _ in range(7)] == [1, 2, 4, 8, 16, 30, 30]
    reflector._backoff.reset()
    assert reflector._wait_after(UNREACHABLE) == 1


def test_a_server_that_asks_for_time_gets_it_with_jitter_but_not_for_ever(reflector: Reflector[Pod, Pod]) -> None:
    assert reflector._wait_after(refusal(429, 7)) == 8
    assert reflector._wait_after(refusal(429, 86_400)) == 32


def test_only_the_first_failure_in_a_row_is_logged_and_its_end(
    reflector: Reflector[Pod, Pod], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    reflector._heard()
    reflector._wait_after(None)
    reflector._wait_after(refusal(410))
    assert caplog.messages == [], "these belong to a watch's normal life"
    reflector._wait_after(UNREACHABLE)
    reflector._wait_after(refusal(500))
    reflector._wait_after(None)
    reflector._heard()
    reflector._heard()
    assert caplog.messages == ["API server watch failing", "API server watch working again"]
    reflector._wait_after(UNREACHABLE)
    assert len(caplog.messages) == 3


async def test_a_reflector_without_an_observer_works(api: KubernetesApi) -> None:
    reflector = Reflector(api, PODS, lambda pod: pod)
    await reflector.list_consistently(5)
    assert reflector._wait_after(UNREACHABLE) > 0
