from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import msgspec
import pytest

from neuron_plugin.allocation.keys import UTILIZATION_KEY
from neuron_plugin.cluster import ApiRequest, KubernetesApi
from neuron_plugin.cluster.api import Response, send
from neuron_plugin.cluster.client import connect
from neuron_plugin.cluster.leases import LEASE_PREFIX, ObservedLease
from neuron_plugin.cluster.objects import LEASES
from neuron_plugin.cluster.writes import delete_lease
from neuron_plugin.plugin.node_lease import LeaseTimes, NodeLease, node_lease
from neuron_plugin.simulation import api_server
from neuron_plugin.simulation.api_server_objects import ApiObjects
from neuron_plugin.simulation.api_server_requests import answer
from tests.support.api_server import Fault, Match, StandInApiServer

NAMESPACE, NODE = "kube-system", "worker-1"
TIMES = LeaseTimes(duration=8, renew=30)
"""So long that no answer is late on a busy machine."""


@pytest.fixture
async def server() -> AsyncIterator[StandInApiServer]:
    async with StandInApiServer() as server:
        server.create_node({"metadata": {"name": NODE}})
        yield server


@pytest.fixture
async def api(server: StandInApiServer, tmp_path: Path) -> AsyncIterator[KubernetesApi]:
    async with await connect(server.write_kubeconfig(tmp_path / "kubeconfig")) as api:
        yield api


def lease_of(server: StandInApiServer) -> dict[str, Any]:
    return server.get(api_server.LEASES, f"{LEASE_PREFIX}{NODE}", NAMESPACE)


def there_is_one(server: StandInApiServer) -> bool:
    return bool(server.objects(api_server.LEASES))


def is_held(server: StandInApiServer) -> bool:
    return there_is_one(server) and lease_of(server)["spec"]["holderIdentity"] == NODE


def is_another(server: StandInApiServer, version: str) -> bool:
    return bool(lease_of(server)["metadata"]["resourceVersion"] != version)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not condition():
            await asyncio.sleep(0.005)


async def nudge(lease: NodeLease) -> NoReturn:
    while True:
        if lease.serving:
            renew_now(lease)
        await asyncio.sleep(0.02)


def renew_now(lease: NodeLease) -> None:
    lease.serve(serving=False)
    lease.serve(serving=True)


@asynccontextmanager
async def renewing(api: KubernetesApi, lease: NodeLease, *, often: bool = True) -> AsyncIterator[None]:
    tasks: list[asyncio.Task[None]] = [asyncio.create_task(lease.run(api), name="lease under test")]
    if often:
        tasks.append(asyncio.create_task(nudge(lease), name="nudges"))
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def note_writes(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The methods of writes that the API server has done or refused, from now on."""
    served: list[str] = []

    def noted(objects: ApiObjects, request: ApiRequest) -> Response:
        served.extend([request.method] if request.method != "GET" else [])
        return answer(objects, request)

    monkeypatch.setattr("neuron_plugin.simulation.api_server.answer", noted)
    return served


def of_node(*, serving: bool = True, times: LeaseTimes = TIMES) -> NodeLease:
    lease = NodeLease(NAMESPACE, NODE, times)
    lease.serve(serving=serving)
    return lease


async def test_e7_the_lease_is_the_one_the_extender_looks_for_made_when_the_plugin_serves_and_its_nodes(
    server: StandInApiServer, api: KubernetesApi
) -> None:
    made = of_node(serving=False)
    async with renewing(api, made, often=False):
        await asyncio.sleep(0.05)
        assert not there_is_one(server)
        made.serve(serving=True)
        await until(lambda: is_held(server))
    lease, uid = lease_of(server), server.get(api_server.NODES, NODE)["metadata"]["uid"]
    owner = {"apiVersion": "v1", "kind": "Node", "name": NODE, "uid": uid}
    assert lease["metadata"]["ownerReferences"] == [owner], "so that it goes with the node"
    assert lease["metadata"]["name"] == "neuron-plugin-worker-1"
    assert lease["spec"]["holderIdentity"] == NODE
    assert lease["spec"]["leaseDurationSeconds"] == 8


async def test_it_is_renewed_while_the_plugin_serves(server: StandInApiServer, api: KubernetesApi) -> None:
    async with renewing(api, of_node(times=LeaseTimes(duration=600, renew=0.2)), often=False):
        await until(lambda: is_held(server))
        first = datetime.fromisoformat(lease_of(server)["spec"]["renewTime"])
        await until(lambda: datetime.fromisoformat(lease_of(server)["spec"]["renewTime"]) > first)


async def test_what_containers_do_with_their_cores_goes_with_a_renewal_and_costs_no_write(
    server: StandInApiServer, api: KubernetesApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    lease = of_node(times=LeaseTimes(duration=600, renew=300))
    async with renewing(api, lease, often=False):
        await until(lambda: is_held(server))
        assert lease.found_utilization == ""
        writes = note_writes(monkeypatch)
        lease.utilization = "text"
        await asyncio.sleep(0.1)
        assert writes == []
        version = lease_of(server)["metadata"]["resourceVersion"]
        renew_now(lease)
        await until(lambda: is_another(server, version))
        assert lease_of(server)["metadata"]["annotations"] == {UTILIZATION_KEY: "text"}
        assert writes == ["PATCH"]


async def test_the_next_plugin_finds_what_the_last_one_wrote_and_may_remove_it(
    server: StandInApiServer, api: KubernetesApi
) -> None:
    first, second = of_node(), of_node()
    first.utilization = "text"
    async with renewing(api, first):
        await until(lambda: there_is_one(server) and bool(lease_of(server)["metadata"].get("annotations")))
    async with renewing(api, second):
        await until(lambda: second.found_utilization is not None)
        assert second.found_utilization == "text"
        second.utilization = ""
        await until(lambda: not lease_of(server)["metadata"].get("annotations"))


async def test_e7_it_is_given_up_while_the_kubelet_follows_no_resource_and_taken_up_again(
    server: StandInApiServer, api: KubernetesApi
) -> None:
    lease = of_node(times=LeaseTimes(duration=8, renew=0.01))
    async with renewing(api, lease, often=False):
        await until(lambda: is_held(server))
        lease.serve(serving=False)
        await until(lambda: ObservedLease().expired(LEASES.decode(_encoded(lease_of(server))), now=0.0))
        await asyncio.sleep(0.1)
        stands = lease_of(server)["metadata"]["resourceVersion"]
        await asyncio.sleep(0.3)
        assert lease_of(server)["metadata"]["resourceVersion"] == stands


async def test_a_node_whose_closing_got_no_answer_is_closed_at_the_next_turn(
    server: StandInApiServer, api: KubernetesApi
) -> None:
    lease = of_node(times=LeaseTimes(duration=600, renew=0.2))
    async with renewing(api, lease, often=False):
        await until(lambda: is_held(server))
        server.fail(Fault(Match("PATCH", "/leases"), status=500))
        lease.serve(serving=False)
        await until(lambda: not is_held(server))


async def test_e7_a_plugin_that_stops_gives_it_up_so_that_no_pod_comes_meanwhile(
    server: StandInApiServer, api: KubernetesApi
) -> None:
    lease = of_node()
    async with renewing(api, lease):
        await until(lambda: is_held(server))
        await lease.give_up(api)
        given_up = LEASES.decode(_encoded(lease_of(server)))
        renew_now(lease)
        await asyncio.sleep(0.1)
        assert lease_of(server)["metadata"]["resourceVersion"] == given_up.resource_version
    assert ObservedLease().expired(given_up, now=0.0)
    async with renewing(api, of_node()):  # the next plugin
        await until(lambda: is_held(server))


@pytest.mark.parametrize("fault", [Fault(status=500), Fault(delay_seconds=600)], ids=["refused", "no answer"])
async def test_p13_an_api_server_that_fails_does_not_keep_a_plugin_from_stopping(
    server: StandInApiServer, api: KubernetesApi, fault: Fault
) -> None:
    server.fail(fault)
    async with asyncio.timeout(5):
        await of_node().give_up(api)


async def test_e7_a_renewal_that_hangs_does_not_keep_a_plugin_from_giving_it_up(
    server: StandInApiServer, api: KubernetesApi
) -> None:
    lease = of_node()
    async with renewing(api, lease, often=False):
        await until(lambda: is_held(server))
        hangs = Fault(delay_seconds=600)
        server.fail(hangs)
        renew_now(lease)
        await until(lambda: hangs.times == 0)
        assert await lease.give_up(api)
        assert not is_held(server)


@pytest.mark.parametrize("method", ["PATCH", "POST"])
async def test_e7_what_lands_after_it_was_given_up_does_not_open_the_node(
    server: StandInApiServer, api: KubernetesApi, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    """An API server may do what it was asked long after no one waits for its answer any more."""
    gate, served = asyncio.Event(), note_writes(monkeypatch)
    held = Fault(Match(method, "/leases"), gate=gate)
    lease = of_node()
    if method == "POST":
        server.fail(held)
    async with renewing(api, lease, often=False):
        if method == "PATCH":
            await until(lambda: is_held(server))
            server.fail(held)
            renew_now(lease)
        await until(lambda: held.times == 0)
        assert await lease.give_up(api) is (method == "PATCH")
        served.clear()
        gate.set()
        await until(lambda: method in served)
        await asyncio.sleep(0.05)  # for what might follow
    assert not is_held(server)


async def test_e7_a_renewal_that_got_no_answer_is_followed_by_the_next(
    server: StandInApiServer, api: KubernetesApi
) -> None:
    async with renewing(api, of_node()):
        await until(lambda: is_held(server))
        lost = Fault(Match("PATCH", "/leases"), lose_answer=True)
        server.fail(lost)
        await until(lambda: lost.times == 0)
        stands = lease_of(server)["metadata"]["resourceVersion"]
        await until(lambda: lease_of(server)["metadata"]["resourceVersion"] != stands)
        assert is_held(server)


async def test_e7_what_somebody_else_wrote_is_renewed_at_once(
    server: StandInApiServer, api: KubernetesApi, caplog: pytest.LogCaptureFixture
) -> None:
    lease = of_node()
    async with renewing(api, lease, often=False):
        await until(lambda: is_held(server))
        await of_node().give_up(api)  # a process of before, late
        assert not is_held(server)
        renew_now(lease)
        await until(lambda: is_held(server))
    assert not _warnings(caplog)


async def test_a_plugin_that_has_no_lease_yet_gives_none_up(server: StandInApiServer, api: KubernetesApi) -> None:
    await of_node().give_up(api)
    assert not there_is_one(server)


async def test_a_killed_plugin_leaves_it_to_run_out_by_itself(server: StandInApiServer, api: KubernetesApi) -> None:
    async with renewing(api, of_node()):
        await until(lambda: is_held(server))
    observed, lease = ObservedLease(), LEASES.decode(_encoded(lease_of(server)))
    observed.observe(lease, now=100.0)
    assert not observed.expired(lease, now=107.0)
    assert observed.expired(lease, now=108.0)


async def test_a_node_that_is_created_again_gets_a_lease_of_its_own(
    server: StandInApiServer, api: KubernetesApi, caplog: pytest.LogCaptureFixture
) -> None:
    lease = of_node()
    async with renewing(api, lease):
        await until(lambda: is_held(server))
        server.delete_node(NODE)
        server.create_node({"metadata": {"name": NODE}})
        await send(api, delete_lease(node_lease(NAMESPACE, NODE)), timeout_seconds=5)  # as the garbage collector does
        await until(lambda: is_held(server))
    assert not _warnings(caplog)
    uid = server.get(api_server.NODES, NODE)["metadata"]["uid"]
    assert lease_of(server)["metadata"]["ownerReferences"][0]["uid"] == uid


async def test_an_api_server_that_fails_is_logged_once_and_the_lease_comes_back(
    server: StandInApiServer, api: KubernetesApi, caplog: pytest.LogCaptureFixture
) -> None:
    async with renewing(api, of_node()):
        await until(lambda: is_held(server))
        for _ in range(2):
            caplog.clear()
            server.fail(Fault(status=500, times=9999))
            await until(lambda: bool(_warnings(caplog)))
            await asyncio.sleep(0.1)
            server.forgive()
            stands = lease_of(server)["metadata"]["resourceVersion"]
            await until(partial(is_another, server, stands))
            assert len(_warnings(caplog)) == 1


async def test_a_lease_that_may_not_be_looked_at_is_not_created(server: StandInApiServer, api: KubernetesApi) -> None:
    server.fail(Fault(Match("PATCH", "/leases"), status=403, times=9999))
    lease = of_node()
    async with renewing(api, lease):
        await until(lambda: sum(seen.method == "PATCH" for seen in server.requests) > 3)
    assert not any(seen.method == "POST" for seen in server.requests)


def _warnings(caplog: pytest.LogCaptureFixture) -> list[logging.LogRecord]:
    return [record for record in caplog.records if record.name.endswith("node_lease")]


def _encoded(value: dict[str, Any]) -> bytes:
    return msgspec.json.encode(value)
