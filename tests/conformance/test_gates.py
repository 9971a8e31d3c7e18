"""The admission side of ``placement: gates``, evaluated by a real API server with real service accounts.

Needs no node and no kubelet, only a kubeconfig that may write policies, roles and namespaces::

    pytest tests/conformance/test_gates.py --kubeconfig admin.conf

The policies and the role of the placement controller are those of the rendering ``gates``. They hold for a namespace
of this run, in which the accounts are, too. Where the server has no MutatingAdmissionPolicy, the webhook of the
rendering ``gates-webhook`` gives the gate, and this process answers for it: the server has to run on the same machine.
A server of 1.36 is one without when its ``--runtime-config`` switches ``mutatingadmissionpolicies`` and
``mutatingadmissionpolicybindings`` of ``admissionregistration.k8s.io/v1`` off, and the feature gate
``MutatingAdmissionPolicy``: with that gate its admission waits for the two for ever.
"""

from __future__ import annotations

import json
import secrets
import ssl
from base64 import b64encode
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import pytest
import pytest_asyncio
import trustme
from aiohttp import web
from aiohttp.typedefs import Handler

from neuron_plugin.allocation import NeuronPod
from neuron_plugin.allocation.keys import GATE, NODE_KEY, POD_UID_KEY
from neuron_plugin.cluster import ApiError, ApiRequest, Pod
from neuron_plugin.cluster.pods import neuron_pod
from neuron_plugin.cluster.writes import limit_allocatable, write_config_map
from neuron_plugin.http_server import serving
from neuron_plugin.placement.device_hours import CONFIG_MAP
from neuron_plugin.placement.gates import writes
from neuron_plugin.placement.gates.webhook import application
from tests.charts.manifests import manifests, of_kind
from tests.conformance.policy_server import CORE, DEVICE, NEURON, REGISTRATION, Body, Server, in_force, opened, pod

pytestmark = pytest.mark.asyncio(loop_scope="module")

REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
RBAC = "/apis/rbac.authorization.k8s.io/v1"
ACCOUNTS = ("neuron-plugin", "neuron-plugin-extender", "editor", "ungater", "neuron-plugin-ungate-all")
BINDER = [{"apiGroups": [""], "resources": ["pods/binding"], "verbs": ["create"]}]
"""What the placement controller may do where a scheduler asks it, too."""
JUDGED = ("gates", "copies", "placement", "bindings", "ungate", "decisions", "own-pods", "own-node", "device-hours")
PLACED = {"NEURON_DEVS": "0-3", "NEURON_ALLOC_TIME": "1", "NEURON_ALLOCATED": "false", NODE_KEY: "n1", POD_UID_KEY: "u"}


def pinned(*terms: Body) -> Body:
    """Node affinity that requires one of ``terms``."""
    return {"affinity": {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": list(terms)}}}}


def named(node: str) -> Body:
    return {"key": "metadata.name", "operator": "In", "values": [node]}


FENCE = "ValidatingAdmissionPolicy 'neuron-plugin-placement-"
"""Who refuses what the placement controller may not do."""
RELEASE = {
    "metadata": {"annotations": PLACED, "labels": {NODE_KEY: "n1"}},
    "spec": {"schedulingGates": [], **pinned({"matchFields": [named("n1")]})},
}
"""What the placement controller writes when it places a pod."""


@dataclass(frozen=True)
class Cluster:
    """The run's namespace, as the administrator and as each account sees it."""

    admin: Server
    namespace: str
    kubeconfig: Path
    controller: Server
    editor: Server
    ungater: Server
    hook: Server
    """Who releases all pods when the release is uninstalled."""
    reviewed: list[str] = field(default_factory=list, kw_only=True)
    """The paths at which the API server has asked the webhook; none where a policy gives the gate."""

    @property
    def pods(self) -> str:
        return f"/api/v1/namespaces/{self.namespace}/pods"

    async def create(self, spec: Body, **metadata: Any) -> Body:
        """The pod as it would be stored; nothing is."""
        return await self.admin.ask("POST", self.pods, described(spec, **metadata), dryRun="All")

    async def made(self, spec: Body, **metadata: Any) -> str:
        """The path of a pod that is really there."""
        stored = await self.admin.make(self.pods, described(spec, **metadata))
        return f"{self.pods}/{stored['metadata']['name']}"

    async def bound(self) -> str:
        """A pod that runs on a node, and was gated before."""
        path = await self.made(pod({NEURON: "4"}))
        await self.controller.ask("PATCH", path, RELEASE)
        await self.admin.ask("POST", f"{path}/binding", binding(path))
        return path


def described(spec: Body, **metadata: Any) -> Body:
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"generateName": "np-", **metadata}, "spec": spec}


def binding(path: str, **metadata: Any) -> Body:
    """Of the pod at this path, to a node."""
    return {"metadata": {"name": path.rpartition("/")[2], **metadata}, "target": {"kind": "Node", "name": "n1"}}


def gates(stored: Body) -> list[str]:
    return [gate["name"] for gate in stored["spec"].get("schedulingGates", [])]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def cluster(request: pytest.FixtureRequest) -> AsyncIterator[Cluster]:
    kubeconfig = request.config.getoption("--kubeconfig", default=None)
    if kubeconfig is None:
        pytest.skip("needs --kubeconfig, of an API server that may be given admission policies")
    async with opened(kubeconfig, secrets.token_hex(3)) as admin:
        if names := await admin.installed():
            pytest.skip(f"the chart's own policies hold here, for accounts that are not the run's: {', '.join(names)}")
        namespace = f"np-gates-{admin.run}"
        await admin.make("/api/v1/namespaces", {"metadata": {"name": namespace}})
        for account in ACCOUNTS:
            await admin.make(f"/api/v1/namespaces/{namespace}/serviceaccounts", {"metadata": {"name": account}})
        # The policies name the accounts of the namespace that they were rendered for.
        rendered = json.dumps(manifests("gates"))
        own = json.loads(rendered.replace("serviceaccount:kube-system:", f"serviceaccount:{namespace}:"))
        await grant(admin, namespace, "editor", "edit")
        await grant(admin, namespace, "ungater", "edit")
        for manifest in own:
            name = manifest["metadata"]["name"]
            if manifest["kind"] == "ClusterRole" or (manifest["kind"], name) == ("Role", "neuron-plugin-extender"):
                role_name = f"{name}-{manifest['kind'].lower()}-{admin.run}"
                role = {"metadata": {"name": role_name}, "rules": manifest["rules"]}
                await admin.make(f"{RBAC}/clusterroles", role)
                account = "ungater" if name == "neuron-plugin-ungate" else name
                await grant(admin, namespace, account, role["metadata"]["name"])
        role = {"metadata": {"name": f"binder-{admin.run}"}, "rules": BINDER}
        await admin.make(f"{RBAC}/clusterroles", role)
        await grant(admin, namespace, "neuron-plugin-extender", role["metadata"]["name"])
        selected = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": namespace}}}
        served = {each["name"] for each in (await admin.ask("GET", REGISTRATION))["resources"]}
        by_policy = "mutatingadmissionpolicies" in served
        judged = {f"neuron-plugin-{name}" for name in JUDGED}
        ways = ("Validating", "Mutating") if by_policy else ("Validating",)
        await admin.apply(
            (
                each
                for each in own
                if each["metadata"]["name"] in judged
                and each["kind"].startswith(tuple(f"{way}AdmissionPolicy" for way in ways))
            ),
            selected,
        )
        run = Cluster(
            admin,
            namespace,
            kubeconfig,
            *[await admin.as_account(namespace, account, kubeconfig) for account in ACCOUNTS[1:]],
        )
        if not by_policy:
            await admin.undo.enter_async_context(webhook(run, selected))
        await all_in_force(run)
        yield run


@asynccontextmanager
async def webhook(run: Cluster, selected: Body) -> AsyncIterator[None]:
    """Answer for the webhook of the chart, for the run's namespace."""
    authority = trustme.CA()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(context)

    @web.middleware
    async def noted(request: web.Request, handler: Handler) -> web.StreamResponse:
        run.reviewed.append(request.path)
        return await handler(request)

    app = application()
    app.middlewares.append(noted)
    configuration = json.loads(
        json.dumps(of_kind("gates-webhook", "MutatingWebhookConfiguration")["neuron-plugin-gates"])
    )
    configuration["metadata"] = {"name": f"neuron-plugin-gates-{run.admin.run}"}
    async with serving(app, "127.0.0.1", 0, tls=context) as port:
        for hook in configuration["webhooks"]:
            path = hook["clientConfig"]["service"]["path"]
            trusted = b64encode(authority.cert_pem.bytes()).decode()
            hook |= {"clientConfig": {"url": f"https://127.0.0.1:{port}{path}", "caBundle": trusted}, **selected}
        await run.admin.make(f"{REGISTRATION}/mutatingwebhookconfigurations", configuration)
        yield


async def grant(admin: Server, namespace: str, account: str, role: str, *, everywhere: bool = False) -> None:
    """Let an account of the run do what a ClusterRole says, in the run's namespace unless ``everywhere``."""
    binding = {
        "metadata": {"generateName": "np-"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role},
        "subjects": [{"kind": "ServiceAccount", "name": account, "namespace": namespace}],
    }
    where = "clusterrolebindings" if everywhere else f"namespaces/{namespace}/rolebindings"
    await admin.make(f"{RBAC}/{where}", binding)


async def all_in_force(run: Cluster) -> None:
    """Wait until every policy has been taken in: until each refuses, or changes, what it should."""

    async def gated() -> bool:
        return GATE in gates(await run.create(pod({NEURON: "1"})))

    async def taken_off() -> bool:
        return not (await run.create(pod({}), annotations=PLACED))["metadata"].get("annotations")

    async def refused(what: str, word: str, user: Server, method: str, path: str, body: Body) -> None:
        async def holds() -> bool:
            return word in await user.why_not(method, path, body)

        await in_force(f"the policy about {what}", holds)

    await in_force("a pod is gated", gated)
    await in_force("an assignment is taken off", taken_off)
    path, plain = await run.made(pod({NEURON: "1"})), await run.made(pod({"cpu": "1"}, schedulerName="nobody"))
    controller, editor = run.controller, run.editor
    await refused("placement", "placement", controller, "PATCH", path, {"metadata": {"labels": {"x": "y"}}})
    await refused("the gate", "ungate", editor, "PATCH", path, {"spec": {"schedulingGates": []}})
    await refused("assignments", "NEURON", editor, "PATCH", path, {"metadata": {"annotations": PLACED}})
    bound = binding(plain, annotations={"x": "y"})
    await refused("bindings", "422", controller, "POST", f"{plain}/binding", bound)
    path = f"/api/v1/namespaces/{run.namespace}/configmaps"
    await refused("device-hours", "device-hours", controller, "POST", path, {"metadata": {"name": "x"}})


# ---- who is gated


@pytest.mark.parametrize(
    "spec",
    [
        pod({NEURON: "1"}),
        pod({DEVICE: "4"}),
        pod({"cpu": "1"}, {CORE: "2"}),
        pod({CORE: "1k"}, schedulerName="default-scheduler"),
        pod({"cpu": "1"}, initContainers=[{"name": "i", "image": "x", "resources": {"limits": {CORE: "1"}}}]),
    ],
)
async def test_a_pod_that_asks_for_neuron_waits_behind_the_gate(cluster: Cluster, spec: Body) -> None:
    assert gates(await cluster.create(spec)) == [GATE]


@pytest.mark.parametrize("kind", ["Job", "ReplicaSet", "StatefulSet"])
async def test_pods_of_controllers_are_gated(cluster: Cluster, kind: str) -> None:
    owner = {"apiVersion": "v1", "kind": kind, "name": "o", "uid": "u", "controller": True}
    assert gates(await cluster.create(pod({NEURON: "1"}), ownerReferences=[owner])) == [GATE]


@pytest.mark.parametrize("others", [["kueue.x-k8s.io/admission"], ["a.example.com/a", "b.example.com/b"]])
async def test_gates_of_others_stay_before_ours(cluster: Cluster, others: list[str]) -> None:
    spec = pod({NEURON: "1"}, schedulingGates=[{"name": name} for name in others])
    assert gates(await cluster.create(spec)) == [*others, GATE]


async def test_a_gate_written_by_hand_is_there_once(cluster: Cluster) -> None:
    spec = pod({NEURON: "1"}, schedulingGates=[{"name": GATE}])
    assert gates(await cluster.create(spec)) == [GATE]
    assert gates(await cluster.create(pod({"cpu": "1"}, schedulingGates=[{"name": GATE}]))) == [GATE]


async def test_a_manifest_that_server_side_apply_would_refuse_is_gated_too(cluster: Cluster) -> None:
    """The names of variables and ports are keys of a merge, and the API server lets them be there twice."""
    spec = pod({NEURON: "1"})
    spec["containers"][0]["env"] = [{"name": "A", "value": "1"}, {"name": "A", "value": "2"}]
    stored = await cluster.create(spec)
    assert gates(stored) == [GATE]
    assert [each["value"] for each in stored["spec"]["containers"][0]["env"]] == ["1", "2"]


@pytest.mark.parametrize(
    ("spec", "metadata"),
    [
        (pod({"cpu": "1"}), {}),
        (pod({}), {}),
        (pod({NEURON: "0"}), {}),
        (pod({NEURON: "1"}, schedulerName="volcano"), {}),
        (pod({NEURON: "1"}, nodeName="n1"), {}),
        (
            pod({NEURON: "1"}),
            {
                "ownerReferences": [
                    {"apiVersion": "apps/v1", "kind": "DaemonSet", "name": "o", "uid": "u", "controller": True}
                ]
            },
        ),
        (pod({NEURON: "1"}, nodeName="n1"), {"annotations": {"kubernetes.io/config.mirror": "h"}}),
    ],
)
async def test_every_other_pod_is_not_gated(cluster: Cluster, spec: Body, metadata: Body) -> None:
    asked = len(cluster.reviewed)
    assert gates(await cluster.create(spec, **metadata)) == []
    assert len(cluster.reviewed) == asked, "no webhook is asked about it"


async def test_a_pod_of_the_second_scheduler_that_is_no_more_goes_to_the_default_one(cluster: Cluster) -> None:
    stored = await cluster.create(pod({NEURON: "1"}, schedulerName="neuron-scheduler"))
    assert (gates(stored), stored["spec"]["schedulerName"]) == ([GATE], "default-scheduler")


async def test_a_namespace_that_is_left_out_keeps_its_pods_ungated(cluster: Cluster) -> None:
    stored = await cluster.admin.ask(
        "POST", "/api/v1/namespaces/default/pods", described(pod({NEURON: "1"})), dryRun="All"
    )
    assert gates(stored) == []


async def test_what_only_the_controller_says_is_taken_off_a_copied_manifest(cluster: Cluster) -> None:
    mine = {"mine": "1", "neuron-plugin.io/placement": "spread"}
    stored = await cluster.create(
        pod({NEURON: "4"}), annotations={**PLACED, "AWS_NEURON_IDS": "0", **mine}, labels={NODE_KEY: "n1", "app": "a"}
    )
    assert stored["metadata"]["annotations"] == mine
    assert stored["metadata"]["labels"] == {"app": "a"}
    assert gates(stored) == [GATE]


@pytest.mark.parametrize(
    ("spec", "metadata"),
    [
        (pod({NEURON: "4"}, nodeName="n1"), {}),  # as kubectl replace --force writes it
        (pod({NEURON: "4"}, nodeName="n1"), {"annotations": {"kubernetes.io/config.mirror": "h"}}),
        (pod({NEURON: "4"}, schedulerName="volcano"), {}),
        (pod({"cpu": "1"}), {}),
    ],
)
async def test_it_is_taken_off_a_pod_that_is_not_gated_as_well(cluster: Cluster, spec: Body, metadata: Body) -> None:
    kept = metadata.get("annotations", {})
    for user in (cluster.admin, cluster.editor):
        made = described(spec, annotations={**PLACED, **kept}, labels={NODE_KEY: "n1"})
        stored = await user.ask("POST", cluster.pods, made, dryRun="All")
        assert (stored["metadata"].get("annotations", {}), stored["metadata"].get("labels")) == (kept, None)
        assert gates(stored) == []


async def test_a_pod_that_was_placed_can_be_made_again_from_what_the_server_shows_of_it(cluster: Cluster) -> None:
    path = await cluster.bound()
    seen = await cluster.admin.ask("GET", path)
    said = {key: seen["metadata"][key] for key in ("annotations", "labels")}
    stored = await cluster.create(seen["spec"], **said)
    assert stored["spec"]["nodeName"] == "n1"
    assert not {*PLACED} & {*stored["metadata"].get("annotations", {})}


# ---- what the placement controller may do


async def placing(cluster: Cluster, path: str, write: Callable[[NeuronPod], ApiRequest]) -> Body:
    """The pod at a path after what the placement controller writes on it as it is now."""
    seen = await cluster.controller.ask("GET", path)
    return await cluster.controller.send(write(neuron_pod(msgspec.convert(seen, Pod, strict=False))))


def place(pod: NeuronPod) -> ApiRequest:
    return writes.place(pod, "n1", {"NEURON_DEVS": "0-3", "NEURON_ALLOC_TIME": "1", "NEURON_ALLOCATED": "false"})


async def test_the_controller_places_a_pod_with_one_patch(cluster: Cluster) -> None:
    path = await cluster.made(pod({NEURON: "4"}))
    stored = await placing(cluster, path, place)
    assert gates(stored) == []
    assert stored["metadata"]["annotations"] == {**PLACED, POD_UID_KEY: stored["metadata"]["uid"]}
    assert stored["metadata"]["labels"] == {NODE_KEY: "n1"}
    assert stored["spec"]["affinity"]["nodeAffinity"] == {
        REQUIRED: {"nodeSelectorTerms": [{"matchFields": [named("n1")]}]}
    }
    taken_back = await placing(cluster, path, writes.withdraw)
    assert (taken_back["metadata"].get("annotations"), taken_back["metadata"].get("labels")) == (None, None)


async def test_a_pod_that_has_changed_is_not_placed(cluster: Cluster) -> None:
    path = await cluster.made(pod({NEURON: "4"}))
    old = neuron_pod(msgspec.convert(await cluster.controller.ask("GET", path), Pod, strict=False))
    await cluster.admin.ask("PATCH", path, {"metadata": {"labels": {"app": "a"}}})
    with pytest.raises(ApiError, match="409"):
        await cluster.controller.send(place(old))


async def test_the_controller_releases_a_pod_plainly(cluster: Cluster) -> None:
    stored = await placing(cluster, await cluster.made(pod({NEURON: "4"})), writes.release_plainly)
    assert (gates(stored), stored["spec"].get("affinity"), stored["metadata"].get("labels")) == ([], None, None)


ZONE = {"key": "topology.kubernetes.io/zone", "operator": "In", "values": ["a"]}


async def test_the_controller_adds_the_node_to_each_term_that_is_there(cluster: Cluster) -> None:
    other = {**named("n9"), "operator": "NotIn"}
    path = await cluster.made(pod({NEURON: "4"}, **pinned({"matchExpressions": [ZONE]}, {"matchFields": [other]}, {})))
    stored = await placing(cluster, path, place)
    assert stored["spec"]["affinity"]["nodeAffinity"][REQUIRED]["nodeSelectorTerms"] == [
        {"matchExpressions": [ZONE], "matchFields": [named("n1")]},
        {"matchFields": [other, named("n1")]},
        {},
    ]


TOLERATED = [
    {"key": f"node.kubernetes.io/{name}", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300}
    for name in ("not-ready", "unreachable")
]
"""What the API server gives to every pod: a merge patch has the whole list."""


@pytest.mark.parametrize(
    "body",
    [
        {"spec": {"containers": [{"name": "c0", "image": "evil", "resources": {"limits": {NEURON: "4"}}}]}},
        {"spec": {"activeDeadlineSeconds": 1}},
        {"spec": {"nodeSelector": {"a": "b"}}},
        {"spec": {"tolerations": [*TOLERATED, {"operator": "Exists"}]}},
        {"spec": pinned({"matchExpressions": [ZONE]})},
        {"spec": pinned({"matchFields": [named("n1")]}, {"matchFields": [named("n2")]})},
        {
            "spec": {
                "affinity": {
                    "nodeAffinity": {
                        "preferredDuringSchedulingIgnoredDuringExecution": [
                            {"weight": 1, "preference": {"matchExpressions": [ZONE]}}
                        ]
                    }
                }
            }
        },
        {"spec": {"schedulingGates": [{"name": GATE}]}},
        {"metadata": {"annotations": {"mine": "2"}}},
        {"metadata": {"annotations": {"mine": None}}},
        {"metadata": {"annotations": {"neuron-plugin.io/placement": "spread"}}},
        {"metadata": {"labels": {"app": "b"}}},
        {"metadata": {"labels": {"app": None}}},
        {"metadata": {"finalizers": ["a.example.com/f"]}},
        {"metadata": {"ownerReferences": [{"apiVersion": "v1", "kind": "Pod", "name": "x", "uid": "u"}]}},
    ],
    ids=lambda body: json.dumps(body)[:60],
)
async def test_the_controller_may_change_nothing_else_of_a_pod(cluster: Cluster, body: Body) -> None:
    """The second gate is Kueue's: it stays when the body names ours only."""
    spec = pod({NEURON: "4"}, schedulingGates=[{"name": "kueue.x-k8s.io/admission"}])
    path = await cluster.made(spec, annotations={"mine": "1"}, labels={"app": "a"})
    assert await cluster.admin.why_not("PATCH", path, body) == "", "the API server itself lets it pass"
    assert FENCE in await cluster.controller.why_not("PATCH", path, body)


async def test_expressions_are_not_the_controllers_to_add_where_terms_are_there(cluster: Cluster) -> None:
    path = await cluster.made(pod({NEURON: "4"}, **pinned({"matchExpressions": [ZONE]})))
    more = {"spec": pinned({"matchExpressions": [ZONE, {"key": "a", "operator": "Exists"}]})}
    assert await cluster.admin.why_not("PATCH", path, more) == ""
    assert "may add names of nodes only" in await cluster.controller.why_not("PATCH", path, more)


async def test_of_a_status_the_controller_may_change_the_nominated_node(cluster: Cluster) -> None:
    path = f"{await cluster.made(pod({NEURON: '4'}))}/status"
    assert await cluster.controller.why_not("PATCH", path, {"status": {"nominatedNodeName": "n1"}}) == ""
    assert await cluster.controller.why_not("PATCH", path, {"metadata": {"annotations": PLACED}}) == ""
    for body in ({"status": {"phase": "Failed"}}, {"status": {"reason": "x"}}, {"metadata": {"labels": {"a": "b"}}}):
        assert FENCE in await cluster.controller.why_not("PATCH", path, body)


async def test_the_controller_deletes_pods_that_ask_for_neuron_only(cluster: Cluster) -> None:
    assert await cluster.controller.why_not("DELETE", await cluster.made(pod({NEURON: "4"}))) == ""
    for spec in (pod({"cpu": "1"}), pod({NEURON: "0"})):
        assert "delete pods that ask for Neuron only" in await cluster.controller.why_not(
            "DELETE", await cluster.made(spec)
        )


async def test_the_controller_evicts(cluster: Cluster) -> None:
    path = await cluster.made(pod({NEURON: "4"}))
    eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": path.rpartition("/")[2]}}
    assert await cluster.controller.why_not("POST", f"{path}/eviction", eviction) == ""


@pytest.mark.parametrize(
    ("metadata", "wrong"),
    [
        ({"annotations": PLACED, "labels": {NODE_KEY: "n1"}}, ""),
        ({"annotations": {**PLACED, "mine": "1"}}, "annotations of a Neuron assignment only"),
        ({"labels": {"app": "a"}}, "label neuron-plugin.io/node only"),
    ],
)
async def test_a_binding_of_the_controller_carries_an_assignment_and_nothing_else(
    cluster: Cluster, metadata: Body, wrong: str
) -> None:
    path = await cluster.made(pod({"cpu": "1"}, schedulerName="nobody"))  # nor has it another one's binding
    why_not = await cluster.controller.why_not("POST", f"{path}/binding", binding(path, **metadata))
    assert wrong in why_not if wrong else why_not == ""


async def test_bindings_of_other_schedulers_are_theirs(cluster: Cluster) -> None:
    path = await cluster.made(pod({"cpu": "1"}, schedulerName="nobody"))  # kube-scheduler would bind it before us
    assert await cluster.admin.why_not("POST", f"{path}/binding", binding(path, annotations={"mine": "1"})) == ""


async def test_of_config_maps_the_controller_writes_its_account_and_no_other(cluster: Cluster) -> None:
    controller, path = cluster.controller, f"/api/v1/namespaces/{cluster.namespace}/configmaps"
    for metadata in ({"name": "kube-root-ca"}, {"generateName": f"{CONFIG_MAP}-"}):
        refusal = await controller.why_not("POST", path, {"metadata": metadata})
        assert "ValidatingAdmissionPolicy 'neuron-plugin-device-hours-" in refusal
    assert "403" in await controller.why_not("PATCH", f"{path}/kube-root-ca.crt", {"data": {}})
    made = await controller.send(write_config_map(cluster.namespace, CONFIG_MAP, "x", b"1", version=""))
    cluster.admin.undo.push_async_callback(cluster.admin.forget, f"{path}/{CONFIG_MAP}")
    version = made["metadata"]["resourceVersion"]
    await controller.send(write_config_map(cluster.namespace, CONFIG_MAP, "x", b"2", version=version))


# ---- what nobody else may do


UNGATE: Body = {"spec": {"schedulingGates": []}}


async def test_nobody_takes_the_gate_off_but_by_the_way_out(cluster: Cluster) -> None:
    path = await cluster.made(pod({NEURON: "4"}))
    assert "you need the verb ungate on placements.neuron-plugin.io" in await cluster.editor.why_not(
        "PATCH", path, UNGATE
    )
    assert await cluster.ungater.why_not("PATCH", path, UNGATE) == ""
    assert await cluster.admin.why_not("PATCH", path, UNGATE) == "", "may do all"


async def test_the_job_of_an_uninstallation_takes_the_gate_off(cluster: Cluster) -> None:
    path = await cluster.made(pod({NEURON: "4"}))
    waiting = neuron_pod(msgspec.convert(await cluster.admin.ask("GET", path), Pod, strict=False))
    assert gates(await cluster.hook.send(writes.release_plainly(waiting))) == []


async def test_gates_of_others_are_theirs(cluster: Cluster) -> None:
    path = await cluster.made(pod({NEURON: "4"}, schedulingGates=[{"name": "kueue.x-k8s.io/admission"}]))
    assert await cluster.editor.why_not("PATCH", path, {"spec": {"schedulingGates": [{"name": GATE}]}}) == ""
    assert "its own scheduling gate" in await cluster.controller.why_not(
        "PATCH", path, {"spec": {"schedulingGates": [{"name": GATE}]}}
    )
    released = {"spec": {"schedulingGates": [{"name": "kueue.x-k8s.io/admission"}]}}
    assert await cluster.controller.why_not("PATCH", path, released) == ""


@pytest.mark.parametrize(
    "metadata", [{"annotations": {"NEURON_DEVS": "0"}}, {"annotations": {NODE_KEY: "n2"}}, {"labels": {NODE_KEY: "n2"}}]
)
@pytest.mark.parametrize("part", ["", "/status"])
async def test_nobody_else_writes_what_a_pod_was_promised(cluster: Cluster, metadata: Body, part: str) -> None:
    path = await cluster.made(pod({NEURON: "4"}))
    users = [cluster.admin] if part else [cluster.editor, cluster.ungater, cluster.admin]
    for user in users:
        assert "422" in await user.why_not("PATCH", path + part, {"metadata": metadata})
        assert await user.why_not("PATCH", path + part, {"metadata": {"annotations": {"mine": "1"}}}) == ""


@pytest.mark.parametrize("metadata", [{"annotations": {"NEURON_DEVS": None}}, {"labels": {NODE_KEY: None}}])
async def test_a_promise_is_taken_back_by_the_controller_or_by_the_way_out(cluster: Cluster, metadata: Body) -> None:
    path = await cluster.made(pod({NEURON: "4"}))
    await cluster.controller.ask("PATCH", path, RELEASE)
    body = {"metadata": metadata}
    assert "Delete the pod instead" in await cluster.editor.why_not("PATCH", path, body)
    assert await cluster.editor.why_not("DELETE", path) == ""
    for user in (cluster.controller, cluster.ungater):
        assert await user.why_not("PATCH", path, body) == ""


async def test_a_bound_pods_annotations_may_be_removed_as_the_plugin_writes_them_again(cluster: Cluster) -> None:
    path = await cluster.bound()
    assert await cluster.editor.why_not("PATCH", path, {"metadata": {"annotations": {"NEURON_DEVS": None}}}) == ""
    assert "422" in await cluster.editor.why_not("PATCH", path, {"metadata": {"annotations": {"NEURON_DEVS": "1"}}})


async def test_the_plugin_corrects_pods_of_its_own_node_only(cluster: Cluster) -> None:
    path = await cluster.bound()
    own = {
        "metadata": {
            "annotations": {"NEURON_DEVS": "4-7", "NEURON_ALLOCATED": "true", NODE_KEY: "n1", POD_UID_KEY: None}
        }
    }
    for node, may in (("n1", True), ("n2", False)):
        spec = {**pod({"cpu": "1"}), "nodeName": node, "serviceAccountName": "neuron-plugin"}
        daemon = await cluster.admin.make(cluster.pods, described(spec))
        plugin = await cluster.admin.as_account(cluster.namespace, "neuron-plugin", cluster.kubeconfig, daemon)
        assert (await plugin.why_not("PATCH", f"{path}/status", own) == "") is may


async def test_the_plugin_lowers_counts_of_its_own_node_only(cluster: Cluster) -> None:
    counts = {NEURON: "16", CORE: "32", "cpu": "8", "pods": "110"}
    made: Body = {"metadata": {"generateName": "np-"}, "spec": {"unschedulable": True}}
    node = await cluster.admin.make("/api/v1/nodes", made)
    name = node["metadata"]["name"]
    mine = f"/api/v1/nodes/{name}/status"
    await cluster.admin.ask("PATCH", mine, {"status": {"capacity": counts, "allocatable": counts}})
    spec = {**pod({"cpu": "1"}), "nodeName": name, "serviceAccountName": "neuron-plugin"}
    daemon = await cluster.admin.make(cluster.pods, described(spec))
    plugin = await cluster.admin.as_account(cluster.namespace, "neuron-plugin", cluster.kubeconfig, daemon)
    stranger = await cluster.admin.make(cluster.pods, described({**spec, "nodeName": "n2"}))
    elsewhere = await cluster.admin.as_account(cluster.namespace, "neuron-plugin", cluster.kubeconfig, stranger)
    role = f"neuron-plugin-clusterrole-{cluster.admin.run}"
    await grant(cluster.admin, cluster.namespace, "neuron-plugin", role, everywhere=True)
    lower = {NEURON: 15, CORE: 30}
    assert "its own node only" in await elsewhere.why_not("PATCH", mine, limit_allocatable(name, lower).body)
    await plugin.send(limit_allocatable(name, lower))
    for changed in ({"allocatable": {NEURON: "16"}}, {"allocatable": {"cpu": "7"}}, {"allocatable": {CORE: None}}):
        assert "may lower what can be allocated of Neuron" in await plugin.why_not("PATCH", mine, {"status": changed})
    assert "nothing but conditions and allocatable" in await plugin.why_not(
        "PATCH", mine, {"status": {"capacity": {NEURON: "15"}}}
    )
    ready = {"type": "Ready", "status": "False"}
    assert "may change no condition" in await plugin.why_not("PATCH", mine, {"status": {"conditions": [ready]}})
    found = await cluster.admin.ask("GET", f"/api/v1/nodes/{name}")
    assert found["status"]["allocatable"] == counts | {NEURON: "15", CORE: "30"}


async def test_a_copy_of_a_placed_pod_waits_for_a_place_of_its_own(cluster: Cluster) -> None:
    """As ``kubectl debug --copy-to`` makes one: annotations, labels and pin of the original, and no gate."""
    path = await cluster.made(pod({NEURON: "4"}), labels={"app": "a"})
    original = await cluster.controller.ask("PATCH", path, RELEASE)
    copied = {key: original["metadata"].get(key) for key in ("annotations", "labels")}
    stored = await cluster.editor.ask("POST", cluster.pods, described(original["spec"], **copied), dryRun="All")
    assert gates(stored) == [GATE]
    assert stored["metadata"].get("annotations", {}) == {}
    assert stored["metadata"]["labels"] == {"app": "a"}


async def test_a_gated_pod_may_be_deleted_and_labelled_by_its_owner(cluster: Cluster) -> None:
    path = await cluster.made(pod({NEURON: "4"}))
    assert await cluster.editor.why_not("PATCH", path, {"metadata": {"labels": {"a": "b"}}}) == ""
    assert await cluster.editor.why_not("DELETE", path) == ""


async def test_the_role_has_no_right_that_no_policy_fences(cluster: Cluster) -> None:
    path = await cluster.made(pod({NEURON: "4"}))
    for part in ("ephemeralcontainers", "resize"):
        assert "403" in await cluster.controller.why_not("PATCH", f"{path}/{part}", {})
