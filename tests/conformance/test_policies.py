"""The admission policies about pods, evaluated by a real API server: only it can read their expressions.

Needs no node and no kubelet, only a kubeconfig that may write admission policies and create pods in ``default``::

    pytest tests/conformance/test_policies.py --kubeconfig admin.conf

The policies are those of a kept rendering, under names of this run and bound to pods with a label of this run. Pods are
created with ``dryRun``, so nothing is left but what is deleted in the end.
"""

from __future__ import annotations

import asyncio
import copy
import json
import secrets
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any

import msgspec
import pytest

from neuron_plugin.allocation import Rejection, neuron_pod
from neuron_plugin.allocation.constraints import DEVICE_NAME_KEY, SAME_DEVICE_KEY
from neuron_plugin.allocation.resources import Resource
from neuron_plugin.cluster import JSON, ApiError, ApiRequest, ApiServer, Pod, connect, send
from neuron_plugin.topology import catalogue, product_names
from tests.charts.manifests import manifests

REGISTRATION = "/apis/admissionregistration.k8s.io/v1"
PLURALS = {
    f"{way}AdmissionPolicy{part}": f"{way.lower()}admissionpolic{'ybindings' if part else 'ies'}"
    for way in ("Validating", "Mutating")
    for part in ("", "Binding")
}
JUDGED = ("neuron-plugin-requests", "neuron-plugin-pod-defaults")
"""The policies that are tried, as the rendering ``pod-defaults`` names them."""
LABEL = "np-conformance"
NEURON, DEVICE, CORE = (resource.value for resource in Resource)
EXISTS = {"operator": "Exists", "effect": "NoSchedule"}


@dataclass(frozen=True)
class Server:
    """An API server in which the policies hold for pods of this run."""

    api: ApiServer
    run: str

    async def ask(self, method: str, path: str, body: dict[str, Any] | None = None, **query: str) -> dict[str, Any]:
        answer = await send(self.api, ApiRequest(method, path, query, body=body, content_type=JSON), timeout_seconds=20)
        loaded: dict[str, Any] = json.loads(answer)
        return loaded

    async def create(self, spec: dict[str, Any], annotations: dict[str, str] | None = None) -> dict[str, Any]:
        """The pod as it would be stored.

        Raises:
            ApiError: refused; the text is the policy's.
        """
        metadata = {"generateName": "np-", "labels": {LABEL: self.run}, "annotations": annotations or {}}
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}
        return await self.ask("POST", "/api/v1/namespaces/default/pods", pod, dryRun="All")

    async def refusal(self, spec: dict[str, Any], annotations: dict[str, str] | None = None) -> str:
        """Why a pod is refused; empty for one that is not."""
        try:
            await self.create(spec, annotations)
        except ApiError as error:
            return str(error)
        return ""

    async def apply(self, manifest: dict[str, Any]) -> str:
        """Create one of the policies or bindings under this run's name; gives its path."""
        mine = copy.deepcopy(manifest)
        mine["metadata"] = {"name": f"{mine['metadata']['name']}-{self.run}"}
        if "policyName" in mine["spec"]:
            mine["spec"]["policyName"] += f"-{self.run}"
            mine["spec"]["matchResources"] = {"objectSelector": {"matchLabels": {LABEL: self.run}}}
        path = f"{REGISTRATION}/{PLURALS[mine['kind']]}"
        await self.ask("POST", path, mine)
        return f"{path}/{mine['metadata']['name']}"


def pod(*limits: dict[str, str], **more: object) -> dict[str, Any]:
    """A pod's spec: a container for each of ``limits``."""
    containers = [
        {"name": f"c{number}", "image": "none", "resources": {"limits": each}} for number, each in enumerate(limits)
    ]
    return {"automountServiceAccountToken": False, "containers": containers, **more}


@pytest.fixture
async def server(request: pytest.FixtureRequest) -> AsyncIterator[Server]:
    kubeconfig = request.config.getoption("--kubeconfig", default=None)
    if kubeconfig is None:
        pytest.skip("needs --kubeconfig, of an API server that may be given admission policies")
    async with await connect(kubeconfig) as api, AsyncExitStack() as undo:
        run = Server(api, secrets.token_hex(3))
        for manifest in manifests("pod-defaults"):
            if manifest["metadata"]["name"] in JUDGED:
                undo.push_async_callback(run.ask, "DELETE", await run.apply(manifest))
        refused, changed = pod({NEURON: "1", CORE: "1"}), pod({NEURON: "1"})

        async with asyncio.timeout(30):
            while not await run.refusal(refused):
                await asyncio.sleep(0.2)
            while (await run.create(changed))["spec"]["schedulerName"] != "neuron-scheduler":
                await asyncio.sleep(0.2)
        yield run


@pytest.mark.parametrize(
    "spec",
    [
        pod({NEURON: "1", CORE: "2"}),
        pod({"cpu": "1"}, {NEURON: "1", DEVICE: "2"}),
        pod({NEURON: "1", DEVICE: "1", CORE: "1k"}),
        pod(
            {"cpu": "1"},
            initContainers=[{"name": "i", "image": "none", "resources": {"limits": {NEURON: "1", CORE: "1"}}}],
        ),
    ],
)
async def test_a_container_with_two_neuron_resources_is_refused_in_the_words_of_the_code(
    server: Server, spec: dict[str, Any]
) -> None:
    request = neuron_pod(msgspec.convert({"metadata": {"name": "p"}, "spec": spec}, Pod)).request
    assert isinstance(request, Rejection)
    assert request.detail in await server.refusal(spec)


@pytest.mark.parametrize("limits", [{NEURON: "65"}, {DEVICE: "65"}, {CORE: "513"}, {CORE: "1k"}, {NEURON: "1Gi"}])
async def test_more_than_any_type_has_is_refused(server: Server, limits: dict[str, str]) -> None:
    refusal = await server.refusal(pod({"cpu": "1"}, limits))
    assert "container c1 asks for more than any instance type has: 64 devices or 512 cores" in refusal


@pytest.mark.parametrize(
    ("key", "text"),
    [
        ("allow-devices", "1;2"),
        ("deny-devices", "64"),
        ("prefer-devices", ""),
        ("device-name", "trn1 trn2"),
        ("device-name", "x," * 600 + "x"),
        ("same-device", "a,"),
        ("prefer-numa", "yes"),
        ("balance", "a,b"),
    ],
)
async def test_a_constraint_that_cannot_be_read_is_refused(server: Server, key: str, text: str) -> None:
    refusal = await server.refusal(pod({NEURON: "1"}), {f"neuron-plugin.io/{key}": text})
    assert f"annotation neuron-plugin.io/{key} cannot be read: expected " in refusal


@pytest.mark.parametrize(("text", "unknown"), [("Trainum1", "Trainum1"), ("trn1 , trn7,x", "trn7, x")])
async def test_an_unknown_product_is_refused_with_those_that_are_known(server: Server, text: str, unknown: str) -> None:
    refusal = await server.refusal(pod({NEURON: "1"}), {DEVICE_NAME_KEY: text})
    known = ", ".join(sorted(product_names(catalogue()) | {"trainium9", "trn9"}))
    assert f"annotation {DEVICE_NAME_KEY} has unknown names: {unknown}; known are {known}" in refusal


@pytest.mark.parametrize(
    ("text", "wrong"), [("c0,c9", "c9"), ("c0, c1", "c1"), ("c0,c2", "c2"), ("i,C0", "C0"), ("c0,c3", "c3")]
)
async def test_a_container_that_cannot_share_a_device_is_refused(server: Server, text: str, wrong: str) -> None:
    init = {"name": "i", "image": "none", "resources": {"limits": {CORE: "1"}}}
    spec = pod({CORE: "1"}, {"cpu": "1"}, {NEURON: "1"}, {CORE: "0"}, initContainers=[init])
    assert f"annotation {SAME_DEVICE_KEY}: '{wrong}' is no container that asks" in await server.refusal(
        spec, {SAME_DEVICE_KEY: text}
    )
    assert await server.refusal(spec, {SAME_DEVICE_KEY: "i, c0"}) == ""


async def test_a_constraint_that_can_be_read_is_admitted(server: Server) -> None:
    texts = {
        "allow-devices": " 0-7, 12",
        "deny-devices": "63",
        "prefer-devices": "003",
        "device-name": "Trainium1, TRN2,trainium9,trn9",
        "same-device": "c0, c1",
        "prefer-numa": "true ",
        "balance": "memory",
    }
    annotations = {f"neuron-plugin.io/{key}": text for key, text in texts.items()}
    assert await server.refusal(pod({CORE: "1"}, {CORE: "1"}), annotations) == ""
    assert await server.refusal(pod({"cpu": "1"}), {"neuron-plugin.io/allow-devices": "not Neuron's"}) == ""


@pytest.mark.parametrize(
    "spec",
    [
        pod({"cpu": "1"}),
        pod({}),
        pod({NEURON: "64"}),
        pod({CORE: "512"}),
        pod({NEURON: "7"}),
        pod({NEURON: "1", CORE: "0"}),
        pod({NEURON: "1"}, {CORE: "1"}),
        {"containers": [{"name": "bare", "image": "none"}], "automountServiceAccountToken": False},
    ],
)
async def test_every_other_pod_is_admitted(server: Server, spec: dict[str, Any]) -> None:
    assert await server.refusal(spec) == ""


async def test_what_the_api_server_refuses_itself_needs_no_policy(server: Server) -> None:
    assert "must be an integer" in await server.refusal(pod({NEURON: "3500m"}))


def added(stored: dict[str, Any]) -> list[dict[str, Any]]:
    """The tolerations of a stored pod but for those that the API server gives to every pod."""
    return [each for each in stored["spec"]["tolerations"] if not each.get("key", "").startswith("node.kubernetes.io/")]


BOTH = [{"key": NEURON, **EXISTS}, {"key": CORE, **EXISTS}]


@pytest.mark.parametrize("limits", [{NEURON: "1"}, {DEVICE: "1"}, {CORE: "2"}, {NEURON: "0"}])
async def test_a_pod_that_asks_for_neuron_gets_scheduler_and_tolerations(
    server: Server, limits: dict[str, str]
) -> None:
    stored = await server.create(pod({"cpu": "1"}, limits))
    assert stored["spec"]["schedulerName"] == "neuron-scheduler"
    assert added(stored) == BOTH


async def test_an_init_container_counts(server: Server) -> None:
    init = {"name": "i", "image": "none", "resources": {"limits": {CORE: "2"}}}
    assert (await server.create(pod({"cpu": "1"}, initContainers=[init])))["spec"][
        "schedulerName"
    ] == "neuron-scheduler"


async def test_a_second_pass_changes_nothing(server: Server) -> None:
    once = await server.create(pod({NEURON: "1"}, tolerations=[{"key": "mine", "operator": "Exists"}]))
    again = await server.create(once["spec"])
    assert again["spec"] == once["spec"]
    assert added(again) == [{"key": "mine", "operator": "Exists"}, *BOTH]


@pytest.mark.parametrize(
    ("tolerations", "missing"),
    [
        ([{"operator": "Exists"}], []),
        ([{"key": NEURON, "operator": "Exists"}], [CORE]),
        ([{"key": NEURON, **EXISTS}, {"key": CORE, **EXISTS}], []),
        ([{"key": NEURON, "operator": "Exists", "effect": "NoExecute"}], [NEURON, CORE]),
        ([{"key": NEURON, "operator": "Equal", "value": "present", "effect": "NoSchedule"}], [NEURON, CORE]),
    ],
)
async def test_only_a_missing_toleration_is_added_behind_the_pod_s_own(
    server: Server, tolerations: list[dict[str, str]], missing: list[str]
) -> None:
    stored = await server.create(pod({NEURON: "1"}, tolerations=tolerations))
    assert added(stored) == [*tolerations, *({"key": key, **EXISTS} for key in missing)]


async def test_another_scheduler_stays_what_the_author_wrote(server: Server) -> None:
    stored = await server.create(pod({NEURON: "1"}, schedulerName="volcano"))
    assert (stored["spec"]["schedulerName"], added(stored)) == ("volcano", BOTH)


@pytest.mark.parametrize(
    ("spec", "annotations"),
    [
        (pod({"cpu": "1"}), {}),
        (pod({NEURON: "1"}), {"neuron-plugin.io/pod-defaults": "false"}),
        (pod({NEURON: "1"}, nodeName="some-node"), {}),
    ],
)
async def test_every_other_pod_stays_as_it_is(
    server: Server, spec: dict[str, Any], annotations: dict[str, str]
) -> None:
    stored = await server.create(spec, annotations)
    assert (stored["spec"]["schedulerName"], added(stored)) == ("default-scheduler", [])
