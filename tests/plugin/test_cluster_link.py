"""What the daemon tells the API server, and when."""

from __future__ import annotations

import asyncio
import logging
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from neuron_plugin.allocation import INVENTORY_KEY, Holding
from neuron_plugin.cluster import ApiRequest, KubernetesApi, connect, create_lease, send, utc_now
from neuron_plugin.plugin import cluster_link
from neuron_plugin.plugin.cluster_link import ClusterLink
from neuron_plugin.plugin.counts import Counts
from neuron_plugin.plugin.health_watch import HealthWatch
from neuron_plugin.plugin.node import NodeState
from neuron_plugin.plugin.node_lease import delete_lease, node_lease
from neuron_plugin.plugin.settings import PluginSettings
from neuron_plugin.plugin.witness import Witness
from neuron_plugin.simulation import LEASES, NODES, StandInApiServer
from neuron_plugin.simulation.api_server_faults import Fault, Match
from tests.plugin import health_world
from tests.plugin.site import eventually
from tests.plugin.world import NEURON, TRN1, a_state, app, decided, devices, machine, pod, ref

ROW0, ROW1 = [0, 1, 2, 3], [4, 5, 6, 7]


def link_of(state: NodeState, kubeconfig: Path | None = None, **settings: Any) -> ClusterLink:
    return ClusterLink(
        PluginSettings(node_name="worker-1", kubeconfig=kubeconfig, **settings),
        state,
        lambda: None,
        witness=Witness("worker-1", state, Counts()),
        serving=lambda: True,
    )


def unsent(link: ClusterLink) -> dict[str, ApiRequest]:
    return link._outbox._unsent


def written(request: ApiRequest) -> object:
    assert request.body is not None
    metadata = request.body["metadata"]
    assert isinstance(metadata, dict)
    assert metadata["uid"]
    return metadata["annotations"]


def neuron(*ids: int) -> tuple[Holding, ...]:
    return (Holding("app", NEURON, devices(*ids)),)


def test_the_inventory_is_told_when_it_is_news_and_only_then() -> None:
    link = link_of(a_state())
    link.publish(machine())
    assert list(unsent(link)) == ["inventory"]
    unsent(link).clear()
    link.publish(machine())
    assert not unsent(link)
    link.publish(machine(unhealthy={1: "sick"}))
    assert list(unsent(link)) == ["inventory"]


def test_p55_a_pod_whose_decision_came_true_is_marked_without_an_event() -> None:
    made = decided("a", app(4), sets=[ROW0])
    link = link_of(a_state(TRN1, made))
    link.write_assignment(made, neuron(*ROW0))
    assert {subject: written(request) for subject, request in unsent(link).items()} == {
        "assignment of uid-a": {"NEURON_ALLOCATED": "true"}
    }


def test_p56_p63_a_swap_is_written_on_the_heir_first_and_told_on_both_in_the_same_words() -> None:
    first, second = decided("a", app(4), sets=[ROW0], time=1), decided("b", app(4), sets=[ROW1], time=2)
    state = a_state(TRN1, first, second)
    state.confirm(ref("b"), neuron(*ROW0))
    link = link_of(state)
    link.write_assignment(second, neuron(*ROW0))
    assignments = [subject for subject in unsent(link) if subject.startswith("assignment")]
    assert assignments == ["assignment of uid-a", "assignment of uid-b"]
    events = {subject: request for subject, request in unsent(link).items() if subject.startswith("event")}
    assert list(events) == ["event AssignmentCorrected of uid-a", "event AssignmentCorrected of uid-b"]
    body = events["event AssignmentCorrected of uid-a"].body
    assert body is not None
    assert body["note"] == "pod default/a has another set than was decided for it: NEURON_DEVS=4,5,6,7"
    unsent(link).clear()
    link.write_assignment(first, neuron(*ROW1))  # confirmed before the watch has brought the new annotation
    assert list(unsent(link)) == ["assignment of uid-a"]


def test_a_pod_without_a_decision_is_annotated_without_an_event() -> None:
    plain = pod("a", app(4))
    link = link_of(a_state(TRN1, plain))
    link.write_assignment(plain, neuron(*ROW0))
    assert list(unsent(link)) == ["assignment of uid-a"]


def test_without_hardware_there_is_nothing_to_write() -> None:
    link = link_of(NodeState())
    link.write_assignment(pod("a", app(4)), neuron(*ROW0))
    assert not unsent(link)


async def test_p61_a_look_before_there_is_a_connection_waits_for_it_and_sees_what_pods_hold(tmp_path: Path) -> None:
    async with StandInApiServer() as api:
        api.create_pod(
            {
                "metadata": {
                    "name": "one",
                    "namespace": "default",
                    "annotations": {"NEURON_DEVS": "2", "NEURON_ALLOC_TIME": "1", "NEURON_ALLOCATED": "true"},
                },
                "spec": {
                    "nodeName": "worker-1",
                    "containers": [{"name": "app", "resources": {"limits": {NEURON.value: "1"}}}],
                },
            }
        )
        state = a_state()
        kubeconfig = api.write_kubeconfig(tmp_path / "config")
        link = link_of(state, kubeconfig, decision_deadline_seconds=30)
        look = asyncio.create_task(link.look_again())
        await asyncio.sleep(0)
        assert not state.ledger.holders
        running = asyncio.create_task(link.run())
        await look
        assert state.ledger.used_mask == devices(2)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running


async def test_p36_a_look_does_not_wait_for_ever_until_there_is_a_connection(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(cluster_link, "CONNECT_SECONDS", 0.01)
    await link_of(a_state()).look_again()
    assert [getattr(record, "why", "") for record in caplog.records] == ["not connected yet"]


async def test_p60_who_lives_is_not_told_before_the_pods_that_ask_for_neuron_are_known(tmp_path: Path) -> None:
    """A live pod of which it is not known yet that it asks for Neuron would be taken for one that only watches."""
    async with StandInApiServer() as server:
        gate = asyncio.Event()
        first_list = Fault(Match("GET", "/pods"), gate=gate)
        server.fail(first_list)
        link = link_of(a_state(), server.write_kubeconfig(tmp_path / "config"), node_lease=False)
        running = asyncio.create_task(link.run())
        await eventually(lambda: first_list.times == 0)
        assert await link.live_pods() is None
        gate.set()
        async with asyncio.timeout(30):
            while await link.live_pods() is None:
                await asyncio.sleep(0.01)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running


async def test_p44_a_client_that_cannot_be_loaded_at_all_delays_no_preference(monkeypatch: pytest.MonkeyPatch) -> None:
    async def fail(_kubeconfig: Path | None) -> KubernetesApi:
        raise ImportError("no such library")

    monkeypatch.setattr(cluster_link, "connect", fail)
    monkeypatch.setattr(cluster_link, "CONNECT_SECONDS", 600.0)
    link = link_of(a_state())
    with pytest.raises(ImportError):
        await link.run()
    await link.look_again()


async def test_settings_that_come_late_are_waited_for_and_told_of_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(cluster_link, "RETRY_SECONDS", 0.01)
    caplog.set_level(logging.WARNING, logger="neuron_plugin.plugin.cluster_link")
    link = link_of(a_state(), kubeconfig=tmp_path / "none")
    task = asyncio.create_task(link.run())

    def told() -> list[str]:
        return [record.message for record in caplog.records if record.name == cluster_link.__name__]

    async with asyncio.timeout(30):
        while not told():
            await asyncio.sleep(0.01)
    await asyncio.sleep(0.1)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert told() == ["not connected to the API server"]


@pytest.mark.parametrize("lease", ["none", "ours", "of a process before"])
async def test_t33_a_node_that_is_made_anew_is_told_again_what_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lease: str
) -> None:
    monkeypatch.setattr(cluster_link, "REPEAT_SECONDS", 0.05)
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(StandInApiServer())
        server.create_node({"metadata": {"name": "worker-1"}})
        kubeconfig = server.write_kubeconfig(tmp_path / "kubeconfig")
        of_node = node_lease("kube-system", "worker-1")
        outside = await stack.enter_async_context(await connect(kubeconfig))
        if lease == "of a process before":
            await send(outside, create_lease(of_node, duration_seconds=8, now=utc_now()), timeout_seconds=5)
        link = link_of(a_state(), kubeconfig, node_lease=lease != "none")
        link.publish(machine())
        condition = PluginSettings(node_name="worker-1", node_condition="NeuronDevicesHealthy")
        HealthWatch(condition, lambda: None, link).look(health_world.machine(health_world.device(0)))
        running = asyncio.create_task(link.run(), name="link")

        def is_described() -> bool:
            node = server.get(NODES, "worker-1")
            return INVENTORY_KEY in node["metadata"].get("annotations", {}) and "conditions" in node.get("status", {})

        def is_open() -> bool:
            return any(one["spec"].get("holderIdentity") for one in server.objects(LEASES)) == (lease != "none")

        for _ in range(2):
            await eventually(lambda: is_described() and is_open())
            server.delete_node("worker-1")
            server.create_node({"metadata": {"name": "worker-1"}})
            if lease != "none":
                await send(outside, delete_lease("kube-system", "worker-1"), timeout_seconds=5)  # as with its owner
            link.serving_began()
        await eventually(is_described)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert not await link.serving_ends()


async def test_a_look_without_usable_settings_does_not_wait(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    link = link_of(a_state(), kubeconfig=tmp_path / "none")
    running = asyncio.create_task(link.run())
    await link.look_again()
    said = [record.message for record in caplog.records if record.name == cluster_link.__name__]
    assert said == ["not connected to the API server"]
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
