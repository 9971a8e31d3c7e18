"""The extender's life when the API server is away, and its end (T10) from wherever it is."""

from __future__ import annotations

import asyncio
from pathlib import Path

import msgspec
import pytest

from neuron_plugin.cluster import KubernetesApi
from neuron_plugin.cluster.leases import Terms
from neuron_plugin.placement.daemon import ControllerTimes
from neuron_plugin.placement.leadership import _TAKING_OVER
from neuron_plugin.placement.settings import ExtenderSettings
from neuron_plugin.simulation.api_server_kinds import LEASES
from tests.support.api_server import Fault, Match, StandInApiServer
from tests.support.manifests import node_manifest, pod_manifest
from tests.support.running import Extender, client_of, extender_on, until
from tests.support.world import DEVICE

ELECTED = ExtenderSettings(port=0, health_port=0, health_address="127.0.0.1", identity="one")
ENDS_WITHIN_SECONDS = 5.0
PODS_LIST = Match(path="/api/v1/pods$")
LEASE = Match(path="/leases/neuron-extender$")
EVERYTHING = Match()


async def ended(extender: Extender) -> None:
    """As after SIGTERM."""
    extender.stop.set()
    async with asyncio.timeout(ENDS_WITHIN_SECONDS):
        await extender.task


def holder(server: StandInApiServer) -> str:
    found: str = server.get(LEASES, "neuron-extender", "kube-system")["spec"]["holderIdentity"]
    return found


async def test_t10_sigterm_before_the_first_list(server: StandInApiServer, api: KubernetesApi) -> None:
    server.fail(Fault(match=PODS_LIST, gate=asyncio.Event(), times=100))
    async with extender_on(api, ELECTED) as extender:
        await until(lambda: "taking over" in extender.daemon.ready.why_not)
        await ended(extender)
    assert holder(server) == ""


async def test_t10_sigterm_while_it_outwaits_the_last_leader(server: StandInApiServer, api: KubernetesApi) -> None:
    server.create_node(node_manifest("node", "trn1.32xlarge"))
    server.create_pod(pod_manifest("waiting", DEVICE, 1))
    async with extender_on(api, ELECTED) as extender:
        await until(lambda: extender.daemon.ready.why_not == _TAKING_OVER)
        await ended(extender)
    assert holder(server) == ""


async def test_t10_sigterm_as_a_standby_leaves_the_lease_to_its_leader(
    server: StandInApiServer, api: KubernetesApi, tmp_path: Path
) -> None:
    async with client_of(server, tmp_path) as other, extender_on(other, ELECTED) as leader:
        await leader.ready()
        second = ExtenderSettings(port=0, health_port=0, health_address="127.0.0.1", identity="two")
        async with extender_on(api, second) as standby:
            await until(lambda: not standby.daemon.ready.conditions["election"])
            await ended(standby)
        assert holder(server) == "one"


async def test_t10_sigterm_as_the_leader_with_an_api_server_that_answers_nothing(
    server: StandInApiServer, api: KubernetesApi
) -> None:
    async with extender_on(api, ELECTED) as extender:
        await extender.ready()
        server.fail(Fault(match=EVERYTHING, gate=asyncio.Event(), times=10_000))
        await ended(extender)


async def test_t10_sigterm_as_the_leader_with_the_api_server_down(server: StandInApiServer, api: KubernetesApi) -> None:
    async with extender_on(api, ELECTED) as extender:
        await extender.ready()
        await server.stop()
        await ended(extender)


async def test_t10_sigterm_before_the_api_server_is_up(server: StandInApiServer, api: KubernetesApi) -> None:
    await server.stop()
    async with extender_on(api, ELECTED) as extender:
        await ended(extender)


@pytest.mark.parametrize("election", [True, False])
async def test_t46_an_api_server_that_comes_up_late_is_waited_for(
    server: StandInApiServer, api: KubernetesApi, *, election: bool
) -> None:
    await server.stop()
    async with extender_on(api, msgspec.structs.replace(ELECTED, leader_election=election)) as extender:
        if election:
            await until(lambda: "cannot be read or written" in extender.daemon.ready.conditions["election"])
        status, why = await extender.get("/readyz?exclude=leader", health=True)
        assert status == 503
        assert "the first lists are not in yet" in why
        assert (await extender.get("/healthz", health=True))[0] == 200

        await server.start()
        await extender.ready()


async def test_t46_what_was_bound_during_an_outage_is_known_before_a_new_leader_is_ready(
    server: StandInApiServer, api: KubernetesApi
) -> None:
    server.create_node(node_manifest("node", "trn1.32xlarge"))
    terms = Terms(duration=1.0, renew_deadline=0.6, retry_period=0.1)
    async with extender_on(api, ELECTED, ControllerTimes(terms)) as extender:
        await extender.ready()
        server.fail(Fault(match=LEASE, status=500, times=10_000))
        await until(lambda: extender.daemon.ready.why_not)
        server.mute_watches()
        server.create_pod(pod_manifest("other", DEVICE, 16, node="node", annotations={"NEURON_DEVS": _ALL}))
        server.forgive()

        await extender.ready()

        assert extender.daemon.state.nodes["node"].free_mask == 0


_ALL = ",".join(map(str, range(16)))
