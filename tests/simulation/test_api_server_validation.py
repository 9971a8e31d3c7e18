"""What may not be kept. Each case is one that kubernetes' validation refuses, or just not."""

from __future__ import annotations

from typing import Any

import pytest

from neuron_plugin.simulation.api_server_kinds import EVENTS, LEASES, NODES, PODS, Refusal, ServedKind, Target
from neuron_plugin.simulation.api_server_objects import ApiObjects
from neuron_plugin.simulation.api_server_validation import is_qualified

Json = dict[str, Any]

EVENT: Json = {
    "eventTime": "2026-01-02T03:04:05.678900Z",
    "type": "Normal",
    "reason": "Reason",
    "action": "Action",
    "reportingController": "neuron-plugin.io/plugin",
    "reportingInstance": "i" * 128,
    "regarding": {"kind": "Pod", "name": "p", "namespace": "ns"},
    "note": "n" * 1024,
}
AT_ITS_LIMITS = {
    "labels": {"neuron-plugin.io/" + "a" * 63: "b" * 63, "empty": ""},
    "annotations": {"NEURON_DEVS": "0", "Upper.Case/IN_THE_DOMAIN": "too", "a": "b" * (255 << 10)},
}
OWNER = {"apiVersion": "v1", "kind": "Node", "name": "n"}
METADATA: list[Json] = [
    *({"name": name} for name in ("A", "a_b", "-a", "a.", "a..b", "a" * 254, "a\n")),
    *({"labels": {"a": text}} for text in ("b c", "ends-.", "b" * 64, 1)),
    *({"labels": {key: "b"}} for key in ("neuron-plugin.io/", "Neuron-Plugin.io/a", "a/b/c", "a" * 64)),
    *({"annotations": annotations} for annotations in ({"a b": "c"}, {"a": 1}, {"a": "b" * (256 << 10)})),
    {"ownerReferences": [OWNER]},
]
EVENTS_REFUSED: list[Json] = [
    *({"eventTime": time} for time in (None, "2026-01-02T03:04:05Z")),
    *({word: text} for word in ("reason", "action", "reportingInstance") for text in ("", "r" * 129)),
    *({"reportingController": text} for text in ("", "two words")),
    {"type": "Bad"},
    {"regarding": {"kind": "Node", "name": "n"}},
    {"note": "ä" * 513},
]
LEASES_REFUSED: list[Json] = [
    *({"leaseDurationSeconds": seconds} for seconds in (0, -1)),
    {"leaseTransitions": -1},
    *({"acquireTime": f"2026-01-02{time}"} for time in ("T03:04:05Z", "T03:04:05.123Z", " 03:04:05.123456Z")),
]


def kept(kind: ServedKind, **body: Any) -> Json:
    body |= {"metadata": {"name": "x", **body.get("metadata", {})}}
    return ApiObjects().create(kind, body, "ns" if kind.namespaced else "").value


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        *((NODES, {"metadata": metadata}) for metadata in METADATA),
        *((EVENTS, EVENT | change) for change in EVENTS_REFUSED),
        *((LEASES, {"spec": spec}) for spec in LEASES_REFUSED),
        *((PODS, {"spec": {"containers": [], part: [{}]}}) for part in ("containers", "initContainers")),
        *((EVENTS, EVENT | {"metadata": {"name": "", "generateName": each}}) for each in ("a.", "A-", "-", "a" * 254)),
    ],
)
def test_what_breaks_a_rule_is_refused(kind: ServedKind, body: Json) -> None:
    with pytest.raises(Refusal) as raised:
        kept(kind, **body)
    assert raised.value.code in {400, 422}


def test_what_is_at_its_limits_is_kept_and_a_refusal_names_the_field() -> None:
    assert kept(NODES, metadata={"name": "n" * 253, **AT_ITS_LIMITS})["metadata"]["labels"] == AT_ITS_LIMITS["labels"]
    kept(EVENTS, **EVENT)
    kept(LEASES, spec={"acquireTime": "2026-01-02T03:04:05.123456Z", "leaseDurationSeconds": 1})
    with pytest.raises(Refusal, match=r'Lease.coordination.k8s.io "x" is invalid: .*spec.leaseDurationSeconds'):
        kept(LEASES, spec={"leaseDurationSeconds": 0})


@pytest.mark.parametrize("namespace", ["default", "kube-system"])
def test_an_event_about_a_node_lives_in_one_of_two_namespaces(namespace: str) -> None:
    about = {"metadata": {"name": "e"}, "regarding": {"kind": "Node", "name": "n"}}
    assert ApiObjects().create(EVENTS, EVENT | about, namespace).value


def test_a_binding_is_not_judged_but_the_next_patch_of_its_pod_is() -> None:
    objects = ApiObjects()
    objects.create(PODS, {"metadata": {"name": "p"}, "spec": {}}, "ns")
    objects.bind("ns", "p", {"metadata": {"annotations": {"no key": "x"}}, "target": {"name": "n"}})
    with pytest.raises(Refusal, match="Expected `str` matching regex") as raised:
        objects.patch(Target(PODS, "ns", "p", "status"), {"metadata": {"annotations": {"a": "b"}}})
    assert raised.value.code == 422


@pytest.mark.parametrize(
    ("name", "possible"),
    [("a/b", True), ("a" * 250 + ".io/b", True), ("d" * 251 + ".io/b", False), ("", False), ("/x", False)],
)
def test_a_domain_has_at_most_253_characters_and_a_name_is_not_empty(name: str, *, possible: bool) -> None:
    assert is_qualified(name) is possible
