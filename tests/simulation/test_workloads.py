"""The pods that controllers make, as their sources say: names, owners, labels, and what waits for what."""

from __future__ import annotations

import re
from typing import Any

import pytest

from neuron_plugin.allocation import NeuronPod
from neuron_plugin.simulation import WorkloadError, WorkloadPod, pods_of
from neuron_plugin.simulation.api_server_kinds import AnyJson
from neuron_plugin.simulation.workloads import NoPodsError, makes_pods
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


def test_a_pod_is_its_own() -> None:
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "one"}}
    assert pods_of(pod) == [WorkloadPod(pod)]


def test_a_deployment_has_its_replicas_which_belong_to_a_replica_set() -> None:
    first, second = pods_of(made_by("apps/v1", "Deployment", "web", {"replicas": 2, "template": TEMPLATE}))
    (owner,) = metadata_of(first)["ownerReferences"]
    assert owner["kind"] == "ReplicaSet"
    assert [each.removesuffix("-*") for each in names([first, second])] == [owner["name"]] * 2


def test_a_job_has_as_many_pods_as_run_at_a_time_and_still_have_to_complete() -> None:
    assert names(pods_of(job(parallelism=3))) == ["train-0-*", "train-1-*", "train-2-*"]
    assert names(pods_of(job(parallelism=3, completions=2))) == ["train-0-*", "train-1-*"]
    assert names(pods_of(job())) == ["train-0-*"]


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


def test_all_pods_of_a_job_set_are_made_at_once() -> None:
    made = pods_of(jobset(2, {}))
    assert names(made) == [f"set-workers-{job}-{pod}-*" for job in (0, 1) for pod in (0, 1)]
    assert {each.after for each in made} == {""}
    keys = {metadata_of(each)["labels"]["jobset.sigs.k8s.io/job-key"] for each in made}
    assert len(keys) == 2, "one for each Job"


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


@pytest.mark.parametrize(
    ("annotations", "spec", "waits_for"),
    [
        ({}, {}, ("", False, "")),
        ({}, {"startupPolicy": "LeaderReady"}, ("serve-1", True, "")),
        ({EXCLUSIVE_GROUP: "rack"}, {}, ("serve-1", False, "rack")),
    ],
)
def test_workers_wait_for_their_leader_as_the_set_says(
    annotations: dict[str, str], spec: dict[str, str], waits_for: tuple[str, bool, str]
) -> None:
    made = pods_of(leader_worker_set(3, annotations, replicas=2, **spec))
    assert names(made) == ["serve-0", "serve-0-1", "serve-0-2", "serve-1", "serve-1-1", "serve-1-2"]
    leader, *workers = made[3:]
    assert [(each.after, each.ready, each.topology_key) for each in workers] == [waits_for] * 2
    assert leads(record_of(leader.manifest))
    assert ("affinity" in leader.manifest["spec"]) == bool(annotations)
    labels = metadata_of(workers[0])["labels"]
    assert labels["leaderworkerset.sigs.k8s.io/group-index"] == "1"
    assert labels["leaderworkerset.sigs.k8s.io/worker-index"] == "1"
    assert metadata_of(workers[0])["ownerReferences"][0]["name"] == "serve-1"


def test_a_leader_may_have_a_template_of_its_own() -> None:
    manifest = leader_worker_set(2, {})
    manifest["spec"]["leaderWorkerTemplate"]["leaderTemplate"] = {"spec": {"containers": [{"name": "leader"}]}}
    leader, worker = pods_of(manifest)
    assert [each.manifest["spec"]["containers"][0]["name"] for each in (leader, worker)] == ["leader", "main"]


def test_a_ray_cluster_has_a_head_and_the_hosts_of_each_replica() -> None:
    made = pods_of(made_by("ray.io/v1", "RayCluster", "ray", ray_cluster_spec(replicas=2, numOfHosts=2)))
    assert names(made) == ["ray-head", *["ray-trn-worker-*"] * 4]
    assert metadata_of(made[1])["labels"]["ray.io/group"] == "trn"


def test_the_pods_of_a_stateful_set_come_one_by_one_unless_it_says_parallel() -> None:
    spec = {"replicas": 3, "template": TEMPLATE}
    made = pods_of(made_by("apps/v1", "StatefulSet", "db", spec))
    assert names(made) == ["db-0", "db-1", "db-2"]
    assert [(each.after, each.ready) for each in made] == [("", False), ("db-0", True), ("db-1", True)]
    assert metadata_of(made[1])["labels"]["apps.kubernetes.io/pod-index"] == "1"
    spec |= {"podManagementPolicy": "Parallel", "ordinals": {"start": 2}}
    made = pods_of(made_by("apps/v1", "StatefulSet", "db", spec))
    assert [(each.manifest["metadata"]["name"], each.after) for each in made] == [
        ("db-2", ""), ("db-3", ""), ("db-4", ""),
    ]  # fmt: skip


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


def test_the_launcher_of_an_mpi_job_may_wait_for_its_workers() -> None:
    roles = {"Launcher": {"template": TEMPLATE}, "Worker": {"replicas": 2, "template": TEMPLATE}}
    spec = {"mpiReplicaSpecs": roles, "launcherCreationPolicy": "WaitForWorkersReady"}
    made = pods_of(made_by("kubeflow.org/v2beta1", "MPIJob", "mpi", spec))
    assert names(made) == ["mpi-worker-0", "mpi-worker-1", "mpi-launcher-*"]
    assert [each.after for each in made] == ["", "", "mpi-worker-1"]
    assert metadata_of(made[1])["labels"]["training.kubeflow.org/replica-index"] == "1"


def test_a_train_job_asks_in_each_node_for_what_its_trainer_says() -> None:
    trainer = {"numNodes": 2, "resourcesPerNode": {"limits": {"aws.amazon.com/neuron": 16}}}
    made = pods_of(made_by("trainer.kubeflow.org/v1alpha1", "TrainJob", "tune", {"trainer": trainer}))
    assert names(made) == ["tune-node-0-0-*", "tune-node-0-1-*"]
    assert made[0].manifest["spec"]["containers"][0]["resources"] == trainer["resourcesPerNode"]


def test_a_job_of_volcano_is_none_of_kubernetes_and_names_its_scheduler() -> None:
    tasks = [{"name": "node", "replicas": 2, "template": TEMPLATE}]
    made = pods_of(made_by("batch.volcano.sh/v1alpha1", "Job", "mlp", {"tasks": tasks}))
    assert names(made) == ["mlp-node-0", "mlp-node-1"]
    assert made[0].manifest["spec"]["schedulerName"] == "volcano"
    assert metadata_of(made[1])["labels"]["volcano.sh/task-index"] == "1"


@pytest.mark.parametrize(
    "owner",
    [
        made_by("v1", "ReplicationController", "old", {"template": TEMPLATE}),
        made_by("apps/v1", "ReplicaSet", "old", {"template": TEMPLATE}),
        made_by("batch/v1", "CronJob", "nightly", {"jobTemplate": {"spec": {"template": TEMPLATE}}}),
        made_by("kubeflow.org/v1", "PyTorchJob", "t", {"pytorchReplicaSpecs": {"Worker": {"template": TEMPLATE}}}),
    ],
)
def test_kinds_of_one_template_make_a_pod_of_it(owner: AnyJson) -> None:
    (made,) = pods_of(owner)
    assert metadata_of(made)["name"].startswith(f"{owner['metadata']['name']}-")
    assert made.manifest["spec"] == TEMPLATE["spec"]


def test_a_ray_service_is_its_cluster() -> None:
    spec = {"rayClusterConfig": ray_cluster_spec(replicas=1)}
    assert len(pods_of(made_by("ray.io/v1", "RayService", "llm", spec))) == 2


def test_a_generated_name_is_completed() -> None:
    owner = job() | {"metadata": {"generateName": "train-"}}
    (made,) = pods_of(owner)
    assert re.fullmatch("train-[0-9a-f]{5}-0-[0-9a-f]{5}", metadata_of(made)["name"])


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


def test_kinds_are_told_apart_by_their_group() -> None:
    assert makes_pods(made_by("batch.volcano.sh/v1alpha1", "Job", "x", {}))
    assert not makes_pods(made_by("v1", "Service", "x", {}))
    assert not makes_pods(made_by("serving.knative.dev/v1", "Service", "x", {}))


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
