"""Namespaces, budgets and storage: what is followed, from when on, and what is said where it cannot be read."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from neuron_plugin.allocation.volumes import Claim, StorageClass, Volume
from neuron_plugin.backoff import Clock
from neuron_plugin.cluster import UnreachableError
from neuron_plugin.monitor.look import look
from neuron_plugin.placement.informers import Informers
from neuron_plugin.placement.state import ClusterState
from neuron_plugin.placement.storage import ALWAYS, NOT_READ, PATIENCE_SECONDS, STORAGE
from neuron_plugin.simulation.api_server_kinds import (
    BUDGETS,
    CLAIMS,
    CSI_DRIVERS,
    CSI_NODES,
    NAMESPACES,
    STORAGE_CLASSES,
    VOLUMES,
    AnyJson,
)
from tests.support.api_server import Fault, Match, StandInApiServer
from tests.support.manifests import pod_manifest
from tests.support.running import until
from tests.support.world import DEVICE, TYPES

pytestmark = pytest.mark.looptime
FAST = StorageClass("ebs", waits=True)
IN_STORAGE = Match(path=f"/({'|'.join(STORAGE)})$")


def with_volume(name: str, node: str = "") -> AnyJson:
    manifest = pod_manifest(name, DEVICE, 1, node=node)
    volume = {"name": "data", "persistentVolumeClaim": {"claimName": "data"}}
    return {**manifest, "spec": {**manifest["spec"], "volumes": [volume]}}


def provision(server: StandInApiServer) -> None:
    """A claim of a class, its volume, and what the driver says."""
    server.create(CLAIMS, {"metadata": {"name": "data"}, "spec": {"volumeName": "v"}}, "default")
    server.create(VOLUMES, {"metadata": {"name": "v"}, "spec": {"csi": {"driver": "ebs", "volumeHandle": "1"}}}, "")
    classes = {"provisioner": "ebs", "volumeBindingMode": "WaitForFirstConsumer"}
    server.create(STORAGE_CLASSES, {"metadata": {"name": "fast"}, **classes}, "")
    drivers = [{"name": "ebs", "allocatable": {"count": 3}}, {"name": "says-nothing"}]
    server.create(CSI_NODES, {"metadata": {"name": "node"}, "spec": {"drivers": drivers}}, "")
    for name, tracks in (("ebs", True), ("nfs", False)):
        server.create(CSI_DRIVERS, {"metadata": {"name": name}, "spec": {"storageCapacity": tracks}}, "")


def asked_for(server: StandInApiServer) -> set[tuple[str, str]]:
    """Which of these kinds were asked for, and how."""
    asked = {(seen.method, seen.path.rsplit("/", 1)[-1]) for seen in server.requests}
    return {(method, kind) for method, kind in asked if kind in {**ALWAYS, **STORAGE}}


@asynccontextmanager
async def following(server: StandInApiServer) -> AsyncIterator[ClusterState]:
    loop, state = asyncio.get_running_loop(), ClusterState()
    informers = Informers(server, state, TYPES, clock=Clock(now=loop.time, sleep=asyncio.sleep))
    task = asyncio.create_task(informers.run())
    await informers.synced()
    await asyncio.sleep(1)
    try:
        yield state
    finally:
        task.cancel()
        await asyncio.wait([task])


async def test_namespaces_and_budgets_are_followed_from_the_start() -> None:
    server = StandInApiServer()
    movable = {"annotations": {"neuron-plugin.io/movable": "true"}}
    server.create(NAMESPACES, {"metadata": {"name": "ml", "labels": {"team": "red"}, **movable}}, "")
    spec = {"selector": {"matchLabels": {"app": "serve"}}}
    server.create(BUDGETS, {"metadata": {"name": "b"}, "spec": spec, "status": {"disruptionsAllowed": 1}}, "ml")
    async with following(server) as state:
        assert state.namespaces == {"ml": {"team": "red"}}
        assert state.movable_namespaces == {"ml"}
        assert [(str(budget.name), budget.allowed) for budget in state.budgets.values()] == [("b", 1)]

        version = state.capacity_version
        server.change(NAMESPACES, "ml", {"metadata": {"labels": {"team": "blue"}, "annotations": None}})
        server.change(BUDGETS, "b", {"status": {"disruptionsAllowed": 0}}, "ml", "status")
        await until(lambda: state.namespaces == {"ml": {"team": "blue"}} and not state.movable_namespaces)
        await until(lambda: [budget.allowed for budget in state.budgets.values()] == [0])
        assert state.capacity_version > version, "what fitted nowhere is judged again"

        server.delete(NAMESPACES, "ml")
        server.delete(BUDGETS, "b", "ml")
        await until(lambda: not (state.namespaces or state.budgets))


async def test_storage_is_followed_once_a_pod_that_waits_has_volumes_and_never_written() -> None:
    server = StandInApiServer()
    provision(server)
    server.create_pod(pod_manifest("plain", DEVICE, 1))
    server.create_pod(with_volume("bound", node="node"))
    async with following(server) as state:
        assert asked_for(server) == {("GET", kind) for kind in ALWAYS}

        gate = asyncio.Event()
        server.fail(Fault(IN_STORAGE, gate=gate, times=2 * len(STORAGE)))
        server.create_pod(with_volume("waiting"))
        await until(lambda: state.storage.waits)
        assert state.storage.waits == NOT_READ
        gate.set()
        await until(lambda: not state.storage.waits)

        storage = state.storage
        assert storage.claims == {("default", "data"): Claim("v")}
        assert storage.volumes == {"v": Volume("v", driver="ebs", handle="1")}
        assert (storage.classes, storage.limits) == ({"fast": FAST}, {"node": {"ebs": 3}})
        assert storage.with_capacity == {"ebs"}
        assert not storage.doubt

        version = state.capacity_version
        for kind, name, namespace in (
            (CLAIMS, "data", "default"),
            (VOLUMES, "v", ""),
            (STORAGE_CLASSES, "fast", ""),
            (CSI_NODES, "node", ""),
            (CSI_DRIVERS, "ebs", ""),
        ):
            server.delete(kind, name, namespace)
        await until(
            lambda: (
                not any((storage.claims, storage.volumes, storage.classes, storage.limits))
                and not state.storage.with_capacity
            )
        )
        assert state.capacity_version > version
    assert asked_for(server) == {("GET", kind) for kind in {**ALWAYS, **STORAGE}}


@pytest.mark.parametrize("kind", STORAGE)
async def test_without_the_right_to_read_it_storage_is_in_doubt_after_a_while_until_it_is_read(kind: str) -> None:
    server = StandInApiServer()
    server.fail(Fault(Match(path=f"/{kind}$"), status=403, times=1000))
    server.create_pod(with_volume("waiting"))
    async with following(server) as state:
        assert (state.storage.waits, state.storage.doubt) == (NOT_READ, "")

        version = state.capacity_version
        await asyncio.sleep(PATIENCE_SECONDS)
        assert (state.storage.waits, state.storage.doubt) == ("", f"{kind} cannot be read")
        assert state.capacity_version > version

        server.forgive()
        await until(lambda: not state.storage.doubt)


async def test_without_the_right_to_read_namespaces_and_budgets_pods_are_followed_all_the_same() -> None:
    server = StandInApiServer()
    server.fail(Fault(Match(path=f"/({'|'.join(ALWAYS)})$"), status=403, times=1000))
    server.create_pod(pod_manifest("waiting", DEVICE, 1))
    async with following(server) as state:
        assert [pod.reference.name for pod in state.pods.values()] == ["waiting"]


@pytest.mark.parametrize("waiting", [True, False])
async def test_a_look_reads_storage_where_a_pod_has_volumes(*, waiting: bool) -> None:
    server = StandInApiServer()
    provision(server)
    server.create(NAMESPACES, {"metadata": {"name": "ml"}}, "")
    server.create_pod(with_volume("pod") if waiting else pod_manifest("pod", DEVICE, 1))

    found: Any = await look(server, TYPES)

    assert found.namespaces == {"ml": {}}
    assert found.storage.claims == ({("default", "data"): Claim("v")} if waiting else {})
    assert (found.storage.waits, found.storage.doubt) == ("", "")


async def test_a_look_says_what_it_may_not_read_and_an_absent_server_is_an_error() -> None:
    server = StandInApiServer()
    server.create_pod(with_volume("waiting"))
    server.fail(Fault(Match(path="/csinodes$|/namespaces$"), status=403, times=2))
    assert "csinodes cannot be read" in (await look(server, TYPES)).storage.doubt

    server.fail(Fault(Match(path="/csinodes$"), unsent=True, times=100))
    with pytest.raises(UnreachableError):
        await look(server, TYPES)
