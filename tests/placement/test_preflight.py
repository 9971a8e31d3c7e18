"""Checks of nodes before these take pods: a life of nodes that are rebooted and break, against what is true of them."""

from __future__ import annotations

import random
from dataclasses import replace
from datetime import UTC, datetime
from itertools import count
from typing import Any

import msgspec
import pytest

from neuron_plugin.allocation import NeuronPod, NodeInventory, Rejection
from neuron_plugin.allocation.claims import PodClaim
from neuron_plugin.allocation.keys import GATE, GROUP_KEY, GROUP_SIZE_KEY, INVENTORY_KEY, PREFLIGHT_KEY, RANK_KEY
from neuron_plugin.allocation.preflight import CheckScope, Preflight, PreflightState, read_preflight, write_preflight
from neuron_plugin.backoff import Clock
from neuron_plugin.cluster import KubernetesApi
from neuron_plugin.monitor.look import look
from neuron_plugin.placement.check_pods import CLAIM, check_results
from neuron_plugin.placement.check_steps import CheckEnd, CheckPod
from neuron_plugin.placement.claims import ClaimWriter
from neuron_plugin.placement.context import Context, Times
from neuron_plugin.placement.daemon import ControllerTimes
from neuron_plugin.placement.leadership import CONDITION, Readiness
from neuron_plugin.placement.metrics import state_samples
from neuron_plugin.placement.preflight import PreflightChecks, give_devices
from neuron_plugin.placement.settings import GroupPreflight, OnUnable, PreflightSettings
from neuron_plugin.placement.writer import Attempt, Outcome, Writer
from neuron_plugin.planning import Standing, judge_all
from neuron_plugin.simulation.api_server_kinds import (
    CLAIM_TEMPLATES,
    EVENTS,
    NODES,
    PODS,
    RESOURCE_CLAIMS,
    AnyJson,
)
from neuron_plugin.simulation.resource_claims import sync_claims
from neuron_plugin.topology import CoreMask
from tests.simulation.dra import DRIVER, claim_spec, devices_of, exactly
from tests.simulation.dra import pod as claiming_pod
from tests.support.api_server import Fault, Match, StandInApiServer
from tests.support.manifests import node_manifest, pod_manifest
from tests.support.running import SETTINGS as RUNNING
from tests.support.running import extender_on, until
from tests.support.world import DEVICE, TYPES, World, node_of, record_of

EPOCH, NAMESPACE, LOOK = 1_800_000_000.0, "kube-system", 2.0
POD = {"containers": [{"name": "check", "image": "neuron", "command": ["nccom-test"]}]}
SETTINGS = PreflightSettings(pod=POD, timeout=60, retry=300, parallel=2)
TAKEN = {"name": "neuron-preflight-n0", "namespace": NAMESPACE, "uid": "taken"}
"""Somebody else's pod that has the name of a check."""
NO_IMAGE = {"reason": "ErrImagePull", "message": "no such image"}


class Life:
    """Nodes, their kubelets and their users' pods at a simulated API server, and the replica that checks the nodes."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, settings: PreflightSettings = SETTINGS) -> None:
        self.now = 0.0
        monkeypatch.setattr("neuron_plugin.simulation.api_server_objects.now_text", self.text)
        self.server = StandInApiServer()
        self.settings = settings
        self.boots: dict[str, int] = {}
        self.repairs: dict[str, int] = {}
        """By node, how often all of its devices were healthy again."""
        self.faults: dict[str, int] = {}
        """By node, a device that its check finds bad, though nothing else shows it."""
        self.images = True
        self.good: set[tuple[str, int, int]] = set()
        """Nodes that have passed a check, with the boot and the repair that it was of."""
        self.most = 0
        self._numbers = count()
        self.restart()

    def text(self) -> str:
        return datetime.fromtimestamp(EPOCH + self.now, UTC).isoformat().replace("+00:00", "Z")

    def restart(self) -> None:
        """Another replica leads."""
        self.world = World()
        self.world.state.check(CheckScope(NAMESPACE))
        self._shown: dict[str, AnyJson] = {}
        clock = Clock(now=lambda: self.now)
        self.ready = Readiness({CONDITION: ""})
        context = Context(
            self.server, self.world.state, self.ready, "one", clock=clock, unix_seconds=lambda: EPOCH + self.now
        )
        self.checks = PreflightChecks(context, Writer(context), self.settings, NAMESPACE)
        self.follow()

    def add(self, name: str) -> None:
        manifest = node_manifest(name, "trn1.32xlarge")
        manifest["status"]["nodeInfo"] = {"bootID": f"{name}-0"}
        self.server.create_node(manifest)
        self.boots[name] = self.repairs[name] = 0

    def reboot(self, name: str) -> None:
        self.boots[name] += 1
        self.server.patch_node(name, {"status": {"nodeInfo": {"bootID": f"{name}-{self.boots[name]}"}}}, status=True)
        for pod in self.pods(name):
            failed = {"phase": "Failed", "reason": "NodeShutdown", "message": "the node was shut down"}
            if pod["status"]["phase"] not in {"Failed", "Succeeded"} and PREFLIGHT_KEY in pod["metadata"].get(
                "labels", {}
            ):
                self.server.set_pod_status(NAMESPACE, pod["metadata"]["name"], failed)

    def sicken(self, name: str, *devices: int) -> None:
        """These devices are unhealthy from now on, and no others."""
        was_sick = self.record_of_inventory(name)
        inventory = node_manifest(name, "trn1.32xlarge", unhealthy=dict.fromkeys(devices, "ecc"))
        text = inventory["metadata"]["annotations"][INVENTORY_KEY]
        self.server.patch_node(name, {"metadata": {"annotations": {INVENTORY_KEY: text}}})
        self.repairs[name] += bool(was_sick and not devices)

    def record_of_inventory(self, name: str) -> bool:
        return '"unhealthy":{}' not in self.server.get(NODES, name)["metadata"]["annotations"][INVENTORY_KEY]

    def record(self, name: str) -> Preflight | None:
        return read_preflight(self.server.get(NODES, name)["metadata"]["annotations"].get(PREFLIGHT_KEY, ""))

    def pods(self, node: str = "") -> list[AnyJson]:
        return [pod for pod in self.server.objects(PODS) if node in {"", pod["spec"].get("nodeName")}]

    def check_pods(self) -> list[AnyJson]:
        own = [pod["metadata"] | pod for pod in self.pods() if pod["metadata"]["namespace"] == NAMESPACE]
        return [pod for pod in own if PREFLIGHT_KEY in pod.get("labels", {})]

    def users(self, node: str = "") -> list[AnyJson]:
        return [pod for pod in self.pods(node) if pod["metadata"]["namespace"] != NAMESPACE]

    def follow(self) -> None:
        """The watches show what the server has."""
        for node in self.server.objects(NODES):
            self.world.show_node(node)
        pods = {pod["metadata"]["uid"]: pod for pod in self.server.objects(PODS)}
        for uid in self._shown.keys() - pods.keys():
            self.world.gone(self._shown[uid])
        for pod in pods.values():
            self.world.show(pod)
        self._shown = pods

    def run_pods(self) -> None:
        """The kubelets: a check ends after ten seconds as its node is, and a pod that is deleted is gone."""
        self.most = max(self.most, len(self.check_pods()))
        for pod in self.check_pods():
            name, node, phase = pod["metadata"]["name"], pod["spec"]["nodeName"], pod["status"]["phase"]
            age = EPOCH + self.now - datetime.fromisoformat(pod["metadata"]["creationTimestamp"]).timestamp()
            assert pod["spec"]["containers"][0]["resources"]["limits"] == {"aws.amazon.com/neuron": "16"}
            if phase in {"Failed", "Succeeded"}:
                continue
            if self.users(node):
                refused = {"phase": "Failed", "reason": "UnexpectedAdmissionError", "message": "no devices"}
                self.server.set_pod_status(NAMESPACE, name, refused)
            elif not self.images:
                timed_out = {"phase": "Failed", "reason": "DeadlineExceeded"} if age >= self.settings.timeout else {}
                state = {"containerStatuses": [{"name": "check", "state": {"waiting": NO_IMAGE}}]}
                self.server.set_pod_status(NAMESPACE, name, {"phase": "Pending", **timed_out, **state})
            elif age >= 10:
                bad = self.faults.get(node)
                end = {"exitCode": 0 if bad is None else 1, "startedAt": self.text(), "message": f"slow\ndevice={bad}"}
                state = {"containerStatuses": [{"name": "check", "state": {"terminated": end}}]}
                self.server.set_pod_status(
                    NAMESPACE, name, {"phase": "Succeeded" if bad is None else "Failed", **state}
                )
                if bad is None and pod["metadata"]["annotations"]["neuron-plugin.io/boot-id"] == self.boot(node):
                    self.good.add((node, self.boots[node], self.repairs[node]))

    def boot(self, node: str) -> str:
        return f"{node}-{self.boots[node]}"

    def place(self, devices: int) -> str:
        """A user's pod is bound where the state lets it; the node, empty where none takes it."""
        manifest = pod_manifest(f"user-{next(self._numbers)}", DEVICE, devices)
        passed = self.world.filter(manifest).passed
        for node in passed:
            self.assert_good(node)
        if passed:
            manifest["spec"]["nodeName"] = passed[0]
            free = self.world.state.nodes[passed[0]].capacity
            assert not isinstance(free, Rejection)
            ids = free.geometry.whole_devices(free.free_mask)[:devices]
            manifest["metadata"]["annotations"]["NEURON_DEVS"] = ",".join(map(str, ids))
            self.server.create_pod(manifest)
            self.follow()
        return passed[0] if passed else ""

    def assert_good(self, node: str) -> None:
        """A node that takes a pod has passed a check, or could not be checked, or has pods and never was due."""
        record = self.record(node)
        could_not = record is not None and record.state is PreflightState.UNABLE and record.boot_id == self.boot(node)
        kept = record is None and bool(self.users(node))
        assert (node, self.boots[node], self.repairs[node]) in self.good or could_not or kept, (node, record)

    async def turn(self, seconds: float = LOOK) -> None:
        """So much time passes, with a look at its end."""
        self.now += seconds
        self.run_pods()
        self.follow()
        await self.checks.look()
        self.follow()

    async def turns(self, number: int) -> None:
        for _ in range(number):
            await self.turn()

    def events(self) -> list[str]:
        return [event["reason"] for event in self.server.objects(EVENTS)]


@pytest.fixture
def life(monkeypatch: pytest.MonkeyPatch) -> Life:
    return Life(monkeypatch)


@pytest.mark.parametrize("seed", range(8))
async def test_no_pod_is_bound_to_a_node_that_is_due_and_nothing_waits_for_ever(
    monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    chance = random.Random(seed)  # noqa: S311 - a life to try, no secret
    life = Life(monkeypatch)
    names = [f"n{number}" for number in range(5)]
    sick = dict[str, bool]()
    for step in range(400):
        if step < len(names) * 10 and step % 10 == 0:
            life.add(names[step // 10])
        name = chance.choice(sorted(life.boots))
        match chance.randrange(40):
            case 0:
                life.reboot(name)
            case 1 | 2:
                sick[name] = not sick.get(name)
                life.sicken(name, *([3] if sick[name] else []))
            case 3:
                life.faults = {name: 7} if chance.random() < 0.5 else {}
            case 4:
                life.restart()
            case 5:
                life.images = chance.random() < 0.7
            case 6:
                life.server.fail(Fault(Match(method="PATCH", path="/nodes/"), status=500))
            case 7:
                life.server.patch_node(name, {"metadata": {"annotations": {PREFLIGHT_KEY: None}}})
                if not any(pod["spec"]["nodeName"] == name for pod in life.check_pods()):
                    life.good = {known for known in life.good if known[0] != name}
        life.follow()
        for pod in chance.sample(users := life.users(), min(len(users), chance.choice([0, 0, 1]))):
            life.server.delete_pod("default", pod["metadata"]["name"], grace_seconds=0)
        life.follow()
        if chance.random() < 0.3:
            life.place(chance.choice([1, 4, 16]))
        await life.turn()
    assert life.most <= SETTINGS.parallel
    life.images, life.faults = True, {}
    for name in names:
        life.sicken(name)
    for pod in life.users():
        life.server.delete_pod("default", pod["metadata"]["name"], grace_seconds=0)
    await life.turns(round((SETTINGS.retry + SETTINGS.timeout) / LOOK) + 40)
    assert {record.state for name in names if (record := life.record(name))} == {PreflightState.PASSED}
    assert not life.check_pods()
    assert all(life.place(16) for _ in names)


async def test_a_node_whose_check_fails_says_which_device_and_is_checked_again_when_asked(life: Life) -> None:
    life.add("n0")
    life.faults["n0"] = 3
    await life.turns(12)
    record = life.record("n0")
    assert record
    assert (record.state, record.devices) == (PreflightState.FAILED, (3,))
    info = life.world.state.nodes["n0"]
    assert info.closed
    assert info.closed.text == "The node has failed the pre-flight check"
    assert info.details == ("device 3: slow | device=3",)
    assert life.events() == ["NeuronPreflightFailed"]
    assert metric(life) == {"failed": 1.0}
    assert not life.place(1)
    (judged,) = judge_all(life.world.state.scene(), [record_of(pod_manifest("p", DEVICE, 1))], now=0.0)
    assert judged.standing is Standing.RULES, "it is not said that it never fits"
    assert judged.sentence == "0 of 1 Neuron node: 1 has failed the pre-flight check"

    life.faults.clear()
    life.server.patch_node("n0", {"metadata": {"annotations": {PREFLIGHT_KEY: None}}})
    await life.turns(12)
    assert life.place(16) == "n0"
    assert metric(life) == {"passed": 1.0}


@pytest.mark.parametrize("on_unable", OnUnable)
@pytest.mark.parametrize("hindered_by", ["image", "refusal", "name"])
async def test_a_check_that_cannot_run_says_why_and_opens_or_keeps_closed(
    monkeypatch: pytest.MonkeyPatch, on_unable: OnUnable, hindered_by: str
) -> None:
    life = Life(monkeypatch, msgspec.structs.replace(SETTINGS, on_unable=on_unable))
    life.add("n0")
    life.images = hindered_by != "image"
    if hindered_by == "refusal":
        life.server.fail(Fault(Match(method="POST", path="/pods$"), status=403))
    if hindered_by == "name":
        life.server.create_pod(pod_manifest("neuron-preflight-n0", DEVICE) | {"metadata": TAKEN})
    await life.turns(40)
    record = life.record("n0")
    assert record
    assert record.state is PreflightState.UNABLE
    assert ("no such image" if hindered_by == "image" else "refused") in record.message
    assert life.events() == ["NeuronPreflightUnable"]
    assert bool(life.place(1)) is (on_unable is OnUnable.OPEN)
    assert not life.check_pods()


async def test_a_refused_annotation_is_said_once_and_tried_again(life: Life) -> None:
    life.add("n0")
    life.server.fail(Fault(Match(method="PATCH", path="/nodes/"), status=422, times=5))
    await life.turns(5)
    assert life.events() == ["NeuronPreflightUnable"]
    assert not life.place(1)
    await life.turns(12)
    assert life.events() == ["NeuronPreflightUnable"]
    assert life.place(1)
    life.reboot("n0")
    life.server.fail(Fault(Match(method="PATCH", path="/nodes/"), status=422, times=5))
    await life.turns(5)
    assert life.events() == ["NeuronPreflightUnable"] * 2, "another refusal is said again"


async def test_a_replica_that_does_not_lead_writes_nothing_and_one_without_a_due_node_asks_nothing(life: Life) -> None:
    life.add("n0")
    life.ready.unmet(CONDITION, "not the leader")
    await life.turns(3)
    assert life.record("n0") is None
    life.ready.met(CONDITION)
    await life.turns(12)
    asked = len(life.server.requests)
    await life.turns(10)
    assert len(life.server.requests) == asked


async def test_a_device_that_was_unhealthy_while_nothing_could_be_written_is_not_forgotten(life: Life) -> None:
    life.add("n0")
    await life.turns(12)
    life.server.fail(Fault(Match(method="PATCH", path="/nodes/"), status=500))
    life.sicken("n0", 3)
    await life.turn()
    life.sicken("n0")
    life.follow()
    assert not life.place(1)
    await life.turns(20)
    assert life.place(1)


async def test_what_a_user_labels_as_a_check_elsewhere_is_a_users_pod(life: Life) -> None:
    life.add("n0")
    manifest = pod_manifest("mine", DEVICE, 16, node="n0", annotations={"NEURON_DEVS": ",".join(map(str, range(16)))})
    manifest["metadata"]["labels"] = {PREFLIGHT_KEY: "node"}
    life.server.create_pod(manifest)
    await life.turns(5)
    assert life.record("n0") is None


def metric(life: Life) -> dict[str, object]:
    samples = state_samples(
        life.world.state, leading=True, ages={}, unseen=0, under_way=0, endings={}, now=0.0, unix_now=0.0
    )
    return {state: value for (state,), value in samples["preflight_nodes"].items()}


def test_nodes_are_not_checked_by_default_and_what_was_written_once_closes_nothing(world: World) -> None:
    failed = Preflight(PreflightState.FAILED, "b", EPOCH)
    manifest: Any = node_manifest("node", "trn1.32xlarge")
    manifest["metadata"]["annotations"][PREFLIGHT_KEY] = write_preflight(failed)
    world.show_node(manifest)
    assert world.state.nodes["node"].closed is None
    world.state.check(CheckScope(NAMESPACE))
    assert world.state.nodes["node"].closed is not None


async def test_a_daemon_checks_nodes_and_commands_without_one_know_that_they_are_checked(
    server: StandInApiServer, api: KubernetesApi
) -> None:
    manifest: Any = node_manifest("n0", "trn1.32xlarge")
    manifest["status"]["nodeInfo"] = {"bootID": "b"}
    server.create_node(manifest)
    settings = msgspec.structs.replace(RUNNING, leader_election=True, preflight=SETTINGS)
    times = ControllerTimes(placing=Times(preflight=0.02))

    def checks() -> list[str]:
        return [pod["metadata"]["name"] for pod in server.objects(PODS)]

    async with extender_on(api, settings, times) as extender:
        await extender.ready()
        await until(lambda: checks() == ["neuron-preflight-n0"])
        seen = await look(api, TYPES, lease_namespace=NAMESPACE, judge=False)
        assert str(seen.nodes["n0"].closed) == "The node has not passed the pre-flight check yet"
        server.set_pod_status(NAMESPACE, "neuron-preflight-n0", {"phase": "Succeeded"})
        await until(lambda: not checks())
        await until(lambda: extender.daemon.state.nodes["n0"].closed is None)
    async with extender_on(api, msgspec.structs.replace(settings, preflight=PreflightSettings()), times) as extender:
        await extender.ready()
        server.patch_node("n0", {"metadata": {"annotations": {PREFLIGHT_KEY: None}}})
        seen = await look(api, TYPES, lease_namespace=NAMESPACE, judge=False)
        assert seen.nodes["n0"].closed is None


CLAIMING = msgspec.structs.replace(
    RUNNING, leader_election=True, dra_driver=DRIVER, preflight=msgspec.structs.replace(SETTINGS, claim_template="all")
)
QUICK = ControllerTimes(placing=Times(preflight=0.02, landing=0.1))


def claiming_node(server: StandInApiServer, name: str, **annotations: str) -> None:
    """A node that gives its devices by claims, and what there is for these."""
    manifest: Any = node_manifest(name, "trn1.32xlarge", claim_driver=DRIVER)
    manifest["metadata"]["annotations"] |= annotations
    manifest["status"]["nodeInfo"] = {"bootID": "b"}
    server.create_node(manifest)
    template = {"spec": claim_spec(exactly(CLAIM, allocationMode="All"))}
    server.create(CLAIM_TEMPLATES, {"metadata": {"name": "all"}, "spec": template}, NAMESPACE)


def allocated_to_checks(server: StandInApiServer) -> list[list[str]]:
    """The devices of each claim of a check that is reserved for its pod, so that its kubelet starts it."""
    sync_claims(server)
    own = [claim for claim in server.objects(RESOURCE_CLAIMS) if claim["metadata"]["namespace"] == NAMESPACE]
    return sorted(devices_of(claim) for claim in own if claim.get("status", {}).get("reservedFor"))


async def test_a_node_by_claims_is_closed_and_checked_with_a_claim_for_all_its_devices(
    server: StandInApiServer, api: KubernetesApi
) -> None:
    claiming_node(server, "n0")
    without_template = msgspec.structs.replace(CLAIMING, preflight=SETTINGS)
    async with extender_on(api, without_template, QUICK) as extender:
        await extender.ready()
        assert extender.daemon.state.nodes["n0"].closed is None, "it could not be checked"
    async with extender_on(api, CLAIMING, QUICK) as extender:
        await extender.ready()
        node = extender.daemon.state.nodes
        assert str(node["n0"].closed) == "The node has not passed the pre-flight check yet"
        await until(lambda: allocated_to_checks(server) == [[f"neuron-{number}" for number in range(16)]])
        (check,) = server.objects(PODS)
        (container,) = check["spec"]["containers"]
        assert container["resources"] == {"claims": [{"name": CLAIM}]}
        assert check["spec"]["nodeName"] == "n0"
        seen = await look(api, TYPES, lease_namespace=NAMESPACE, judge=False)
        assert seen.nodes["n0"].closed
        server.set_pod_status(NAMESPACE, "neuron-preflight-n0", {"phase": "Succeeded"})
        await until(lambda: not (server.objects(PODS) or node["n0"].closed))
        sync_claims(server)
        assert not server.objects(RESOURCE_CLAIMS), "it goes with its pod"


async def test_a_group_by_claims_is_checked_with_the_devices_that_its_pods_will_have(
    server: StandInApiServer, api: KubernetesApi
) -> None:
    passed = write_preflight(Preflight(PreflightState.PASSED, "b", EPOCH))
    claiming_node(server, "n0", **{PREFLIGHT_KEY: passed})
    across = GroupPreflight(command=("all-reduce",))
    settings = msgspec.structs.replace(CLAIMING, preflight=msgspec.structs.replace(CLAIMING.preflight, group=across))
    for number in range(2):
        claim = {"metadata": {"name": f"ring-{number}"}, "spec": claim_spec(exactly(count=4))}
        server.create(RESOURCE_CLAIMS, claim, "default")
        asks = {GROUP_KEY: "ring", GROUP_SIZE_KEY: "2", PREFLIGHT_KEY: "group", RANK_KEY: str(number)}
        pod = claiming_pod(f"ring-{number}", claim=f"ring-{number}", schedulingGates=[{"name": GATE}])
        pod["metadata"]["annotations"] = asks
        server.create_pod(pod)
    async with extender_on(api, settings, QUICK) as extender:
        await extender.ready()
        await until(lambda: len(allocated_to_checks(server)) == 2)
        checked = allocated_to_checks(server)
        assert [len(devices) for devices in checked] == [4, 4]
        assert not any(devices_of(server.get(RESOURCE_CLAIMS, f"ring-{number}", "default")) for number in range(2))
        for check in server.objects(PODS):
            if check["metadata"]["namespace"] == NAMESPACE:
                assert "NEURON_DEVS" not in check["metadata"]["annotations"], "what it has stands in its claim"
                server.set_pod_status(NAMESPACE, check["metadata"]["name"], {"phase": "Succeeded"})

        def given() -> list[list[str]]:
            return sorted(devices_of(server.get(RESOURCE_CLAIMS, f"ring-{number}", "default")) for number in range(2))

        await until(lambda: given() == checked)


@pytest.mark.parametrize(
    ("more", "given"),
    [({}, True), ({"terminating": True}, False), ({"end": CheckEnd.PASSED}, False), ({"end": CheckEnd.NOT_RUN}, False)],
)
async def test_the_claim_of_a_check_that_ends_or_has_ended_is_not_allocated_any_more(
    world: World, monkeypatch: pytest.MonkeyPatch, more: dict[str, Any], *, given: bool
) -> None:
    world.show_node(node_manifest("n0", "trn1.32xlarge", claim_driver=DRIVER))
    world.show(manifest := pod_manifest("check", DEVICE, 1, node="n0"))
    context = Context(StandInApiServer(), world.state, Readiness({}), "one")
    writer, sent = Writer(context, claims=ClaimWriter(context.api, DRIVER, {}, context.unix_ns)), list[str]()

    async def allocate(_claims: ClaimWriter, pod: NeuronPod, *_: object) -> Attempt:
        sent.append(pod.reference.name)
        return Attempt(Outcome.DONE)

    monkeypatch.setattr(writer, "allocate", allocate)
    check = replace(CheckPod("check", manifest["metadata"]["uid"], "n0", "b", 0.0), **more)
    await give_devices(context, writer, check, CoreMask(0b11))
    assert sent == ["check"] * given


@pytest.mark.parametrize(
    ("mask", "devices"), [(0b1111, ["neuron-0", "neuron-1"]), (0b0110, ["neuron-0-cores-1-1", "neuron-1-cores-2-2"])]
)
def test_a_check_has_whole_devices_where_its_cores_are_such_and_cores_else(mask: int, devices: list[str]) -> None:
    node = node_of(node_manifest("n0", "trn1.32xlarge", claim_driver=DRIVER))
    assert isinstance(node.inventory, NodeInventory)
    pod = replace(record_of(pod_manifest("p", node="n0")), claims=(PodClaim("other", "x"), PodClaim(CLAIM, "made")))
    ((claim, results),) = check_results(pod, node.inventory, CoreMask(mask))
    assert claim == "made"
    assert [result.device for result in results] == devices
