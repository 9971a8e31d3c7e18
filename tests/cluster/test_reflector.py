from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest

from neuron_plugin.cluster.api import ApiRequest, ClusterError, Response, UnreachableError
from neuron_plugin.cluster.kinds import NODES, PODS
from neuron_plugin.cluster.lists import Scope
from neuron_plugin.cluster.reflector import Pace, Reflector
from neuron_plugin.cluster.timing import Clock
from neuron_plugin.simulation.api_server import Fault, Match, StandInApiServer, WatchList

if TYPE_CHECKING:
    from neuron_plugin.cluster.records import Node, Pod
    from neuron_plugin.cluster.transport import KubernetesApi

# What conftest.py hands over.
Manifest = Callable[..., dict[str, Any]]
Follow = Callable[..., Any]

WATCHES = Match(method="GET", watch=True)
LISTS = Match(method="GET", path="/pods$", watch=False)


def watches(server: StandInApiServer) -> list[dict[str, str]]:
    return [seen.query for seen in server.requests if seen.query.get("watch") == "true"]


def lists(server: StandInApiServer) -> list[dict[str, str]]:
    return [seen.query for seen in server.requests if seen.query.get("watch") != "true"]


# The first state.


async def test_the_first_state_comes_with_the_watch_where_the_server_has_watch_list(
    server: StandInApiServer, follow: Follow, pod: Manifest
) -> None:
    server.create_pod(pod("a"))
    async with follow() as followed:
        assert not followed.reflector.synced.is_set()
        await followed.until(followed.reflector.synced.is_set)
        assert followed.names == ["a"]
        server.create_pod(pod("b"))
        await followed.until(lambda: followed.names == ["a", "b"])
    assert lists(server) == []
    assert len(watches(server)) == 1


async def test_a_server_that_refuses_watch_list_is_listed_and_not_asked_again(
    server: StandInApiServer, follow: Follow, pod: Manifest
) -> None:
    server._http.watch_list = WatchList.REFUSED
    server.create_pod(pod("a"))
    async with follow() as followed:
        await followed.until(lambda: server.open_watches == 1)
        server.expire_watches()
        await followed.until(lambda: len(followed.recorder.lists) == 2)
        assert followed.names == ["a"]
    assert sum("sendInitialEvents" in query for query in watches(server)) == 1


async def test_a_server_that_ignores_watch_list_is_listed_when_the_end_mark_does_not_come(
    server: StandInApiServer, follow: Follow, pod: Manifest
) -> None:
    server._http.watch_list = WatchList.IGNORED
    server.create_pod(pod("a"))
    async with follow(pace=Pace(initial_silence=0.05, backoff_first=0.002)) as followed:
        await followed.until(followed.reflector.synced.is_set)
        assert followed.names == ["a"]
        server.create_pod(pod("b"))
        await followed.until(lambda: followed.names == ["a", "b"])
    assert len(lists(server)) == 1


async def test_an_empty_cluster_is_a_synced_one(server: StandInApiServer, follow: Follow) -> None:
    async with follow() as followed:
        await followed.until(followed.reflector.synced.is_set)
        assert dict(followed.reflector.values) == {}
        assert followed.reflector.version == server._objects.versions.current


async def test_a_list_of_1200_pods_is_read_in_pages_of_one_version(
    server: StandInApiServer, follow: Follow, pod: Manifest
) -> None:
    server._http.watch_list = WatchList.REFUSED
    for number in range(1200):
        server.create_pod(pod(f"p{number}"))
    async with follow() as followed:
        await followed.until(followed.reflector.synced.is_set)
        assert len(followed.reflector.values) == 1200
        assert followed.recorder.lists == [1200]
    assert [query["limit"] for query in lists(server)] == ["500", "500", "500"]
    assert ["continue" in query for query in lists(server)] == [False, True, True]


async def test_pods_created_between_two_pages_come_by_the_watch(
    server: StandInApiServer, follow: Follow, pod: Manifest
) -> None:
    server._http.watch_list = WatchList.REFUSED
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
        await followed.until(followed.reflector.synced.is_set)
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
        await followed.until(followed.reflector.synced.is_set)
        assert followed.names == ["yes"]
        server.bind("default", "yes", node="n1")
        await followed.until(lambda: followed.names == [])


async def test_only_what_keep_returns_is_held(server: StandInApiServer, api: KubernetesApi) -> None:
    server.create_node({"metadata": {"name": "n1", "labels": {"neuron": "yes"}}})
    server.create_node({"metadata": {"name": "n2"}})

    def keep(node: Node) -> str | None:
        return node.name if node.labels.get("neuron") else None

    told: list[tuple[str | None, str | None]] = []
    reflector = Reflector(api, NODES, keep)
    reflector.subscribe(lambda _uid, old, new: told.append((old, new)))
    await reflector.list_consistently(5)
    assert list(reflector.values.values()) == ["n1"]
    server.patch_node("n1", {"metadata": {"labels": {"neuron": None}}})
    server.patch_node("n2", {"metadata": {"labels": {"neuron": "yes"}}})
    await reflector.list_consistently(5)
    assert list(reflector.values.values()) == ["n2"]
    assert told == [(None, "n1"), ("n1", None), (None, "n2")]


# Ends of objects (T26, T31).


async def test_t26_a_deleted_event_alone_frees_the_uid(server: StandInApiServer, follow: Follow, pod: Manifest) -> None:
    server.create_pod(pod("a", uid="uid-a"))
    async with follow() as followed:
        await followed.until(followed.reflector.synced.is_set)
        server.delete_pod("default", "a", grace_seconds=0)
        await followed.until(lambda: not followed.reflector.values)
        (_, (uid, old, new)) = followed.changes
        assert (uid, old is not None, new) == ("uid-a", True, None)


async def test_t27_a_deletion_time_alone_frees_nothing(server: StandInApiServer, follow: Follow, pod: Manifest) -> None:
    server.create_pod(pod("a", node="n1"))
    async with follow() as followed:
        await followed.until(followed.reflector.synced.is_set)
        server.delete_pod("default", "a")
        await followed.until(lambda: followed.pod("a").terminating)


async def test_t31_the_same_name_with_a_new_uid_is_another_record(
    server: StandInApiServer, follow: Follow, pod: Manifest
) -> None:
    server.create_pod(pod("web-0", uid="first"))
    async with follow() as followed:
        await followed.until(followed.reflector.synced.is_set)
        server.delete_pod("default", "web-0", grace_seconds=0)
        server.create_pod(pod("web-0", uid="second"))
        await followed.until(lambda: list(followed.reflector.values) == ["second"])
        assert [(uid, new is not None) for uid, _, new in followed.changes] == [
            ("first", True),
            ("first", False),
            ("second", True),
        ]


async def test_t31_a_pod_made_anew_during_a_gap_frees_the_old_uid(
    server: StandInApiServer, follow: Follow, pod: Manifest
) -> None:
    server.create_pod(pod("web-0", uid="first"))
    async with follow() as followed:
        await followed.until(followed.reflector.synced.is_set)
        await server.stop()
        server.delete_pod("default", "web-0", grace_seconds=0)
        server.create_pod(pod("web-0", uid="second"))
        server.compact()
        await server.start()
        await followed.until(lambda: list(followed.reflector.values) == ["second"])
        assert [(uid, new is not None) for uid, _, new in followed.changes[1:]] == [("first", False), ("second", True)]


# Ends of watches (T32).


async def test_t32_410_inside_the_stream_lists_again(server: StandInApiServer, follow: Follow, pod: Manifest) -> None:
    server.create_pod(pod("a"))
    async with follow() as followed:
        await followed.until(followed.reflector.synced.is_set)
        server.expire_watches()
        server.create_pod(pod("b"))
        server.delete_pod("default", "a", grace_seconds=0)
        await followed.until(lambda: followed.names == ["b"])
        assert followed.recorder.causes == ["expired"]
        assert len(followed.recorder.lists) == 2


async def test_t32_410_as_a_status_lists_again(server: StandInApiServer, follow: Follow, pod: Manifest) -> None:
    async with follow() as followed:
        await followed.until(followed.reflector.synced.is_set)
        server.fail(Fault(WATCHES, status=410))
        server.end_watches()
        await followed.until(lambda: len(followed.recorder.lists) == 2)
        assert followed.recorder.causes == ["end", "expired"]
        server.create_pod(pod("a"))
        await followed.until(lambda: followed.names == ["a"])


async def test_t32_a_watch_too_old_for_a_compacted_history_lists_again(
    server: StandInApiServer, follow: Follow, pod: Manifest
) -> None:
    server.create_pod(pod("a"))
    async with follow() as followed:
        await followed.until(followed.reflector.synced.is_set)
        gate = asyncio.Event()
        server.fail(Fault(WATCHES, gate=gate))
        server.end_watches()
        await followed.until(lambda: followed.recorder.causes == ["end"])
        server.delete_pod("default", "a", grace_seconds=0)
        server.compact()
        gate.set()
        await followed.until(lambda: followed.names == [])
        assert followed.recorder.causes == ["end", "expired"]


async def test_t32_a_bookmark_moves_the_version_on(server: StandInApiServer, follow: Follow) -> None:
    """So that a watch that ends after a quiet hour goes on from the bookmark, not from the hour before."""
    async with follow(scope=Scope(field_selector="spec.nodeName=n1")) as followed:
        await followed.until(followed.reflector.synced.is_set)
        for number in range(3):
            server.create_node({"metadata": {"name": f"n{number}"}})
        newest = server._objects.versions.current
        server.send_bookmarks()
        await followed.until(lambda: followed.reflector.version == newest)
        server.end_watches()
        await followed.until(lambda: len(watches(server)) == 2)
        assert watches(server)[1]["resourceVersion"] == str(server._objects.versions.current)


async def test_t32_after_a_cut_connection_the_watch_goes_on_without_a_list(
    server: StandInApiServer, follow: Follow, pod: Manifest
) -> None:
    server.create_pod(pod("a"))
    async with follow() as followed:
        await followed.until(followed.reflector.synced.is_set)
        server.cut_watches()
        server.create_pod(pod("b"))
        await followed.until(lambda: followed.names == ["a", "b"])
        assert followed.recorder.lists == [1]
        assert followed.recorder.causes == ["unreachable"]


async def test_t46_an_api_server_gone_for_a_while_is_followed_again_without_a_restart(
    server: StandInApiServer, follow: Follow, pod: Manifest, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "neuron_plugin.cluster")
    server.create_pod(pod("a"))
    async with follow() as followed:
        await followed.until(followed.reflector.synced.is_set)
        await server.stop()
        await followed.until(lambda: len(followed.recorder.interruptions) > 5)
        assert followed.names == ["a"], "the last state is still served"
        server.create_pod(pod("b"))
        await server.start()
        await followed.until(lambda: followed.names == ["a", "b"])
    told = [record.message for record in caplog.records]
    assert told == ["the API server cannot be followed", "the API server is heard again"]


async def test_an_api_server_that_is_down_at_the_start_is_waited_for(
    server: StandInApiServer, follow: Follow, pod: Manifest
) -> None:
    server.create_pod(pod("a"))
    await server.stop()
    async with follow() as followed:
        await followed.until(lambda: len(followed.recorder.interruptions) > 2)
        assert not followed.reflector.synced.is_set()
        await server.start()
        await followed.until(followed.reflector.synced.is_set)
        assert followed.names == ["a"]


async def test_a_silent_watch_is_given_up_at_its_read_deadline(
    server: StandInApiServer, follow: Follow, pod: Manifest
) -> None:
    async with follow(pace=Pace(silence=0.1, backoff_first=0.002)) as followed:
        await followed.until(followed.reflector.synced.is_set)
        server.mute_watches()
        server.create_pod(pod("a"))
        await followed.until(lambda: "unreachable" in followed.recorder.causes)
        server.mute_watches(muted=False)
        await followed.until(lambda: followed.names == ["a"])


async def test_a_garbled_event_lists_again(server: StandInApiServer, follow: Follow, pod: Manifest) -> None:
    async with follow() as followed:
        await followed.until(followed.reflector.synced.is_set)
        server.fail(Fault(WATCHES, body=b'{"type":"ADDED","object":{"metadata":[]}}\n'))
        server.end_watches()
        server.create_pod(pod("a"))
        await followed.until(lambda: followed.names == ["a"])
        assert "unreadable" in followed.recorder.causes


async def test_a_refusal_is_tried_again_no_sooner_than_the_server_asks(
    server: StandInApiServer, api: KubernetesApi
) -> None:
    slept: list[float] = []
    enough = asyncio.Event()

    async def sleep(seconds: float) -> None:
        slept.append(seconds)
        enough.set()
        await asyncio.Event().wait()

    server.fail(Fault(Match(), status=429, retry_after_seconds=7))
    reflector = Reflector(api, PODS, lambda pod: pod, clock=Clock(sleep=sleep))
    running = asyncio.create_task(reflector.run(), name="reflector")
    await asyncio.wait_for(enough.wait(), 5)
    running.cancel()
    assert slept == [7.0]


async def test_a_watch_asks_for_bookmarks_and_four_to_five_minutes(server: StandInApiServer, follow: Follow) -> None:
    async with follow() as followed:
        await followed.until(followed.reflector.synced.is_set)
    (query,) = watches(server)
    assert query["allowWatchBookmarks"] == "true"
    assert 240 <= int(query["timeoutSeconds"]) <= 300


# Back-off, in faked time.


class ScriptedServer:
    """An API server whose every watch is made by a function; lists are empty."""

    def __init__(self, lines: Callable[[], AsyncIterator[bytes]]) -> None:
        self.opened_at: list[float] = []
        self._lines = lines

    async def request(self, request: ApiRequest, *, timeout_seconds: float) -> Response:
        assert timeout_seconds > 0
        assert "limit" in request.query
        return Response(200, b'{"metadata":{"resourceVersion":"1"}}')

    @asynccontextmanager
    async def stream(self, request: ApiRequest, *, silence_seconds: float) -> AsyncIterator[AsyncIterator[bytes]]:
        assert silence_seconds > 0
        assert request.query["watch"] == "true"
        self.opened_at.append(asyncio.get_running_loop().time())
        yield self._lines()


INITIAL_END = (
    b'{"type":"BOOKMARK","object":{"metadata":{"resourceVersion":"5",'
    b'"annotations":{"k8s.io/initial-events-end":"true"}}}}'
)


async def run_for(server: ScriptedServer, seconds: float) -> list[float]:
    """Follow for some faked time; return the waits between the watches."""
    loop = asyncio.get_running_loop()
    reflector: Reflector[Pod, Pod] = Reflector(server, PODS, lambda pod: pod, clock=Clock(loop.time, asyncio.sleep))
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(seconds):
            await reflector.run()
    opened = server.opened_at
    return [after - before for before, after in itertools.pairwise(opened)]


@pytest.mark.looptime
async def test_watches_that_end_at_once_are_backed_off() -> None:
    async def nothing() -> AsyncIterator[bytes]:
        yield INITIAL_END

    waits = await run_for(ScriptedServer(nothing), 600)
    assert 20 < len(waits) < 40
    assert all(before * 0.9 <= after * 2 for before, after in itertools.pairwise(waits))
    assert 15 <= waits[-1] <= 30.1


@pytest.mark.looptime
async def test_watches_that_say_one_thing_each_are_backed_off_too() -> None:
    async def bookmark() -> AsyncIterator[bytes]:
        yield INITIAL_END
        yield b'{"type":"BOOKMARK","object":{"metadata":{"resourceVersion":"9"}}}'

    waits = await run_for(ScriptedServer(bookmark), 3)
    assert len(waits) < 8, "the library's informer: 9 470"


@pytest.mark.looptime
async def test_a_watch_that_lasted_makes_the_next_wait_short() -> None:
    async def five_minutes() -> AsyncIterator[bytes]:
        yield INITIAL_END
        await asyncio.sleep(300)

    waits = await run_for(ScriptedServer(five_minutes), 3600)
    assert len(waits) >= 10
    assert all(300 < wait <= 300.2 for wait in waits)


@pytest.mark.looptime
async def test_a_stream_that_ends_among_its_initial_events_is_no_first_state() -> None:
    async def half() -> AsyncIterator[bytes]:
        yield b'{"type":"ADDED","object":{"metadata":{"name":"a","uid":"u","resourceVersion":"3"}}}'

    loop = asyncio.get_running_loop()
    reflector: Reflector[Pod, Pod] = Reflector(
        ScriptedServer(half), PODS, lambda pod: pod, clock=Clock(loop.time, asyncio.sleep)
    )
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(10):
            await reflector.run()
    assert not reflector.synced.is_set()
    assert dict(reflector.values) == {}


@pytest.mark.looptime
async def test_changes_among_the_initial_events_count() -> None:
    """A server may begin to tell news before it has found the end mark's version."""

    async def news() -> AsyncIterator[bytes]:
        for change, name, version in (("ADDED", "a", 2), ("ADDED", "b", 3), ("MODIFIED", "a", 4), ("DELETED", "b", 5)):
            metadata = f'{{"name":"{name}","uid":"{name}","resourceVersion":"{version}"}}'
            yield f'{{"type":"{change}","object":{{"metadata":{metadata}}}}}'.encode()
        yield b'{"type":"BOOKMARK","object":{"metadata":{"resourceVersion":"4"}}}'
        yield INITIAL_END
        await asyncio.Event().wait()

    reflector: Reflector[Pod, str] = Reflector(ScriptedServer(news), PODS, lambda pod: pod.resource_version)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(1):
            await reflector.run()
    assert dict(reflector.values) == {"a": "4"}


@pytest.mark.looptime
async def test_a_busy_server_that_ignores_watch_list_is_listed_after_a_minute_of_events() -> None:
    async def busy() -> AsyncIterator[bytes]:
        for version in itertools.count(2):
            yield b'{"type":"MODIFIED","object":{"metadata":{"uid":"a","resourceVersion":"%d"}}}' % version
            await asyncio.sleep(1)

    reflector: Reflector[Pod, Pod] = Reflector(ScriptedServer(busy), PODS, lambda pod: pod)
    running = asyncio.create_task(reflector.run())
    async with asyncio.timeout(62):
        await reflector.synced.wait()
    running.cancel()


@pytest.mark.looptime
async def test_a_thousand_nodes_do_not_come_back_at_once() -> None:
    async def nothing() -> AsyncIterator[bytes]:
        yield INITIAL_END

    second_waits = {(await run_for(ScriptedServer(nothing), 5))[3] for _ in range(20)}
    assert len(second_waits) > 15


# Consistent lists.


async def test_p36_a_consistent_list_shows_what_the_watch_has_not_told_yet(
    server: StandInApiServer, follow: Follow, pod: Manifest
) -> None:
    async with follow() as followed:
        await followed.until(followed.reflector.synced.is_set)
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
        await followed.until(followed.reflector.synced.is_set)
        stale = server._http._list(_pods_target(), {})
        server.fail(Fault(LISTS, body=stale, gate=(gate := asyncio.Event())))
        listing = asyncio.create_task(followed.reflector.list_consistently(5), name="list")
        await followed.until(lambda: bool(lists(server)))
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
        await followed.until(followed.reflector.synced.is_set)
        gate = asyncio.Event()
        server.fail(Fault(WATCHES, gate=gate))
        server.end_watches()
        await followed.until(lambda: followed.recorder.causes == ["end"])
        server.create_pod(pod("a"))
        server.delete_pod("default", "a", grace_seconds=0)
        server.create_pod(pod("b"))
        await followed.reflector.list_consistently(5)
        told = len(followed.changes)
        gate.set()
        server.create_pod(pod("c"))
        await followed.until(lambda: followed.names == ["b", "c"])
        assert len(followed.changes) == told + 1, "a's life was not told, it was over before the list"


async def test_a_consistent_list_keeps_its_deadline_on_a_slow_server(
    server: StandInApiServer, api: KubernetesApi
) -> None:
    server.fail(Fault(LISTS, gate=(gate := asyncio.Event())))
    reflector = Reflector(api, PODS, lambda pod: pod)
    with pytest.raises(UnreachableError, match=r"no consistent list within 0\.05 s"):
        await reflector.list_consistently(0.05)
    assert not reflector.synced.is_set()
    gate.set()


async def test_a_consistent_list_tells_its_failures(server: StandInApiServer, api: KubernetesApi) -> None:
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


def _pods_target() -> Any:
    from neuron_plugin.simulation.api_server_kinds import PODS as SERVED_PODS  # noqa: PLC0415 - beside its one use
    from neuron_plugin.simulation.api_server_kinds import Target  # noqa: PLC0415 - as above

    return Target(SERVED_PODS)
