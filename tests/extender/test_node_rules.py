"""The rules of kube-scheduler's plugins, case by case as their own tests have them."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from neuron_plugin.extender.node_rules import NODE_RULES, POD_RULES, objections

LABELS = {"zone": "a", "cores": "32"}


def said(spec: dict[str, Any], **node: Any) -> list[str]:
    """What is said against a pod of this spec on the node worker."""
    pod = POD_RULES.decode(msgspec.json.encode({"metadata": {"name": "pod"}, "spec": spec}))
    metadata = {"name": "worker", "labels": LABELS}
    return list(objections(pod, NODE_RULES.decode(msgspec.json.encode({"metadata": metadata, "spec": node}))))


def test_a_pod_without_wishes_meets_no_objection_on_a_plain_node() -> None:
    assert said({}) == []
    assert said({"nodeSelector": None, "affinity": None, "tolerations": None}, taints=None, unschedulable=None) == []


CORDON = {"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}


def test_a_cordoned_node_says_so_once_unless_the_pod_tolerates_it() -> None:
    assert said({}, unschedulable=True, taints=[CORDON]) == ["it is cordoned"]
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
        "the pod does not tolerate its taint team=ml:NoSchedule"
    ]


def test_only_a_taint_that_forbids_counts() -> None:
    assert said({}, taints=[{"key": "slow", "effect": "PreferNoSchedule"}]) == []
    assert said({}, taints=[{"key": "gone", "effect": "NoExecute"}]) == [
        "the pod does not tolerate its taint gone:NoExecute"
    ]


def test_a_node_selector_names_the_label_that_differs() -> None:
    assert said({"nodeSelector": {"zone": "a"}}) == []
    assert said({"nodeSelector": {"zone": "b", "disk": "fast"}}) == [
        "nodeSelector wants zone=b, the label is 'a'",
        "nodeSelector wants disk=fast, the label is absent",
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
    assert found == ([] if met else [f"node affinity wants {wanted}"])


def test_one_term_is_enough_and_all_of_a_term_is_needed() -> None:
    zone_b = {"key": "zone", "operator": "In", "values": ["b"]}
    cores = {"key": "cores", "operator": "Exists"}
    assert affine({"matchExpressions": [zone_b]}, {"matchExpressions": [cores]}) == []
    assert affine({"matchExpressions": [zone_b, cores]}) == ["node affinity wants zone In b and cores Exists"]


def test_a_nodes_name_is_a_field() -> None:
    field = {"key": "metadata.name", "operator": "In", "values": ["worker"]}
    assert affine({"matchFields": [field]}) == []
    assert affine({"matchFields": [{**field, "values": ["other"]}]}) == ["node affinity wants metadata.name In other"]


def test_a_term_that_requires_nothing_matches_no_node() -> None:
    assert affine({}) == affine() == ["node affinity wants what no node has"]


def test_a_preference_is_no_objection() -> None:
    term = {"weight": 1, "preference": {"matchExpressions": [{"key": "zone", "operator": "In", "values": ["b"]}]}}
    assert said({"affinity": {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [term]}}}) == []
