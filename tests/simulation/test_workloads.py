"""The pods that controllers make, as their sources say: names, owners, labels, and what waits for what."""

from __future__ import annotations

import re
from typing import Any

import pytest

from neuron_plugin.allocation import NeuronPod
from neuron_plugin.simulation.api_server_kinds import AnyJson
from neuron_plugin.simulation.workloads import NoPodsError, WorkloadError, WorkloadPod, pods_of
from tests.support.world import record_of

TEMPLATE = {
    "metadata": {"labels": {"app": "train"}, "annotations": {"neuron-plugin.io/group": "train"}},
    "spec": {"containers": [{"name": "main", "resources": {"limits": {"aws.amazon.com/neuron": "8"}}}]},
}
EXCLUSIVE_JOB = "alpha.jobset.sigs.k8s.io/exclusive-topology"
EXCLUSIVE_GROUP = "leaderworkerset.sigs.k8s.io/exclusive-topology"


def made_by(api_version: str, kind: str, name: str, spec: AnyJson, **metadata: Any) -> AnyJson:
    return {"apiVersion": api_version, "kind": kind, "metadata": {"name": name, **metadata}, "spec": spec}


def job(**spec: Any) -> AnyJson:
    return made_by("batch/v1", "Job", "train", {"template": TEMPLATE, **spec}, namespace="ml")


def jobset(replicas: int, annotations: dict[str, str], **spec: Any) -> AnyJson:
    replicated = {"name": "workers", "replicas": replicas, "template": {"spec": job(parallelism=2)["spec"]}}
    spec = {"replicatedJobs": [replicated], **spec}
    return made_by("jobset.x-k8s.io/v1alpha2", "JobSet", "set", spec, annotations=annotations)


def leader_worker_set(size: int, annotations: dict[str, str], **spec: Any) -> AnyJson:
    spec = {"leaderWorkerTemplate": {"size": size, "workerTemplate": TEMPLATE}, **spec}
    return made_by("leaderworkerset.x-k8s.io/v1", "LeaderWorkerSet", "serve", spec, annotations=annotations)


def ray_cluster_spec(**workers: Any) -> AnyJson:
    group = {"groupName": "trn", "template": TEMPLATE, **workers}
    return {"headGroupSpec": {"template": TEMPLATE}, "workerGroupSpecs": [group]}


def names(made: list[WorkloadPod]) -> list[str]:
    return [re.sub(r"-[0-9a-f]{5}$", "-*", each.manifest["metadata"]["name"]) for each in made]


def metadata_of(pod: WorkloadPod) -> Any:
    return pod.manifest["metadata"]


POD = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "one"}}
ONE_TEMPLATE = {"template": TEMPLATE}
MPI = {"mpiReplicaSpecs": {"Launcher": ONE_TEMPLATE, "Worker": {"replicas": 2, **ONE_TEMPLATE}}}
TORCH = {"pytorchReplicaSpecs": {"Worker": ONE_TEMPLATE}}
VOLCANO = {"tasks": [{"name": "node", "replicas": 2, "template": TEMPLATE}]}


def owned(kind: str, **spec: Any) -> AnyJson:
    """An object of a kind with this spec; the kind is given with its group and version."""
    version, _, name = kind.rpartition("/")
    return made_by(version, name, "x", spec)


@pytest.mark.parametrize(
    ("owner", "made"),
    [
        (POD, "one"),
        (owned("apps/v1/ReplicaSet", replicas=2, **ONE_TEMPLATE), "x-* x-*"),
        (owned("v1/ReplicationController", **ONE_TEMPLATE), "x-*"),
        (job(parallelism=3), "train-0-* train-1-* train-2-*"),
        (job(parallelism=3, completions=2), "train-0-* train-1-*"),
        (job(), "train-0-*"),
        (jobset(2, {}), "set-workers-0-0-* set-workers-0-1-* set-workers-1-0-* set-workers-1-1-*"),
        (owned("apps/v1/StatefulSet", replicas=2, **ONE_TEMPLATE), "x-0 x-1<x-0!"),
        (
            owned(
                "apps/v1/StatefulSet",
                **{"replicas": 2, "podManagementPolicy": "Parallel", "ordinals": {"start": 2}, **ONE_TEMPLATE},
            ),
            "x-2 x-3",
        ),
        (leader_worker_set(3, {}, replicas=2), "serve-0 serve-0-1 serve-0-2 serve-1 serve-1-1 serve-1-2"),
        (leader_worker_set(2, {}, startupPolicy="LeaderReady"), "serve-0 serve-0-1<serve-0!"),
        (leader_worker_set(2, {EXCLUSIVE_GROUP: "rack"}), "serve-0 serve-0-1<serve-0@rack"),
        (owned("ray.io/v1/RayCluster", **ray_cluster_spec(replicas=1, numOfHosts=2)), "x-head" + " x-trn-worker-*" * 2),
        (owned("ray.io/v1/RayJob", clusterSelector={"ray.io/cluster": "mine"}), "x-*"),
        (owned("kubeflow.org/v2beta1/MPIJob", **MPI), "x-worker-0 x-worker-1 x-launcher-*"),
        (
            owned("kubeflow.org/v2beta1/MPIJob", launcherCreationPolicy="WaitForWorkersReady", **MPI),
            "x-worker-0 x-worker-1 x-launcher-*<x-worker-1!",
        ),
        (owned("kubeflow.org/v1/PyTorchJob", **TORCH), "x-worker-0"),
        (owned("trainer.kubeflow.org/v1alpha1/TrainJob", trainer={"numNodes": 2}), "x-node-0-0-* x-node-0-1-*"),
        (owned("batch.volcano.sh/v1alpha1/Job", **VOLCANO), "x-node-0 x-node-1"),
    ],
)
def test_a_kind_makes_its_pods_some_after_another_is_scheduled_or_ready(owner: AnyJson, made: str) -> None:
    pods = pods_of(owner)
    waits = [
        (f"<{pod.after}" if pod.after else "") + "!" * pod.ready + (f"@{pod.topology_key}" if pod.topology_key else "")
        for pod in pods
    ]
    leaders = [wait.partition("@")[0] if wait.startswith("@") else wait for wait in waits]
    assert " ".join(map("".join, zip(names(pods), leaders, strict=True))) == made


def test_a_deployment_s_pods_belong_to_a_replica_set_and_a_cron_job_s_to_a_job_of_now() -> None:
    first, second = pods_of(owned("apps/v1/Deployment", replicas=2, **ONE_TEMPLATE))
    (owner,) = metadata_of(first)["ownerReferences"]
    assert owner["kind"] == "ReplicaSet"
    assert [each.removesuffix("-*") for each in names([first, second])] == [owner["name"]] * 2
    (nightly,) = pods_of(owned("batch/v1/CronJob", jobTemplate={"spec": ONE_TEMPLATE}))
    assert re.fullmatch(r"x-\d+-0-[0-9a-f]{5}", metadata_of(nightly)["name"])


def test_the_pods_of_an_indexed_job_have_their_index_and_their_owner() -> None:
    *_, last = pods_of(job(parallelism=2, completionMode="Indexed"))
    assert metadata_of(last)["namespace"] == "ml"
    (owner,) = metadata_of(last)["ownerReferences"]
    assert (owner["kind"], owner["name"], owner["controller"]) == ("Job", "train", True)
    assert metadata_of(last)["labels"] == {
        "app": "train",
        "job-name": "train",
        "batch.kubernetes.io/job-name": "train",
        "controller-uid": owner["uid"],
        "batch.kubernetes.io/controller-uid": owner["uid"],
        "batch.kubernetes.io/job-completion-index": "1",
    }
    assert metadata_of(last)["annotations"]["batch.kubernetes.io/job-completion-index"] == "1"
    assert "neuron-plugin.io/group" in metadata_of(last)["annotations"]


def leads(pod: NeuronPod) -> bool:
    return pod.member is not None and pod.member.leads


def test_the_other_pods_of_an_exclusive_job_follow_the_first_of_their_own_job() -> None:
    made = pods_of(jobset(2, {EXCLUSIVE_JOB: "rack"}))
    for leader, follower in (made[:2], made[2:]):
        assert (leader.after, follower.after) == ("", metadata_of(leader)["name"])
        assert follower.topology_key == "rack"
        assert leads(record_of(leader.manifest))
        assert "affinity" not in follower.manifest["spec"]
    term = made[0].manifest["spec"]["affinity"]["podAntiAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"][0]
    key = metadata_of(made[0])["labels"]["jobset.sigs.k8s.io/job-key"]
    assert term["topologyKey"] == "rack"
    assert term["labelSelector"]["matchExpressions"][1] == {
        "key": "jobset.sigs.k8s.io/job-key", "operator": "NotIn", "values": [key],
    }  # fmt: skip


@pytest.mark.parametrize("annotations", [{}, {EXCLUSIVE_GROUP: "rack"}])
def test_the_leader_of_a_worker_set_leads_and_owns_its_workers(annotations: dict[str, str]) -> None:
    leader, worker = pods_of(leader_worker_set(2, annotations, replicas=2))[2:]
    assert leads(record_of(leader.manifest))
    assert ("affinity" in leader.manifest["spec"]) == bool(annotations)
    labels = metadata_of(worker)["labels"]
    assert labels["leaderworkerset.sigs.k8s.io/group-index"] == "1"
    assert labels["leaderworkerset.sigs.k8s.io/worker-index"] == "1"
    assert metadata_of(worker)["ownerReferences"][0]["name"] == "serve-1"


def test_a_daemon_set_has_a_pod_on_each_node_that_may_have_one() -> None:
    daemon_set = made_by("apps/v1", "DaemonSet", "agent", {"template": TEMPLATE})
    made = pods_of(daemon_set, ["a", "b"])
    asked = [record_of(each.manifest).rules.terms or () for each in made]
    assert [[str(term) for term in terms] for terms in asked] == [["metadata.name In a"], ["metadata.name In b"]]
    with pytest.raises(NoPodsError, match="no node is one for it"):
        pods_of(daemon_set)


def test_an_ordered_job_set_waits_for_what_came_before() -> None:
    template = {"spec": job()["spec"]}
    replicated: list[AnyJson] = [{"name": name, "template": template} for name in ("driver", "workers", "late")]
    ordered = jobset(0, {}, replicatedJobs=replicated, startupPolicy={"startupPolicyOrder": "InOrder"})
    first, second, third = pods_of(ordered)
    assert [first.after, second.after, third.after] == ["", metadata_of(first)["name"], metadata_of(second)["name"]]
    replicated[2] |= {"dependsOn": [{"name": "driver", "status": "Ready"}]}
    first, second, third = pods_of(jobset(0, {}, replicatedJobs=replicated))
    assert [first.after, second.after, third.after] == ["", "", metadata_of(first)["name"]]


def test_a_ray_job_submits_once_the_head_of_its_cluster_runs() -> None:
    made = pods_of(made_by("ray.io/v1", "RayJob", "tune", {"rayClusterSpec": ray_cluster_spec(replicas=1)}))
    head, _, submitter = made
    assert (submitter.after, submitter.ready) == (metadata_of(head)["name"], True)
    assert re.fullmatch("tune-raycluster-[0-9a-f]{5}-head", metadata_of(head)["name"])
    (alone,) = pods_of(made_by("ray.io/v1", "RayJob", "tune", {"clusterSelector": {"ray.io/cluster": "mine"}}))
    assert alone.after == ""


def test_pods_say_which_of_their_kind_they_are() -> None:
    trainer = {"resourcesPerNode": {"limits": {"aws.amazon.com/neuron": 16}}}
    (tuned,) = pods_of(owned("trainer.kubeflow.org/v1alpha1/TrainJob", trainer=trainer))
    assert tuned.manifest["spec"]["containers"][0]["resources"] == trainer["resourcesPerNode"]
    *_, worker, _ = pods_of(owned("kubeflow.org/v2beta1/MPIJob", **MPI))
    assert metadata_of(worker)["labels"]["training.kubeflow.org/replica-index"] == "1"
    *_, task = pods_of(owned("batch.volcano.sh/v1alpha1/Job", **VOLCANO))
    assert (task.manifest["spec"]["schedulerName"], metadata_of(task)["labels"]["volcano.sh/task-index"]) == (
        "volcano",
        "1",
    )
    *_, shard = pods_of(owned("apps/v1/StatefulSet", replicas=2, **ONE_TEMPLATE))
    assert metadata_of(shard)["labels"]["apps.kubernetes.io/pod-index"] == "1"
    *_, host = pods_of(owned("ray.io/v1/RayService", rayClusterConfig=ray_cluster_spec(replicas=1)))
    assert metadata_of(host)["labels"]["ray.io/group"] == "trn"
    (generated,) = pods_of(job() | {"metadata": {"generateName": "train-"}})
    assert re.fullmatch("train-[0-9a-f]{5}-0-[0-9a-f]{5}", metadata_of(generated)["name"])


@pytest.mark.parametrize(
    "owner",
    [
        job(suspend=True),
        job(parallelism=0),
        jobset(1, {}, suspend=True),
        made_by("batch/v1", "CronJob", "nightly", {"suspend": True, "jobTemplate": {}}),
    ],
)
def test_what_is_suspended_or_of_size_0_makes_no_pods(owner: AnyJson) -> None:
    with pytest.raises(NoPodsError, match="its controller makes no pods: it is suspended or of size 0"):
        pods_of(owner)


@pytest.mark.parametrize(
    ("manifest", "why"),
    [
        (made_by("example.com/v1", "Job", "x", {}), "Job of example.com has no controller in the playground"),
        (made_by("batch/v1", "Job", "", {}), "Job has no name"),
        ({"kind": "Job", "metadata": {"name": "x"}}, "Job has no apiVersion"),
        (made_by("batch/v1", "Job", "x", {}), "Job x cannot be read: 'template' is missing"),
        (job(parallelism="many"), "Job train cannot be read: a part has another form than expected"),
    ],
)
def test_an_object_that_cannot_be_read_says_why_in_no_words_of_python(manifest: AnyJson, why: str) -> None:
    with pytest.raises(WorkloadError, match=re.escape(why)):
        pods_of(manifest)


def test_pods_have_the_names_that_a_headless_service_gives_them() -> None:
    def hosts(owner: AnyJson) -> list[tuple[str, str]]:
        specs = (each.manifest["spec"] for each in pods_of(owner))
        return [(spec.get("hostname", ""), spec.get("subdomain", "")) for spec in specs]

    indexed = job(completions=2, parallelism=2, completionMode="Indexed")
    assert hosts(indexed) == [("train-0", ""), ("train-1", "")]
    assert hosts(job(parallelism=1)) == [("", "")]
    assert hosts(jobset(1, {})) == [("set-workers-0-0", "set"), ("set-workers-0-1", "set")]
    assert hosts(leader_worker_set(2, {})) == [("serve-0", "serve"), ("serve-0-1", "serve")]
    stateful = {"template": TEMPLATE, "serviceName": "db"}
    assert hosts(made_by("apps/v1", "StatefulSet", "db", stateful)) == [("db-0", "db")]
    roles = {"Launcher": {"template": TEMPLATE}, "Worker": {"replicas": 1, "template": TEMPLATE}}
    mpi = made_by("kubeflow.org/v2beta1", "MPIJob", "mpi", {"mpiReplicaSpecs": roles})
    assert hosts(mpi) == [("mpi-worker-0", "mpi"), ("", "")]
