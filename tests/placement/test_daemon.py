from __future__ import annotations

import asyncio
import gc
import logging
import time
from collections import Counter

import aiohttp
import pytest

from neuron_plugin.cluster import ApiRequest, KubernetesApi, LeaseName
from neuron_plugin.cluster.api import send
from neuron_plugin.cluster.objects import LEASES
from neuron_plugin.cluster.writes import create_lease, release_lease, renew_lease, utc_now
from neuron_plugin.placement.daemon import ControllerTimes
from neuron_plugin.placement.events import NodeEvents
from neuron_plugin.placement.gates.upkeep import Upkeep
from neuron_plugin.placement.planner import Planner
from neuron_plugin.placement.settings import ExtenderSettings
from neuron_plugin.simulation import ExtenderCallError
from neuron_plugin.simulation.api_server_kinds import EVENTS, PODS
from tests.support.api_server import Fault, Match, StandInApiServer
from tests.support.manifests import container, node_manifest, pod_manifest
from tests.support.running import BINDING, SETTINGS, TRN1, Extender, add_node, add_pod, extender_on, until, written
from tests.support.scheduler import StandInScheduler
from tests.support.world import CORE, DEVICE


async def test_t14_the_seeds_example_nine_cores_on_an_inf1_of_four_devices(
    server: StandInApiServer, extender: Extender, scheduler: StandInScheduler, caplog: pytest.LogCaptureFixture
) -> None:
    """Seed 2's log: cores 0-8, after which devices 0, 1 and 2 are used and 3 is free."""
    caplog.set_level(logging.INFO, "neuron_plugin.extender.flow")
    await add_node(server, extender, "ip-192-168-2-25.ec2.internal", "inf1.6xlarge")
    pod = await add_pod(server, extender, pod_manifest("nrt-test-5038", CORE, 9))

    placed = await scheduler.schedule(pod, ["ip-192-168-2-25.ec2.internal"])

    assert placed.node == "ip-192-168-2-25.ec2.internal"
    assert written(server, "nrt-test-5038")["NEURON_CORES"] == "0,1,2,3,4,5,6,7,8"
    filtered, bound = (vars(record) for record in caplog.records if record.name == "neuron_plugin.extender.flow")
    expected = {"pod": "default/nrt-test-5038", "request": "neuroncore:9", "passed": 1, "node": placed.node}
    assert filtered | expected == filtered
    chosen = {"node": placed.node, "result": "bound", "NEURON_CORES": "0,1,2,3,4,5,6,7,8", "used_devices": "0,1,2"}
    assert bound | chosen | {"used_cores": "0,1,2,3,4,5,6,7,8"} == bound
    for device, fits in ((1, True), (2, False)):
        probe = pod_manifest("probe", DEVICE, device)
        assert bool((await scheduler.filter(probe, [placed.node])).nodes) is fits


async def test_seven_devices_on_a_torus_stay_pending_with_the_vendors_sentence(
    server: StandInApiServer, extender: Extender, scheduler: StandInScheduler
) -> None:
    await add_node(server, extender, "node")
    pod = await add_pod(server, extender, pod_manifest("seven", DEVICE, 7))

    placed = await scheduler.schedule(pod, ["node"])

    assert placed.message == (
        "0/1 nodes are available: 1 Instance type trn1.32xlarge does not support requests for device: 7. "
        "Please request a different number of devices. It supports 1 or 4 or 8 or 16."
    )


async def test_t19_t20_init_containers_share_and_lists_come_in_spec_order(
    server: StandInApiServer, extender: Extender, scheduler: StandInScheduler
) -> None:
    await add_node(server, extender, "node", "inf2.24xlarge")
    manifest = pod_manifest(
        "pod",
        containers=[container("main", CORE, 2), container("log", CORE, 0), container("side", CORE, 2)],
        init_containers=[container("setup", CORE, 4)],
    )

    await scheduler.schedule(await add_pod(server, extender, manifest), ["node"])

    setup, main, side = (set(part.split(",")) for part in written(server, "pod")["NEURON_CORES"].split("|"))
    assert len(setup) == 4
    assert main | side == setup
    assert not main & side


@pytest.mark.parametrize(("offered", "chosen"), [((1, 6, 11, 12), ()), ((6, 4, 9, 5, 7), (6, 4, 5, 7))], ids=str)
async def test_e01_of_a_node_full_of_single_devices_those_of_a_row_are_preempted_if_all_of_it_is_offered(
    server: StandInApiServer,
    extender: Extender,
    scheduler: StandInScheduler,
    offered: tuple[int, ...],
    chosen: tuple[int, ...],
) -> None:
    await add_node(server, extender, "node")
    uids = []
    for device in range(16):
        given = {"NEURON_DEVS": str(device), "NEURON_ALLOCATED": "true"}
        low = pod_manifest(f"low-{device}", DEVICE, 1, node="node", annotations=given)
        uids.append((await add_pod(server, extender, low))["metadata"]["uid"])

    high = pod_manifest("high", DEVICE, 4, priority=10)
    victims = await scheduler.preempt(high, {"node": [uids[device] for device in offered]}, {"node": uids})

    assert victims == ({"node": [uids[device] for device in chosen]} if chosen else {})


async def test_t36_the_first_filter_after_the_watch_shows_a_pods_end_sees_its_silicon_free(
    server: StandInApiServer, extender: Extender, scheduler: StandInScheduler
) -> None:
    """How long the watch takes is the network's; that nothing waits behind it is timed in test_informers."""
    await add_node(server, extender, "node")
    pod = await add_pod(server, extender, pod_manifest("first", DEVICE, 16))
    await scheduler.schedule(pod, ["node"])
    waiting = pod_manifest("second", DEVICE, 16)
    assert not (await scheduler.filter(waiting, ["node"])).nodes

    server.set_pod_status("default", "first", {"phase": "Succeeded"})
    await until(lambda: pod["metadata"]["uid"] not in extender.daemon.state.pods)

    assert (await scheduler.filter(waiting, ["node"])).nodes == ["node"]


async def test_t45_a_slow_api_server_slows_no_filter(
    server: StandInApiServer, extender: Extender, scheduler: StandInScheduler
) -> None:
    await add_node(server, extender, "node")
    pod = await add_pod(server, extender, pod_manifest("pod", DEVICE, 1))
    gate = asyncio.Event()
    server.fail(Fault(match=BINDING, gate=gate))
    binding = asyncio.create_task(scheduler.bind(pod, "node"))
    await until(lambda: extender.daemon.state.assumed)

    for _ in range(20):
        found = await scheduler.filter(pod_manifest("other", DEVICE, 16), ["node"])
        assert found.failed == {"node": "Fewer than 16 free Neuron devices"}
        assert not binding.done()

    gate.set()
    await binding


async def test_t46_without_an_api_server_binds_end_in_error_and_recover_without_a_restart(
    server: StandInApiServer, extender: Extender, scheduler: StandInScheduler
) -> None:
    await add_node(server, extender, "node")
    pod = await add_pod(server, extender, pod_manifest("pod", DEVICE, 4))
    await server.stop()

    with pytest.raises(ExtenderCallError):
        await scheduler.bind(pod, "node")
    assert (await scheduler.filter(pod, ["node"])).nodes == ["node"], "filters go on from what is known"

    await server.start()
    async with asyncio.timeout(15):
        while not (await scheduler.schedule(pod, ["node"])).node:
            await asyncio.sleep(0.05)
    assert written(server, "pod")["NEURON_DEVS"] == "0,1,2,3"


async def test_t40_a_binding_whose_answer_is_lost_is_still_a_success(
    server: StandInApiServer, extender: Extender, scheduler: StandInScheduler
) -> None:
    await add_node(server, extender, "node")
    pod = await add_pod(server, extender, pod_manifest("pod", DEVICE, 4))
    server.fail(Fault(match=BINDING, lose_answer=True))

    await scheduler.bind(pod, "node")

    assert server.get(PODS, "pod", "default")["spec"]["nodeName"] == "node"


async def test_t50_a_start_takes_one_list_per_resource(server: StandInApiServer, api: KubernetesApi) -> None:
    for number in range(30):
        server.create_node(node_manifest(f"node-{number}", TRN1))

    async with extender_on(api) as extender:
        await extender.ready()
        leases = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases"  # which nothing waits for
        await until(lambda: any(request.path == leases and _lists(request) for request in server.requests))
        pod_groups = "/apis/scheduling.k8s.io/v1beta1/podgroups"  # looked for with a list of one, then listed
        await until(lambda: any(request.path == pod_groups and _lists(request) for request in server.requests))
        lists = Counter(request.path for request in server.requests if _lists(request))

    budgets = "/apis/policy/v1/poddisruptionbudgets"
    assert lists == dict.fromkeys(
        ("/api/v1/pods", "/api/v1/nodes", "/api/v1/namespaces", budgets, leases, pod_groups), 1
    )


def _lists(request: ApiRequest) -> bool:
    return request.query.get("limit", "1") != "1"


async def test_t02_t30_until_the_lists_are_in_every_verb_answers_an_error(
    server: StandInApiServer, api: KubernetesApi
) -> None:
    gate = asyncio.Event()
    server.fail(Fault(match=Match(path="/api/v1/pods$"), gate=gate, times=100))
    args = {"Pod": pod_manifest("pod", DEVICE, 1), "NodeNames": ["node"]}

    async with extender_on(api) as extender:
        for verb, content in (
            ("filter", args),
            ("prioritize", args),
            ("preempt", {"Pod": args["Pod"], "NodeNameToMetaVictims": {}}),
            ("bind", {"PodName": "pod", "PodNamespace": "default", "PodUID": "u", "Node": "node"}),
        ):
            assert "not in yet" in (await extender.post(f"/{verb}", content))["Error"]
        status, why = await extender.get("/readyz", health=True)
        assert status == 503
        assert "not in yet" in why
        gate.set()
        server.forgive()
        await extender.ready()
        assert await extender.get("/readyz", health=True) == (200, "ok\n")
        assert await extender.get("/healthz", health=True) == (200, "ok\n")


async def test_without_the_right_to_read_leases_it_serves_and_judges_no_plugin(
    server: StandInApiServer, api: KubernetesApi
) -> None:
    server.create_node(node_manifest("node", TRN1))
    server.fail(Fault(match=Match(path="/leases"), status=403, times=10_000))

    async with extender_on(api) as extender:
        await extender.ready()

        found = await extender.post("/filter", {"Pod": pod_manifest("pod", DEVICE, 1), "NodeNames": ["node"]})
        assert found["NodeNames"] == ["node"]


async def test_t10_a_bind_that_hangs_does_not_keep_the_process(server: StandInApiServer, api: KubernetesApi) -> None:
    async with extender_on(api, times=ControllerTimes(drain=0.05)) as extender:
        await extender.ready()
        await add_node(server, extender, "node")
        pod = await add_pod(server, extender, pod_manifest("pod", DEVICE, 4))
        gate = asyncio.Event()
        server.fail(Fault(match=BINDING, gate=gate))
        async with StandInScheduler(extender.url) as scheduler:
            binding = asyncio.create_task(scheduler.bind(pod, "node"))
            await until(lambda: extender.daemon.binder.under_way)
            started = time.monotonic()
            extender.stop.set()
            await extender.task
            assert time.monotonic() - started < 5
            gate.set()
            await asyncio.gather(binding, return_exceptions=True)
        await extender.daemon.binder.drain()


async def test_t10_sigterm_lets_a_bind_finish_and_refuses_new_work(
    server: StandInApiServer, extender: Extender, scheduler: StandInScheduler
) -> None:
    await add_node(server, extender, "node")
    pod = await add_pod(server, extender, pod_manifest("pod", DEVICE, 4))
    gate = asyncio.Event()
    server.fail(Fault(match=BINDING, gate=gate))
    binding = asyncio.create_task(scheduler.bind(pod, "node"))
    await until(lambda: extender.daemon.binder.under_way)

    extender.stop.set()
    await until(lambda: extender.daemon.ready.why_not)
    assert (await extender.get("/readyz", health=True))[0] == 503
    with pytest.raises(ExtenderCallError, match="shutting down"):
        await scheduler.filter(pod, ["node"])
    started = time.monotonic()
    gate.set()
    await binding
    await extender.task

    assert time.monotonic() - started < 5
    assert server.get(PODS, "pod", "default")["spec"]["nodeName"] == "node"


async def test_t33_a_node_created_again_is_judged_by_its_new_type(
    server: StandInApiServer, extender: Extender, scheduler: StandInScheduler
) -> None:
    await add_node(server, extender, "node")
    assert (await scheduler.filter(pod_manifest("pod", DEVICE, 16), ["node"])).nodes

    server.delete_node("node")
    await until(lambda: "node" not in extender.daemon.state.nodes)
    await add_node(server, extender, "node", "inf2.24xlarge")

    found = await scheduler.filter(pod_manifest("pod", DEVICE, 16), ["node"])
    assert found.unresolvable == {"node": "Instance type inf2.24xlarge has 6 Neuron devices and 16 were requested"}


async def test_t32_after_a_gap_in_the_watch_the_state_equals_a_fresh_list(
    server: StandInApiServer, extender: Extender, scheduler: StandInScheduler
) -> None:
    await add_node(server, extender, "node")
    for name in ("stays", "goes"):
        await scheduler.schedule(await add_pod(server, extender, pod_manifest(name, DEVICE, 4)), ["node"])
    await until(lambda: not extender.daemon.state.assumed)
    await server.stop()
    server.delete_pod("default", "goes", grace_seconds=0)
    server.compact()
    await server.start()

    await until(lambda: extender.daemon.state.nodes["node"].used_mask == 0xFF)
    assert [str(record.reference) for record in extender.daemon.state.pods.values()] == ["default/stays"]


async def test_t34_an_unreadable_assignment_makes_one_event_and_one_metric(
    server: StandInApiServer, extender: Extender
) -> None:
    await add_node(server, extender, "node")
    broken = pod_manifest("odd", DEVICE, 1, node="node", annotations={"NEURON_DEVS": "x"})
    await add_pod(server, extender, broken)

    await until(lambda: server.objects(EVENTS))
    server.patch_pod("default", "odd", {"metadata": {"labels": {"touched": "yes"}}})
    await asyncio.sleep(0)

    (event,) = server.objects(EVENTS)
    assert event["reason"] == "NeuronAssignmentUnreadable"
    assert event["regarding"]["name"] == "odd"
    assert "Node node takes no new Neuron pod" in event["note"]
    metrics = (await extender.get("/metrics", health=True))[1]
    assert 'neuron_extender_unclear_assignments_total{reason="unreadable-assignment"} 1.0' in metrics
    assert 'neuron_extender_closed_nodes{reason="unreadable-assignment"} 1.0' in metrics


async def test_e07_a_plugin_that_gave_its_lease_up_closes_its_node_until_it_renews(
    server: StandInApiServer, extender: Extender, api: KubernetesApi
) -> None:
    await add_node(server, extender, "node")
    lease = LeaseName("kube-system", "neuron-plugin-node", "node")
    made = LEASES.decode(await send(api, create_lease(lease, duration_seconds=40, now=utc_now()), timeout_seconds=5))
    await send(api, release_lease(lease, made, now=utc_now()), timeout_seconds=5)

    await until(lambda: extender.daemon.state.nodes["node"].stale)

    await send(api, renew_lease(lease, duration_seconds=40, now=utc_now()), timeout_seconds=5)
    await until(lambda: not extender.daemon.state.nodes["node"].stale)


async def test_the_collector_goes_no_longer_through_what_the_first_lists_brought(
    server: StandInApiServer, api: KubernetesApi
) -> None:
    server.create_node(node_manifest("node", TRN1))
    async with extender_on(api) as extender:
        await extender.ready()
        await until(gc.get_freeze_count)
        looked_through = {id(each) for each in gc.get_objects()}
        assert id(extender.daemon.state.nodes["node"]) not in looked_through


@pytest.mark.parametrize("job", [NodeEvents, Planner, Upkeep])
async def test_an_unforeseen_error_in_what_only_reports_leaves_the_scheduler_served(
    job: type[NodeEvents | Planner | Upkeep],
    server: StandInApiServer,
    api: KubernetesApi,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def look(_: object) -> None:
        raise KeyError("unforeseen")

    monkeypatch.setattr(job, "look", look)
    async with extender_on(api, SETTINGS) as extender:
        await extender.ready()
        await add_node(server, extender, "node")
        await until(lambda: "a job failed and is started again" in caplog.messages)
        async with StandInScheduler(extender.url) as scheduler:
            assert (await scheduler.filter(pod_manifest("pod", DEVICE, 1), ["node"])).nodes == ["node"]


async def test_an_address_that_is_taken_ends_the_daemon_with_the_reason(api: KubernetesApi, extender: Extender) -> None:
    taken = ExtenderSettings(port=extender.daemon.port, health_port=0, leader_election=False)

    with pytest.raises(OSError, match="address already in use"):
        async with extender_on(api, taken) as second:
            await second.task


async def test_p78_alive_while_the_loop_answers_and_ready_while_nothing_is_unmet(extender: Extender) -> None:
    assert await extender.get("/healthz", health=True) == (200, "ok\n")
    assert await extender.get("/readyz", health=True) == (200, "ok\n")

    extender.daemon.ready.unmet("leader", "another replica leads")
    assert await extender.get("/readyz", health=True) == (503, "another replica leads\n")
    assert (await extender.get("/healthz", health=True))[0] == 200


async def test_probes_and_metrics_are_on_both_ports_and_verbs_on_one(extender: Extender) -> None:
    for health in (True, False):
        status, text = await extender.get("/metrics", health=health)
        assert status == 200
        assert "neuron_extender_assumed_pods 0.0" in text
        assert 'neuron_extender_watch_age_seconds{kind="pods"}' in text

    assert (await extender.get("/filter", health=True))[0] == 404
    assert (await extender.get("/filter"))[0] == 405


async def test_the_state_is_shown_without_a_certificate_on_the_health_port(extender: Extender) -> None:
    status, text = await extender.get("/inspect", health=True)
    assert (status, text.split()[:2]) == (200, ["NODE", "TYPE"])
    assert (await extender.get("/inspect/ghost", health=True)) == (404, "node ghost is not known here\n")
    assert (await extender.get("/explain/default/ghost", health=True))[0] == 404


async def test_the_monitor_api_is_on_both_ports_and_takes_no_writes(
    server: StandInApiServer, extender: Extender
) -> None:
    await add_node(server, extender, "node")
    for health in (True, False):
        for path in ("neuronnodes", "neuronpods", "neuronnodes?watch=true&timeoutSeconds=1"):
            status, text = await extender.get(f"/apis/neuron-plugin.io/v1/{path}", health=health)
            assert (status, '"name":"node"' in text) == (200, "neuronnodes" in path)
    async with aiohttp.ClientSession() as session:
        for method in ("POST", "PUT", "PATCH", "DELETE"):
            url = f"{extender.health_url}/apis/neuron-plugin.io/v1/neuronnodes"
            async with session.request(method, url) as response:
                assert response.status == 405
