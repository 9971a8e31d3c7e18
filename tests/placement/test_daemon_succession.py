"""Who binds after whom: a leader lost, killed or started again gives nothing away twice (E4, E5)."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from neuron_plugin.cluster import KubernetesApi
from neuron_plugin.cluster.leases import Terms
from neuron_plugin.placement.context import Times
from neuron_plugin.placement.daemon import ControllerTimes
from neuron_plugin.placement.settings import ExtenderSettings
from neuron_plugin.simulation import ExtenderCallError
from neuron_plugin.simulation.api_server_kinds import PODS
from tests.support.api_server import Fault, Match, StandInApiServer
from tests.support.manifests import node_manifest, pod_manifest
from tests.support.running import BINDING, TRN1, Extender, add_pod, client_of, extender_on, until, written
from tests.support.scheduler import StandInScheduler
from tests.support.world import DEVICE

QUICK = ControllerTimes(
    Terms(duration=1.5, renew_deadline=1.0, retry_period=0.1), Times(write=0.3, read=0.3, landing=0.2)
)
ELECTED = ExtenderSettings(port=0, health_port=0, health_address="127.0.0.1")


def replica(name: str) -> ExtenderSettings:
    return ExtenderSettings(port=0, health_port=0, health_address="127.0.0.1", identity=name)


async def test_e04_e05_only_the_leader_is_ready_and_its_successor_gives_nothing_twice(
    server: StandInApiServer, api: KubernetesApi, tmp_path: Path
) -> None:
    server.create_node(node_manifest("node", TRN1))
    async with (
        client_of(server, tmp_path) as other_api,
        extender_on(api, replica("one"), QUICK) as one,
    ):
        await one.ready()
        async with extender_on(other_api, replica("two"), QUICK) as two:
            assert "not the leader" in two.daemon.ready.why_not
            pod = await add_pod(server, one, pod_manifest("first", DEVICE, 8))
            gate = asyncio.Event()
            server.fail(Fault(match=BINDING, gate=gate))
            async with StandInScheduler(one.url) as scheduler:
                lost = asyncio.create_task(scheduler.bind(pod, "node"))
                await _wait_for_an_assumed_pod(one)
                _kill(one)
                gate.set()
                await asyncio.gather(lost, return_exceptions=True)

            await two.ready()
            async with StandInScheduler(two.url) as scheduler:
                second = await add_pod(server, two, pod_manifest("second", DEVICE, 8))
                await scheduler.schedule(second, ["node"])

    given = [written(server, name).get("NEURON_DEVS") for name in ("first", "second")]
    assert len(set(given)) == 2


def _kill(extender: Extender) -> None:
    """As SIGKILL would, all of it at once."""
    for _, attempt in list(extender.daemon.binder._attempts.values()):
        attempt.cancel()
    extender.task.cancel()


async def _wait_for_an_assumed_pod(extender: Extender) -> None:
    await until(lambda: extender.daemon.state.assumed)


async def test_e04_a_leader_that_cannot_renew_stops_binding_before_another_may_start(
    server: StandInApiServer, api: KubernetesApi
) -> None:
    server.create_node(node_manifest("node", TRN1))
    async with extender_on(api, ELECTED, QUICK) as extender:
        await extender.ready()
        server.fail(Fault(match=Match(path="/leases/neuron-extender"), status=500, times=10_000))

        await until(lambda: extender.daemon.ready.why_not)
        answer = await extender.post(
            "/bind", {"PodName": "pod", "PodNamespace": "default", "PodUID": "u", "Node": "node"}
        )
        assert "leader" in answer["Error"]

        server.forgive()
        await extender.ready()


async def test_e04_in_its_next_term_a_leader_has_forgotten_what_it_assumed_and_does_not_know_the_end_of(
    server: StandInApiServer, api: KubernetesApi
) -> None:
    server.create_node(node_manifest("node", TRN1))
    # Without looks at assumed pods in between.
    async with extender_on(api, ELECTED, replace(QUICK, settle=600.0)) as extender:
        await extender.ready()
        pod = await add_pod(server, extender, pod_manifest("pod", DEVICE, 4))
        server.fail(Fault(match=BINDING, drop=True))
        async with StandInScheduler(extender.url) as scheduler:
            with pytest.raises(ExtenderCallError, match="its cores stay reserved for a while"):
                await scheduler.bind(pod, "node")
        assert extender.daemon.state.assumed
        server.fail(Fault(match=Match(path="/leases/neuron-extender"), status=500, times=10_000))
        await until(lambda: extender.daemon.ready.why_not)
        server.forgive()
        await extender.ready()
        assert not extender.daemon.state.assumed


async def test_killed_between_assume_and_confirmation_and_started_again_the_state_is_the_lists(
    server: StandInApiServer, api: KubernetesApi
) -> None:
    server.create_node(node_manifest("node", TRN1))
    for before_write in (True, False):
        name = f"pod-{before_write}".lower()
        async with extender_on(api, times=QUICK) as extender:
            await extender.ready()
            pod = await add_pod(server, extender, pod_manifest(name, DEVICE, 4))
            gate = asyncio.Event()
            server.fail(Fault(match=BINDING, gate=gate, drop=before_write, lose_answer=not before_write))
            async with StandInScheduler(extender.url) as scheduler:
                call = asyncio.create_task(scheduler.bind(pod, "node"))
                await _wait_for_an_assumed_pod(extender)
                _kill(extender)
                gate.set()
                await asyncio.gather(call, return_exceptions=True)

    bound = [pod for pod in server.objects(PODS) if pod["spec"].get("nodeName")]
    async with extender_on(api, times=QUICK) as extender:
        await extender.ready()
        assert extender.daemon.state.nodes["node"].used_mask.bit_count() == 8 * len(bound)
        assert not extender.daemon.state.assumed
