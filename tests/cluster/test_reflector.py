from __future__ import annotations

import asyncio
import logging

import pytest

from neuron_plugin.backoff import Clock
from neuron_plugin.cluster import Pod
from neuron_plugin.cluster.api import ApiError, ApiRequest, ClusterError, DecodeError, UnreachableError
from neuron_plugin.cluster.client import KubernetesApi
from neuron_plugin.cluster.objects import NODES, Node, Scope
from neuron_plugin.cluster.pods import PODS
from neuron_plugin.cluster.reflector import Pace, Reflector
from tests.cluster.conftest import Recorder
from tests.cluster.reflecting import LISTS, WATCHES, Follow, Manifest, lists, watches
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


async def test_an_empty_cluster_is_a_synced_one(server: StandInApiServer, follow: Follow) -> None:
    async with follow() as followed:
        await followed.until_watching()
        assert dict(followed.reflector.values) == {}
        assert followed.reflector._store.version == server._objects.versions.current


async def test_a_list_of_1200_pods_is_read_in_pages_of_one_version(
    server: StandInApiServer, follow: Follow, pod: Manifest
) -> None:
    for number in range(1200):
        server.create_pod(pod(f"p{number}"))
    async with follow() as followed:
        await followed.until_watching()
        assert len(followed.reflector.values) == 1200
        assert followed.recorder.lists == [1200]
    assert [query["limit"] for query in lists(server)] == ["500", "500", "500"]
    assert ["continue" in query for query in lists(server)] == [False, True, True]


async def test_pods_created_between_two_pages_come_by_the_watch(
    server: StandInApiServer, follow: Follow, pod: Manifest
) -> None:
    for number in range(600):
        server.create_pod(pod(f"p{number}"))
    async with follow() as followed:
        server.fail(Fault(LISTS, delay_seconds=0.0))
        server.fail(Fault(LISTS, gate=(second_page := asyncio.Event())))
        await followed.until(lambda: len(lists(server)) == 2)
        server.create_pod(pod("late"))
        second_page.set()
        await followed.until(lambda: "late" in followed.names)
        assert followed.recorder.lists == [600]
        assert len(followed.names) == 601


# Selection and reduction.


async def test_p36_a_node_daemon_follows_its_own_node_only(
    server: StandInApiServer, follow: Follow, pod: Manifest
) -> None:
    server.create_pod(pod("mine", node="n1"))
    server.create_pod(pod("other", node="n2"))
    server.create_pod(pod("waiting"))
    async with follow(scope=Scope(field_selector="spec.nodeName=n1")) as followed:
        await followed.until_watching()
        assert followed.names == ["mine"]
        server.bind("default", "waiting", node="n1", annotations={"NEURON_DEVS": "0,1"})
        await followed.until(lambda: followed.names == ["mine", "waiting"])
        assert followed.pod("waiting").annotations == {"NEURON_DEVS": "0,1"}


async def test_a_selector_and_a_namespace_narrow_the_scope(
    server: StandInApiServer, follow: Follow, pod: Manifest
) -> None:
    server.create_pod(pod("yes"))
    server.create_pod(pod("no", node="n1"))
    elsewhere = pod("elsewhere")
    elsewhere["metadata"]["namespace"] = "other"
    server.create_pod(elsewhere)
    async with follow(scope=Scope(namespace="default", field_selector="spec.nodeName=")) as followed:
        await followed.until_watching()
        assert followed.names == ["yes"]
        server.bind("default", "yes", node="n1")
        await followed.until(lambda: followed.names == [])


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


# Ends of objects (T26, T31).


async def test_t26_a_deleted_event_alone_frees_the_uid(server: StandInApiServer, follow: Follow, pod: Manifest) -> None:
    server.create_pod(pod("a", uid="uid-a"))
    async with follow() as followed:
        await followed.until_watching()
        server.delete_pod("default", "a", grace_seconds=0)
        await followed.until(lambda: not followed.reflector.values)
        (_, (uid, old, new)) = followed.changes
        assert (uid, old is not None, new) == ("uid-a", True, None)


async def test_t27_a_deletion_time_alone_frees_nothing(server: StandInApiServer, follow: Follow, pod: Manifest) -> None:
    server.create_pod(pod("a", node="n1"))
    async with follow() as followed:
        await followed.until_watching()
        server.delete_pod("default", "a")
        await followed.until(lambda: followed.pod("a").terminating)


async def test_t31_the_same_name_with_a_new_uid_is_another_record(
    server: StandInApiServer, follow: Follow, pod: Manifest
) -> None:
    server.create_pod(pod("web-0", uid="first"))
    async with follow() as followed:
        await followed.until_watching()
        server.delete_pod("default", "web-0", grace_seconds=0)
        server.create_pod(pod("web-0", uid="second"))
        await followed.until(lambda: list(followed.reflector.values) == ["second"])
        assert [(uid, new is not None) for uid, _, new in followed.changes] == [
            ("first", True),
            ("first", False),
            ("second", True),
        ]


async def test_t31_a_pod_created_again_during_a_gap_frees_the_old_uid(
    server: StandInApiServer, follow: Follow, pod: Manifest
) -> None:
    server.create_pod(pod("web-0", uid="first"))
    async with follow() as followed:
        await followed.until_watching()
        await server.stop()
        server.delete_pod("default", "web-0", grace_seconds=0)
        server.create_pod(pod("web-0", uid="second"))
        server.compact()
        await server.start()
        await followed.until(lambda: list(followed.reflector.values) == ["second"])
        assert [(uid, new is not None) for uid, _, new in followed.changes[1:]] == [("first", False), ("second", True)]


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


async def test_p36_a_consistent_list_shows_what_the_watch_has_not_sent_yet(
    server: StandInApiServer, follow: Follow, pod: Manifest
) -> None:
    async with follow() as followed:
        await followed.until_watching()
        server.mute_watches()
        server.create_pod(pod("decided"))
        assert followed.names == []
        await followed.reflector.list_consistently(5)
        assert followed.names == ["decided"]


async def test_a_consistent_list_is_a_quorum_read(server: StandInApiServer, api: KubernetesApi) -> None:
    await Reflector(api, PODS, lambda pod: pod).list_consistently(5)
    (query,) = lists(server)
    assert "resourceVersion" not in query


async def test_a_consistent_list_that_the_watch_overtook_changes_nothing(
    server: StandInApiServer, follow: Follow, pod: Manifest
) -> None:
    server.create_pod(pod("a"))
    async with follow() as followed:
        await followed.until_watching()
        stale = (await server.request(ApiRequest("GET", "/api/v1/pods"), timeout_seconds=5)).body
        server.fail(Fault(LISTS, body=stale, gate=(gate := asyncio.Event())))
        listing = asyncio.create_task(followed.reflector.list_consistently(5), name="list")
        await followed.until(lambda: len(lists(server)) == 2)
        server.delete_pod("default", "a", grace_seconds=0)
        server.create_pod(pod("b"))
        await followed.until(lambda: followed.names == ["b"])
        gate.set()
        await listing
        assert followed.names == ["b"], "a is not raised from the dead"


async def test_events_older_than_a_consistent_list_change_nothing(
    server: StandInApiServer, follow: Follow, pod: Manifest
) -> None:
    async with follow() as followed:
        await followed.until_watching()
        gate = asyncio.Event()
        server.fail(Fault(WATCHES, gate=gate))
        server.end_watches()
        await followed.until(lambda: followed.recorder.causes == ["end"])
        server.create_pod(pod("a"))
        server.delete_pod("default", "a", grace_seconds=0)
        server.create_pod(pod("b"))
        await followed.reflector.list_consistently(5)
        before = len(followed.changes)
        gate.set()
        server.create_pod(pod("c"))
        await followed.until(lambda: followed.names == ["b", "c"])
        assert len(followed.changes) == before + 1, "a was created and deleted before the list"


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
