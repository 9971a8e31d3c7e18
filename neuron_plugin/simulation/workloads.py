"""The pods that controllers create for workload objects, in order.

The playground has no such controllers or objects. The pods have what matters to placement: owners, labels, annotations,
affinities, and which pod must be scheduled or ready first. An object is identified by group and kind, because there are
three kinds of Job. Finalizers, services, volume templates, restarts and rolling updates are omitted. Sources:
pkg/controller/{job,statefulset,daemon,cronjob} of Kubernetes 1.36; and, of 2026-08, JobSet
(pkg/controllers/jobset_controller.go, pkg/webhooks/pod_webhook.go), LeaderWorkerSet (the same file names), KubeRay
(ray-operator/controllers/ray/common/pod.go), mpi-operator (pkg/controller/mpi_job_controller.go), the training operator
(pkg/controller.v1/common/pod.go), trainer v2 and Volcano (pkg/controllers/job).
"""

from __future__ import annotations

import hashlib
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from neuron_plugin.cluster.groups import JOBSET_EXCLUSIVE
from neuron_plugin.simulation.api_server_kinds import AnyJson

_BATCH, _JOBSET, _LWS, _RAY = "batch.kubernetes.io/", "jobset.sigs.k8s.io/", "leaderworkerset.sigs.k8s.io/", "ray.io/"
_DAEMON_TOLERATIONS = [
    {"key": f"node.kubernetes.io/{key}", "operator": "Exists", "effect": effect}
    for effect, keys in (("NoExecute", ("not-ready", "unreachable")), ("NoSchedule", ("unschedulable",)))
    for key in keys
]
_KUBEFLOW, _VOLCANO = "training.kubeflow.org/", "volcano.sh/"


class WorkloadError(Exception):
    """No pods can be created for an object; the text says why."""


class NoPodsError(WorkloadError):
    """The controller of an object creates no pods."""


@dataclass(frozen=True, slots=True)
class WorkloadPod:
    """A pod, and what must happen before it is created.

    The pod named ``after`` must be scheduled first, with ``ready`` also running. With ``topology_key``, this pod gets a
    node selector with that label's value on the node of the pod ``after``.
    """

    manifest: AnyJson
    after: str = ""
    ready: bool = False
    topology_key: str = ""


def kind_of(manifest: object) -> tuple[str, str]:
    """Group and kind of an object; the core group is empty.

    Raises:
        WorkloadError: not a Kubernetes object.
    """
    if not isinstance(manifest, dict) or not isinstance(manifest.get("kind"), str):
        raise WorkloadError(f"{type(manifest).__name__} has no name, expected objects of Kubernetes with a kind")
    metadata = manifest.get("metadata")
    if not isinstance(metadata, dict) or not (metadata.get("name") or metadata.get("generateName")):
        raise WorkloadError(f"{manifest['kind']} has no name, expected an object of Kubernetes with metadata.name")
    if not isinstance(manifest.get("apiVersion"), str):
        raise WorkloadError(f"{manifest['kind']} has no apiVersion: there is more than one kind of this name")
    return manifest["apiVersion"].rpartition("/")[0], manifest["kind"]


def makes_pods(manifest: object) -> bool:
    """Whether this module creates pods for the object's kind.

    Raises:
        WorkloadError: not a Kubernetes object.
    """
    return kind_of(manifest) in _MAKERS


def pods_of(manifest: AnyJson, nodes: Sequence[str] = ()) -> list[WorkloadPod]:
    """The pods of an object. ``nodes`` are the nodes for the pods of a DaemonSet.

    Raises:
        WorkloadError: an unknown kind, or an object that cannot be read.
        NoPodsError: its controller creates no pods.
    """
    group, kind = kind_of(manifest)
    if (group, kind) not in _MAKERS:
        raise WorkloadError(f"{kind}{f' of {group}' if group else ''} has no controller in the playground")
    metadata = manifest["metadata"]
    name = metadata.get("name") or f"{metadata['generateName']}{_suffix()}"
    owner = manifest if kind == "Pod" else manifest | {"metadata": {**metadata, "name": name}}
    try:
        made = list(_daemon_set(owner, nodes) if kind == "DaemonSet" else _MAKERS[group, kind](owner))
    except KeyError as error:
        raise WorkloadError(f"{kind} {name} cannot be read: {error} is missing") from None
    except (TypeError, AttributeError, ValueError, IndexError, StopIteration) as error:
        raise WorkloadError(f"{kind} {name} cannot be read: a part has another form than expected") from error
    if not made:
        why = "no node is one for it" if kind == "DaemonSet" else "it is suspended or of size 0"
        raise NoPodsError(f"{kind} {name}: its controller makes no pods: {why}")
    return made


def _replicas(owner: AnyJson) -> Iterator[WorkloadPod]:
    """A ReplicaSet, also of a Deployment, or a ReplicationController."""
    metadata, spec, kind, labels = owner["metadata"], owner["spec"], owner["kind"], dict[str, str]()
    if kind == "Deployment":
        labels = {"pod-template-hash": _key(metadata)[:10]}
        kind, metadata = "ReplicaSet", {**metadata, "name": f"{metadata['name']}-{_key(metadata)[:10]}"}
    for _ in range(int(spec.get("replicas", 1))):
        yield WorkloadPod(_pod(spec["template"], f"{metadata['name']}-{_suffix()}", kind, metadata, labels))


def _stateful_set(owner: AnyJson) -> Iterator[WorkloadPod]:
    metadata, spec = owner["metadata"], owner["spec"]
    first, before = int((spec.get("ordinals") or {}).get("start", 0)), ""
    ordered = spec.get("podManagementPolicy", "OrderedReady") == "OrderedReady"
    for ordinal in range(first, first + int(spec.get("replicas", 1))):
        name = f"{metadata['name']}-{ordinal}"
        labels = {"statefulset.kubernetes.io/pod-name": name, "apps.kubernetes.io/pod-index": str(ordinal)}
        pod = _pod(spec["template"], name, "StatefulSet", metadata, labels)
        pod = _reachable(pod, name, spec.get("serviceName"))
        yield WorkloadPod(pod, after=before, ready=bool(before))
        before = name if ordered else ""


def _daemon_set(owner: AnyJson, nodes: Sequence[str]) -> Iterator[WorkloadPod]:
    metadata = owner["metadata"]
    for node in nodes:
        pod = _pod(owner["spec"]["template"], f"{metadata['name']}-{_suffix()}", "DaemonSet", metadata)
        field = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node]}]}
        affinity = {**(pod["spec"].get("affinity") or {})}
        required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [field]}}
        affinity["nodeAffinity"] = {**(affinity.get("nodeAffinity") or {}), **required}
        tolerations = [*(pod["spec"].get("tolerations") or ()), *_DAEMON_TOLERATIONS]
        yield WorkloadPod(pod | {"spec": pod["spec"] | {"affinity": affinity, "tolerations": tolerations}})


def _cron_job(owner: AnyJson) -> Iterator[WorkloadPod]:
    """A job of now."""
    job, name = owner["spec"]["jobTemplate"], f"{owner['metadata']['name']}-{int(time.time()) // 60}"
    yield from () if owner["spec"].get("suspend") else _job(job | {"metadata": {**owner["metadata"], "name": name}})


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
        pod = _reachable(pod, f"{name}-{index}") if numbered else pod
        exclusive = pod["metadata"]["annotations"].get(JOBSET_EXCLUSIVE, "")
        if exclusive and index == 0:
            leader = pod["metadata"]["name"]
            pod = _kept_together(pod, f"{_JOBSET}job-key", exclusive)
        yield WorkloadPod(pod, after=leader if exclusive and index else "", topology_key=exclusive)


def _jobset(jobset: AnyJson) -> Iterator[WorkloadPod]:
    spec, metadata = jobset["spec"], jobset["metadata"]
    ordered = (spec.get("startupPolicy") or {}).get("startupPolicyOrder") == "InOrder"
    last: dict[str, str] = {}
    for replicated in () if spec.get("suspend") else spec["replicatedJobs"]:
        exclusive = {
            **(metadata.get("annotations") or {}),
            **(replicated["template"].get("metadata") or {}).get("annotations", {}),
        }
        made = list[WorkloadPod]()
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
            template |= {"spec": {"subdomain": metadata["name"], **template["spec"]}}
            earlier = (
                [*last.values()][-1:] if ordered else [last[each["name"]] for each in replicated.get("dependsOn") or ()]
            )
            for pod in _job({"metadata": job, "spec": job_spec | {"template": template}}):
                made.append(pod if pod.after or not earlier else replace(pod, after=earlier[-1], ready=True))
        yield from made
        if made:
            last[replicated["name"]] = made[-1].manifest["metadata"]["name"]


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
        pod = _reachable(pod, leader["name"], metadata["name"])
        yield WorkloadPod(_kept_together(pod, f"{_LWS}group-key", exclusive) if exclusive else pod)
        for index in range(1, int(templates.get("size", 1))):
            numbered, name = labels | {f"{_LWS}worker-index": str(index)}, f"{leader['name']}-{index}"
            pod = _pod(templates["workerTemplate"], name, "StatefulSet", leader, numbered, size)
            pod = _reachable(pod, name, metadata["name"])
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
            yield WorkloadPod(_pod(template, name, "RayCluster", metadata, labels))


def _ray_service(service: AnyJson) -> Iterator[WorkloadPod]:
    cluster = {**service["metadata"], "name": f"{service['metadata']['name']}-raycluster-{_suffix()}"}
    yield from _ray_cluster({"metadata": cluster, "spec": service["spec"]["rayClusterConfig"]})


def _ray_job(job: AnyJson) -> Iterator[WorkloadPod]:
    """Its cluster, unless it selects an existing one, and the submitter pod once the head runs."""
    spec, metadata = job["spec"], job["metadata"]
    head = ""
    if spec.get("rayClusterSpec") and not spec.get("suspend"):
        cluster = {**metadata, "name": f"{metadata['name']}-raycluster-{_suffix()}"}
        made = list(_ray_cluster({"metadata": cluster, "spec": spec["rayClusterSpec"]}))
        head = made[0].manifest["metadata"]["name"]
        yield from made
    if not spec.get("suspend") and spec.get("submissionMode", "K8sJobMode") == "K8sJobMode":
        plain = {"spec": {"containers": [{"name": "ray-job-submitter", "image": "ray"}], "restartPolicy": "Never"}}
        template = spec.get("submitterPodTemplate") or plain
        pod = _pod(template, f"{metadata['name']}-{_suffix()}", "Job", metadata, {"job-name": metadata["name"]})
        yield WorkloadPod(pod, after=head, ready=bool(head))


def _training_job(job: AnyJson) -> Iterator[WorkloadPod]:
    """PyTorchJob, MPIJob and the like: roles with replicas. All pods are created at once."""
    spec, metadata, kind = job["spec"], job["metadata"], job["kind"]
    roles: Mapping[str, AnyJson] = next(roles for key, roles in spec.items() if key.lower().endswith("replicaspecs"))
    last = ""
    waits = spec.get("launcherCreationPolicy") == "WaitForWorkersReady"
    for role, replicas in sorted(
        roles.items(), key=lambda entry: entry[0] == "Launcher"
    ):  # the launcher may wait for workers
        is_launcher = role == "Launcher"
        for index in range(0 if (spec.get("runPolicy") or {}).get("suspend") else int(replicas.get("replicas", 1))):
            name = f"{metadata['name']}-{role.lower()}{f'-{_suffix()}' if is_launcher else f'-{index}'}"
            labels = {
                f"{_KUBEFLOW}job-name": metadata["name"],
                f"{_KUBEFLOW}operator-name": f"{kind.lower()}-controller",
                f"{_KUBEFLOW}job-role": role.lower(),
                f"{_KUBEFLOW}replica-type": role.lower(),
                f"{_KUBEFLOW}replica-index": str(index),
            }
            pod = _pod(replicas["template"], name, kind, metadata, labels)
            pod = _reachable(pod, name, metadata["name"]) if role == "Worker" and kind == "MPIJob" else pod
            after = last if is_launcher and waits else ""
            yield WorkloadPod(pod, after=after, ready=bool(after))
            last = name


def _train_job(job: AnyJson) -> Iterator[WorkloadPod]:
    """A TrainJob with a runtime like ``torch-distributed``: one Job with a container ``node``."""
    spec, metadata = job["spec"], job["metadata"]
    trainer: AnyJson = spec.get("trainer") or {}
    container = {"name": "node", "image": trainer.get("image", "pytorch")}
    container |= {"resources": trainer["resourcesPerNode"]} if trainer.get("resourcesPerNode") else {}
    pod_spec: AnyJson = {"restartPolicy": "Never"}
    for override in spec.get("podTemplateOverrides") or ():
        pod_spec |= override.get("spec") or {}
    template = {
        "metadata": {"labels": spec.get("labels") or {}, "annotations": spec.get("annotations") or {}},
        "spec": pod_spec | {"containers": [container]},
    }
    count = int(trainer.get("numNodes", 1))
    job_spec = {"parallelism": count, "completions": count, "template": template}
    replicated = {"name": "node", "template": {"spec": job_spec}}
    yield from _jobset({"metadata": metadata, "spec": {"replicatedJobs": [replicated], "suspend": spec.get("suspend")}})


def _volcano_job(job: AnyJson) -> Iterator[WorkloadPod]:
    spec, metadata = job["spec"], job["metadata"]
    for task in spec["tasks"]:
        for index in range(int(task.get("replicas", 1))):
            told = {
                f"{_VOLCANO}job-name": metadata["name"],
                f"{_VOLCANO}job-namespace": metadata.get("namespace", "default"),
                f"{_VOLCANO}queue-name": spec.get("queue", "default"),
                f"{_VOLCANO}task-spec": task.get("name", "default"),
                f"{_VOLCANO}task-index": str(index),
            }
            group = {"scheduling.k8s.io/group-name": f"{metadata['name']}-{_uid('Job', metadata)}"}
            name = f"{metadata['name']}-{task.get('name', 'default0')}-{index}"
            pod = _pod(task["template"], name, "Job", metadata, told, told | group)
            scheduler = {"schedulerName": spec.get("schedulerName") or "volcano"}
            yield WorkloadPod(pod | {"spec": pod["spec"] | scheduler})


_MAKERS: Mapping[tuple[str, str], Callable[[AnyJson], Iterator[WorkloadPod]]] = {
    ("", "Pod"): lambda pod: iter([WorkloadPod(pod)]),
    ("", "ReplicationController"): _replicas,
    ("apps", "ReplicaSet"): _replicas,
    ("apps", "Deployment"): _replicas,
    ("apps", "StatefulSet"): _stateful_set,
    ("apps", "DaemonSet"): lambda owner: _daemon_set(owner, ()),
    ("batch", "Job"): _job,
    ("batch", "CronJob"): _cron_job,
    ("jobset.x-k8s.io", "JobSet"): _jobset,
    ("leaderworkerset.x-k8s.io", "LeaderWorkerSet"): _leader_worker_set,
    ("ray.io", "RayCluster"): _ray_cluster,
    ("ray.io", "RayService"): _ray_service,
    ("ray.io", "RayJob"): _ray_job,
    **{("kubeflow.org", f"{name}Job"): _training_job for name in ("MPI", "PyTorch", "TF", "XGBoost", "JAX", "Paddle")},
    ("trainer.kubeflow.org", "TrainJob"): _train_job,
    ("batch.volcano.sh", "Job"): _volcano_job,
}


def _pod(
    template: AnyJson,
    name: str,
    kind: str,
    owner: AnyJson,
    labels: AnyJson | None = None,
    annotations: AnyJson | None = None,
) -> AnyJson:
    """A pod of a template, controlled by ``owner``."""
    made = _with(template, labels or {}, annotations or {})
    owned = {"apiVersion": "v1", "kind": kind, "name": owner["name"], "uid": _uid(kind, owner), "controller": True}
    placed = {"name": name, "namespace": owner.get("namespace", "default"), "ownerReferences": [owned]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": made["metadata"] | placed, "spec": made["spec"]}


def _reachable(pod: AnyJson, hostname: str, subdomain: str | None = None) -> AnyJson:
    """The pod with its name in a headless Service, unless its template has one."""
    named = {"hostname": hostname} | ({"subdomain": subdomain} if subdomain else {})
    return pod | {"spec": {**named, **pod["spec"]}}


def _with(template: AnyJson, labels: AnyJson, annotations: AnyJson) -> AnyJson:
    metadata = template.get("metadata") or {}
    more = {"labels": labels, "annotations": annotations}
    return template | {"metadata": {key: {**(metadata.get(key) or {}), **more[key]} for key in more}}


def _kept_together(pod: AnyJson, key: str, topology_key: str) -> AnyJson:
    """The pod with an exclusive topology's affinity to its group, and anti-affinity to other groups."""
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
    """The label value of a group's pods in LeaderWorkerSet and JobSet."""
    return hashlib.sha1(f"{owner.get('namespace', 'default')}/{owner['name']}".encode()).hexdigest()  # noqa: S324 - as they do


def _suffix() -> str:
    """A random suffix, as for ``generateName``."""
    return uuid.uuid4().hex[:5]
