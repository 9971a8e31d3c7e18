"""The pods that controllers make of a Deployment, Job, JobSet, LeaderWorkerSet or RayCluster, in their order.

The playground has no controllers, and no objects of these kinds. What matters to placement is made as they make it:
owners, labels, annotations, affinities, and which pods exist only once another one is scheduled or ready. Left out are
finalizers, services, volumes, restarts and rolling updates. Facts: pkg/controller/job of Kubernetes 1.36; the sources
of 2026-08 of JobSet (pkg/controllers/jobset_controller.go, pkg/webhooks/pod_webhook.go), LeaderWorkerSet
(the files of the same names) and KubeRay (ray-operator/controllers/ray/common/pod.go).
"""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from neuron_plugin.cluster.groups import JOBSET_EXCLUSIVE
from neuron_plugin.simulation.api_server_kinds import AnyJson

_BATCH, _JOBSET, _LWS, _RAY = "batch.kubernetes.io/", "jobset.sigs.k8s.io/", "leaderworkerset.sigs.k8s.io/", "ray.io/"


class WorkloadError(Exception):
    """No pods can be made of an object; the text says why."""


@dataclass(frozen=True, slots=True)
class WorkloadPod:
    """A pod, and what it waits for before it is made.

    ``after`` is the name of the pod that has to be scheduled first (with ``ready``: to run). With ``topology_key`` the
    value of that label of that pod's node becomes a node selector of this pod.
    """

    manifest: AnyJson
    after: str = ""
    ready: bool = False
    topology_key: str = ""


def pods_of(manifest: object) -> list[WorkloadPod]:
    """The pods of an object; a pod is its own.

    Raises:
        WorkloadError: a kind without a controller here, or an object of which its controller makes no pods.
    """
    kind = str(manifest.get("kind", "nothing")) if isinstance(manifest, dict) else type(manifest).__name__
    metadata = manifest.get("metadata") if isinstance(manifest, dict) else None
    name = metadata.get("name") if isinstance(metadata, dict) else None
    if not isinstance(manifest, dict) or not name:
        raise WorkloadError(f"{kind} has no name, expected an object of Kubernetes with metadata.name")
    if kind == "Pod":
        return [WorkloadPod(manifest)]
    if kind not in _MAKERS:
        raise WorkloadError(f"{kind} has no controller in the playground, expected Pod or {', '.join(_MAKERS)}")
    try:
        made = list(_MAKERS[kind](manifest))
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise WorkloadError(f"{kind} {name} cannot be read: {error!r}") from None
    if not made:
        raise WorkloadError(f"{kind} {name} is suspended or of size 0: its controller makes no pods")
    return made


def _deployment(deployment: AnyJson) -> Iterator[WorkloadPod]:
    metadata, spec = deployment["metadata"], deployment["spec"]
    replica_set = {**metadata, "name": f"{metadata['name']}-{_key(metadata)[:10]}"}
    for _ in range(int(spec.get("replicas", 1))):
        labels = {"pod-template-hash": _key(metadata)[:10]}
        yield WorkloadPod(
            _pod(spec["template"], f"{replica_set['name']}-{_suffix()}", "ReplicaSet", replica_set, labels, {})
        )


def _job(job: AnyJson) -> Iterator[WorkloadPod]:
    spec, name = job["spec"], job["metadata"]["name"]
    count = int(spec.get("parallelism", 1))
    count = 0 if spec.get("suspend") else min(count, int(spec.get("completions") or count))
    uid = _uid("Job", job["metadata"])
    labels = {f"{_BATCH}job-name": name, "job-name": name, f"{_BATCH}controller-uid": uid, "controller-uid": uid}
    leader = ""
    for index in range(count):
        numbered = {f"{_BATCH}job-completion-index": str(index)} if spec.get("completionMode") == "Indexed" else {}
        pod = _pod(spec["template"], f"{name}-{index}-{_suffix()}", "Job", job["metadata"], labels | numbered, numbered)
        exclusive = pod["metadata"]["annotations"].get(JOBSET_EXCLUSIVE, "")
        if exclusive and index == 0:
            leader = pod["metadata"]["name"]
            pod = _kept_together(pod, f"{_JOBSET}job-key", exclusive)
        yield WorkloadPod(pod, after=leader if exclusive and index else "", topology_key=exclusive)


def _jobset(jobset: AnyJson) -> Iterator[WorkloadPod]:
    spec, metadata = jobset["spec"], jobset["metadata"]
    ordered = (spec.get("startupPolicy") or {}).get("startupPolicyOrder") == "InOrder"
    if ordered or any(job.get("dependsOn") for job in spec["replicatedJobs"]):
        raise ValueError("an order among its Jobs is not simulated")
    for replicated in () if spec.get("suspend") else spec["replicatedJobs"]:
        exclusive = {
            **(metadata.get("annotations") or {}),
            **(replicated["template"].get("metadata") or {}).get("annotations", {}),
        }
        for index in range(int(replicated.get("replicas", 1))):
            job = {**metadata, "name": f"{metadata['name']}-{replicated['name']}-{index}"}
            keys = {
                f"{_JOBSET}jobset-name": metadata["name"],
                f"{_JOBSET}replicatedjob-name": replicated["name"],
                f"{_JOBSET}job-index": str(index),
                f"{_JOBSET}job-key": _key(job),
            }
            annotations = keys | {key: value for key, value in exclusive.items() if key == JOBSET_EXCLUSIVE}
            job_spec = {"completionMode": "Indexed", **replicated["template"]["spec"]}
            template = _with(job_spec["template"], keys, annotations)
            yield from _job({"metadata": job, "spec": job_spec | {"template": template}})


def _leader_worker_set(workers: AnyJson) -> Iterator[WorkloadPod]:
    spec, metadata = workers["spec"], workers["metadata"]
    templates = spec["leaderWorkerTemplate"]
    exclusive = (metadata.get("annotations") or {}).get(f"{_LWS}exclusive-topology", "")
    ready = spec.get("startupPolicy") == "LeaderReady"
    for group in range(int(spec.get("replicas", 1))):
        leader = {**metadata, "name": f"{metadata['name']}-{group}"}
        labels = {f"{_LWS}name": metadata["name"], f"{_LWS}group-index": str(group), f"{_LWS}group-key": _key(leader)}
        size = {f"{_LWS}size": str(templates.get("size", 1))}
        template = templates.get("leaderTemplate") or templates["workerTemplate"]
        pod = _pod(template, leader["name"], "StatefulSet", metadata, labels | {f"{_LWS}worker-index": "0"}, size)
        yield WorkloadPod(_kept_together(pod, f"{_LWS}group-key", exclusive) if exclusive else pod)
        for index in range(1, int(templates.get("size", 1))):
            numbered, name = labels | {f"{_LWS}worker-index": str(index)}, f"{leader['name']}-{index}"
            pod = _pod(templates["workerTemplate"], name, "StatefulSet", leader, numbered, size)
            after = leader["name"] if exclusive or ready else ""
            yield WorkloadPod(pod, after=after, ready=ready, topology_key=exclusive)


def _ray_cluster(cluster: AnyJson) -> Iterator[WorkloadPod]:
    spec, metadata = cluster["spec"], cluster["metadata"]
    groups = [("headgroup", "head", 1, spec["headGroupSpec"]["template"])]
    for workers in spec.get("workerGroupSpecs") or ():
        count = int(workers.get("replicas", 0)) * int(workers.get("numOfHosts", 1))
        groups.append((workers["groupName"], "worker", count, workers["template"]))
    for group, kind, count, template in () if spec.get("suspend") else groups:
        labels = {f"{_RAY}cluster": metadata["name"], f"{_RAY}node-type": kind, f"{_RAY}group": group}
        for _ in range(count):
            name = f"{metadata['name']}-head" if kind == "head" else f"{metadata['name']}-{group}-worker-{_suffix()}"
            yield WorkloadPod(_pod(template, name, "RayCluster", metadata, labels, {}))


_MAKERS: Mapping[str, Callable[[AnyJson], Iterator[WorkloadPod]]] = {
    "Deployment": _deployment,
    "Job": _job,
    "JobSet": _jobset,
    "LeaderWorkerSet": _leader_worker_set,
    "RayCluster": _ray_cluster,
}


def _pod(
    template: AnyJson, name: str, kind: str, owner: AnyJson, labels: dict[str, str], annotations: dict[str, str]
) -> AnyJson:
    """A pod of a template, with the object that controls it."""
    made = _with(template, labels, annotations)
    owned = {"apiVersion": "v1", "kind": kind, "name": owner["name"], "uid": _uid(kind, owner), "controller": True}
    placed = {"name": name, "namespace": owner.get("namespace", "default"), "ownerReferences": [owned]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": made["metadata"] | placed, "spec": made["spec"]}


def _with(template: AnyJson, labels: dict[str, str], annotations: dict[str, str]) -> AnyJson:
    metadata = template.get("metadata") or {}
    more = {"labels": labels, "annotations": annotations}
    return template | {"metadata": {key: {**(metadata.get(key) or {}), **more[key]} for key in more}}


def _kept_together(pod: AnyJson, key: str, topology_key: str) -> AnyJson:
    """The pod with the affinity to its own group, and the anti-affinity to other groups, of an exclusive topology."""
    own = {"key": key, "operator": "In", "values": [pod["metadata"]["labels"][key]]}
    others = [{"key": key, "operator": "Exists"}, own | {"operator": "NotIn"}]
    terms = {
        name: {
            "requiredDuringSchedulingIgnoredDuringExecution": [
                {"labelSelector": {"matchExpressions": expressions}, "topologyKey": topology_key}
            ]
        }
        for name, expressions in (("podAffinity", [own]), ("podAntiAffinity", others))
    }
    affinity = {**(pod["spec"].get("affinity") or {}), **terms}
    return pod | {"spec": pod["spec"] | {"affinity": affinity}}


def _uid(kind: str, owner: AnyJson) -> str:
    return str(uuid.uuid5(uuid.NAMESPACE_DNS, f"{kind}/{owner.get('namespace', 'default')}/{owner['name']}"))


def _key(owner: AnyJson) -> str:
    """What LeaderWorkerSet and JobSet label the pods of one group with."""
    return hashlib.sha1(f"{owner.get('namespace', 'default')}/{owner['name']}".encode()).hexdigest()  # noqa: S324 - as they do


def _suffix() -> str:
    """What a name ends with that the API server completes."""
    return uuid.uuid4().hex[:5]
