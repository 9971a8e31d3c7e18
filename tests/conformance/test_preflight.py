"""What the policies leave the placement controller for pre-flight checks, evaluated by a real API server.

Needs no node and no kubelet, only a kubeconfig that may write policies, roles, namespaces and nodes::

    pytest tests/conformance/test_preflight.py --kubeconfig admin.conf

Policies and rights are those of the rendering ``gates-preflight``, for accounts in a namespace of this run.
"""

from __future__ import annotations

import copy
import json
import secrets
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any

import pytest
import pytest_asyncio

from neuron_plugin.allocation import Dialect, NeuronNode
from neuron_plugin.allocation.keys import PREFLIGHT_KEY
from neuron_plugin.placement.check_pods import CheckedPlace, check_manifest, group_check_manifest
from neuron_plugin.placement.settings import PreflightSettings
from tests.charts.manifests import manifests
from tests.charts.test_preflight import CHECKED, chart_settings
from tests.conformance.policy_server import Body, Server, in_force, opened
from tests.conformance.test_gates import RBAC, grant
from tests.support.manifests import node_manifest
from tests.support.world import node_of

pytestmark = pytest.mark.asyncio(loop_scope="module")
ACCOUNT = "neuron-plugin-extender"


@dataclass(frozen=True)
class Run:
    """The controller of the run, its namespace, and a node that it checks."""

    controller: Server
    namespace: str
    node: str
    settings: PreflightSettings

    @property
    def pods(self) -> str:
        return f"/api/v1/namespaces/{self.namespace}/pods"

    def check(self) -> Body:
        """The pod of a check, as the controller makes it."""
        node: NeuronNode = node_of(node_manifest(self.node, "trn1.32xlarge"))
        return copy.deepcopy({"apiVersion": "v1", "kind": "Pod", **check_manifest(self.settings, node, self.namespace)})

    def check_of_group(self) -> Body:
        """One pod of a group's check, as the controller makes it."""
        node: NeuronNode = node_of(node_manifest(self.node, "trn1.32xlarge"))
        place = CheckedPlace("uid", "default", "ring-0", self.node, "0-31", at=1.0, group="default/ring", size=1)
        peers = [(self.node, "10.0.0.1")]
        made = group_check_manifest(self.settings, node, self.namespace, place, peers, tuple(Dialect))
        return copy.deepcopy({"apiVersion": "v1", "kind": "Pod", **made})


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def run(request: pytest.FixtureRequest) -> AsyncIterator[Run]:
    kubeconfig = request.config.getoption("--kubeconfig", default=None)
    if kubeconfig is None:
        pytest.skip("needs --kubeconfig, of an API server that may be given admission policies")
    async with opened(kubeconfig, secrets.token_hex(3)) as admin:
        if names := await admin.installed():
            pytest.skip(f"the chart's own policies hold here, for accounts that are not the run's: {', '.join(names)}")
        namespace, node = f"np-preflight-{admin.run}", f"np-node-{admin.run}"
        await admin.make("/api/v1/namespaces", {"metadata": {"name": namespace}})
        await admin.make("/api/v1/nodes", {"metadata": {"name": node, "annotations": {"other": "1"}}})
        await admin.make(f"/api/v1/namespaces/{namespace}/serviceaccounts", {"metadata": {"name": ACCOUNT}})
        rendered = json.dumps(manifests("gates-preflight"))
        rendered = rendered.replace("serviceaccount:kube-system:", f"serviceaccount:{namespace}:")
        rendered = rendered.replace("request.namespace == 'kube-system'", f"request.namespace == '{namespace}'")
        own = json.loads(rendered)
        for manifest in own:
            if manifest["metadata"]["name"] == ACCOUNT and manifest["kind"] in {"Role", "ClusterRole"}:
                name = f"{ACCOUNT}-{manifest['kind'].lower()}-{admin.run}"
                await admin.make(f"{RBAC}/clusterroles", {"metadata": {"name": name}, "rules": manifest["rules"]})
                await grant(admin, namespace, ACCOUNT, name, everywhere=manifest["kind"] == "ClusterRole")
        policies = [each for each in own if "Policy" in each["kind"] and each["apiVersion"].startswith("admission")]
        assert {*CHECKED} < {each["metadata"]["name"] for each in policies}
        await admin.apply(policies, {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": namespace}}})
        controller = await admin.as_account(namespace, ACCOUNT, kubeconfig)
        made = Run(controller, namespace, node, chart_settings())
        other = made.check()
        other["metadata"]["labels"] = {}
        await in_force("no other pod is made", lambda: controller.why_not("POST", made.pods, other))
        change = {"metadata": {"labels": {"x": "y"}}}
        await in_force("no label is changed", lambda: controller.why_not("PATCH", f"/api/v1/nodes/{node}", change))
        yield made


async def test_the_pods_of_checks_may_be_made(run: Run) -> None:
    assert await run.controller.why_not("POST", run.pods, run.check()) == ""
    assert await run.controller.why_not("POST", run.pods, run.check_of_group()) == ""


def first(pod: Body) -> Body:
    container: Body = pod["spec"]["containers"][0]
    return container


CHANGES: dict[str, Callable[[Body], Any]] = {
    "another image": lambda pod: first(pod).update(image="busybox"),
    "privileged": lambda pod: first(pod).update(securityContext={"privileged": True}),
    "a capability": lambda pod: first(pod).update(securityContext={"capabilities": {"add": ["SYS_ADMIN"]}}),
    "a second container": lambda pod: pod["spec"]["containers"].append({"name": "x", "image": "busybox"}),
    "an init container": lambda pod: pod["spec"].update(initContainers=[{"name": "x", "image": "busybox"}]),
    "a directory of the host": lambda pod: pod["spec"]["volumes"].append({"name": "h", "hostPath": {"path": "/"}}),
    "a secret": lambda pod: pod["spec"]["volumes"].append({"name": "s", "secret": {"secretName": "tls"}}),
    "the host's network": lambda pod: pod["spec"].update(hostNetwork=True),
    "the host's processes": lambda pod: pod["spec"].update(hostPID=True),
    "a token": lambda pod: pod["spec"].update(automountServiceAccountToken=True),
    "no node": lambda pod: pod["spec"].pop("nodeName"),
    "no label": lambda pod: pod["metadata"].pop("labels"),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
async def test_no_other_pod_may_be_made(run: Run, change: Callable[[Body], Any]) -> None:
    pod = run.check()
    change(pod)
    assert "neuron-plugin-preflight" in await run.controller.why_not("POST", run.pods, pod)


@pytest.mark.parametrize(
    ("change", "allowed"),
    [
        ({"metadata": {"annotations": {PREFLIGHT_KEY: "{}"}}}, True),
        ({"metadata": {"annotations": {PREFLIGHT_KEY: None}}}, True),
        ({"metadata": {"annotations": {"other": "2"}}}, False),
        ({"metadata": {"annotations": {"other": None}}}, False),
        ({"metadata": {"labels": {"x": "y"}}}, False),
        ({"spec": {"unschedulable": True}}, False),
        ({"spec": {"taints": [{"key": "x", "effect": "NoSchedule"}]}}, False),
    ],
)
async def test_of_a_node_the_annotation_may_be_changed_and_nothing_else(run: Run, change: Body, allowed: bool) -> None:  # noqa: FBT001 - a column
    refusal = await run.controller.why_not("PATCH", f"/api/v1/nodes/{run.node}", change)
    assert (refusal == "") is allowed, refusal
    assert allowed or "neuron-plugin-checked-nodes" in refusal


@pytest.mark.parametrize("change", [name for name in CHANGES if name != "the host's network"])
async def test_of_a_group_the_same_holds_but_for_the_network(run: Run, change: str) -> None:
    pod = run.check_of_group()
    assert pod["spec"]["hostNetwork"] is True
    CHANGES[change](pod)
    assert "neuron-plugin-preflight" in await run.controller.why_not("POST", run.pods, pod)
