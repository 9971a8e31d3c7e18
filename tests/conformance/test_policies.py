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
from collections.abc import AsyncIterator, Mapping

import msgspec
import pytest
import pytest_asyncio

from neuron_plugin.allocation import Rejection
from neuron_plugin.allocation.keys import DEVICE_NAME_KEY, PREFIX, SAME_DEVICE_KEY
from neuron_plugin.cluster import ApiError, Pod
from neuron_plugin.cluster.pods import neuron_pod
from tests.charts import annotation_table
from tests.charts.manifests import manifests
from tests.conformance.policy_server import CORE, DEVICE, LABEL, NEURON, Body, Server, in_force, opened, pod

pytestmark = pytest.mark.asyncio(loop_scope="module")
JUDGED = ("neuron-plugin-requests", "neuron-plugin-annotations", "neuron-plugin-pod-defaults")
WARNS = "neuron-plugin-privileged"
"""The policies that are tried, as the rendering ``pod-defaults`` names them."""
OPT_OUT = f"{PREFIX}pod-defaults"
PODS = "/api/v1/namespaces/default/pods"
MEMORY = f"{PREFIX}memory"
EXISTS = {"operator": "Exists", "effect": "NoSchedule"}


def scheduler(server: Server) -> str:
    """The second scheduler as the run's policies name it.

    Policies of an installed chart have not heard of it: with placement gates they send pods of their own back to
    default-scheduler.
    """
    return f"np-scheduler-{server.run}"


def opt_out(server: Server) -> str:
    """The annotation by which the run's policies leave a pod as it is; those of an installed chart always do."""
    return f"{OPT_OUT}-{server.run}"


def labelled(server: Server, spec: Body, annotations: Mapping[str, str] | None = None) -> Body:
    metadata = {
        "generateName": "np-",
        "labels": {LABEL: server.run},
        "annotations": {OPT_OUT: "false", **(annotations or {})},
    }
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


async def create(server: Server, spec: Body, annotations: Mapping[str, str] | None = None) -> Body:
    """The pod as it would be stored."""
    return await server.ask("POST", PODS, labelled(server, spec, annotations), dryRun="All")


async def refused(server: Server, spec: Body, annotations: Mapping[str, str] | None = None) -> str:
    """Why a pod is refused; empty for one that is not."""
    return await server.why_not("POST", PODS, labelled(server, spec, annotations))


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def server(request: pytest.FixtureRequest) -> AsyncIterator[Server]:
    kubeconfig = request.config.getoption("--kubeconfig", default=None)
    if kubeconfig is None:
        pytest.skip("needs --kubeconfig, of an API server that may be given admission policies")
    async with opened(kubeconfig, secrets.token_hex(3)) as run:
        judged = [manifest for manifest in manifests("pod-defaults") if manifest["metadata"]["name"] in JUDGED]
        own = json.loads(json.dumps(judged).replace("'neuron-scheduler'", f"'{scheduler(run)}'"))
        for manifest in own:
            for condition in manifest["spec"].get("matchConditions", ()):
                condition["expression"] = condition["expression"].replace(f"'{OPT_OUT}'", f"'{opt_out(run)}'")
        await run.apply(own, {"objectSelector": {"matchLabels": {LABEL: run.run}}})
        await in_force("a container with two resources is refused", lambda: refused(run, pod({NEURON: "1", CORE: "1"})))
        asking = pod({NEURON: "1"})
        await in_force("an annotation is judged", lambda: refused(run, asking, {f"{PREFIX}movable": "?"}))

        async def has_default() -> bool:
            return scheduler(run) in (await create(run, asking))["spec"].values()

        await in_force("a pod gets its scheduler", has_default)
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
    server: Server, spec: Body
) -> None:
    request = neuron_pod(msgspec.convert({"metadata": {"name": "p"}, "spec": spec}, Pod)).request
    assert isinstance(request, Rejection)
    assert request.detail in await refused(server, spec)


@pytest.mark.parametrize("limits", [{NEURON: "65"}, {DEVICE: "65"}, {CORE: "513"}, {CORE: "1k"}, {NEURON: "1Gi"}])
async def test_more_than_a_machine_can_have_is_refused(server: Server, limits: dict[str, str]) -> None:
    refusal = await refused(server, pod({"cpu": "1"}, limits))
    assert "container c1 asks for more than a machine can have: 64 devices or 512 cores" in refusal


@pytest.mark.parametrize(
    "limits",
    [
        {MEMORY: "1"},
        {MEMORY: "1", NEURON: "0"},
        {f"{PREFIX}shares": "5", MEMORY: "1"},
        {CORE: "1", **{f"{PREFIX}a{number}": "0" for number in range(9)}},
    ],
)
async def test_amounts_that_the_code_refuses_are_refused_in_its_words(server: Server, limits: dict[str, str]) -> None:
    spec = pod({NEURON: "1"}, limits)
    request = neuron_pod(msgspec.convert({"metadata": {"name": "p"}, "spec": spec}, Pod)).request
    assert isinstance(request, Rejection)
    assert request.detail in await refused(server, spec)


async def test_what_the_code_reads_of_an_annotation_is_admitted_and_nothing_else(server: Server) -> None:
    spec = pod(*({CORE: "1"} for _ in annotation_table.SHARING))
    for container, name in zip(spec["containers"], annotation_table.SHARING, strict=True):
        container["name"] = name
    texts = {(key, text) for key, text, _ in annotation_table.rows()}
    for key, text in sorted(texts.union(annotation_table.short_texts())):
        refusal = await refused(server, spec, {key: text})
        assert (refusal == "") is annotation_table.reads(key, text), (key, text, refusal)
        if "shares" not in refusal and "is no container" not in refusal:
            assert refusal == "" or f"annotation {key} is " in refusal, refusal
            assert refusal == "" or ": expected " in refusal


async def test_a_refusal_names_annotation_value_and_what_was_expected(server: Server) -> None:
    refusal = await refused(server, pod({NEURON: "1"}), {f"{PREFIX}allow-devices": "9-3"})
    assert f'annotation {PREFIX}allow-devices is "9-3": expected ids of devices on the host' in refusal
    refusal = await refused(server, pod({NEURON: "1"}), {f"{PREFIX}placement": "p\n" * 99})
    assert f'annotation {PREFIX}placement is "{"p@n" * 40}": expected pack or spread'.replace("@", "\\") in refusal


async def test_a_product_that_no_catalogue_has_is_the_extenders_to_judge(server: Server) -> None:
    assert await refused(server, pod({NEURON: "1"}), {DEVICE_NAME_KEY: "Trainium7,mine"}) == ""


async def test_an_annotation_of_a_pod_without_neuron_is_not_judged(server: Server) -> None:
    for key in ("allow-devices", "same-device"):
        assert await refused(server, pod({"cpu": "1"}), {f"{PREFIX}{key}": "not Neuron's"}) == ""


OBJECTS = [
    (PODS, {"spec": pod({NEURON: "1"})}, "movable"),
    ("/api/v1/namespaces", {}, "movable"),
    ("/api/v1/nodes", {}, "disable-devices"),
]


@pytest.mark.parametrize(("path", "body", "name"), OBJECTS)
async def test_an_annotation_is_judged_when_it_changes(server: Server, path: str, body: Body, name: str) -> None:
    async def refusal(**annotations: str | None) -> str:
        return await server.why_not("PATCH", mine, {"metadata": {"annotations": annotations}})

    key = PREFIX + name
    metadata = {"generateName": "np-", "annotations": {key: "?"}}  # without the run's label the policy is not asked
    if "neuron-plugin-annotations" in await server.why_not("POST", path, {**body, "metadata": metadata}):
        pytest.skip("the chart's own policies hold in this cluster: nothing there can be unreadable")
    made = await server.make(path, {**body, "metadata": metadata})
    mine = f"{path}/{made['metadata']['name']}"
    await server.ask("PATCH", mine, {"metadata": {"labels": {LABEL: server.run}, "annotations": {"other": "1"}}})
    assert await refusal(other="2") == "", "what was there before refuses nothing"
    assert f'annotation {key} is "!": expected' in await refusal(**{key: "!"})
    assert await refusal(**{key: "true" if name == "movable" else "5,7"}) == ""
    assert await refusal(**{key: None}) == ""


async def test_a_namespace_is_judged_when_it_is_created(server: Server) -> None:
    metadata = {"generateName": "np-", "labels": {LABEL: server.run}, "annotations": {f"{PREFIX}movable": "maybe"}}
    with pytest.raises(ApiError, match=r"movable is .*maybe.*: expected true or false"):
        await server.ask("POST", "/api/v1/namespaces", {"metadata": metadata}, dryRun="All")


@pytest.mark.parametrize(
    ("text", "wrong"), [("c0,c9", "c9"), ("c0, c1", "c1"), ("c0,c2", "c2"), ("i,C0", "C0"), ("c0,c3", "c3")]
)
async def test_a_container_that_cannot_share_a_device_is_refused(server: Server, text: str, wrong: str) -> None:
    init = {"name": "i", "image": "none", "resources": {"limits": {CORE: "1"}}}
    spec = pod({CORE: "1"}, {"cpu": "1"}, {NEURON: "1"}, {CORE: "0"}, initContainers=[init])
    assert f"annotation {SAME_DEVICE_KEY}: '{wrong}' is no container that asks" in await refused(
        server, spec, {SAME_DEVICE_KEY: text}
    )
    assert await refused(server, spec, {SAME_DEVICE_KEY: "i, c0"}) == ""


def privileged(*limits: dict[str, str], init: dict[str, str] | None = None) -> Body:
    spec = pod(*limits, initContainers=[{"name": "i", "image": "none", "resources": {"limits": init or {}}}])
    spec["initContainers"][0]["securityContext"] = spec["containers"][0]["securityContext"] = {"privileged": True}
    return spec


async def test_a_privileged_container_that_asks_for_neuron_is_warned_of_and_admitted(server: Server) -> None:
    """Only ``kubectl`` shows a warning. So the words are those of the same policy, bound to refuse."""
    words = "is privileged: it sees every Neuron device of its node"
    policy, binding = (each for each in manifests("pod-defaults") if each["metadata"]["name"] == WARNS)
    assert binding["spec"]["validationActions"] == ["Warn"]
    await server.apply([policy, binding], {"objectSelector": {"matchLabels": {LABEL: server.run}}})
    refusing = f"{server.run}-refusing"
    strict = copy.deepcopy([policy, binding])
    for each in strict:
        each["metadata"]["name"] += "-refusing"
    strict[1]["spec"] |= {"validationActions": ["Deny"], "policyName": f"{WARNS}-refusing"}
    await server.apply(strict, {"objectSelector": {"matchLabels": {LABEL: refusing}}})

    async def why_not(spec: Body) -> str:
        body = labelled(server, spec)
        body["metadata"]["labels"][LABEL] = refusing
        return await server.why_not("POST", PODS, body)

    async with asyncio.timeout(30):
        while not await why_not(privileged({NEURON: "1"})):
            await asyncio.sleep(0.2)
    assert f"container c0 {words}" in await why_not(privileged({CORE: "2"}))
    assert f"container i {words}" in await why_not(privileged({}, init={DEVICE: "1"}))
    for spec in (privileged({"cpu": "1"}, {NEURON: "1"}), pod({NEURON: "1"})):
        assert await why_not(spec) == ""
    assert await refused(server, privileged({NEURON: "1"})) == ""


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
        pod({NEURON: "1", MEMORY: "5120"}),
        pod({"cpu": "1", MEMORY: "0"}),
        {"containers": [{"name": "bare", "image": "none"}], "automountServiceAccountToken": False},
    ],
)
async def test_every_other_pod_is_admitted(server: Server, spec: Body) -> None:
    assert await refused(server, spec) == ""


async def test_what_the_api_server_refuses_itself_needs_no_policy(server: Server) -> None:
    assert "must be an integer" in await refused(server, pod({NEURON: "3500m"}))


def added(stored: Body) -> list[Body]:
    """The tolerations of a stored pod but for those that the API server gives to every pod."""
    return [each for each in stored["spec"]["tolerations"] if not each.get("key", "").startswith("node.kubernetes.io/")]


BOTH = [{"key": NEURON, **EXISTS}, {"key": CORE, **EXISTS}]


@pytest.mark.parametrize("limits", [{NEURON: "1"}, {DEVICE: "1"}, {CORE: "2"}, {NEURON: "0"}])
async def test_a_pod_that_asks_for_neuron_gets_scheduler_and_tolerations(
    server: Server, limits: dict[str, str]
) -> None:
    stored = await create(server, pod({"cpu": "1"}, limits))
    assert stored["spec"]["schedulerName"] == scheduler(server)
    assert added(stored) == BOTH


async def test_an_init_container_counts(server: Server) -> None:
    init = {"name": "i", "image": "none", "resources": {"limits": {CORE: "2"}}}
    stored = await create(server, pod({"cpu": "1"}, initContainers=[init]))
    assert stored["spec"]["schedulerName"] == scheduler(server)


async def test_a_second_pass_changes_nothing(server: Server) -> None:
    once = await create(server, pod({NEURON: "1"}, tolerations=[{"key": "mine", "operator": "Exists"}]))
    again = await create(server, once["spec"])
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
    stored = await create(server, pod({NEURON: "1"}, tolerations=tolerations))
    assert added(stored) == [*tolerations, *({"key": key, **EXISTS} for key in missing)]


async def test_another_scheduler_stays_what_the_author_wrote(server: Server) -> None:
    stored = await create(server, pod({NEURON: "1"}, schedulerName="volcano"))
    assert (stored["spec"]["schedulerName"], added(stored)) == ("volcano", BOTH)


@pytest.mark.parametrize(
    ("spec", "opts_out"),
    [(pod({"cpu": "1"}), False), (pod({NEURON: "1"}), True), (pod({NEURON: "1"}, nodeName="some-node"), False)],
)
async def test_every_other_pod_stays_as_it_is(server: Server, spec: Body, *, opts_out: bool) -> None:
    stored = await create(server, spec, {opt_out(server): "false"} if opts_out else {})
    assert (stored["spec"]["schedulerName"], added(stored)) == ("default-scheduler", [])
