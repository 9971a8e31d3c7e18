from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest

from neuron_plugin.allocation import PodUid
from neuron_plugin.allocation.inventory import read_inventory, write_inventory
from neuron_plugin.allocation.keys import INVENTORY_KEY, UTILIZATION_KEY
from neuron_plugin.allocation.utilization import ContainerUtilization, write_utilization
from neuron_plugin.backoff import Clock
from neuron_plugin.cluster import ApiError, ApiRequest, KubernetesApi, Lease, LeaseName, UnreachableError
from neuron_plugin.cluster.api import Response, send
from neuron_plugin.cluster.objects import LEASES
from neuron_plugin.cluster.pods import PODS
from neuron_plugin.cluster.writes import claim_lease, create_lease, delete_lease, renew_lease, utc_now
from neuron_plugin.monitor.look import look
from neuron_plugin.placement.informers import (
    LOOK_SECONDS,
    PATIENCE_SECONDS,
    TIMES,
    Informers,
    InformerTimes,
    PluginLeases,
    keep_pod,
)
from neuron_plugin.placement.state import ClusterState
from neuron_plugin.simulation.api_server_kinds import BUDGETS, NAMESPACES, POD_GROUPS, RESOURCE_CLAIMS
from tests.simulation.dra import DRIVER, claim_spec, exactly
from tests.simulation.dra import pod as claiming_pod
from tests.support.api_server import Fault, Match, StandInApiServer
from tests.support.manifests import container, node_manifest, pod_manifest
from tests.support.running import Extender, until
from tests.support.scripted_server import ScriptedServer, listed
from tests.support.world import CORE, DEVICE, TYPES, World

LEASE = LeaseName("kube-system", "neuron-plugin-node", "node")
ACQUIRED = "2026-11-26T12:00:00.000000Z"
"""When a plugin took its Lease, which one that it has given up says, too."""


async def test_e07_a_lease_that_is_not_watched_has_not_run_out(server: StandInApiServer, api: KubernetesApi) -> None:
    """An API server that refuses one watch for half a minute must not close every node."""
    now = 0.0
    state, clock, times = ClusterState(), Clock(now=lambda: now), InformerTimes(tick=0.02)
    informers = Informers(api, state, TYPES, lease_namespace="kube-system", times=times, clock=clock)
    leases = informers._followed["leases"]
    server.create_node(node_manifest("node", "trn1.32xlarge"))
    await send(api, create_lease(LEASE, duration_seconds=8, now=utc_now()), timeout_seconds=5)
    running = asyncio.create_task(informers.run(), name="informers")
    await until(lambda: "node" in state.nodes and leases.followed_seconds() > 0)

    now += 8
    await until(lambda: state.nodes["node"].stale)
    await send(api, renew_lease(LEASE, duration_seconds=8, now=utc_now()), timeout_seconds=5)
    await until(lambda: not state.nodes["node"].stale)

    server.fail(Fault(match=Match(path="/leases$"), status=500, times=10_000))
    server.end_watches()
    await until(lambda: not leases.followed_seconds())
    now += 30
    await asyncio.sleep(0.1)  # some looks, which see nothing
    assert not state.nodes["node"].stale

    server.forgive()
    await until(lambda: state.nodes["node"].stale)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


@pytest.mark.parametrize("is_new", [True, False])
async def test_e07_a_plugin_that_stops_closes_its_node_with_its_word_and_not_with_the_next_look(
    server: StandInApiServer, api: KubernetesApi, *, is_new: bool
) -> None:
    """And opens it again with its word, though the watch of Leases may be new, too."""
    state, times = ClusterState(), InformerTimes(tick=60 if is_new else 0.02)
    informers = Informers(api, state, TYPES, lease_namespace="kube-system", times=times)
    leases = informers._followed["leases"]
    server.create_node(node_manifest("node", "trn1.32xlarge"))
    await send(api, create_lease(LEASE, duration_seconds=600, now=utc_now()), timeout_seconds=5)
    async with asyncio.TaskGroup() as group:
        # There is no periodic look here.
        tasks = [group.create_task(each.run(), name="informer") for each in informers._followed.values()]
        await until(lambda: "node" in state.nodes and leases.followed_seconds() > (0 if is_new else 0.02))
        await send(api, renew_lease(replace(LEASE, holder=""), duration_seconds=600, now=utc_now()), timeout_seconds=5)
        await until(lambda: state.nodes["node"].stale)
        await send(api, renew_lease(LEASE, duration_seconds=600, now=utc_now()), timeout_seconds=5)
        await until(lambda: not state.nodes["node"].stale)
        for task in tasks:
            task.cancel()


async def test_e07_what_a_lease_says_is_known_by_node_and_a_renewal_is_no_change(
    server: StandInApiServer, api: KubernetesApi
) -> None:
    """And a look knows it without judging the plugin by it."""
    state, busy = ClusterState(), {PodUid("uid"): {"main": ContainerUtilization(7, 0)}}
    informers = Informers(api, state, TYPES, lease_namespace="kube-system")
    server.create_node(node_manifest("node", "trn1.32xlarge"))
    times = [datetime(2026, 1, 1, second=second, tzinfo=UTC) for second in range(3)]
    seen = LEASES.decode(await send(api, create_lease(LEASE, duration_seconds=600, now=times[0]), timeout_seconds=5))
    text = {UTILIZATION_KEY: write_utilization(busy)}
    running = asyncio.create_task(informers.run(), name="informers")
    await until(lambda: "node" in state.nodes and state.history.renewals == {"node": "2026-01-01T00:00:00.000000Z"})

    claim = claim_lease(LEASE, seen, duration_seconds=600, now=times[1], annotations=text)
    await send(api, claim, timeout_seconds=5)
    await until(lambda: state.utilization == {"node": busy})
    version = state.changes.version
    await send(api, renew_lease(LEASE, duration_seconds=600, now=times[2]), timeout_seconds=5)
    await until(lambda: state.history.renewals == {"node": "2026-01-01T00:00:02.000000Z"})
    assert state.changes.version == version

    await send(api, renew_lease(replace(LEASE, holder=""), duration_seconds=600, now=times[2]), timeout_seconds=5)
    found = await look(api, TYPES, lease_namespace="kube-system", judge=False)
    assert (found.utilization, found.history.renewals) == ({"node": busy}, state.history.renewals)
    assert not found.nodes["node"].stale

    await send(api, delete_lease(LEASE), timeout_seconds=5)
    await until(lambda: not (state.utilization or state.history.renewals))
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def test_a_replica_that_has_just_started_knows_which_plugins_gave_their_lease_up(
    server: StandInApiServer, api: KubernetesApi
) -> None:
    """A node whose kubelet is restarting is closed for the next leader, too, which has watched no Lease for long."""
    state = ClusterState()
    informers = Informers(api, state, TYPES, lease_namespace="kube-system")
    for name, holder in (("gone", ""), ("here", "here")):
        server.create_node(node_manifest(name, "trn1.32xlarge"))
        lease = replace(LEASE, name=f"neuron-plugin-{name}", holder=name)
        await send(api, create_lease(lease, duration_seconds=600, now=utc_now()), timeout_seconds=5)
        given_up = renew_lease(replace(lease, holder=holder), duration_seconds=600, now=utc_now())
        await send(api, given_up, timeout_seconds=5)
    others = replace(LEASE, name="kube-scheduler", holder="")
    await send(api, create_lease(others, duration_seconds=600, now=utc_now()), timeout_seconds=5)
    running = asyncio.create_task(informers.run(), name="informers")
    await informers.synced()
    await informers.leases_listed(5)

    assert {name: info.stale for name, info in state.nodes.items()} == {"gone": True, "here": False}
    assert state.history.renewals.keys() == {"gone", "here"}
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def test_e04_what_a_new_leader_knows_of_claims_is_what_the_server_has(
    server: StandInApiServer, api: KubernetesApi
) -> None:
    informers = Informers(api, ClusterState(), TYPES, dra_driver=DRIVER)
    server.create(RESOURCE_CLAIMS, {"metadata": {"name": "c"}, "spec": claim_spec(exactly(count=4))}, "default")
    await informers.list_consistently(5)
    assert set(informers.claims) == {("default", "c")}


async def test_e04_a_pod_is_unbound_while_it_lives_and_has_no_node(
    server: StandInApiServer, api: KubernetesApi
) -> None:
    informers = Informers(api, ClusterState(), TYPES)
    for name, amount, node in (("bound", 1, "node"), ("asks-for-nothing", 0, "")):
        server.create_pod(pod_manifest(name, DEVICE, amount, node=node) if amount else {"metadata": {"name": name}})
    await informers.list_consistently(5)
    assert not informers.any_unbound()

    server.create_pod(pod_manifest("waiting", DEVICE, 1))
    await informers.list_consistently(5)
    assert informers.any_unbound()

    server.set_pod_status("default", "waiting", {"phase": "Failed"})
    await informers.list_consistently(5)
    assert not informers.any_unbound()


@asynccontextmanager
async def following(server: StandInApiServer, world: World, dra_driver: str = "") -> AsyncIterator[None]:
    """The informers of a state, synced, for the length of the block."""
    loop = asyncio.get_running_loop()
    clock = Clock(now=loop.time, sleep=asyncio.sleep)
    informers = Informers(server, world.state, TYPES, lease_namespace="kube-system", dra_driver=dra_driver, clock=clock)
    task = asyncio.create_task(informers.run())
    await informers.synced()
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait([task])


RUNNING = {"phase": "Running", "containerStatuses": [{"name": "main", "state": {"running": {}}}]}
STOPPED = {"phase": "Succeeded", "containerStatuses": [{"name": "main", "state": {"terminated": {"exitCode": 0}}}]}


def running_on_all_of(node: str) -> dict[str, Any]:
    held = pod_manifest("first", DEVICE, 16, node=node, annotations={"NEURON_DEVS": ",".join(map(str, range(16)))})
    return {**held, "status": RUNNING}


@pytest.mark.looptime
@pytest.mark.parametrize(
    ("before", "status"),
    [({}, {}), ({}, {"phase": "Succeeded"}), ({}, {"phase": "Failed"}), (RUNNING, STOPPED)],
    ids=["deleted", "succeeded", "failed", "seen to stop"],
)
async def test_t36_a_filter_within_100_ms_of_a_pods_end_sees_its_silicon_free(
    world: World, before: dict[str, Any], status: dict[str, Any]
) -> None:
    """Time is faked: what passes here is timers and batches on the way from the event to the verdict, and none may be.

    So it holds on any machine, which the time on a clock would not.
    """
    server, loop = StandInApiServer(), asyncio.get_running_loop()
    server.create_node(node_manifest("node", "trn1.32xlarge"))
    server.create_pod({**running_on_all_of("node"), "status": before})
    async with following(server, world):
        assert not world.fits(DEVICE, 16, "node")

        if status:
            server.set_pod_status("default", "first", status)
        else:
            server.delete_pod("default", "first", grace_seconds=0)
        started = loop.time()
        await until(lambda: world.fits(DEVICE, 16, "node"))

        assert loop.time() - started <= 0.1


@pytest.mark.looptime
async def test_what_a_shared_claim_holds_stays_held_when_its_first_pod_is_deleted(world: World) -> None:
    server, uses = StandInApiServer(), []
    server.create_node(node_manifest("node", "trn1.32xlarge", claim_driver=DRIVER))
    for name in ("first", "second"):
        made = server.create_pod(claiming_pod(name, claim="c", nodeName="node"))
        server.set_pod_status("default", name, RUNNING)
        uses.append({"resource": "pods", "name": name, "uid": made["metadata"]["uid"]})
    results = [
        {"request": "neurons", "driver": DRIVER, "pool": "node-neuron", "device": f"neuron-{device}"}
        for device in range(4)
    ]
    allocation = {"devices": {"results": results}}
    server.create(RESOURCE_CLAIMS, {"metadata": {"name": "c"}, "spec": claim_spec(exactly(count=4))}, "default")
    server.patch_status(RESOURCE_CLAIMS, "c", {"allocation": allocation, "reservedFor": uses}, "default")
    async with following(server, world, DRIVER):
        assert world.state.nodes["node"].used_mask.bit_count() == 8
        server.delete_pod("default", "first", grace_seconds=0)
        await until(lambda: len(world.state.pods) == 1 and "first" not in str(world.state.pods))
        info = world.state.nodes["node"]
        assert (info.used_mask, info.closed) == (0xFF, None)
        assert info.free_mask.bit_count() == 24

        server.patch_status(RESOURCE_CLAIMS, "c", {"reservedFor": uses[1:]}, "default")
        await asyncio.sleep(TIMES.departed + TIMES.tick)
        assert world.state.nodes["node"].used_mask == 0xFF
        server.delete_pod("default", "second", grace_seconds=0)
        await until(lambda: not world.state.nodes["node"].used_mask)


@pytest.mark.looptime
@pytest.mark.parametrize("held_down", [(), (3,)], ids=["nothing held", "one device held"])
async def test_a_pod_that_is_deleted_while_it_runs_keeps_its_silicon_until_its_node_has_seen_that(
    world: World, held_down: tuple[int, ...]
) -> None:
    server, held, node = StandInApiServer(), running_on_all_of("node"), node_manifest("node", "trn1.32xlarge")
    server.create_node(node)
    server.create_pod(held)
    async with following(server, world):
        assert not world.fits(DEVICE, 1, "node")
        server.delete_pod("default", "first", grace_seconds=0)
        await asyncio.sleep(TIMES.departed / 2)
        assert not world.fits(DEVICE, 1, "node")
        annotations = node["metadata"]["annotations"]
        told = replace(
            read_inventory(annotations[INVENTORY_KEY]),
            unhealthy=dict.fromkeys(held_down, "processes of a pod that has ended may still use it"),
            held_down=held_down,
            vanished_pods=(held["metadata"]["uid"],),
        )
        server.patch_node("node", {"metadata": {"annotations": {INVENTORY_KEY: write_inventory(told)}}})
        started = asyncio.get_running_loop().time()
        await until(lambda: world.fits(DEVICE, 4, "node"))
        assert asyncio.get_running_loop().time() - started <= 0.1
        assert world.fits(DEVICE, 16, "node") is not bool(held_down)


@pytest.mark.looptime
async def test_a_pod_that_is_deleted_while_it_runs_keeps_nothing_for_long_where_no_node_says_anything(
    world: World,
) -> None:
    server, held = StandInApiServer(), running_on_all_of("node")
    server.create_node(node_manifest("node", "trn1.32xlarge"))
    server.create_pod(held)
    async with following(server, world):
        server.delete_pod("default", "first", grace_seconds=0)
        await until(lambda: not world.state.pods)
        assert not world.fits(DEVICE, 16, "node")
        await asyncio.sleep(TIMES.departed + TIMES.tick)
        assert world.fits(DEVICE, 16, "node")


def plugin_lease(name: str, version: int, *, holder: str = "node", seconds: int = 40) -> Lease:
    spec = {"holderIdentity": holder, "leaseDurationSeconds": seconds, "acquireTime": ACQUIRED, "renewTime": ACQUIRED}
    return LEASES.decode(
        msgspec.json.encode({"metadata": {"name": name, "uid": name, "resourceVersion": str(version)}, "spec": spec})
    )


def test_e07_a_lease_that_is_not_renewed_for_its_duration_makes_its_node_stale() -> None:
    leases = PluginLeases()
    leases.changed("u", plugin_lease("neuron-plugin-a", 1), 0.0)

    assert leases.stale(39.9) == frozenset()
    assert leases.stale(40.0) == {"a"}

    leases.changed("u", plugin_lease("neuron-plugin-a", 2), 50.0)
    assert leases.stale(60.0) == frozenset()


def test_e07_seeing_the_same_version_again_is_no_renewal() -> None:
    leases = PluginLeases()
    leases.changed("u", plugin_lease("neuron-plugin-a", 1), 0.0)
    leases.changed("u", plugin_lease("neuron-plugin-a", 1), 30.0)

    assert leases.stale(41.0) == {"a"}


async def test_a_plugin_that_makes_its_lease_does_not_close_its_node(
    server: StandInApiServer, api: KubernetesApi
) -> None:
    """It makes it without a holder: a bind in between would be refused."""
    state = ClusterState()
    informers = Informers(api, state, TYPES, lease_namespace="kube-system")
    server.create_node(node_manifest("node", "trn1.32xlarge"))
    running = asyncio.create_task(informers.run(), name="informers")
    await informers.synced()
    await informers.leases_listed(5)
    seen = state.changes.version

    made = await send(
        api, create_lease(replace(LEASE, holder=""), duration_seconds=8, now=utc_now()), timeout_seconds=5
    )
    await until(lambda: "node" in state.history.renewals)
    await send(api, claim_lease(LEASE, LEASES.decode(made), duration_seconds=8, now=utc_now()), timeout_seconds=5)
    await until(lambda: state.history.renewals["node"])

    assert state.changes.version == seen
    assert not state.nodes["node"].stale
    await send(api, renew_lease(replace(LEASE, holder=""), duration_seconds=8, now=utc_now()), timeout_seconds=5)
    await until(lambda: state.nodes["node"].stale)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


def test_a_lease_that_was_given_up_is_stale_and_one_that_is_gone_is_not_judged() -> None:
    leases = PluginLeases()
    leases.changed("u", plugin_lease("neuron-plugin-a", 1, holder=""), 0.0)
    assert leases.stale(0.0) == {"a"}

    leases.changed("u", None, 1.0)
    assert leases.stale(100.0) == frozenset()


def test_a_node_whose_kubelet_got_no_devices_is_stale_until_its_lease_is_renewed() -> None:
    leases = PluginLeases()
    leases.changed("u", plugin_lease("neuron-plugin-a", 1), 0.0)
    assert leases.doubt("a")
    assert not leases.doubt("without-a-lease")
    assert leases.stale(1.0) == {"a"}

    assert not leases.changed("u", plugin_lease("neuron-plugin-a", 1), 2.0)
    assert leases.stale(2.0) == {"a"}

    assert leases.changed("u", plugin_lease("neuron-plugin-a", 2), 3.0)
    assert leases.stale(3.0) == frozenset()


ADMISSION_ERROR = {"phase": "Failed", "reason": "UnexpectedAdmissionError"}


@pytest.mark.looptime
async def test_a_rejected_admission_closes_its_node_at_once_and_until_the_next_renewal(world: World) -> None:
    server = StandInApiServer()
    server.create_node(node_manifest("node", "trn1.32xlarge"))
    await send(server, create_lease(LEASE, duration_seconds=3600, now=utc_now()), timeout_seconds=5)
    lost = pod_manifest("lost", DEVICE, 1, node="node", annotations={"NEURON_DEVS": "3"})
    old = pod_manifest("old", DEVICE, 1, node="node", annotations={"NEURON_DEVS": "4"})
    server.create_pod({**old, "status": ADMISSION_ERROR})
    async with following(server, world):
        await asyncio.sleep(2 * TIMES.tick)
        server.create_pod(lost)
        await until(lambda: world.state.pods)
        assert world.fits(DEVICE, 4, "node")

        server.set_pod_status("default", "lost", ADMISSION_ERROR)
        await until(lambda: not world.state.pods)
        assert world.why_not(DEVICE, 1, "node") == "The node's Neuron plugin does not renew its lease"
        assert [pod.reference.name for pod in world.state.history.rejections] == ["lost"]
        assert world.state.nodes["node"].used_mask == 0

        await asyncio.sleep(2 * TIMES.tick)
        assert not world.fits(DEVICE, 1, "node")
        await send(server, renew_lease(LEASE, duration_seconds=3600, now=utc_now()), timeout_seconds=5)
        await until(lambda: world.fits(DEVICE, 16, "node"))


@pytest.mark.looptime
@pytest.mark.parametrize(
    ("annotations", "status"),
    [({}, ADMISSION_ERROR), ({"NEURON_DEVS": "3"}, {"phase": "Failed", "reason": "Evicted"})],
    ids=["no assignment", "other reason"],
)
async def test_other_failures_close_no_node(world: World, annotations: dict[str, str], status: dict[str, str]) -> None:
    server = StandInApiServer()
    server.create_node(node_manifest("node", "trn1.32xlarge"))
    await send(server, create_lease(LEASE, duration_seconds=3600, now=utc_now()), timeout_seconds=5)
    pod = pod_manifest("pod", DEVICE, 1, node="node", annotations=annotations)
    server.create_pod(pod)
    async with following(server, world):
        await asyncio.sleep(2 * TIMES.tick)
        server.set_pod_status("default", "pod", status)
        await until(lambda: not world.state.pods)

        assert world.fits(DEVICE, 16, "node")
        assert not world.state.history.rejections


@pytest.mark.looptime
async def test_a_server_without_pod_groups_is_asked_again_now_and_then_without_a_warning(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    server = StandInApiServer()
    server.fail(Fault(Match(path="/podgroups$"), status=404, times=1000))
    server.create_node(node_manifest("node", "trn1.32xlarge"))
    async with following(server, world):
        await asyncio.sleep(TIMES.groups / 2)
        assert world.fits(DEVICE, 1, "node")
        server.forgive()
        policy = {"schedulingPolicy": {"gang": {"minCount": 2}}}
        server.create(POD_GROUPS, {"metadata": {"name": "train"}, "spec": policy}, "ml")
        await asyncio.sleep(TIMES.groups)

        assert world.state.min_counts == {("ml", "train"): 2}
    assert not caplog.records


async def test_a_look_sees_what_a_running_extender_sees(
    server: StandInApiServer, api: KubernetesApi, extender: Extender
) -> None:
    server.create_node(node_manifest("node", "trn1.32xlarge"))
    server.create_pod(pod_manifest("bound", DEVICE, 1, node="node", annotations={"NEURON_DEVS": "3"}))
    server.create_pod(pod_manifest("waiting", DEVICE, 4))
    server.create_pod(pod_manifest("plain", DEVICE, 0))
    server.create(NAMESPACES, {"metadata": {"name": "ml", "labels": {"team": "red"}}}, "")
    server.create(BUDGETS, {"metadata": {"name": "budget"}, "status": {"disruptionsAllowed": 1}}, "ml")
    spec = {"schedulingPolicy": {"gang": {"minCount": 2}}, "schedulingConstraints": {"topology": [{"key": "zone"}]}}
    server.create(POD_GROUPS, {"metadata": {"name": "train"}, "spec": spec}, "ml")
    state = extender.daemon.state
    await until(lambda: state.nodes and len(state.pods) == 2 and state.namespaces and state.budgets and state.wishes)

    found = await look(api, TYPES)

    assert (dict(found.pods), dict(found.nodes)) == (dict(state.pods), dict(state.nodes))
    assert (found.namespaces, found.budgets, found.storage) == (state.namespaces, state.budgets, state.storage)
    assert (found.min_counts, found.wishes) == (state.min_counts, state.wishes) != ({}, {})


async def test_a_look_sees_what_pods_have_by_claims(server: StandInApiServer, api: KubernetesApi) -> None:
    server.create_node(node_manifest("a-by-count", "trn1.32xlarge"))
    server.create_node(node_manifest("b-by-claim", "trn1.32xlarge", claim_driver=DRIVER))
    server.create(RESOURCE_CLAIMS, {"metadata": {"name": "c"}, "spec": claim_spec(exactly(count=4))}, "default")
    server.create_pod(claiming_pod("train", claim="c"))

    (seen,) = (await look(api, TYPES)).pods.values()

    assert [part.count for part in seen.requests] == [4]


async def test_a_watch_that_begins_with_a_look_goes_on_with_claims(
    server: StandInApiServer, api: KubernetesApi
) -> None:
    server.create_node(node_manifest("by-claim", "trn1.32xlarge", claim_driver=DRIVER))
    state = ClusterState()
    informers = Informers(api, state, TYPES)
    await informers.list_once()
    running = asyncio.create_task(informers.run(), name="informers")
    server.create(RESOURCE_CLAIMS, {"metadata": {"name": "c"}, "spec": claim_spec(exactly(count=4))}, "default")
    server.create_pod(claiming_pod("train", claim="c"))

    await until(lambda: [part.count for pod in state.pods.values() for part in pod.requests] == [4])
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def test_an_absent_api_server_is_an_error(server: StandInApiServer, api: KubernetesApi) -> None:
    await server.stop()

    with pytest.raises(UnreachableError):
        await look(api, TYPES)


def lease(version: int, holder: str = "node", *, seconds: int = 8, name: str = "neuron-plugin-node") -> dict[str, Any]:
    return {
        "metadata": {"name": name, "uid": name, "resourceVersion": str(version)},
        "spec": {
            "holderIdentity": holder,
            "leaseDurationSeconds": seconds,
            "acquireTime": ACQUIRED,
            "renewTime": ACQUIRED,
        },
    }


async def surveyed(*looks: Sequence[dict[str, Any]] | ApiError, namespace: str = "kube-system") -> tuple[bool, float]:
    """Whether the plugin was found silent, and how long it took in faked time.

    The server has one node, and at each look at the Leases these ones; the last ones from then on.
    """
    loop, left = asyncio.get_running_loop(), list(looks)

    async def answer(request: ApiRequest) -> Response:
        if not request.path.endswith("/leases"):
            return listed(*[node_manifest("node", "trn1.32xlarge")] * request.path.endswith("/nodes"))
        found = left.pop(0) if len(left) > 1 else left[0]
        if isinstance(found, ApiError):
            raise found
        return listed(*found)

    server = ScriptedServer(answer)
    started = loop.time()
    state, clock = ClusterState(), Clock(now=loop.time, sleep=asyncio.sleep)
    informers = Informers(server, state, TYPES, lease_namespace=namespace, clock=clock)
    await informers.list_once()
    return "node" in await informers.watch_leases(), loop.time() - started


@pytest.mark.looptime
async def test_e07_a_plugin_whose_lease_is_renewed_under_our_eyes_is_not_silent() -> None:
    silent, took = await surveyed([lease(1)], [lease(1)], [lease(2)])

    assert not silent
    assert took == pytest.approx(2 * LOOK_SECONDS)


@pytest.mark.looptime
async def test_e07_a_lease_that_runs_out_under_our_eyes_makes_its_node_stale() -> None:
    silent, took = await surveyed([lease(1), lease(1, name="kube-scheduler", seconds=3600)])

    assert silent
    assert took == pytest.approx(8, abs=LOOK_SECONDS)


@pytest.mark.looptime
async def test_e07_a_lease_that_was_given_up_takes_one_look() -> None:
    assert await surveyed([lease(1, holder="")]) == (True, 0.0)


@pytest.mark.looptime
async def test_a_lease_that_lasts_long_is_not_waited_for() -> None:
    silent, took = await surveyed([lease(1, seconds=3600)])

    assert not silent
    assert took == pytest.approx(PATIENCE_SECONDS, abs=LOOK_SECONDS)


@pytest.mark.looptime
async def test_without_the_right_to_read_leases_or_a_place_to_look_for_them_plugins_go_unjudged() -> None:
    forbidden = ApiError(status=403, reason="Forbidden", message="no", method="GET", path="/leases")

    assert await surveyed(forbidden) == (False, 0.0)
    assert await surveyed([lease(1, holder="")], namespace="") == (False, 0.0)


def test_only_live_pods_that_ask_for_neuron_are_kept() -> None:
    def kept(manifest: object) -> bool:
        return keep_pod(PODS.decode(msgspec.json.encode(manifest))) is not None

    assert kept(pod_manifest("pod", CORE, 1))
    assert kept(pod_manifest("init", containers=[container("a", CORE, 0)], init_containers=[container("b", CORE, 1)]))
    assert not kept(pod_manifest("plain", CORE, 0))
    assert not kept({**pod_manifest("done", CORE, 1), "status": {"phase": "Failed"}})
