"""Consistent lists beside the watch, for an answer that cannot wait for it."""

from __future__ import annotations

import asyncio

import pytest

from neuron_plugin.cluster.api import ClusterError, UnreachableError
from neuron_plugin.cluster.kinds import PODS
from neuron_plugin.cluster.reflector import Reflector
from neuron_plugin.cluster.transport import KubernetesApi
from neuron_plugin.simulation import PODS as SERVED_PODS
from neuron_plugin.simulation import Fault, StandInApiServer, Target
from tests.cluster.reflecting import LISTS, WATCHES, Follow, Manifest, lists


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
        stale = server._http._list(Target(SERVED_PODS), {})
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
