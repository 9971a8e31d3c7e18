"""What kube-controller-manager does with claims: makes those of pods from templates, and gives up what is not used.

It makes the claims of gated pods, too, at once. A claim goes when its pod has ended. It is deallocated when no pod is
left that it is reserved for, and keeps its finalizer for as long as it is allocated. Facts:
``pkg/controller/resourceclaim`` of 1.36.2, and of the garbage collector that what a pod owns goes with the pod.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from neuron_plugin.allocation.pod import TERMINAL_PHASES
from neuron_plugin.cluster import ObjectReference
from neuron_plugin.cluster.claims import FINALIZER
from neuron_plugin.cluster.writes import create_event, utc_now
from neuron_plugin.simulation.api_server_kinds import CLAIM_TEMPLATES, EVENTS, PODS, RESOURCE_CLAIMS, AnyJson, Refusal

if TYPE_CHECKING:  # it shows in its tables what is decided here
    from neuron_plugin.simulation.api_server import SimulatedApiServer

POD_CLAIM_KEY = "resource.kubernetes.io/pod-claim-name"
"""Annotation of a generated claim: the pod's own name for it."""
NOT_CREATED = "FailedResourceClaimCreation"
"""Reason of the event on a pod whose claim cannot be made."""
_LONGEST_PREFIX = 57
"""Characters of a claim's name before the random ones."""


def sync_claims(api: SimulatedApiServer) -> None:
    """Bring all claims up to date; an event says on a pod why a claim of it cannot be made."""
    for pod in api.objects(PODS):
        if not pod["metadata"].get("deletionTimestamp") and pod["spec"].get("resourceClaims"):
            _make_claims(api, pod)
    by_uid = {pod["metadata"]["uid"]: pod for pod in api.objects(PODS)}
    for claim in api.objects(RESOURCE_CLAIMS):
        _reserve(api, claim, by_uid)
        _give_up(api, claim["metadata"]["namespace"], claim["metadata"]["name"], by_uid)


def claim_names(pod: AnyJson) -> dict[str, str]:
    """The claims of a pod by its own names for them; empty for one that was not made yet."""
    made = {
        status["name"]: status.get("resourceClaimName") or ""
        for status in pod["status"].get("resourceClaimStatuses") or ()
    }
    return {
        entry["name"]: entry.get("resourceClaimName") or made.get(entry["name"], "")
        for entry in pod["spec"].get("resourceClaims") or ()
    }


def consumer(pod: AnyJson) -> AnyJson:
    """A pod as ``reservedFor`` names it."""
    return {"resource": "pods", "name": pod["metadata"]["name"], "uid": pod["metadata"]["uid"]}


def claim_node(claim: AnyJson) -> str:
    """The node that a claim's allocation names; empty where it names none."""
    allocation = (claim.get("status") or {}).get("allocation") or {}
    for term in (allocation.get("nodeSelector") or {}).get("nodeSelectorTerms") or ():
        for requirement in (*(term.get("matchFields") or ()), *(term.get("matchExpressions") or ())):
            if requirement.get("key") in {"metadata.name", "kubernetes.io/hostname"} and requirement.get("values"):
                return str(requirement["values"][0])
    return ""


def _make_claims(api: SimulatedApiServer, pod: AnyJson) -> None:
    """Make what is missing of a pod's claims, and write their names into its status."""
    metadata, namespace = pod["metadata"], pod["metadata"]["namespace"]
    owned = {
        claim["metadata"].get("annotations", {}).get(POD_CLAIM_KEY): claim["metadata"]["name"]
        for claim in api.objects(RESOURCE_CLAIMS)
        if claim["metadata"]["namespace"] == namespace and _owner(claim) == metadata["uid"]
    }
    known, statuses = claim_names(pod), []
    for entry in pod["spec"]["resourceClaims"]:
        template, name = entry.get("resourceClaimTemplateName"), entry["name"]
        if not template or (name in owned and known[name] == owned[name]):
            continue
        if name not in owned:
            try:
                made = claim_from(pod, name, api.get(CLAIM_TEMPLATES, template, namespace))
                owned[name] = api.create(RESOURCE_CLAIMS, made, namespace)["metadata"]["name"]
            except Refusal as refusal:
                _say_once(api, pod, f'PodResourceClaim {name}: resource claim template "{template}": {refusal}')
                continue
        statuses.append({"name": name, "resourceClaimName": owned[name]})
    if statuses:
        api.patch_status(PODS, metadata["name"], {"resourceClaimStatuses": statuses}, namespace)


def _say_once(api: SimulatedApiServer, pod: AnyJson, why: str) -> None:
    metadata = pod["metadata"]
    if any(event["note"] == why and event["regarding"]["uid"] == metadata["uid"] for event in api.objects(EVENTS)):
        return
    event = create_event(
        ObjectReference("Pod", metadata["name"], metadata["uid"], "v1", metadata["namespace"]),
        reason=NOT_CREATED,
        note=why,
        action="CreateResourceClaim",
        reporter="resource_claim",
        instance="resource_claim",
        now=utc_now(),
        warning=True,
    )
    api.create(EVENTS, event.body or {}, metadata["namespace"])


def claim_from(pod: AnyJson, name: str, template: AnyJson) -> AnyJson:
    """The claim that a template means for a pod, which owns it."""
    metadata, meant = pod["metadata"], template["spec"].get("metadata") or {}
    prefix = f"{metadata['name']}-{name}-"
    if len(prefix) > _LONGEST_PREFIX:  # both parts lose the same share
        parts = (word[: len(word) * _LONGEST_PREFIX // len(prefix)] for word in (metadata["name"], name))
        prefix = "-".join(parts)
    owner = {"apiVersion": "v1", "kind": "Pod", "name": metadata["name"], "uid": metadata["uid"], "controller": True}
    annotations = {**(meant.get("annotations") or {}), POD_CLAIM_KEY: name}
    made = {"generateName": prefix, "ownerReferences": [owner], "annotations": annotations}
    return {"metadata": made | {"labels": meant.get("labels") or {}}, "spec": template["spec"].get("spec") or {}}


def _owner(claim: AnyJson) -> str:
    """The UID of the pod that a claim was made for; empty for others."""
    owners = claim["metadata"].get("ownerReferences") or ()
    return next((str(owner["uid"]) for owner in owners if owner.get("kind") == "Pod" and owner.get("controller")), "")


def _reserve(api: SimulatedApiServer, claim: AnyJson, pods: Mapping[str, AnyJson]) -> None:
    """Reserve an allocated claim for the pods that have it and were bound without a scheduler."""
    metadata, status = claim["metadata"], claim.get("status") or {}
    if not status.get("allocation") or metadata.get("deletionTimestamp"):
        return
    reserved = status.get("reservedFor") or []
    known = {consumer["uid"] for consumer in reserved}
    missing = [
        consumer(pod)
        for uid, pod in pods.items()
        if uid not in known
        and pod["spec"].get("nodeName")
        and pod["metadata"]["namespace"] == metadata["namespace"]
        and metadata["name"] in claim_names(pod).values()
        and not (pod["metadata"].get("deletionTimestamp") or _is_done(pod))
    ]
    if missing:
        change = {"status": {"reservedFor": [*reserved, *missing]}}
        api.change(RESOURCE_CLAIMS, metadata["name"], change, metadata["namespace"], "status")


def _give_up(api: SimulatedApiServer, namespace: str, name: str, pods: Mapping[str, AnyJson]) -> None:
    """Take ended pods off a claim; where no pod is left also its allocation, its finalizer and the claim itself."""
    claim = api.get(RESOURCE_CLAIMS, name, namespace)
    status = claim.get("status") or {}
    reserved = status.get("reservedFor") or []
    remaining = [
        consumer for consumer in reserved if consumer.get("resource") != "pods" or _goes_on(pods.get(consumer["uid"]))
    ]
    deleted = bool(claim["metadata"].get("deletionTimestamp"))
    if len(remaining) < len(reserved) or (deleted and not remaining and status.get("allocation")):
        change: AnyJson = {"reservedFor": remaining}
        if not remaining:
            change["allocation"] = None
        claim = api.change(RESOURCE_CLAIMS, name, {"status": change}, namespace, "status")
    finalizers = claim["metadata"].get("finalizers") or []
    freed = len(remaining) < len(reserved) or deleted
    if FINALIZER in finalizers and freed and not claim["status"].get("allocation"):
        kept = [finalizer for finalizer in finalizers if finalizer != FINALIZER]
        api.change(RESOURCE_CLAIMS, name, {"metadata": {"finalizers": kept}}, namespace)
    owner = _owner(claim)
    if owner and not remaining and not deleted and not _goes_on(pods.get(owner)):
        api.delete(RESOURCE_CLAIMS, name, namespace)


def _goes_on(pod: AnyJson | None) -> bool:
    return pod is not None and not _is_done(pod)


def _is_done(pod: AnyJson) -> bool:
    """Whether it is certain that no container of a pod runs or ever will."""
    never_bound = pod["metadata"].get("deletionTimestamp") and not pod["spec"].get("nodeName")
    return pod["status"].get("phase") in TERMINAL_PHASES or bool(never_bound)
