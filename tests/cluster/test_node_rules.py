"""The rules of kube-scheduler's plugins, case by case as their own tests have them."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from neuron_plugin.allocation.node_rules import NodeRules, PodRules, node_use
from neuron_plugin.cluster.nodes import neuron_node
from neuron_plugin.cluster.objects import NODES
from neuron_plugin.cluster.pods import PODS, PodUse, neuron_pod, pod_use
from neuron_plugin.planning.rules import objections, shortages

LABELS = {"zone": "a", "cores": "32"}
NO_MATCH = "does not match the pod's node affinity"


def said(spec: dict[str, Any], **node: Any) -> list[str]:
    """What is said against a pod of this spec on the node worker."""
    return list(objections(pod_of(spec), "worker", node_of("worker", labels=LABELS, **node)))


def node_of(name: str, *, labels: dict[str, str] | None = None, allocatable: object = None, **spec: Any) -> NodeRules:
    metadata, status = {"name": name, "labels": labels or {}}, {"allocatable": allocatable}
    return neuron_node(
        NODES.decode(msgspec.json.encode({"metadata": metadata, "spec": spec, "status": status})), {}
    ).rules


def test_a_pod_without_wishes_meets_no_objection_on_a_plain_node() -> None:
    assert said({}) == []
    assert said({"nodeSelector": None, "affinity": None, "tolerations": None}, taints=None, unschedulable=None) == []


CORDON = {"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}


def test_a_cordoned_node_says_so_once_unless_the_pod_tolerates_it() -> None:
    assert said({}, unschedulable=True, taints=[CORDON]) == ["is cordoned"]
    assert said({"tolerations": [{"key": CORDON["key"], "operator": "Exists"}]}, unschedulable=True) == []


@pytest.mark.parametrize(
    "toleration",
    [
        {"key": "team", "value": "ml", "effect": "NoSchedule"},
        {"key": "team", "operator": "Equal", "value": "ml"},
        {"key": "team", "operator": "", "value": "ml"},
        {"key": "team", "operator": "Exists"},
        {"operator": "Exists"},
        {"operator": "Exists", "effect": "NoSchedule"},
    ],
)
def test_a_taint_that_is_tolerated_is_no_objection(toleration: dict[str, str]) -> None:
    assert said({"tolerations": [toleration]}, taints=[{"key": "team", "value": "ml", "effect": "NoSchedule"}]) == []


def test_no_value_is_an_empty_one() -> None:
    assert said({"tolerations": [{"key": "team", "value": ""}]}, taints=[{"key": "team", "effect": "NoSchedule"}]) == []


@pytest.mark.parametrize(
    "tolerations",
    [
        [],
        [{"key": "team", "value": "web"}],
        [{"key": "other", "operator": "Exists"}],
        [{"key": "team", "operator": "Exists", "effect": "NoExecute"}],
        [{"value": "ml"}],
        [{"key": "team", "operator": "Gt", "value": "0"}],
    ],
)
def test_a_taint_that_is_not_tolerated_is_named(tolerations: list[dict[str, str]]) -> None:
    taints = [{"key": "team", "value": "ml", "effect": "NoSchedule"}]
    assert said({"tolerations": tolerations}, taints=taints) == [
        "has the taint team=ml:NoSchedule, which the pod does not tolerate"
    ]


def test_only_a_taint_that_forbids_counts() -> None:
    assert said({}, taints=[{"key": "slow", "effect": "PreferNoSchedule"}]) == []
    assert said({}, taints=[{"key": "gone", "effect": "NoExecute"}]) == [
        "has the taint gone:NoExecute, which the pod does not tolerate"
    ]


def test_a_node_selector_names_the_label_that_differs() -> None:
    assert said({"nodeSelector": {"zone": "a"}}) == []
    assert said({"nodeSelector": {"zone": "b", "disk": "fast"}}) == [
        "has zone=a, the pod's nodeSelector wants b",
        "has no label disk, the pod's nodeSelector wants fast",
    ]


def affine(*terms: dict[str, Any]) -> list[str]:
    required = {"nodeSelectorTerms": list(terms)}
    return said({"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}})


@pytest.mark.parametrize(
    ("key", "operator", "values", "met"),
    [
        ("zone", "In", ["a", "b"], True),
        ("zone", "In", ["b"], False),
        ("disk", "In", ["fast"], False),
        ("zone", "NotIn", ["b"], True),
        ("zone", "NotIn", ["a"], False),
        ("disk", "NotIn", ["fast"], True),
        ("zone", "Exists", [], True),
        ("disk", "Exists", [], False),
        ("zone", "DoesNotExist", [], False),
        ("disk", "DoesNotExist", [], True),
        ("cores", "Gt", ["31"], True),
        ("cores", "Gt", ["32"], False),
        ("cores", "Lt", ["33"], True),
        ("cores", "Lt", ["32"], False),
        ("zone", "Gt", ["1"], False),
        ("disk", "Lt", ["1"], False),
        ("cores", "Gt", ["x"], False),
        ("cores", "Gt", ["1", "2"], False),
        ("cores", "Near", ["32"], False),
    ],
)
def test_a_required_expression_is_met_as_the_scheduler_has_it(
    key: str, operator: str, values: list[str], *, met: bool
) -> None:
    found = affine({"matchExpressions": [{"key": key, "operator": operator, "values": values}]})
    wanted = " ".join([key, operator, *([",".join(values)] if values else [])])
    assert found == ([] if met else [f"{NO_MATCH}: {wanted}"])


def test_one_term_is_enough_and_all_of_a_term_is_needed() -> None:
    zone_b = {"key": "zone", "operator": "In", "values": ["b"]}
    cores = {"key": "cores", "operator": "Exists"}
    assert affine({"matchExpressions": [zone_b]}, {"matchExpressions": [cores]}) == []
    assert affine({"matchExpressions": [zone_b, cores]}) == [f"{NO_MATCH}: zone In b and cores Exists"]


def test_a_nodes_name_is_a_field() -> None:
    field = {"key": "metadata.name", "operator": "In", "values": ["worker"]}
    assert affine({"matchFields": [field]}) == []
    assert affine({"matchFields": [{**field, "values": ["other"]}]}) == [f"{NO_MATCH}: metadata.name In other"]


def test_a_term_that_requires_nothing_matches_no_node() -> None:
    assert affine({}) == affine() == ["matches no term of an empty affinity"]


def test_a_preference_is_no_objection() -> None:
    term = {"weight": 1, "preference": {"matchExpressions": [{"key": "zone", "operator": "In", "values": ["b"]}]}}
    assert said({"affinity": {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [term]}}}) == []


def pod_of(spec: dict[str, Any]) -> PodRules:
    return neuron_pod(PODS.decode(msgspec.json.encode({"metadata": {"name": "pod"}, "spec": spec}))).rules


def other_pod(spec: dict[str, Any], phase: str = "Running") -> PodUse | None:
    """A pod without Neuron on the node."""
    bound = {"metadata": {"name": "other"}, "spec": spec | {"nodeName": "worker"}, "status": {"phase": phase}}
    return pod_use(PODS.decode(msgspec.json.encode(bound)))


def need(spec: dict[str, Any], name: str = "cpu") -> int:
    return dict(pod_of(spec).needs)[name]


def asking(**requests: str) -> dict[str, Any]:
    """A container."""
    return {"name": "main", "resources": {"requests": requests}}


def lacks(spec: dict[str, Any], *there: PodUse | None, **allocatable: str) -> list[str]:
    """What a node with this much lacks for a pod beside others."""
    use = node_use((pod.needs, pod.ports) for pod in there if pod)
    return list(shortages(pod_of(spec), node_of("worker", allocatable=allocatable), use))


def test_what_other_pods_ask_for_is_not_left() -> None:
    other = other_pod({"containers": [asking(cpu="3500m", memory="6Gi"), asking(memory="1Gi")]})
    pod = {"containers": [asking(cpu="0.5", memory="1073741824")]}
    assert lacks(pod, other, cpu="4", memory="8Gi") == []
    assert lacks(pod, other, cpu="3999m", memory="8191Mi") == [
        "has 0.499 of cpu left, the pod asks for 0.5",
        "has 0.999Gi of memory left, the pod asks for 1Gi",
    ]
    assert lacks(pod, other_pod({"containers": [asking(cpu="4")]}, phase="Succeeded"), cpu="1", memory="1Gi") == []


def test_what_a_node_does_not_have_is_none_and_neuron_is_not_judged_here() -> None:
    pod = {"containers": [asking(**{"vpc.amazonaws.com/efa": "8", "aws.amazon.com/neuron": "16"})]}
    assert lacks(pod) == ["offers no vpc.amazonaws.com/efa, the pod asks for 8"]
    assert (
        lacks({"containers": [asking(**{"neuron-plugin.io/memory": "1024", "aws.amazon.com/neuroncore": "1"})]}) == []
    )


def test_a_node_takes_so_many_pods() -> None:
    assert lacks({}, other_pod({}), pods="2") == []
    assert lacks({}, other_pod({}), other_pod({}), pods="2") == ["has 0 of pods left, the pod asks for 1"]


def test_sidecars_add_up_and_init_containers_need_theirs_one_after_the_other() -> None:
    """The cases of TestPodRequests in component-helpers/resource/helpers_test.go, in short."""
    sidecar = {**asking(cpu="2"), "restartPolicy": "Always"}
    spec = {"containers": [asking(cpu="3")]}
    assert need(spec) == 3000
    assert need(spec | {"initContainers": [asking(cpu="4"), asking(cpu="1")]}) == 4000
    assert need(spec | {"initContainers": [sidecar, asking(cpu="4")]}) == 6000
    assert need(spec | {"initContainers": [asking(cpu="4"), sidecar]}) == 5000
    assert need(spec | {"overhead": {"cpu": "250m"}}) == 3250
    whole = {"resources": {"requests": {"cpu": "1"}}}
    assert need(spec | whole) == 1000


@pytest.mark.parametrize(
    ("here", "there", "in_use"),
    [
        ({"hostPort": 80}, {"hostPort": 80}, 1),
        ({"hostPort": 80}, {"hostPort": 81}, 0),
        ({"hostPort": 80}, {"hostPort": 80, "protocol": "UDP"}, 0),
        ({"hostPort": 80, "hostIP": "10.0.0.1"}, {"hostPort": 80}, 1),
        ({"hostPort": 80, "hostIP": "10.0.0.1"}, {"hostPort": 80, "hostIP": "10.0.0.2"}, 0),
        ({"hostPort": 80, "hostIP": "10.0.0.1"}, {"hostPort": 80, "hostIP": "10.0.0.1"}, 1),
        ({"containerPort": 80}, {"containerPort": 80}, 0),
    ],
)
def test_a_host_port_is_had_once(here: dict[str, Any], there: dict[str, Any], in_use: int) -> None:
    found = lacks({"containers": [{"name": "a", "ports": [here]}]}, other_pod({"containers": [{"ports": [there]}]}))
    assert found == (["has host port 80/TCP in use"] if in_use else [])


def test_claims_are_named_by_the_pod_or_after_it() -> None:
    volumes = [
        {"name": "data", "persistentVolumeClaim": {"claimName": "dataset"}},
        {"name": "scratch", "ephemeral": {"volumeClaimTemplate": {}}},
        {"name": "tmp", "emptyDir": {}},
    ]
    assert pod_of({"volumes": volumes}).claims == ("dataset", "pod-scratch")
