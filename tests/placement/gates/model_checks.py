"""Checks in the model: of nodes before they take pods, in half of all lives, and of groups before they start.

The kubelets run the pods of the checks, and know what came of each. So it is known here, by no word of the controller,
which nodes have passed, since which boot and repair, and at which places of a group all was well.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from datetime import datetime
from typing import TYPE_CHECKING, Any

import msgspec

from neuron_plugin.allocation import NeuronPod
from neuron_plugin.allocation.keys import INVENTORY_KEY, NODE_KEY, PREFLIGHT_GROUP_KEY, PREFLIGHT_KEY
from neuron_plugin.allocation.preflight import CheckScope, PreflightState, read_preflight
from neuron_plugin.allocation.resources import parse_ids
from neuron_plugin.cluster import ApiRequest
from neuron_plugin.placement.check_pods import BOOT_KEY
from neuron_plugin.placement.settings import GroupPreflight, OnUnable, PreflightSettings
from neuron_plugin.simulation.api_server_kinds import NODES, PODS, AnyJson, Target
from tests.placement.gates.model_part import EPOCH, Part
from tests.placement.gates.model_users import GROUP

if TYPE_CHECKING:
    from tests.placement.gates.model import Model
    from tests.placement.gates.model_replica import Replica

NAMESPACE = "kube-system"
POD = {"containers": [{"name": "check", "image": "neuron", "command": ["nccom-test"]}]}
ACROSS = GroupPreflight(command=("all-reduce",))
ENDED = ("Failed", "Succeeded")
BAD_DEVICE = 7
ALL_CORES = frozenset(range(32))
REFUSED = {"phase": "Failed", "reason": "UnexpectedAdmissionError", "message": "no devices"}


class Checks(Part):
    """Nodes that are rebooted, break and are repaired, and the kubelets that run the checks."""

    def __init__(self, model: Model, seed: int) -> None:
        super().__init__(model)
        self.is_closed = seed % 4 in {1, 2}
        unable = OnUnable.CLOSED if self.is_closed else OnUnable.OPEN
        self.settings = PreflightSettings(pod=POD, timeout=20, retry=30, parallel=2, on_unable=unable, group=ACROSS)
        self.scope = CheckScope(NAMESPACE if seed % 2 else "", groups=True)
        self.boots: defaultdict[str, int] = defaultdict(int)
        self.faults = {self.chance.choice("abcd")}
        """Nodes that a check finds bad, though nothing else shows it."""
        self.passed: dict[tuple[str, str], int] = {}
        """By node and boot, the version of the node that says that it has passed; 0 before it says so."""
        self.failed: set[tuple[str, str]] = set()
        self.sick: defaultdict[tuple[Replica, str], int] = defaultdict(int)
        """By replica and node, the last version of the node that it has seen sick."""
        self.good: defaultdict[str, set[tuple[str, str]]] = defaultdict(set)
        """By group, node and devices of the places of which all have passed."""
        self.bad: dict[tuple[str, str], float] = {}
        """By group and node, when the pod was made of the last check of the group that has failed there."""
        self.begun: dict[str, float] = {}
        """By group, since when it says that it waits for a check."""
        self.unable: set[str] = set()
        """Groups with a check of which a pod could not run to its end."""
        self.started: set[str] = set()
        self.made: dict[str, AnyJson] = {}
        """The pods of checks as they were made, by their UIDs."""

    # What happens.

    def boot_id(self, name: str) -> str:
        return f"{name}-{self.boots[name]}"

    def pods(self) -> list[AnyJson]:
        return [pod for pod in self.model.server.objects(PODS) if pod["metadata"]["namespace"] == NAMESPACE]

    def act(self) -> None:
        """A node is rebooted, gets bad or good, or is to be checked by hand."""
        name, dice = self.chance.choice([*self.model.nodes, ""]), self.chance.random()
        if name and dice < 0.1:
            self.boots[name] += 1
            self.model.server.patch_node(name, {"status": {"nodeInfo": {"bootID": self.boot_id(name)}}}, status=True)
            for pod in self.pods():
                if pod["spec"]["nodeName"] == name:
                    self.end(pod, {"phase": "Failed", "reason": "NodeShutdown", "message": "the node was shut down"})
        elif name and dice < 0.2:
            self.faults ^= {name}
        elif name and dice < 0.3:
            self.model.server.patch_node(name, {"metadata": {"annotations": {PREFLIGHT_KEY: None}}})

    def tick(self) -> None:
        self.run_pods(0.2)
        for _, group in self.model.leader.state.checks if self.model.leader else ():
            self.begun.setdefault(group, self.model.now)

    def run_pods(self, likely: float) -> None:
        """The kubelets begin and end checks, some of which hang; pods that were deleted are gone at last."""
        for pod in self.pods():
            name, node = pod["metadata"]["name"], pod["spec"]["nodeName"]
            age = self.model.now - created(pod)
            is_going = pod["metadata"].get("deletionTimestamp") or node not in self.model.nodes
            if is_going and self.chance.random() < likely:
                self.model.server.delete_pod(NAMESPACE, name, grace_seconds=0)
            elif age >= self.settings.timeout:
                self.end(pod, {"phase": "Failed", "reason": "DeadlineExceeded"})
            elif pod["status"]["phase"] == "Pending" and self.chance.random() < likely:
                running = {"name": "check", "state": {"running": {"startedAt": self.model.text()}}}
                self.model.server.set_pod_status(NAMESPACE, name, {"phase": "Running", "containerStatuses": [running]})
            elif pod["status"]["phase"] == "Running" and self.chance.random() < likely:
                bad = node in self.faults
                ended = {"exitCode": int(bad), "startedAt": self.model.text()}
                ended |= {"message": f"slow\ndevice={BAD_DEVICE}"} if bad else {}
                state = {"containerStatuses": [{"name": "check", "state": {"terminated": ended}}]}
                self.end(pod, {"phase": "Failed" if bad else "Succeeded", **state})

    def end(self, pod: AnyJson, status: AnyJson) -> None:
        """The pod of a check ends, unless it has already; what that says of its node, or its group."""
        if pod["status"]["phase"] in ENDED:
            return
        metadata, node, has_passed = pod["metadata"], pod["spec"]["nodeName"], status["phase"] == "Succeeded"
        self.model.server.set_pod_status(NAMESPACE, metadata["name"], status)
        annotations = metadata["annotations"]
        if boot := annotations.get(BOOT_KEY):
            if has_passed:
                self.passed.setdefault((node, boot), 0)
            else:
                self.failed.add((node, boot))
            return
        group, check = group_of(pod), metadata["name"].rpartition("-")[0]
        if not has_passed and "reason" in status:
            self.unable.add(group)
        elif not has_passed:
            self.bad[group, node] = created(pod)
        pods = [other for other in self.pods() if other["metadata"]["name"].startswith(f"{check}-")]
        env = {one["name"]: one["value"] for one in pod["spec"]["containers"][0]["env"]}
        are_all = len(pods) == int(env["NEURON_PREFLIGHT_SIZE"])
        if are_all and all(other["status"]["phase"] == "Succeeded" for other in pods):
            self.good[group] |= {spot_of(other) for other in pods}

    def held(self) -> Iterator[tuple[str, str, frozenset[int], str]]:
        """What the pods of checks have, as ``Model.held``: of nodes that are checked all cores."""
        for pod in self.pods():
            if pod["status"]["phase"] not in ENDED:
                node, devices = spot_of(pod)
                cores = {2 * one + more for one in parse_ids(devices) for more in (0, 1)} if devices else ALL_CORES
                yield node, pod["metadata"]["name"], frozenset(cores), node

    def see_node(self, replica: Replica, manifest: AnyJson) -> None:
        """A replica has seen a node."""
        if is_sick(manifest):
            self.sick[replica, manifest["metadata"]["name"]] = version_of(manifest)

    def calm(self) -> None:
        self.faults.clear()

    def rest(self) -> None:
        self.run_pods(1.0)

    # What has to hold.

    def done(self, request: ApiRequest, target: Target, before: AnyJson | None) -> None:
        body: Any = request.body or {}
        if request.method == "POST" and target.kind is PODS and not target.subresource:
            self.admit(body["metadata"]["name"])
        elif request.method == "PATCH" and target.kind is NODES:
            self.check_record(target.name)
        elif before and request.method == "PATCH" and not target.subresource and NODE_KEY in str(body.get("metadata")):
            self.check_start(self.model.pods[target.name])

    def admit(self, name: str) -> None:
        """The kubelet takes the pod of a check, if its devices are free."""
        pod = next(pod for pod in self.pods() if pod["metadata"]["name"] == name)
        self.made[pod["metadata"]["uid"]] = pod
        node, devices = spot_of(pod)
        asked = next(cores for _, other, cores, _ in self.held() if other == name)
        others = [
            other for where, other, cores, bound in self.model.held() if bound and where == node and cores & asked
        ]
        if others != [name]:
            if not devices and self.model.too_late.isdisjoint({*others, name}):
                assert not others, f"the check of {node} was begun, and {others} are there"
            self.end(pod, REFUSED)

    def check_record(self, name: str) -> None:
        """A node is said to have passed, or failed, if a check of that boot has."""
        record = read_preflight(self.model.nodes[name]["metadata"]["annotations"].get(PREFLIGHT_KEY, ""))
        assert record, f"{name} has an unreadable record"
        if record.state is PreflightState.PASSED:
            assert (name, record.boot_id) in self.passed, f"{name} never passed"
            self.passed[name, record.boot_id] = version_of(self.model.nodes[name])
        if record.state is PreflightState.FAILED:
            assert (name, record.boot_id) in self.failed, f"{name} never failed: {record}"
            assert record.devices in {(), (BAD_DEVICE,)}

    def check_start(self, pod: AnyJson) -> None:
        """The first of a group that asks for a check has a place at which one has passed."""
        annotations = pod["metadata"].get("annotations", {})
        group = annotations.get(GROUP, "")
        if annotations.get(PREFLIGHT_KEY) != "group" or group in self.started or not annotations.get(NODE_KEY):
            return
        self.started.add(group)
        spot, good = spot_of(pod), self.good[group]
        assert self.could_not_run(group) or spot in good, f"group {group} starts unchecked at {spot}, and not at {good}"

    def could_not_run(self, group: str) -> bool:
        """Whether a group's check may count as one that cannot run: what has failed in it says nothing then."""
        was_long = self.model.now - self.begun.get(group, self.model.now) >= self.settings.timeout
        return (group in self.unable or was_long) and not self.is_closed

    def chosen(self, replica: Replica, pod: NeuronPod, node: str) -> None:
        """A node that takes a pod has passed its check since its boot and its last repair, as far as one can see.

        Or it is not repaired yet, could not be checked, or had pods when checks began. A group keeps off a node where
        its check has failed.
        """
        if pod.group and not self.could_not_run(pod.group[1]):
            since = self.model.now - self.bad.get((pod.group[1], node), float("-inf"))
            assert since >= self.settings.retry, f"{pod.reference} goes where the check of its group has failed"
        manifest = replica.nodes[node]
        record = read_preflight(manifest["metadata"]["annotations"].get(PREFLIGHT_KEY, ""))
        if not self.scope.namespace or node == "claims" or node in self.model.too_late or is_sick(manifest):
            return
        boot = manifest["status"]["nodeInfo"]["bootID"]
        could_not = record and record.state is PreflightState.UNABLE and record.boot_id == boot and not self.is_closed
        others = [one for one in replica.state.pods.values() if one.place == node and one.uid != pod.uid]
        if could_not or (record is None and others):
            return
        at = self.passed.get((node, boot), 0)
        assert at > self.sick[replica, node], f"{pod.reference} goes to {node}, which is due: {record}, passed {at}"

    def finish(self) -> None:
        """What a check has closed is open again, and nothing is left of it."""
        replica = self.model.leader
        assert replica
        recent = {group_of(pod) for pod in self.pods() if self.model.now - created(pod) < self.settings.timeout}
        left = [(pod["metadata"]["name"], pod["status"]) for pod in self.pods() if group_of(pod) not in recent]
        assert not left, f"pods of checks are left: {left}"
        assert {group for _, group in replica.state.checks} <= recent, "groups are still checked, or held"
        closed = {name: info.unchecked for name, info in replica.state.nodes.items() if info.unchecked}
        if not self.is_closed:
            assert not closed, closed


def place_of(check: AnyJson) -> AnyJson:
    """What the pod of a group's check says of its place; nothing of a node's."""
    return dict(msgspec.json.decode(check["metadata"]["annotations"].get(PREFLIGHT_GROUP_KEY, "{}")))


def group_of(check: AnyJson) -> str:
    """The group that the pod of a check is of; empty for that of a node's."""
    return str(place_of(check).get("group", "")).partition("/")[2]


def spot_of(pod: AnyJson) -> tuple[str, str]:
    said = pod["metadata"].get("annotations", {})
    return said.get(NODE_KEY, "") or pod["spec"].get("nodeName", ""), said.get("NEURON_DEVS", "")


def created(pod: AnyJson) -> float:
    """When a pod was made, by the model's clock."""
    return datetime.fromisoformat(pod["metadata"]["creationTimestamp"]).timestamp() - EPOCH


def is_sick(node: AnyJson) -> bool:
    return '"unhealthy":{}' not in node["metadata"]["annotations"][INVENTORY_KEY]


def version_of(node: AnyJson) -> int:
    return int(node["metadata"]["resourceVersion"])
