"""The account of device-hours through restarts, two leaders, lost answers and clocks, against an API server."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime

import pytest

from neuron_plugin.allocation.utilization import ContainerUtilization
from neuron_plugin.backoff import Clock
from neuron_plugin.cluster import KubernetesApi
from neuron_plugin.placement import device_hours
from neuron_plugin.placement.account import DAY, PARTS, Account, DeviceTime, read_account
from neuron_plugin.placement.context import Context
from neuron_plugin.placement.daemon import ControllerTimes
from neuron_plugin.placement.device_hours import CONFIG_MAP, DeviceHours, read_written
from neuron_plugin.placement.leadership import CONDITION, SYNCED, Readiness
from neuron_plugin.placement.metrics import device_seconds
from neuron_plugin.simulation.api_server_kinds import CONFIG_MAPS, EVENTS, AnyJson
from tests.support.api_server import Fault, Match, StandInApiServer
from tests.support.manifests import node_manifest, pod_manifest
from tests.support.running import SETTINGS, add_node, extender_on
from tests.support.world import DEVICE, World

INF2 = "inf2.24xlarge"  # 6 devices
BEGIN = 20_000 * DAY
WRITES = Match(method="PATCH", path=CONFIG_MAP)


class Stand:
    """One API server, one clock and one cluster, in which replicas lead when a test says so."""

    def __init__(self) -> None:
        self.server = StandInApiServer()
        self.now = float(BEGIN)
        self.world = World()
        self.shown = Counter[tuple[str, str]]()
        """The most that any replica has shown so far."""
        self.one = self.replica("one")

    def replica(self, name: str) -> DeviceHours:
        """A new process that leads."""
        clock = Clock(now=lambda: self.now)
        ready = Readiness({SYNCED: "", CONDITION: ""})
        context = Context(self.server, self.world.state, ready, name, clock=clock, unix_seconds=lambda: self.now)
        return DeviceHours(context, "kube-system")

    async def run(self, replica: DeviceHours, seconds: int, step: int = 15) -> None:
        """Time goes on, and the replica looks."""
        await self.look(replica)
        for _ in range(seconds // step):
            self.now += step
            await self.look(replica)

    async def look(self, replica: DeviceHours) -> None:
        await replica.look()
        self.shown |= Counter(shown(replica))

    async def written(self) -> Account:
        data, _ = await read_written(self.server, "kube-system")
        assert data is not None
        return read_account(data)

    def pod(self, name: str, ids: str, *, percent: int | None = None, node: str = "node") -> AnyJson:
        """A pod that is bound now."""
        given = {"NEURON_DEVS": ids, "NEURON_ALLOC_TIME": str(int(self.now * 1e9))}
        manifest = pod_manifest(name, DEVICE, len(ids.split(",")), node=node, annotations=given)
        self.world.show(manifest)
        if percent is not None:
            uses = self.world.state.utilization
            used = {manifest["metadata"]["uid"]: {"main": ContainerUtilization(percent, 0)}}
            uses[node] = {**uses.get(node, {}), **used}
        return manifest


@pytest.fixture
def stand() -> Stand:
    stand = Stand()
    stand.world.node("node", INF2)
    stand.pod("train", "0,1", percent=75)
    return stand


def seconds_of(amounts: DeviceTime) -> dict[tuple[str, str], float]:
    found = Counter[tuple[str, str]]()
    for share, amount in amounts.items():
        found[share.workload, share.state] += amount
    return {key: amount / PARTS for key, amount in found.items()}


def shown(replica: DeviceHours) -> dict[tuple[str, str], float]:
    seconds = device_seconds(replica.written)
    return {(share.workload, share.state): seconds[share] for share in replica.written}


def adds_up(account: Account, devices: int = 6) -> bool:
    """Whether each second of each device is counted once, in each table that has the whole time."""
    expected = devices * PARTS * (account.until - account.begun)
    tables = (account.totals, *(sum(table.values(), DeviceTime()) for table in (account.days, account.nodes)))
    return account.begun == BEGIN and {sum(table.values()) for table in tables} == {expected}


async def test_a_leader_that_is_stopped_hands_over_every_second(stand: Stand) -> None:
    await stand.run(stand.one, 600)
    stand.now += 7
    await stand.one.end()
    assert seconds_of((await stand.written()).totals) == {
        ("train", "busy"): 2 * 607 * 0.75,
        ("train", "idle"): 2 * 607 * 0.25,
        ("", "free"): 4 * 607,
    }
    two = stand.replica("two")
    await two.look()
    assert shown(two) == seconds_of((await stand.written()).totals)
    await stand.run(two, 300)
    assert adds_up(await stand.written())
    assert ("", "unknown") not in shown(two)


async def test_of_a_time_without_a_leader_pods_that_live_are_counted_by_their_own_times(stand: Stand) -> None:
    await stand.run(stand.one, 300)
    until = (await stand.written()).until
    stand.now += 1000  # the leader was killed
    stand.pod("late", "2")
    stand.now += 500
    gap = stand.now - until
    await stand.replica("two").look()
    account = await stand.written()
    assert adds_up(account)
    found = seconds_of(account.totals)
    assert (found["train", "unknown"], found["late", "unknown"]) == (2 * gap, 500)
    assert found["", "unknown"] == 6 * gap - 2 * gap - 500


async def _killed(stand: Stand) -> None:
    stand.now += 50
    await stand.run(stand.replica("two"), 400)


async def _both_lead(stand: Stand) -> None:
    two = stand.replica("two")
    for _ in range(60):
        stand.now += 15
        await stand.look(stand.one)
        await stand.look(two)
    for replica in (stand.one, two):
        await replica.end()
        stand.shown |= Counter(shown(replica))


def _fails(*, lose_answer: bool) -> Callable[[Stand], Awaitable[None]]:
    async def failed(stand: Stand) -> None:
        stand.server.fail(Fault(match=WRITES, times=3, lose_answer=lose_answer, unsent=not lose_answer))
        await stand.run(stand.one, 600)

    return failed


async def _deleted(stand: Stand) -> None:
    stand.server.delete(CONFIG_MAPS, CONFIG_MAP, "kube-system")
    await stand.run(stand.one, 400)


async def _spoilt(stand: Stand) -> None:
    body: AnyJson = {"binaryData": {"account.json.gz": "cnViYmlzaA=="}}
    stand.server.change(CONFIG_MAPS, CONFIG_MAP, body, "kube-system")
    await stand.run(stand.one, 400)


async def _paused(stand: Stand) -> None:
    stand.now += 3000
    await stand.run(stand.one, 400)
    assert shown(stand.one)["", "unknown"] == 4 * 3000


async def _set_back(stand: Stand) -> None:
    stand.now -= 100
    await stand.run(stand.one, 400)


@pytest.mark.parametrize(
    "happens",
    [_killed, _both_lead, _fails(lose_answer=True), _fails(lose_answer=False), _deleted, _spoilt, _paused, _set_back],
)
async def test_nothing_is_lost_or_counted_twice(stand: Stand, happens: Callable[[Stand], Awaitable[None]]) -> None:
    await stand.run(stand.one, 400)
    await happens(stand)
    last, before = stand.replica("last"), stand.shown.copy()
    await last.look()
    assert shown(last).keys() >= before.keys()
    assert all(shown(last)[share] >= seconds for share, seconds in before.items())
    await stand.run(last, 300)
    account = await stand.written()
    assert adds_up(account)
    assert account.until >= stand.now - 120


async def test_an_answer_that_is_lost_costs_no_knowledge(stand: Stand) -> None:
    await stand.run(stand.one, 400)
    await _fails(lose_answer=True)(stand)
    await stand.run(stand.one, 300)
    assert adds_up(await stand.written())
    assert not any(state == "unknown" for _, state in shown(stand.one))


@pytest.mark.parametrize("spoilt", ["", "cnViYmlzaA=="])
async def test_a_spoilt_account_is_replaced_by_a_new_one(
    stand: Stand, spoilt: str, caplog: pytest.LogCaptureFixture
) -> None:
    body = {"metadata": {"name": CONFIG_MAP}, "binaryData": {"account.json.gz": spoilt}}
    made = stand.server.create(CONFIG_MAPS, body, "kube-system")
    await stand.run(stand.one, 300)
    assert adds_up(await stand.written())
    assert [record.message for record in caplog.records] == ["the account of device-hours is spoilt, and replaced"]
    (event,) = stand.server.objects(EVENTS)
    assert (event["reason"], event["regarding"]["uid"]) == ("NeuronDeviceHoursSpoilt", made["metadata"]["uid"])
    assert "put a copy of its data back" in event["note"]


@pytest.mark.parametrize("had", [False, True], ids=["empty", "with a pod of the node that it replaces"])
async def test_a_node_that_came_while_nobody_looked_had_devices_from_then_on(stand: Stand, *, had: bool) -> None:
    await stand.run(stand.one, 300)
    joined = node_manifest("new", INF2)
    joined["metadata"]["creationTimestamp"] = datetime.fromtimestamp(BEGIN + 1000, UTC).isoformat()
    if had:
        stand.pod("older", "0,1,2,3,4,5", node="new")
    stand.world.show_node(joined)
    stand.now += 2000
    await stand.run(stand.replica("two"), 300)
    account = await stand.written()
    assert sum(account.totals.values()) == PARTS * 6 * (account.until - BEGIN + account.until - BEGIN - 1000)
    assert min(account.totals.values()) >= 0
    assert not any(amount < 0 for hour in account.hours.values() for amount in hour.values())


async def test_a_copy_of_the_account_that_is_put_back_goes_on(stand: Stand) -> None:
    await stand.run(stand.one, 300)
    (kept,), two = stand.server.objects(CONFIG_MAPS), stand.replica("two")
    for data in ({"account.json.gz": "cnViYmlzaA=="}, kept["binaryData"]):
        stand.server.change(CONFIG_MAPS, CONFIG_MAP, {"binaryData": data}, "kube-system")
        await stand.run(two, 300)
    assert adds_up(await stand.written())
    assert len(stand.server.objects(EVENTS)) == 1


async def test_without_an_answer_nothing_is_counted_and_nothing_overwritten(stand: Stand) -> None:
    await stand.run(stand.one, 300)
    two = stand.replica("two")
    stand.server.fail(Fault(match=Match(method="GET", path=CONFIG_MAP), times=5, lose_answer=True))
    stand.now += 15
    await stand.run(two, 60)
    assert shown(two) == {}
    await stand.run(two, 300)
    assert adds_up(await stand.written())


async def test_an_account_from_a_clock_that_was_far_ahead_goes_on_from_now(stand: Stand) -> None:
    stand.now = BEGIN + 10.0 * DAY
    await stand.run(stand.one, 300)
    first = await stand.written()
    stand.now = BEGIN + 1.0 * DAY
    await stand.run(two := stand.replica("two"), 600)
    account = await stand.written()
    assert BEGIN + DAY <= account.until <= stand.now
    assert [*account.days] == [BEGIN + DAY]
    assert shown(two)["", "free"] == 4 * (first.until - first.begun + account.until - BEGIN - DAY)


async def test_a_replica_that_leads_again_before_its_next_look_shows_what_was_counted_meanwhile(stand: Stand) -> None:
    await stand.run(stand.one, 300)
    two = stand.replica("two")
    await stand.run(two, 600)
    await stand.one.take_over()
    await stand.run(stand.one, 15)
    assert shown(stand.one) == stand.shown
    assert adds_up(await stand.written())


async def test_a_replica_that_does_not_lead_counts_and_shows_nothing(stand: Stand) -> None:
    await stand.run(stand.one, 300)
    stand.one._context.ready.unmet(CONDITION, "another one leads")
    await stand.one.look()
    assert stand.world.state.history.device_hours is None
    assert shown(stand.one) == {}
    requests = len(stand.server.requests)
    await stand.run(stand.one, 600)
    assert len(stand.server.requests) == requests


@pytest.mark.timeout(120)
async def test_a_week_of_churn_adds_up_to_capacity_times_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pods come and go, nodes and plugins are lost, and controllers are stopped, killed and overlap."""
    monkeypatch.setattr(device_hours, "SAVE_SECONDS", 1200)
    dice, stand, step = random.Random(1), Stand(), 120  # noqa: S311 - no secret
    nodes, pods, free = set[str](), dict[str, AnyJson](), dict[str, list[int]]()
    capacity_seconds, leaders = 0.0, [stand.one]

    def add_node(name: str) -> None:
        stand.world.node(name, INF2, unhealthy={0: "ECC"} if dice.random() < 0.2 else {})
        nodes.add(name)
        free.setdefault(name, [*range(6)])

    for number in range(4):
        add_node(f"node-{number}")
    stand.pod("steady", "5", percent=100, node="node-0")
    free["node-0"].remove(5)
    end = BEGIN + 7 * DAY
    number = 0
    while stand.now < end:
        number += 1
        for _ in range(dice.choice((0, 0, 1, 2))):  # between two looks, at any second
            passed = dice.randrange(step // 3)
            stand.now += passed
            capacity_seconds += passed * 6 * len(nodes)
            name = dice.choice(sorted(free))
            kind = dice.random()
            if kind < 0.45 and free[name] and name in nodes:
                device, job = free[name].pop(), f"job-{number % 20}-{name}"
                use = dice.choice((None, 0, 50, 100))
                pods[f"{job}-{device}"] = stand.pod(job, str(device), percent=use, node=name)
            elif kind < 0.97 and pods:
                gone = pods.pop(dice.choice(sorted(pods)))
                stand.world.gone(gone)
                free[gone["spec"]["nodeName"]].append(int(gone["metadata"]["annotations"]["NEURON_DEVS"]))
            elif kind < 0.975:
                stand.world.state.set_stale(frozenset(dice.sample(sorted(nodes), dice.randrange(2))))
            elif name in nodes and name != "node-0" and len(nodes) > 2:
                info = stand.world.state.nodes[name]
                stand.world.state.remove_node(name, info.node.uid)
                nodes.remove(name)
            elif name not in nodes:
                add_node(name)
        rest = step - stand.now % step
        capacity_seconds += rest * 6 * len(nodes)
        stand.now += rest
        event, leaders = dice.random(), leaders[-1:] if dice.random() < 0.2 else leaders
        if event < 0.002:
            await leaders[-1].end()
            leaders = [stand.replica(str(number))]
        elif event < 0.004:
            leaders = [stand.replica(str(number))]
        elif event < 0.006:
            leaders = [leaders[-1], stand.replica(str(number))]
        elif event < 0.01:
            lost = dice.random() < 0.5
            stand.server.fail(Fault(match=WRITES, times=2, lose_answer=lost, unsent=not lost))
        for leader in leaders:
            await leader.look()
    await leaders[-1].end()
    account = await stand.written()
    counted = {sum(sum(day.values()) for day in table.values()) / PARTS for table in (account.days, account.nodes)}
    assert len(counted) == 1
    assert counted.pop() == pytest.approx(capacity_seconds, rel=0.005)
    steady = seconds_of(sum(account.days.values(), DeviceTime()))
    assert steady["steady", "busy"] + steady["steady", "unknown"] == account.until - account.begun
    assert steady["steady", "busy"] > 0.7 * 7 * DAY
    assert len({workload for workload, _ in steady}) > 60


async def test_a_controller_keeps_the_account_with_the_rights_of_the_chart_and_writes_it_at_its_end(
    server: StandInApiServer, api: KubernetesApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(device_hours, "SAVE_SECONDS", 1)
    async with extender_on(api, SETTINGS, ControllerTimes(device_hours=0.02)) as extender:
        await extender.ready()
        await add_node(server, extender, "node", INF2)
        async with asyncio.timeout(20):
            while "neuron_device_seconds_total{" not in (await extender.get("/metrics"))[1]:
                await asyncio.sleep(0.02)
        before = len(server.requests)
    asked = {each.method for each in server.requests if "/configmaps" in each.path}
    assert asked == {"GET", "POST", "PATCH"}
    assert {each.method for each in server.requests[before:] if CONFIG_MAP in each.path} == {"PATCH"}
