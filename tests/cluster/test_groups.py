"""What a pod says of its group, by what its framework writes on it."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from neuron_plugin.allocation.group import GroupMember
from neuron_plugin.allocation.keys import NODE_KEY, RANK_KEY
from neuron_plugin.cluster.groups import group_member
from neuron_plugin.cluster.pods import PODS, FinishedMember, finished_member
from tests.support.manifests import pod_manifest

INDEX, POD_INDEX = "batch.kubernetes.io/job-completion-index", "apps.kubernetes.io/pod-index"
LWS, KUEUE, KUBEFLOW = "leaderworkerset.sigs.k8s.io/", "kueue.x-k8s.io/", "training.kubeflow.org/"
JOBSET = "jobset.sigs.k8s.io/"
ROLE, REPLICA = f"{KUBEFLOW}replica-type", f"{KUBEFLOW}replica-index"
OWN_GROUP = {"neuron-plugin.io/group": "g", "neuron-plugin.io/group-size": "4"}


def member(says: dict[str, str], owner: str = "Job") -> GroupMember:
    found = group_member("default", says, says, "", owner)
    assert found is not None
    return found


RANKS: dict[str, tuple[dict[str, str], tuple[int, ...] | None]] = {
    "no index": ({}, None),
    "one that is no number": ({INDEX: "x"}, None),
    "of a Job": ({INDEX: "3"}, (3,)),
    "of a Job that Kueue lets begin later": ({INDEX: "3", f"{KUEUE}pod-index-offset": "8"}, (11,)),
    "of a JobSet of several Jobs": ({INDEX: "3", f"{JOBSET}job-index": "1"}, (1, 3)),
    "of a JobSet, whose Jobs are counted through": (
        {INDEX: "3", f"{JOBSET}job-index": "0", f"{JOBSET}job-global-index": "5"},
        (5, 3),
    ),
    "of one replica of a LeaderWorkerSet among several": (
        {f"{LWS}name": "s", f"{LWS}group-index": "2", f"{LWS}worker-index": "1"},
        (2, 1),
    ),
    "of a master, before all workers": ({ROLE: "Master", REPLICA: "0"}, (0, 0)),
    "of a launcher, by the label of older operators": (
        {f"{KUBEFLOW}job-role": "launcher", REPLICA: "0"},
        (0, 0),
    ),
    "of a worker": ({ROLE: "worker", REPLICA: "2"}, (1, 2)),
    "of Kueue's pod group": ({f"{KUEUE}pod-group-pod-index": "7"}, (7,)),
    "of a StatefulSet": ({POD_INDEX: "7"}, (7,)),
}


@pytest.mark.parametrize(("says", "rank"), RANKS.values(), ids=RANKS)
def test_the_rank_of_a_pod_is_its_framework_s_index_also_once_it_is_placed(
    says: dict[str, str], rank: tuple[int, ...] | None
) -> None:
    assert member(OWN_GROUP | says).rank == rank
    if rank:  # a placement writes one number
        assert member(OWN_GROUP | says | {NODE_KEY: "n", RANK_KEY: "9" if len(rank) > 1 else str(rank[0])}).rank == rank


@pytest.mark.parametrize(("says", "_"), RANKS.values(), ids=RANKS)
def test_a_rank_of_its_own_comes_before_any_index(says: dict[str, str], _: object) -> None:
    assert member(OWN_GROUP | says | {RANK_KEY: "5"}).rank == (5,)


@pytest.mark.parametrize(
    ("says", "name", "size", "rank"),
    [
        ({f"{LWS}name": "s", f"{LWS}group-index": "2", f"{LWS}worker-index": "1", f"{LWS}size": "3"}, "s/2", 3, (1,)),
        ({f"{KUEUE}pod-group-name": "k", f"{KUEUE}pod-group-total-count": "5"}, "k", 5, None),
        (OWN_GROUP | {f"{KUEUE}pod-group-name": "k"}, "g", 4, None),
        (OWN_GROUP | {f"{LWS}name": "s", f"{LWS}group-index": "2", f"{LWS}size": "2"}, "g", 4, None),
        (OWN_GROUP | {f"{LWS}name": "s", f"{LWS}group-index": "2", f"{LWS}size": "4"}, "s/2", 4, None),
    ],
    ids=[
        "a replica of a LeaderWorkerSet",
        "Kueue's pod group",
        "our annotation comes first",
        "a whole LeaderWorkerSet",
        "our annotation gives the size of a replica",
    ],
)
def test_which_group_a_pod_is_one_of(says: dict[str, str], name: str, size: int, rank: tuple[int, ...] | None) -> None:
    found = member(says)
    assert (found.group, found.size, found.rank) == (("default", name), size, rank)


@pytest.mark.parametrize("mode", ["serving", "fast-admission"])
def test_pods_that_serve_one_by_one_are_no_group(mode: str) -> None:
    says = {f"{KUEUE}pod-group-name": "k", f"{KUEUE}pod-group-{mode}": "true"}
    assert group_member("default", says, says, "", "Job") is None


@pytest.mark.parametrize(
    ("says", "owner", "leads"),
    [
        ({f"{LWS}worker-index": "0"}, "StatefulSet", True),
        ({f"{LWS}worker-index": "1"}, "StatefulSet", False),
        ({POD_INDEX: "0"}, "StatefulSet", True),
        ({POD_INDEX: "1"}, "StatefulSet", True),  # it may be made once pod 0 is ready, and pod 2 once it is
        ({POD_INDEX: "0"}, "Job", False),
        ({INDEX: "0"}, "Job", False),
        ({INDEX: "0", "alpha.jobset.sigs.k8s.io/exclusive-topology": "rack"}, "Job", True),
        ({INDEX: "1", "alpha.jobset.sigs.k8s.io/exclusive-topology": "rack"}, "Job", False),
    ],
)
def test_who_is_made_before_the_others_of_its_group(says: dict[str, str], owner: str, *, leads: bool) -> None:
    assert member(OWN_GROUP | says, owner).leads is leads


@pytest.mark.parametrize(
    ("changed", "counts"),
    [
        ({}, True),
        ({"status": {"phase": "Failed"}}, False),
        ({"metadata": {"deletionTimestamp": "2026-11-30T12:00:00Z"}}, False),
        ({"metadata": {"ownerReferences": []}}, False),
        ({"metadata": {"annotations": {}}}, False),
    ],
    ids=["succeeded", "failed", "being deleted", "made by nothing", "of no group"],
)
def test_a_pod_that_has_succeeded_counts_for_its_group(changed: dict[str, dict[str, Any]], *, counts: bool) -> None:
    owner = {"kind": "Job", "name": "train", "uid": "job", "apiVersion": "batch/v1", "controller": True}
    group = {"neuron-plugin.io/group": "g", "neuron-plugin.io/group-size": "3"}
    manifest = pod_manifest("worker", annotations=group) | {"status": {"phase": "Succeeded"}}
    manifest["metadata"]["ownerReferences"] = [owner]
    for part, values in changed.items():
        manifest[part] |= values
    found = finished_member(PODS.decode(msgspec.json.encode(manifest)))
    assert found == (FinishedMember(("default", "g"), "Job/train") if counts else None)
