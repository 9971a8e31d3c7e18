"""The pods that controllers make, as their sources say: names, owners, labels, and what waits for what."""

from __future__ import annotations

import re
from typing import Any

import pytest

from neuron_plugin.allocation import NeuronPod
from neuron_plugin.simulation import WorkloadError, WorkloadPod, pods_of
from neuron_plugin.simulation.api_server_kinds import AnyJson
from tests.support.world import record_of

TEMPLATE = {
    "metadata": {"labels": {"app": "train"}, "annotations": {"neuron-plugin.io/group": "train"}},
    "spec": {"containers": [{"name": "main", "resources": {"limits": {"aws.amazon.com/neuron": "8"}}}]},
}
EXCLUSIVE_JOB = "alpha.jobset.sigs.k8s.io/exclusive-topology"
EXCLUSIVE_GROUP = "leaderworkerset.sigs.k8s.io/exclusive-topology"


def job(**spec: Any) -> AnyJson:
    return {"kind": "Job", "metadata": {"name": "train", "namespace": "ml"}, "spec": {"template": TEMPLATE, **spec}}


def jobset(replicas: int, annotations: dict[str, str], **spec: Any) -> AnyJson:
    replicated = {"name": "workers", "replicas": replicas, "template": {"spec": job(parallelism=2)["spec"]}}
    metadata = {"name": "set", "annotations": annotations}
    return {"kind": "JobSet", "metadata": metadata, "spec": {"replicatedJobs": [replicated], **spec}}


def leader_worker_set(size: int, annotations: dict[str, str], **spec: Any) -> AnyJson:
    templates = {"size": size, "workerTemplate": TEMPLATE}
    metadata = {"name": "serve", "annotations": annotations}
    return {"kind": "LeaderWorkerSet", "metadata": metadata, "spec": {"leaderWorkerTemplate": templates, **spec}}


def names(made: list[WorkloadPod]) -> list[str]:
    return [re.sub(r"-[0-9a-f]{5}$", "-*", each.manifest["metadata"]["name"]) for each in made]


def metadata_of(pod: WorkloadPod) -> Any:
    return pod.manifest["metadata"]


def test_a_pod_is_its_own() -> None:
    pod = {"kind": "Pod", "metadata": {"name": "one"}}
    assert pods_of(pod) == [WorkloadPod(pod)]


def test_a_deployment_has_its_replicas_which_belong_to_a_replica_set() -> None:
    spec = {"replicas": 2, "template": TEMPLATE}
    first, second = pods_of({"kind": "Deployment", "metadata": {"name": "web"}, "spec": spec})
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
    group = {"groupName": "trn", "replicas": 2, "numOfHosts": 2, "template": TEMPLATE}
    spec = {"headGroupSpec": {"template": TEMPLATE}, "workerGroupSpecs": [group]}
    made = pods_of({"kind": "RayCluster", "metadata": {"name": "ray"}, "spec": spec})
    assert names(made) == ["ray-head", *["ray-trn-worker-*"] * 4]
    assert metadata_of(made[1])["labels"]["ray.io/group"] == "trn"


@pytest.mark.parametrize(
    ("manifest", "why"),
    [
        (
            {"kind": "CronJob", "metadata": {"name": "web"}},
            "CronJob has no controller in the playground, expected",
        ),
        ({"kind": "Job", "metadata": {}}, "Job has no name"),
        ({"kind": "Job", "metadata": {"name": "x"}}, "Job x cannot be read: KeyError('spec')"),
        (job(suspend=True), "Job train is suspended or of size 0"),
        (job(parallelism=0), "Job train is suspended or of size 0"),
        (job(parallelism="many"), "Job train cannot be read"),
        (jobset(1, {}, suspend=True), "JobSet set is suspended or of size 0"),
        (jobset(1, {}, startupPolicy={"startupPolicyOrder": "InOrder"}), "an order among its Jobs is not simulated"),
    ],
)
def test_what_makes_no_pods_says_why(manifest: AnyJson, why: str) -> None:
    with pytest.raises(WorkloadError, match=re.escape(why)):
        pods_of(manifest)
