from __future__ import annotations

from base64 import b64decode
from typing import Any

import msgspec
import pytest

from neuron_plugin.allocation import Resource
from neuron_plugin.allocation.keys import GATE
from neuron_plugin.placement.gates.webhook import ReviewError, admit, admit_copy
from neuron_plugin.placement.gates.writes import WRITTEN_KEYS
from tests.support.manifests import pod_manifest

KUEUE = {"name": "kueue.x-k8s.io/admission"}


def review(pod: object, operation: str = "CREATE", former: str = "", *, claims: bool = False) -> dict[str, Any]:
    """The response to a review of a pod."""
    request = {"uid": "review-1", "operation": operation, "object": pod}
    body = {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request}
    answer: dict[str, Any] = msgspec.json.decode(admit(msgspec.json.encode(body), former, claims=claims))
    assert (answer["apiVersion"], answer["kind"]) == ("admission.k8s.io/v1", "AdmissionReview")
    assert answer["response"]["uid"] == "review-1"
    assert answer["response"]["allowed"] is True
    return dict(answer["response"])


def changes(pod: object, operation: str = "CREATE", former: str = "", *, claims: bool = False) -> list[dict[str, Any]]:
    response = review(pod, operation, former, claims=claims)
    if "patch" not in response:
        return []
    assert response["patchType"] == "JSONPatch"
    return list(msgspec.json.decode(b64decode(response["patch"])))


def copied(pod: object, operation: str = "CREATE") -> list[dict[str, Any]]:
    """What is changed of a pod that was copied."""
    request = {"uid": "review-1", "operation": operation, "object": pod}
    body = {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request}
    response = msgspec.json.decode(admit_copy(msgspec.json.encode(body)))["response"]
    assert response["allowed"] is True
    return list(msgspec.json.decode(b64decode(response["patch"]))) if "patch" in response else []


def manifest(**spec: Any) -> dict[str, Any]:
    """A new pod as the API server sends it: without a UID, and without a name where it makes one up."""
    pod = pod_manifest("", Resource.NEURON, 4)
    del pod["metadata"]["uid"], pod["metadata"]["name"]
    pod["spec"] |= {"schedulerName": "default-scheduler", **spec}
    return pod


def test_a_pod_that_asks_for_neuron_gets_the_gate() -> None:
    assert changes(manifest()) == [{"op": "add", "path": "/spec/schedulingGates", "value": [{"name": GATE}]}]


def test_the_gates_of_others_stay() -> None:
    added = {"op": "add", "path": "/spec/schedulingGates/-", "value": {"name": GATE}}
    assert changes(manifest(schedulingGates=[KUEUE])) == [added]


def test_a_pod_that_is_gated_already_is_let_in_as_it_is() -> None:
    assert changes(manifest(schedulingGates=[{"name": GATE}])) == []


@pytest.mark.parametrize(
    "spec",
    [
        {"nodeName": "node"},
        {"schedulerName": "another"},
        {"containers": [{"name": "main"}]},
        {"containers": [{"name": "main", "resources": {"limits": {"aws.amazon.com/neuron": "0"}}}]},
    ],
)
def test_a_pod_that_is_not_ours_to_place_is_let_in_as_it_is(spec: dict[str, Any]) -> None:
    assert changes(manifest(**spec)) == []


def test_a_pod_with_claims_is_gated_only_where_claims_are_placed() -> None:
    pod = manifest(
        containers=[{"name": "main"}], resourceClaims=[{"name": "chips", "resourceClaimTemplateName": "four"}]
    )
    assert changes(pod) == []
    (added,) = changes(pod, claims=True)
    assert added["value"] == [{"name": GATE}]
    assert changes(manifest(containers=[{"name": "main"}]), claims=True) == []


def test_a_pod_that_names_a_scheduler_that_is_no_more_goes_to_the_default_one() -> None:
    to_default = {"op": "replace", "path": "/spec/schedulerName", "value": "default-scheduler"}
    added = {"op": "add", "path": "/spec/schedulingGates", "value": [{"name": GATE}]}
    assert changes(manifest(schedulerName="neuron-scheduler"), former="neuron-scheduler") == [to_default, added]
    assert changes(manifest(schedulerName="another"), former="neuron-scheduler") == []


def test_a_pod_of_a_daemonset_is_let_in_as_it_is() -> None:
    pod = manifest()
    pod["metadata"]["ownerReferences"] = [{"kind": "DaemonSet", "name": "agent", "controller": True}]
    assert changes(pod) == []


def test_a_change_of_a_pod_is_no_new_pod() -> None:
    assert changes(manifest(), "UPDATE") == []


def test_a_pod_of_which_the_request_cannot_be_read_is_gated_too() -> None:
    assert changes(manifest(containers=[{"name": "main", "resources": {"limits": {"aws.amazon.com/neuron": "2k5"}}}]))


def test_what_a_copied_manifest_says_of_a_place_is_taken_off() -> None:
    pod = manifest(schedulingGates=[{"name": GATE}])
    pod["metadata"]["annotations"] = {"NEURON_DEVS": "0,1", "neuron-plugin.io/node": "node", "mine": "stays"}
    pod["metadata"]["labels"] = {"neuron-plugin.io/node": "node", "app": "train"}

    assert changes(pod) == [
        {"op": "remove", "path": "/metadata/annotations/NEURON_DEVS"},
        {"op": "remove", "path": "/metadata/annotations/neuron-plugin.io~1node"},
        {"op": "remove", "path": "/metadata/labels/neuron-plugin.io~1node"},
    ]


@pytest.mark.parametrize("spec", [{"nodeName": "node"}, {"schedulerName": "another"}, {"containers": []}], ids=str)
def test_a_copy_of_any_kind_loses_it_and_nothing_else_changes(spec: dict[str, Any]) -> None:
    """As ``kubectl replace --force`` makes of a pod that was placed: it names its node."""
    pod = manifest(**spec)
    assert copied(pod) == []
    pod["metadata"]["annotations"] = dict.fromkeys(WRITTEN_KEYS, "0") | {"mine": "stays"}
    pod["metadata"]["labels"] = {"neuron-plugin.io/node": "node"}
    removed = [change["path"] for change in copied(pod) if change["op"] == "remove"]
    assert len(removed) == len(copied(pod)) == len(WRITTEN_KEYS) + 1
    assert copied(pod, "UPDATE") == []


def test_what_is_no_pod_is_let_in_with_a_warning() -> None:
    response = review({"metadata": 7})
    assert "patch" not in response
    assert "neuron-plugin does not place the pod" in response["warnings"][0]


@pytest.mark.parametrize("body", [b"", b"[]", b"{", b'{"request": {}}'])
def test_what_is_no_review_is_an_error_that_says_what_was_expected(body: bytes) -> None:
    with pytest.raises(ReviewError, match="expected admission"):
        admit(body)
