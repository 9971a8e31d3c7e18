"""Groups that ask for it are checked at their places before they start, and placed elsewhere where the check fails."""

from __future__ import annotations

import asyncio
import os
import random
from collections import defaultdict
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest

from neuron_plugin.allocation import PodUid
from neuron_plugin.allocation.keys import GATE, GROUP_KEY, GROUP_SIZE_KEY, NODE_KEY, PREFLIGHT_KEY, RANK_KEY
from neuron_plugin.allocation.preflight import CheckScope, Preflight, PreflightState, write_preflight
from neuron_plugin.cluster import ApiServer, KubernetesApi
from neuron_plugin.cluster.pods import PODS as POD_RECORDS
from neuron_plugin.monitor.look import look
from neuron_plugin.placement.check_pods import group_standings
from neuron_plugin.placement.check_steps import running_text
from neuron_plugin.placement.context import Times
from neuron_plugin.placement.daemon import ControllerTimes
from neuron_plugin.placement.gates.placer import Placer
from neuron_plugin.placement.gates.upkeep import Upkeep
from neuron_plugin.placement.group_checks import GroupChecks
from neuron_plugin.placement.leadership import CONDITION
from neuron_plugin.placement.settings import GroupPreflight, OnUnable, PreflightSettings
from neuron_plugin.planning import Scene, judge_all
from neuron_plugin.simulation.api_server_kinds import NODES, PODS, STATEFUL_SETS, AnyJson
from tests.placement.gates.bench import EPOCH, NEURON, TIMES, GatesBench
from tests.support.api_server import Fault, Match, StandInApiServer
from tests.support.manifests import node_manifest, pod_manifest
from tests.support.running import SETTINGS as RUNNING
from tests.support.running import extender_on, until
from tests.support.world import TYPES

NAMESPACE = "kube-system"
GROUP = ("default", "ring")
POD = {"containers": [{"name": "check", "image": "neuron", "command": ["nccom-test"]}]}
ACROSS = GroupPreflight(command=("all-reduce",), host_network=True)
SETTINGS = PreflightSettings(pod=POD, timeout=60, retry=300, group=ACROSS)
BROKEN = "slow\ndevice=3"


class Ring(GatesBench):
    """Pods of a group, and one replica that checks them; ``nodes`` a, b, ... are whole Trn1 each."""

    def __init__(self, server: StandInApiServer, api: ApiServer, settings: PreflightSettings = SETTINGS) -> None:
        super().__init__(server, api, None)
        self.lead(settings)

    def lead(self, settings: PreflightSettings) -> None:
        """Groups are checked as the settings say."""
        self.settings = settings
        self.state.check(CheckScope("", groups=settings.checks_groups))  # nodes themselves are not checked here
        self.checks = GroupChecks(self.context, self.writer, settings, NAMESPACE)
        self.placer = Placer(self.context, self.writer, self.room, self.checks)
        self.upkeep = Upkeep(self.context, self.writer, self.placer, release_when_full=None)

    async def successor(self) -> Ring:
        """Another replica leads."""
        other = Ring(self.server, self.api, self.settings)
        other.now, other.created = self.now, self.created
        for node in self.server.objects(NODES):
            other.world.show_node(node)
        await other.checks.take_over()
        return other

    def nodes(self, names: str) -> None:
        for number, name in enumerate(names):
            self.node(name)
            status = {"addresses": [{"type": "InternalIP", "address": f"10.0.0.{number}"}]}
            self.server.patch_node(name, {"status": status}, status=True)
            self.world.show_node(self.server.get(NODES, name))

    def members(self, size: int, amount: int = 16) -> None:
        for rank in range(size):
            asks = {RANK_KEY: str(rank), PREFLIGHT_KEY: "group"}
            self.pod(f"ring-{rank}", NEURON, amount, group="ring", size=size, annotations=asks)

    async def begin(self, size: int, amount: int = 16) -> None:
        """A group is there, and its check is under way."""
        self.members(size, amount)
        await self.turn()
        await self.turn()

    async def turn(self, seconds: float = 2.0) -> None:
        await self.step(after=seconds)
        await self.checks.look()
        for pod in self.server.objects(PODS):
            if pod["metadata"]["namespace"] == NAMESPACE and "deletionTimestamp" in pod["metadata"]:
                self.server.delete_pod(NAMESPACE, pod["metadata"]["name"], grace_seconds=0)
        await self.step()

    def check_pods(self) -> dict[str, AnyJson]:
        """The pods of checks that have not ended, by their nodes."""
        own = [pod for pod in self.server.objects(PODS) if pod["metadata"]["namespace"] == NAMESPACE]
        live = [pod for pod in own if pod.get("status", {}).get("phase") not in {"Succeeded", "Failed"}]
        return {pod["spec"]["nodeName"]: pod for pod in live}

    def left(self) -> int:
        return sum(pod["metadata"]["namespace"] == NAMESPACE for pod in self.server.objects(PODS))

    def run(self, *names: str) -> None:
        """The kubelets have started the checks on these nodes; on all of them, if none is named."""
        for name in names or self.check_pods():
            self._status(name, {"phase": "Running"}, {"running": {"startedAt": self.text()}})

    def end(self, name: str, said: str = "") -> None:
        """The check on a node ends; badly if something is said."""
        ended = {"exitCode": 1 if said else 0, "startedAt": self.text(), "message": said}
        self._status(name, {"phase": "Failed" if said else "Succeeded"}, {"terminated": ended})

    def _status(self, node: str, status: AnyJson, state: AnyJson) -> None:
        containers = [{"name": "check", "state": state}]
        name = self.check_pods()[node]["metadata"]["name"]
        self.server.set_pod_status(NAMESPACE, name, {**status, "containerStatuses": containers})

    def text(self) -> str:
        return datetime.fromtimestamp(EPOCH + self.now, UTC).isoformat().replace("+00:00", "Z")

    def places(self, size: int) -> list[str]:
        return [self.place(f"ring-{rank}") for rank in range(size)]

    def judged(self) -> str:
        """Why the first pod waits."""
        return judge_all(Scene(self.state.snapshot()), [self.record("ring-0")])[0].sentence

    def said(self, name: str = "ring-0") -> list[str]:
        return [note for reason, note in self.events(name) if reason.startswith("NeuronPreflight")]


@pytest.fixture
def ring(server: StandInApiServer, api: KubernetesApi, monkeypatch: pytest.MonkeyPatch) -> Ring:
    made = Ring(server, api)
    monkeypatch.setattr("neuron_plugin.simulation.api_server_objects.now_text", made.text)
    return made


def env_of(pod: AnyJson) -> dict[str, str]:
    return {one["name"].removeprefix("NEURON_PREFLIGHT_"): one["value"] for one in pod["spec"]["containers"][0]["env"]}


async def test_a_group_starts_once_a_pod_has_passed_at_each_of_its_places(ring: Ring) -> None:
    ring.nodes("ab")
    await ring.begin(3, amount=8)
    assert ring.places(3) == ["", "", ""]
    pods = sorted((pod for pod in ring.server.objects(PODS) if pod["metadata"]["namespace"] == NAMESPACE), key=rank)
    assert [rank(pod) for pod in pods] == [0, 1, 2]
    told = env_of(pods[1])
    nodes = told["NODES"].split(",")
    assert told == {
        "RANK": "1",
        "SIZE": "3",
        "NODES": ",".join(pod["spec"]["nodeName"] for pod in pods),
        "ADDRESSES": ",".join(f"10.0.0.{'ab'.index(node)}" for node in nodes),
        "DEVICES": "8",
        "CORES": "16",
    }
    assert pods[0]["spec"]["containers"][0]["command"] == ["all-reduce"]
    assert pods[0]["spec"]["hostNetwork"] is True
    assert pods[0]["spec"]["containers"][0]["resources"]["limits"] == {"aws.amazon.com/neuron": "8"}
    assert all(not info.void for info in ring.state.nodes.values())
    assert ring.judged() == "Its group is checked before it starts: 0 of 3 pods of its check have ended"
    seen = [POD_RECORDS.decode(msgspec.json.encode(pod)) for pod in pods]
    assert group_standings(seen)[GROUP].waits == ring.judged()

    await ring.look(after=2)
    await ring.look(after=2)
    assert ring.events("ring-0") == [("NeuronWaiting", ring.judged())]

    ring.pod("greedy", NEURON, 16)
    for pod in pods:
        finish(ring, pod)
    ring.sync()
    await ring.step()
    assert ring.place("greedy") == "", "what is checked is kept, also where the check has ended"
    await ring.turn()
    await ring.place_all()
    got = {(ring.place(f"ring-{rank}"), ring.annotations(f"ring-{rank}")["NEURON_DEVS"]) for rank in range(3)}
    assert got == {(pod["spec"]["nodeName"], pod["metadata"]["annotations"]["NEURON_DEVS"]) for pod in pods}
    assert ring.gates("ring-0") == []
    await ring.turn()
    await ring.turn()
    assert ring.left() == 0
    assert not ring.state.reserved
    assert not ring.state.checks
    asked = len(ring.server.requests)
    await ring.checks.look()
    assert len(ring.server.requests) == asked, "nothing is asked where nothing is checked"
    assert ring.metrics["preflight_group_checks_total"].get(("passed",)) == 1


async def test_places_where_a_group_has_passed_are_given_back_once_it_does_not_fit_there(ring: Ring) -> None:
    ring.nodes("ab")
    await ring.begin(2)
    ring.run()
    for name in "ab":
        ring.end(name)
    ring.change_node("b", {"spec": {"unschedulable": True}})
    ring.pod("greedy", NEURON, 16)
    await ring.turn()
    await ring.turn()
    assert (ring.places(2), ring.place("greedy")) == (["", ""], "")
    await ring.turn(TIMES.doubt)
    await ring.place_all()
    assert (ring.places(2), ring.place("greedy")) == (["", ""], "a")
    assert (ring.left(), ring.state.checks) == (0, {})


def rank(pod: AnyJson) -> int:
    return int(env_of(pod)["RANK"])


def finish(ring: Ring, pod: AnyJson) -> None:
    ring.server.set_pod_status(NAMESPACE, pod["metadata"]["name"], {"phase": "Succeeded"})


async def test_a_failed_place_is_named_and_avoided_and_the_group_is_checked_and_placed_elsewhere(ring: Ring) -> None:
    ring.nodes("abc")
    await ring.begin(2)
    first, second = ring.check_pods()
    ring.run()
    ring.end(first, BROKEN)
    await ring.turn()
    await ring.turn()
    note = f"The pre-flight check of group ring has failed on node {first} (device 3: device=3). The group is placed "
    assert ring.said("ring-1") == [f"{note}elsewhere, and avoids what has failed for 300 s"]
    other = next(iter({*"abc"} - {first, second}))
    assert ring.check_pods().keys() == {second, other}
    ring.node("d")
    ring.end(second)
    ring.end(other)
    await ring.turn()
    await ring.place_all()
    assert {*ring.places(2)} == {second, other}
    await ring.turn()
    await ring.turn()
    assert ring.left() == 1, "the pod that failed stays for its logs"
    await ring.turn(300)
    await ring.turn()
    assert ring.left() == 0


async def test_a_failed_place_is_avoided_from_the_moment_when_the_placer_looks_again(ring: Ring) -> None:
    ring.nodes("abc")
    await ring.begin(2)
    first, _ = ring.check_pods()
    ring.run()
    ring.end(first, BROKEN)
    ring.sync()
    placing = asyncio.create_task(ring.placer.run())
    await ring.checks.look()  # the pod on the other node ends a little later
    await ring.checks.look()
    placing.cancel()
    assert first not in ring.check_pods()


async def test_a_group_that_has_no_other_place_says_so_and_is_checked_again_after_a_while(ring: Ring) -> None:
    ring.nodes("ab")
    await ring.begin(2)
    ring.run()
    ring.end("b", BROKEN)
    await ring.turn()
    assert "1 has failed the pre-flight check of the pod's group" in ring.judged() or "has failed on b" in ring.judged()
    assert not ring.check_pods().keys() & {"b"}
    assert not ring.state.reserved, "its places are given back"
    await ring.turn(300)
    await ring.turn()
    assert ring.check_pods().keys() == {"a", "b"}


@pytest.mark.parametrize("at", ["made", "one ended", "all ended", "half placed"])
async def test_the_next_leader_goes_on_with_a_check(ring: Ring, at: str) -> None:
    ring.nodes("abc")
    await ring.begin(2)
    pods = ring.check_pods()
    ring.run()
    if at != "made":
        ring.end(min(pods))
    if at in {"all ended", "half placed"}:
        ring.end(max(pods))
    if at == "half placed":
        ring.server.fail(Fault(Match(method="PATCH", path="/pods/ring-1"), status=500, times=100))
        await ring.turn()
        assert sorted(map(bool, ring.places(2))) == [False, True]
        ring.server.forgive()
    ring = await ring.successor()
    ring.pod("greedy", NEURON, 16)
    await ring.turn()
    assert ring.place("greedy") not in pods
    for node in list(ring.check_pods()):
        ring.end(node)
    for _ in range(4):
        await ring.turn()
    assert {*ring.places(2)} == {*pods}
    made = [seen for seen in ring.server.requests if seen.method == "POST" and seen.path.endswith("/kube-system/pods")]
    assert len(made) == 2, "nothing is checked twice"
    assert ring.left() == 0


@pytest.mark.parametrize("gone", ["member", "group", "node", "device"])
async def test_a_check_ends_with_what_it_is_for(ring: Ring, gone: str) -> None:
    ring.nodes("abc")
    await ring.begin(2)
    before = ring.check_pods()
    match gone:
        case "member" | "group":
            for number in range(1 if gone == "member" else 2):
                ring.server.delete_pod("default", f"ring-{number}", grace_seconds=0)
        case "node":
            ring.server.delete_node("a")
            ring.state.remove_node("a", ring.state.nodes["a"].node.uid)
        case "device":
            ring.node("a", unhealthy={3: "ecc"})
    await ring.turn()
    if gone in {"member", "group"}:
        assert not ring.check_pods()
        assert not ring.state.reserved
    await ring.turn()
    if gone in {"node", "device"}:
        assert ring.check_pods().keys() == {"b", "c"}
    assert not {pod["metadata"]["uid"] for pod in ring.check_pods().values()} & {
        pod["metadata"]["uid"] for pod in before.values()
    }


async def test_the_devices_of_a_check_that_was_given_up_are_kept_until_the_watch_shows_its_pods(ring: Ring) -> None:
    ring.nodes("ab")
    await ring.begin(2)
    pods = ring.check_pods().values()
    for uid in [pod["metadata"]["uid"] for pod in pods]:
        ring.state.remove_pod(PodUid(uid))  # as if the watch had not shown them
    ring.state.remove_pod(ring.record("ring-0").uid)
    ring.server.delete_pod("default", "ring-0", grace_seconds=0)
    await ring.checks.look()

    assert all("deletionTimestamp" in pod["metadata"] for pod in ring.check_pods().values())
    assert not any(info.free_mask for info in ring.state.nodes.values())
    await ring.turn(seconds=ring.context.times.landing)
    assert not ring.state.reserved


async def test_a_pod_that_its_kubelet_refused_is_made_once_more(ring: Ring) -> None:
    ring.nodes("ab")
    await ring.begin(2)
    ring.end("a")
    (refused,) = ring.check_pods().values()
    no_devices = {"phase": "Failed", "reason": "UnexpectedAdmissionError", "message": "no devices"}
    ring.server.set_pod_status(NAMESPACE, refused["metadata"]["name"], no_devices)
    await ring.turn()
    assert not ring.check_pods()
    await ring.turn(20)
    await ring.turn()
    assert ring.check_pods()["b"]["metadata"]["uid"] != refused["metadata"]["uid"]
    ring.end("b")
    await ring.turn()
    await ring.place_all()
    assert {*ring.places(2)} == {"a", "b"}
    assert not ring.said()


async def test_a_check_that_does_not_end_in_time_blames_what_still_runs(ring: Ring) -> None:
    ring.nodes("abcd")
    await ring.begin(2)
    first, second = ring.check_pods()
    ring.run()
    ring.end(first)
    await ring.turn(121)
    await ring.turn()
    assert f"has failed on node {second} (it did not end within 60 s)" in ring.said()[0]
    assert second not in ring.check_pods()
    assert len(ring.check_pods()) == 2


@pytest.mark.parametrize("on_unable", OnUnable)
@pytest.mark.parametrize("why", ["refused", "no image", "two containers"])
async def test_a_check_that_cannot_run_says_why_and_lets_the_group_start_or_wait(
    ring: Ring, on_unable: OnUnable, why: str
) -> None:
    ring.lead(msgspec.structs.replace(SETTINGS, on_unable=on_unable))
    ring.nodes("ab")
    if why == "refused":
        ring.server.fail(Fault(Match(method="POST", path="/kube-system/pods$"), status=403))
    if why == "two containers":
        for number in range(2):
            asks = {RANK_KEY: str(number), PREFLIGHT_KEY: "group"}
            ring.pod(f"ring-{number}", group="ring", size=2, annotations=asks, spec=two_containers())
    else:
        await ring.begin(2)
    if why == "no image":
        for node in ring.check_pods():
            waiting = {"reason": "ErrImagePull", "message": "no such image"}
            ring._status(node, {"phase": "Pending"}, {"waiting": waiting})
        await ring.turn(121)
    for _ in range(3):
        await ring.turn()
    await ring.place_all()
    (said,) = ring.said()
    assert {"refused": "was refused", "no image": "no such image", "two containers": "several requests"}[why] in said
    if on_unable is OnUnable.OPEN:
        assert all(ring.places(2))
        await ring.turn()
        await ring.turn()
    else:
        assert not any(ring.places(2))
        assert "cannot run" in ring.judged()
    assert ring.left() == 0
    assert not ring.state.reserved
    if on_unable is OnUnable.CLOSED:
        ring.server.forgive()
        await ring.turn(300)
        await ring.turn()
        assert len(ring.said()) == 2 if why == "two containers" else ring.check_pods()


def two_containers() -> AnyJson:
    limits = {"limits": {NEURON.value: "4"}, "requests": {NEURON.value: "4"}}
    return {"containers": [{"name": name, "image": "i", "resources": limits} for name in ("one", "two")]}


@pytest.mark.parametrize(
    ("settings", "asks", "size", "gates", "why"),
    [
        (PreflightSettings(), "group", 2, True, "groups are not checked here"),
        (PreflightSettings(pod=POD), "group", 2, True, "preflight.group.command"),
        (SETTINGS, "group", 0, True, "set neuron-plugin.io/group-size"),
        (SETTINGS, "group", 2, False, "placement: gates"),
        (SETTINGS, "groups", 2, True, "expected group"),
    ],
)
async def test_a_wish_that_cannot_be_met_is_said_and_never_passed_over(
    ring: Ring,
    settings: PreflightSettings,
    asks: str,
    size: int,
    gates: bool,  # noqa: FBT001 - a column
    why: str,
) -> None:
    ring.lead(settings)
    ring.nodes("ab")
    for number in range(2):
        held_by, asked = (GATE,) if gates else (), {PREFLIGHT_KEY: asks}
        ring.pod(f"ring-{number}", gates=held_by, group="ring", size=size, annotations=asked)
    for _ in range(4):
        await ring.look(after=2)
    assert ring.places(2) == ["", ""]
    assert why in str(ring.state.refusal(ring.record("ring-0")))
    if gates:
        assert why in ring.events("ring-0")[-1][1]
    assert not ring.check_pods()


async def test_a_pod_without_a_group_cannot_ask_for_its_check(ring: Ring) -> None:
    ring.node("a")
    ring.pod("alone", annotations={PREFLIGHT_KEY: "group"})
    await ring.turn()
    assert ring.place("alone") == ""
    assert "expected a pod of a group" in str(ring.record("alone").refusal)


async def test_a_pod_that_comes_later_is_not_checked_and_one_that_comes_before_the_pods_are_made_is(ring: Ring) -> None:
    ring.nodes("abcd")
    await ring.turn()
    asks = {PREFLIGHT_KEY: "group"}
    for number in range(3):
        ring.pod(f"ring-{number}", NEURON, 16, group="ring", size=2, annotations=asks)
        await ring.step()
    await ring.checks.look()
    assert len(ring.check_pods()) == 3
    for node in list(ring.check_pods()):
        ring.end(node)
    ring.pod("ring-3", NEURON, 16, group="ring", size=2, annotations=asks)
    for _ in range(4):
        await ring.turn()
    assert all(ring.places(4))
    assert ring.left() == 0


async def test_the_pods_that_a_leader_waits_for_are_checked_for_before_they_are_made(ring: Ring) -> None:
    ring.nodes("abc")
    ring.server.create(STATEFUL_SETS, {"metadata": {"name": "ring"}, "spec": {"replicas": 2}}, "default")

    def member(rank: str) -> None:
        labels, asks = {"apps.kubernetes.io/pod-index": rank}, {PREFLIGHT_KEY: "group"}
        owner = "StatefulSet/ring"
        ring.pod(f"ring-{rank}", NEURON, 16, group="ring", size=2, annotations=asks, labels=labels, owner=owner)

    member("0")
    for _ in range(4):
        await ring.turn()
    nodes = {*ring.check_pods()}
    assert len(nodes) == 2
    for node in nodes:
        ring.end(node)
    await ring.turn()
    await ring.turn()
    assert ring.place("ring-0") in nodes
    member("1")
    for _ in range(4):
        await ring.turn()
    assert {*ring.places(2)} == nodes
    assert ring.left() == 0


async def test_a_replica_that_does_not_lead_any_more_keeps_nothing(ring: Ring) -> None:
    ring.nodes("ab")
    await ring.begin(2)
    assert ring.state.reserved
    ring.ready.unmet(CONDITION, "not the leader")
    await ring.checks.look()
    assert not ring.state.reserved
    assert not ring.state.checks


async def test_a_daemon_checks_a_group_and_commands_without_one_say_so(
    server: StandInApiServer, api: KubernetesApi
) -> None:
    manifest: Any = node_manifest("a", "trn1.32xlarge")
    manifest["status"]["nodeInfo"] = {"bootID": "b"}
    manifest["metadata"]["annotations"][PREFLIGHT_KEY] = write_preflight(Preflight(PreflightState.PASSED, "b", EPOCH))
    server.create_node(manifest)
    for number in range(2):
        asks = {GROUP_KEY: "ring", GROUP_SIZE_KEY: "2", PREFLIGHT_KEY: "group", RANK_KEY: str(number)}
        pod = pod_manifest(f"ring-{number}", NEURON, 8, annotations=asks)
        pod["spec"]["schedulingGates"] = [{"name": GATE}]
        server.create_pod(pod)

    def pods(namespace: str) -> list[AnyJson]:
        return [pod for pod in server.objects(PODS) if pod["metadata"]["namespace"] == namespace]

    settings = msgspec.structs.replace(RUNNING, leader_election=True, preflight=SETTINGS)
    async with extender_on(api, settings, ControllerTimes(placing=Times(preflight=0.02, landing=0.1))) as extender:
        await extender.ready()
        await until(lambda: len(pods(NAMESPACE)) == 2)
        seen = await look(api, TYPES, lease_namespace=NAMESPACE, judge=False)
        waits = running_text(0, 2)
        assert {one.sentence for one in judge_all(Scene(seen.snapshot()), seen.waiting())} == {waits}
        for check in pods(NAMESPACE):
            server.set_pod_status(NAMESPACE, check["metadata"]["name"], {"phase": "Succeeded"})
        await until(lambda: all(NODE_KEY in pod["metadata"]["annotations"] for pod in pods("default")))


@pytest.mark.parametrize("seed", range(int(os.environ.get("CHECK_SEEDS", "3"))))
async def test_nothing_is_given_twice_no_group_starts_unchecked_and_none_waits_for_ever(
    ring: Ring, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    chance = random.Random(seed)  # noqa: S311 - a life to try, no secret
    ring.lead(msgspec.structs.replace(SETTINGS, on_unable=OnUnable.CLOSED))
    ring.nodes("abcde")
    bad, good, started = dict[str, bool](), set[Spots](), dict[str, Spots]()
    for step in range(150):
        if not members(ring):
            ring.members(chance.choice([2, 3]), chance.choice([8, 16]))
        match chance.randrange(16):
            case 0:
                bad[chance.choice("abcde")] = chance.random() < 0.4
            case 1:
                ring = await ring.successor()
                monkeypatch.setattr("neuron_plugin.simulation.api_server_objects.now_text", ring.text)
            case 2 | 3:
                ring.pod(f"other-{step}", NEURON, chance.choice([1, 8, 16]))
            case 4:
                for pod in chance.sample(users := others(ring), min(len(users), 3)):
                    ring.server.delete_pod("default", pod["metadata"]["name"], grace_seconds=0)
            case 5:
                whole = chance.random() < 0.8
                for pod in members(ring) if whole else chance.sample(members(ring), 1):
                    ring.server.delete_pod("default", pod["metadata"]["name"], grace_seconds=0)
                for pod in members(ring) if not whole else []:  # its controller makes all of them again
                    ring.server.delete_pod("default", pod["metadata"]["name"], grace_seconds=0)
            case 6:
                ring.node(name := chance.choice("abcde"), unhealthy=chance.choice([{}, {3: "ecc"}]))
                ring.world.show_node(ring.server.get(NODES, name))
            case 7:
                method, path = chance.choice([("PATCH", "/pods/"), ("POST", "/pods$"), ("DELETE", "/pods/")])
                ring.server.fail(Fault(Match(method=method, path=path), status=500))
        for node in list(ring.check_pods()):
            if chance.random() < 0.5:
                ring.end(node, BROKEN if bad.get(node) else "")
        good |= passed(ring)
        await ring.turn(chance.choice([2, 2, 2, 30]))
        assert_disjoint(ring)
        for pod in members(ring):
            uid = pod["metadata"]["uid"]
            if (spots := spots_of(members(ring))) and uid not in started:
                started[uid] = spots
                assert spots in good, (step, spots, good)
    ring.server.forgive()
    for pod in others(ring):
        ring.server.delete_pod("default", pod["metadata"]["name"], grace_seconds=0)
    if not members(ring):
        ring.members(2)
    for name in "abcde":
        ring.node(name)
    for _ in range(20):
        for node in list(ring.check_pods()):
            ring.end(node)
        await ring.turn(SETTINGS.retry / 4)
    assert all(ring.place(pod["metadata"]["name"]) for pod in members(ring))
    assert ring.left() == 0
    assert not ring.state.reserved
    assert started


Spots = frozenset[tuple[str, str]]


def members(ring: Ring) -> list[AnyJson]:
    return [pod for pod in ring.server.objects(PODS) if pod["metadata"]["name"].startswith("ring-")]


def others(ring: Ring) -> list[AnyJson]:
    return [pod for pod in ring.server.objects(PODS) if pod["metadata"]["name"].startswith("other-")]


def spot_of(pod: AnyJson) -> tuple[str, str]:
    said = pod["metadata"].get("annotations") or {}
    return said.get(NODE_KEY, "") or pod["spec"].get("nodeName", ""), said.get("NEURON_DEVS", "")


def spots_of(pods: list[AnyJson]) -> Spots:
    """Where pods are placed; empty unless all of them are."""
    spots = frozenset(map(spot_of, pods))
    return spots if all(node for node, _ in spots) else frozenset()


def passed(ring: Ring) -> set[Spots]:
    """The places of checks of which all pods have passed."""
    by_check = defaultdict[str, list[AnyJson]](list)
    for pod in ring.server.objects(PODS):
        if pod["metadata"]["namespace"] == NAMESPACE:
            by_check[pod["metadata"]["name"].rpartition("-")[0]].append(pod)
    return {
        frozenset(map(spot_of, pods))
        for pods in by_check.values()
        if len(pods) == int(env_of(pods[0])["SIZE"]) and all(pod["status"].get("phase") == "Succeeded" for pod in pods)
    }


def assert_disjoint(ring: Ring) -> None:
    """No device is given to two pods: members, others, and checks that run."""
    held = defaultdict[str, list[str]](list)
    for pod in (pod for pod in ring.server.objects(PODS) if pod["status"].get("phase") not in {"Succeeded", "Failed"}):
        node, devices = spot_of(pod)
        held[node] += devices.split(",") if node else []
    assert all(len(devices) == len(set(devices)) for devices in held.values()), held
