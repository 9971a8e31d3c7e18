"""What placing gated pods asks the API server for is what the chart grants for it, and no more (P81)."""

from __future__ import annotations

import re

import msgspec
import pytest

from neuron_plugin.cluster import KubernetesApi
from neuron_plugin.placement.context import Times
from neuron_plugin.placement.gates.ungate import release_gated
from neuron_plugin.simulation.api_server_kinds import RESOURCE_CLAIMS, RESOURCE_SLICES
from tests.charts.manifests import of_kind
from tests.charts.test_rbac import EVENTS, Rule, rules
from tests.placement.gates.bench import GatesBench
from tests.simulation.dra import claim_spec, node_slice
from tests.support.api_server import Fault, Match, StandInApiServer

VERBS = {"POST": "create", "PATCH": "patch", "DELETE": "delete"}
PATH = re.compile(
    r"/apis?(?:/(?P<group>[^/]+))?/v1(?:/namespaces/[^/]+)?/(?P<kind>[a-z]+)(?:/(?P<name>[^/]+)(?P<part>/\w+)?)?"
)
OPEN_TO_ALL = "/apis/karpenter.sh"
"""Discovery: Kubernetes itself lets every account see which groups there are."""
TIMES = Times()
IGNORES = {
    "spec": {"podFailurePolicy": {"rules": [{"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget"}]}]}}
}


def asked(server: StandInApiServer) -> set[Rule]:
    """The rights that all requests so far take."""
    rights = set()
    for request in server.requests:
        path = request.path.partition("?")[0]
        if path == OPEN_TO_ALL:
            continue
        found = PATH.fullmatch(path)
        assert found, path
        verb = VERBS.get(request.method) or ("get" if found["name"] else "list")
        named = found["name"] if found["kind"] == "configmaps" else ""
        rights.add((found["group"] or "", found["kind"] + (found["part"] or ""), verb, named))
    return rights


@pytest.fixture
def gated(server: StandInApiServer, api: KubernetesApi) -> GatesBench:
    return GatesBench(server, api, release_when_full="auto")


async def stuck(gated: GatesBench, name: str, owner: str) -> None:
    """A pod is placed, and its scheduler does not find the node good."""
    gated.pod(name, owner=owner)
    await gated.step()
    gated.unschedulable(name)
    await gated.look()
    await gated.look(after=TIMES.stuck + 1)


async def test_p81_the_placement_controller_needs_every_right_it_has_for_gates_and_no_other(
    gated: GatesBench, server: StandInApiServer
) -> None:
    server.fail(Fault(Match(method="GET", path="/jobs/train$"), body=msgspec.json.encode(IGNORES), times=10))
    gated.node("a", cpu="64")
    await stuck(gated, "of-a-replica-set", "ReplicaSet/web")
    await stuck(gated, "of-a-job", "Job/train")
    gated.pod("that-leaves-little-cpu", cpu="60")
    await gated.place_all()
    replica = {f"leaderworkerset.sigs.k8s.io/{key}": "0" for key in ("name", "group-index", "worker-index")}
    gated.pod("that-its-workers-wait-for", labels=replica, annotations={"leaderworkerset.sigs.k8s.io/size": "2"})
    first = {"apps.kubernetes.io/pod-index": "0"}
    gated.pod("that-its-set-waits-for", labels=first, owner="StatefulSet/set", group="set", size=2)
    await gated.step(after=TIMES.leader + 1)

    granted = rules(of_kind("gates", "ClusterRole")["neuron-plugin-extender"])
    granted |= rules(of_kind("gates", "Role")["neuron-plugin-autoscaler-status"])
    for_extenders = rules(of_kind("second-scheduler", "ClusterRole")["neuron-plugin-extender"])
    assert asked(server) <= granted
    assert granted - for_extenders <= asked(server)
    assert asked(server) & for_extenders == EVENTS | {("", "pods", "get", "")}


async def test_p81_releasing_by_hand_needs_what_its_roles_have(gated: GatesBench, server: StandInApiServer) -> None:
    gated.pod("waits")
    gated.pod("claims", spec={"resourceClaims": [{"name": "c", "resourceClaimName": "c"}]})
    server.create(RESOURCE_SLICES, node_slice(placed=True), "")
    server.create(RESOURCE_CLAIMS, {"metadata": {"name": "c"}, "spec": claim_spec()}, "default")
    released, refused = await release_gated(gated.api, None)
    assert (released, list(refused)) == (["default/waits"], ["default/claims"])
    for role in ("neuron-plugin-ungate-all", "neuron-plugin-ungate"):
        granted = rules(of_kind("gates", "ClusterRole")[role])
        assert asked(server) <= granted
    assert rules(of_kind("gates", "ClusterRole")["neuron-plugin-ungate-all"]) - asked(server) == {
        ("neuron-plugin.io", "placements", "ungate", "")
    }
