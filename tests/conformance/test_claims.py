"""Claims and slices on a real API server, by the accounts, rights and policies of the chart.

Needs no node and no kubelet, only a kubeconfig that may write policies, roles and namespaces, of Kubernetes 1.36::

    pytest tests/conformance/test_claims.py --kubeconfig admin.conf

What writes is the daemons' own code. Roles, policies and classes are those of the rendering ``gates-claims``, for the
accounts of a namespace of this run.
"""

from __future__ import annotations

import asyncio
import json
import secrets
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pytest
import pytest_asyncio

from neuron_plugin.allocation import NeuronPod, NodeInventory
from neuron_plugin.allocation.claims import CORE_CLASS, DRA_DRIVER, ClaimResult, NeuronClaim, pool_of
from neuron_plugin.allocation.keys import GATE
from neuron_plugin.cluster import Pod
from neuron_plugin.cluster.claims import FINALIZER, ResourceClaim, neuron_claim
from neuron_plugin.cluster.pods import neuron_pod
from neuron_plugin.placement.claims import ClaimWriter
from neuron_plugin.plugin.metrics import new_counts
from neuron_plugin.plugin.slices import SliceKeeper, slice_spec
from neuron_plugin.topology import geometry_of
from neuron_plugin.topology.instances import catalogue
from tests.charts.manifests import manifests
from tests.conformance.policy_server import NEURON, Body, Server, opened, pod

pytestmark = pytest.mark.asyncio(loop_scope="module")

RBAC = "/apis/rbac.authorization.k8s.io/v1"
RESOURCE = "/apis/resource.k8s.io/v1"
SLICES = f"{RESOURCE}/resourceslices"
JUDGED = {f"neuron-plugin-{name}" for name in ("gates", "placement", "claims", "own-slices")}
CLAIMED = [{"name": "chips", "resourceClaimName": "chips"}]


@dataclass(frozen=True)
class Cluster:
    """The run's namespace, as the administrator, the plugin on node ``node`` and the placement controller see it."""

    admin: Server
    namespace: str
    node: str
    plugin: Server
    controller: Server

    @property
    def claims(self) -> str:
        return f"{RESOURCE}/namespaces/{self.namespace}/resourceclaims"

    @property
    def pods(self) -> str:
        return f"/api/v1/namespaces/{self.namespace}/pods"

    async def claim(self, *requests: Body) -> NeuronClaim:
        """A claim that is really there, for one device if nothing else is said."""
        asked = list(requests) or [{"name": "device", "exactly": {"deviceClassName": DRA_DRIVER}}]
        stored = await self.admin.make(
            self.claims, {"metadata": {"generateName": "np-"}, "spec": {"devices": {"requests": asked}}}
        )
        self.admin.undo.push_async_callback(self.release, stored["metadata"]["name"])
        return await self.read(stored["metadata"]["name"])

    async def read(self, name: str) -> NeuronClaim:
        stored = await self.admin.ask("GET", f"{self.claims}/{name}")
        return neuron_claim(msgspec.convert(stored, ResourceClaim, strict=False), DRA_DRIVER)

    async def release(self, name: str) -> None:
        """Let a claim be deleted."""
        await self.admin.ask("PATCH", f"{self.claims}/{name}", {"metadata": {"finalizers": None}})

    async def why_not_written(self, name: str, body: Body, part: str = "/status") -> str:
        """Why the placement controller may not write this of a claim; empty if it may. Nothing is changed."""
        return await self.controller.why_not("PATCH", f"{self.claims}/{name}{part}", body)


def allocation(*devices: str, driver: str = DRA_DRIVER, **more: Any) -> Body:
    """The status of a claim that has these devices."""
    results = [{"request": "device", "driver": driver, "pool": "p", "device": each, **more} for each in devices]
    return {"status": {"allocation": {"devices": {"results": results}}}}


def reserving(body: Body) -> Body:
    """The same, reserved for a pod, which is kube-scheduler's to write."""
    return {"status": {**body["status"], "reservedFor": [{"resource": "pods", "name": "p", "uid": "u"}]}}


def pod_of(claim: NeuronClaim) -> NeuronPod:
    """A pod that has a claim, by the name ``chips``."""
    metadata = {"namespace": claim.namespace, "name": "p", "uid": "u"}
    spec = {**pod({}), "resourceClaims": [{"name": "chips", "resourceClaimName": claim.name}]}
    return neuron_pod(msgspec.convert({"metadata": metadata, "spec": spec}, Pod))


def inventory() -> NodeInventory:
    name = "trn1.32xlarge"
    geometry = geometry_of(catalogue(), name, device_ids=range(16), cores_per_device=2, links={})
    return NodeInventory(geometry, tuple(range(16)), {})


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def cluster(request: pytest.FixtureRequest) -> AsyncIterator[Cluster]:
    kubeconfig = request.config.getoption("--kubeconfig", default=None)
    if kubeconfig is None:
        pytest.skip("needs --kubeconfig, of an API server that may be given admission policies")
    async with opened(kubeconfig, secrets.token_hex(3)) as admin:
        yield await prepared(admin, kubeconfig)


async def prepared(admin: Server, kubeconfig: Path) -> Cluster:
    namespace, node = f"np-claims-{admin.run}", f"np-node-{admin.run}"
    await admin.make("/api/v1/namespaces", {"metadata": {"name": namespace}})
    rendered = json.dumps(manifests("gates-claims"))
    own = json.loads(rendered.replace("serviceaccount:kube-system:", f"serviceaccount:{namespace}:"))
    accounts = {"neuron-plugin", "neuron-plugin-extender"}
    for account in sorted(accounts):
        await admin.make(f"/api/v1/namespaces/{namespace}/serviceaccounts", {"metadata": {"name": account}})
    for manifest in own:
        name = manifest["metadata"]["name"]
        if manifest["kind"] == "ClusterRole" and name in accounts:
            role = {"metadata": {"name": f"{name}-{admin.run}"}, "rules": manifest["rules"]}
            await admin.make(f"{RBAC}/clusterroles", role)
            binding = {
                "metadata": {"name": f"{name}-{admin.run}"},
                "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", **role["metadata"]},
                "subjects": [{"kind": "ServiceAccount", "name": name, "namespace": namespace}],
            }
            await admin.make(f"{RBAC}/clusterrolebindings", binding)
    by_kind = {True: list[Body](), False: list[Body]()}
    for each in own:
        if each["metadata"]["name"] in JUDGED and "AdmissionPolicy" in each["kind"]:
            by_kind[each["metadata"]["name"].endswith("own-slices")].append(each)
    await admin.apply(by_kind[True], {})  # slices are in no namespace
    await admin.apply(
        by_kind[False], {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": namespace}}}
    )
    spec = {**pod({}), "nodeName": node, "serviceAccountName": "neuron-plugin"}
    daemon = await admin.make(
        f"/api/v1/namespaces/{namespace}/pods", {"metadata": {"generateName": "np-"}, "spec": spec}
    )
    run = Cluster(
        admin,
        namespace,
        node,
        await admin.as_account(namespace, "neuron-plugin", kubeconfig, daemon),
        await admin.as_account(namespace, "neuron-plugin-extender", kubeconfig),
    )
    claim = await run.claim()
    async with asyncio.timeout(30):
        while not await run.plugin.why_not("POST", SLICES, slice_of(run, nodeName="another")):
            await asyncio.sleep(0.2)
        while not await run.why_not_written(claim.name, {"metadata": {"labels": {"x": "y"}}}, ""):
            await asyncio.sleep(0.2)
        while not await gates(run, {**pod({}), "resourceClaims": CLAIMED}):
            await asyncio.sleep(0.2)
        plain = await admin.make(run.pods, {"metadata": {"generateName": "np-"}, "spec": pod({"cpu": "1"})})
        while not await run.controller.why_not("DELETE", f"{run.pods}/{plain['metadata']['name']}"):
            await asyncio.sleep(0.2)
    return run


# ---- slices


def slice_of(run: Cluster, **changed: Any) -> Body:
    spec = {**slice_spec(inventory(), run.node, DRA_DRIVER, placed=True), **changed}
    return {"metadata": {"generateName": "np-"}, "spec": spec}


@asynccontextmanager
async def kept(run: Cluster) -> AsyncIterator[SliceKeeper]:
    """The node's slice, kept as the plugin keeps it."""
    keeper = SliceKeeper(run.node, DRA_DRIVER, new_counts())
    keeper.want(slice_spec(inventory(), run.node, DRA_DRIVER, placed=True), "")
    task = asyncio.create_task(keeper.run(run.plugin.api))
    try:
        yield keeper
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await run.admin.forget(f"{SLICES}/{keeper.name}")


async def shown(run: Cluster) -> dict[str, Body]:
    """The slices of the node, by name."""
    found = await run.admin.ask("GET", SLICES, fieldSelector=f"spec.nodeName={run.node}")
    return {each["metadata"]["name"]: each for each in found["items"]}


async def test_the_plugin_keeps_the_slice_of_its_node_with_all_that_it_says(cluster: Cluster) -> None:
    async with kept(cluster) as keeper:
        async with asyncio.timeout(30):
            while not keeper.published:
                await asyncio.sleep(0.05)
        assert keeper.dropped == ()
        devices = (await shown(cluster))[keeper.name]["spec"]["devices"]
        assert [each["name"] for each in devices] == [f"neuron-{number}" for number in range(16)]


async def test_a_slice_that_was_deleted_or_is_of_another_shape_is_mended(cluster: Cluster) -> None:
    async with kept(cluster) as keeper, asyncio.timeout(30):
        while keeper.name not in await shown(cluster):
            await asyncio.sleep(0.05)
        first = (await shown(cluster))[keeper.name]["metadata"]["uid"]
        await cluster.admin.forget(f"{SLICES}/{keeper.name}")
        while (await shown(cluster)).get(keeper.name, {"metadata": {"uid": first}})["metadata"]["uid"] == first:
            await asyncio.sleep(0.05)
        other = slice_of(cluster, pool={"name": "left-over", "generation": 1, "resourceSliceCount": 1})
        made = await cluster.admin.make(SLICES, other)
        while made["metadata"]["name"] in await shown(cluster):
            await asyncio.sleep(0.05)


async def test_the_plugin_writes_no_slice_of_another_node_or_driver(cluster: Cluster) -> None:
    assert await cluster.plugin.why_not("POST", SLICES, slice_of(cluster)) == ""
    for changed, word in (
        ({"nodeName": "another"}, "of its own node only"),
        ({"driver": "gpu.example.com"}, f"of the driver {DRA_DRIVER} only"),
    ):
        assert word in await cluster.plugin.why_not("POST", SLICES, slice_of(cluster, **changed))
        made = await cluster.admin.make(SLICES, slice_of(cluster, **changed))
        path = f"{SLICES}/{made['metadata']['name']}"
        assert word in await cluster.plugin.why_not("DELETE", path)
        made["spec"]["devices"] = made["spec"]["devices"][:1]
        assert word in await cluster.plugin.why_not("PUT", path, made)
    everywhere = slice_of(cluster, allNodes=True)
    del everywhere["spec"]["nodeName"]
    assert "of its own node only" in await cluster.plugin.why_not("POST", SLICES, everywhere)


async def test_a_token_without_a_node_writes_no_slice(cluster: Cluster, request: pytest.FixtureRequest) -> None:
    kubeconfig = request.config.getoption("--kubeconfig")
    unbound = await cluster.admin.as_account(cluster.namespace, "neuron-plugin", kubeconfig)
    assert "own node only" in await unbound.why_not("POST", SLICES, slice_of(cluster))


async def test_the_plugin_reads_a_claim_by_its_name_and_lists_or_writes_none(cluster: Cluster) -> None:
    claim = await cluster.claim()
    assert (await cluster.plugin.ask("GET", f"{cluster.claims}/{claim.name}"))["metadata"]["uid"] == claim.uid
    assert "cannot list" in await cluster.plugin.why_not("GET", cluster.claims)
    for part in ("", "/status"):
        path = f"{cluster.claims}/{claim.name}{part}"
        assert "cannot patch" in await cluster.plugin.why_not("PATCH", path, allocation("neuron-0"))


# ---- claims


def writer(cluster: Cluster, claim: NeuronClaim) -> ClaimWriter:
    return ClaimWriter(cluster.controller.api, DRA_DRIVER, {(claim.namespace, claim.name): claim}, time.time_ns)


async def test_the_placement_controller_allocates_a_claim_and_frees_it(cluster: Cluster) -> None:
    claim = await cluster.claim()
    devices = (ClaimResult("device", pool_of("n1"), "neuron-3-cores-6-7"),)
    pods = pod_of(claim)
    await writer(cluster, claim).allocate(pods, "n1", ((claim.name, devices),), timeout_seconds=10, check=lambda: None)
    written = await cluster.read(claim.name)
    assert (written.results, written.node, written.finalizers) == (devices, "n1", (FINALIZER,))
    stored = await cluster.admin.ask("GET", f"{cluster.claims}/{claim.name}")
    assert "allocationTimestamp" in stored["status"]["allocation"], "else nobody could reserve it"
    await writer(cluster, written).free(pods, timeout_seconds=10)
    assert not (await cluster.read(claim.name)).allocated


@pytest.mark.parametrize(
    ("body", "part", "word"),
    [
        (allocation("gpu-0", driver="gpu.example.com"), "/status", f"of the driver {DRA_DRIVER} only"),
        (allocation("neuron-0", adminAccess=True), "/status", "dmin"),
        (reserving(allocation("neuron-0")), "/status", "change the allocation only"),
        ({"metadata": {"finalizers": ["example.com/held"]}}, "", f"may add {FINALIZER} only"),
        ({"metadata": {"labels": {"a": "b"}}}, "", "neither labels"),
        ({"metadata": {"annotations": {"a": "b"}}}, "", "neither labels"),
        ({"spec": {"devices": {"requests": None}}}, "", "immutable"),
    ],
)
async def test_the_placement_controller_writes_nothing_else_of_a_claim(
    cluster: Cluster, body: Body, part: str, word: str
) -> None:
    claim = await cluster.claim()
    refusal = await cluster.why_not_written(claim.name, body, part)
    assert word in refusal, refusal
    assert await cluster.why_not_written(claim.name, {"metadata": {"finalizers": [FINALIZER]}}, "") == ""


async def test_the_placement_controller_takes_no_allocation_of_another_driver_back(cluster: Cluster) -> None:
    claim = await cluster.claim()
    path = f"{cluster.claims}/{claim.name}"
    await cluster.admin.ask("PATCH", path, {"metadata": {"finalizers": [FINALIZER, "example.com/held"]}})
    await cluster.admin.ask("PATCH", f"{path}/status", allocation("gpu-0", driver="gpu.example.com"))
    freed = {"status": {"allocation": None}}
    assert f"of the driver {DRA_DRIVER} only" in await cluster.why_not_written(claim.name, freed)
    assert "may add" in await cluster.why_not_written(claim.name, {"metadata": {"finalizers": [FINALIZER]}}, "")
    assert "cannot" in await cluster.controller.why_not("DELETE", path)


# ---- classes and pods


async def test_the_api_server_takes_the_classes(cluster: Cluster) -> None:
    classes = [each for each in manifests("gates-claims") if each["kind"] == "DeviceClass"]
    assert {each["metadata"]["name"] for each in classes} == {DRA_DRIVER, CORE_CLASS}
    for each in classes:
        renamed = {**each, "metadata": {"name": f"np-{cluster.admin.run}"}}
        assert await cluster.admin.why_not("POST", f"{RESOURCE}/deviceclasses", renamed) == ""


async def gates(run: Cluster, spec: Body, **metadata: Any) -> list[str]:
    """The gates with which a pod would be stored."""
    body = {"metadata": {"generateName": "np-", **metadata}, "spec": spec}
    stored = await run.admin.ask("POST", run.pods, body, dryRun="All")
    return [each["name"] for each in stored["spec"].get("schedulingGates", [])]


async def test_a_pod_with_claims_waits_behind_the_gate(cluster: Cluster) -> None:
    by_name = {**pod({"cpu": "1"}), "resourceClaims": CLAIMED}
    by_template = {**pod({}), "resourceClaims": [{"name": "chips", "resourceClaimTemplateName": "four"}]}
    for spec in (by_name, by_template, pod({NEURON: "1"})):
        assert await gates(cluster, spec) == [GATE]
    owner = {"apiVersion": "apps/v1", "kind": "DaemonSet", "name": "d", "uid": "u", "controller": True}
    assert await gates(cluster, by_template, ownerReferences=[owner]) == []
    assert await gates(cluster, {**by_template, "schedulerName": "another"}) == []
    assert await gates(cluster, pod({"cpu": "1"})) == []


async def test_the_placement_controller_deletes_a_pod_with_claims_and_no_other(cluster: Cluster) -> None:
    made = []
    for spec in ({**pod({}), "resourceClaims": CLAIMED}, pod({"cpu": "1"})):
        stored = await cluster.admin.make(cluster.pods, {"metadata": {"generateName": "np-"}, "spec": spec})
        made.append(f"{cluster.pods}/{stored['metadata']['name']}")
    claimed, plain = made
    assert await cluster.controller.why_not("DELETE", claimed) == ""
    assert "or have resource claims only" in await cluster.controller.why_not("DELETE", plain)
