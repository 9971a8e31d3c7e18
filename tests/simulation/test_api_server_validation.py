"""What may not be kept. Each case is one that kubernetes' validation refuses, or just not."""

from __future__ import annotations

from typing import Any

import pytest

from neuron_plugin.simulation.api_server_kinds import EVENTS, LEASES, NODES, PODS, Refusal, ServedKind, Target
from neuron_plugin.simulation.api_server_objects import ApiObjects

Json = dict[str, Any]

EVENT: Json = {
    "metadata": {"name": "e"},
    "eventTime": "2026-01-02T03:04:05.678900Z",
    "type": "Normal",
    "reason": "Reason",
    "action": "Action",
    "reportingController": "neuron-plugin.io/plugin",
    "reportingInstance": "worker-1",
    "regarding": {"kind": "Pod", "name": "p", "namespace": "ns"},
    "note": "n" * 1024,
}


def refusal_of(kind: ServedKind, body: Json) -> str:
    namespace = "ns" if kind.namespaced else ""
    with pytest.raises(Refusal) as raised:
        ApiObjects().create(kind, body, namespace)
    assert raised.value.code in {400, 422}
    return raised.value.message


def kept(kind: ServedKind, body: Json) -> Json:
    return ApiObjects().create(kind, body, "ns" if kind.namespaced else "").value


@pytest.mark.parametrize("name", ["A", "a_b", "-a", "a.", "a..b", "a" * 254])
@pytest.mark.parametrize("kind", [PODS, NODES, LEASES])
def test_a_name_is_a_lowercase_subdomain(kind: ServedKind, name: str) -> None:
    assert "metadata.name" in refusal_of(kind, {"metadata": {"name": name}})


@pytest.mark.parametrize(
    "metadata",
    [
        {"labels": {"neuron-plugin.io/a": "b c"}},
        {"labels": {"neuron-plugin.io/a": "ends-."}},
        {"labels": {"neuron-plugin.io/a": "b" * 64}},
        {"labels": {"neuron-plugin.io/": "b"}},
        {"labels": {"Neuron-Plugin.io/a": "b"}},
        {"labels": {"a/b/c": "d"}},
        {"labels": {"a" * 64: "b"}},
        {"labels": {"a": 1}},
        {"annotations": {"a b": "c"}},
        {"annotations": {"a": 1}},
        {"annotations": {"a": "b" * (256 << 10)}},
        {"ownerReferences": [{"apiVersion": "v1", "kind": "Node", "name": "n"}]},
    ],
)
def test_metadata_that_breaks_a_rule_is_refused(metadata: Json) -> None:
    assert refusal_of(NODES, {"metadata": {"name": "n", **metadata}})


def test_metadata_at_its_limits_is_kept() -> None:
    metadata = {
        "name": "n" * 253,
        "labels": {"neuron-plugin.io/" + "a" * 63: "b" * 63, "empty": ""},
        "annotations": {"NEURON_DEVS": "0", "Upper.Case/IN_THE_DOMAIN": "too", "a": "b" * (255 << 10)},
    }
    assert kept(NODES, {"metadata": metadata})["metadata"]["labels"] == metadata["labels"]


@pytest.mark.parametrize("field", ["containers", "initContainers"])
def test_a_container_without_a_name_is_refused(field: str) -> None:
    spec = {"containers": [{"name": "main"}], field: [{}]}
    assert f"spec.{field}[0].name: Required value" in refusal_of(PODS, {"metadata": {"name": "p"}, "spec": spec})


def test_a_binding_is_not_judged_but_the_next_patch_of_its_pod_is() -> None:
    objects = ApiObjects()
    objects.create(PODS, {"metadata": {"name": "p"}, "spec": {}}, "ns")
    objects.bind("ns", "p", {"metadata": {"annotations": {"no key": "x"}}, "target": {"name": "n"}})
    with pytest.raises(Refusal, match="a qualified name is expected"):
        objects.patch(Target(PODS, "ns", "p", "status"), {"metadata": {"annotations": {"a": "b"}}})


# Leases.


@pytest.mark.parametrize(
    ("field", "value"),
    [("leaseDurationSeconds", 0), ("leaseDurationSeconds", -1), ("leaseTransitions", -1), ("renewTime", "now")],
)
def test_a_lease_that_breaks_a_rule_is_refused(field: str, value: object) -> None:
    assert str(value) in refusal_of(LEASES, {"metadata": {"name": "l"}, "spec": {field: value}})


@pytest.mark.parametrize("time", ["2026-01-02T03:04:05Z", "2026-01-02T03:04:05.123Z", "2026-01-02 03:04:05.123456Z"])
def test_a_lease_s_times_have_six_digits_behind_the_point(time: str) -> None:
    refusal_of(LEASES, {"metadata": {"name": "l"}, "spec": {"acquireTime": time}})
    kept(LEASES, {"metadata": {"name": "l"}, "spec": {"acquireTime": "2026-01-02T03:04:05.123456Z"}})


# Events.


def test_an_event_at_its_limits_is_kept() -> None:
    assert kept(EVENTS, EVENT | {"reportingInstance": "i" * 128})


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("eventTime", None),
        ("eventTime", "2026-01-02T03:04:05Z"),
        ("type", "Bad"),
        ("reason", ""),
        ("reason", "r" * 129),
        ("action", ""),
        ("action", "a" * 129),
        ("reportingController", ""),
        ("reportingController", "two words"),
        ("reportingInstance", ""),
        ("reportingInstance", "i" * 129),
        ("regarding", {"kind": "Node", "name": "n"}),
        ("note", "ä" * 513),
    ],
)
def test_an_event_that_breaks_a_rule_is_refused(field: str, value: object) -> None:
    refusal_of(EVENTS, EVENT | {field: value})


@pytest.mark.parametrize("namespace", ["default", "kube-system"])
def test_an_event_about_a_node_lives_in_one_of_two_namespaces(namespace: str) -> None:
    made = ApiObjects().create(EVENTS, EVENT | {"regarding": {"kind": "Node", "name": "n"}}, namespace).value
    assert made["metadata"]["namespace"] == namespace


@pytest.mark.parametrize("prefix", ["pod-a.", "Pod-a-", "-", "a" * 254])
def test_a_prefix_that_kubernetes_takes_for_no_name_is_refused(prefix: str) -> None:
    with pytest.raises(Refusal) as raised:
        ApiObjects().create(EVENTS, {"metadata": {"generateName": prefix}}, "ns")
    assert raised.value.code == 422
