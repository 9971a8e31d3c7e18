"""What PersistentVolumeClaims ask of a node, bound or not; attach limits; and what cannot be judged."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

from neuron_plugin.allocation.node_rules import NodeSelectorTerm, PlacedPod, Requirement, pod_labels
from neuron_plugin.allocation.volumes import Claim, StorageClass, Volume
from neuron_plugin.planning.population import Population
from neuron_plugin.planning.volumes import NO_PROVISIONER, Storage

EBS, ZONE = "ebs.csi.aws.com", "topology.kubernetes.io/zone"
IN_X = NodeSelectorTerm((Requirement(ZONE, "In", ("x",)),))
STORAGE = Storage(
    claims={
        ("ml", name): claim
        for name, claim in {
            "bound": Claim("disk"),
            "other": Claim("disk-2"),
            "waits": Claim(storage_class="gp3"),
            "in-x": Claim(storage_class="gp3-x"),
            "made-on-a": Claim(storage_class="gp3", selected_node="a"),
            "at-once": Claim(storage_class="now"),
            "local": Claim(storage_class="local"),
            "counted": Claim(storage_class="counted"),
            "lost": Claim("disk", lost=True),
            "deleted": Claim("disk", terminating=True),
            "once": Claim("disk", once=True),
            "no-volume": Claim("gone"),
            "no-class": Claim(storage_class="gone"),
        }.items()
    },
    volumes={
        "disk": Volume("disk", (IN_X,), driver=EBS, handle="vol-1"),
        "disk-2": Volume("disk-2", None, ((ZONE, frozenset({"x", "y"})),), EBS, "vol-2"),
    },
    classes={
        "gp3": StorageClass(EBS, waits=True),
        "gp3-x": StorageClass(EBS, waits=True, topologies=(IN_X,)),
        "now": StorageClass(EBS),
        "local": StorageClass(NO_PROVISIONER, waits=True),
        "counted": StorageClass("local.csi", waits=True),
    },
    limits={"a": {EBS: 2}},
    with_capacity=frozenset({"local.csi"}),
)


def using(*claims: str, node: str = "a") -> Population:
    population = Population()
    population.put("other", PlacedPod(node, pod_labels("ml", {}), claims=claims))
    return population


@pytest.mark.parametrize(
    ("claim", "labels", "reasons"),
    [
        ("bound", {ZONE: "x"}, []),
        ("bound", {ZONE: "y"}, ["cannot use the volume disk"]),
        ("other", {ZONE: "y"}, []),
        ("other", {ZONE: "z"}, ["is not in a zone of the volume disk-2"]),
        ("other", {}, []),
        ("waits", {}, []),
        ("in-x", {ZONE: "y"}, ["cannot use the volume in-x"]),
        ("made-on-a", {}, ["is not where a volume of the pod is being made"]),
    ],
)
def test_a_node_has_to_be_able_to_use_the_volume(claim: str, labels: Mapping[str, str], reasons: list[str]) -> None:
    volumes = STORAGE.of("ml", [claim], Population())
    assert (volumes.waits, volumes.doubt) == ("", "")
    assert list(volumes.objections("b", labels)) == reasons


@pytest.mark.parametrize(
    ("claim", "why"),
    [
        ("nosuch", "PersistentVolumeClaim nosuch does not exist"),
        ("lost", "PersistentVolumeClaim lost lost its volume"),
        ("deleted", "PersistentVolumeClaim deleted is being deleted"),
        ("at-once", "PersistentVolumeClaim at-once is not bound yet"),
        ("no-volume", "PersistentVolume gone does not exist"),
        ("no-class", "PersistentVolumeClaim no-class has no volume and no StorageClass"),
    ],
)
def test_a_pod_waits_for_what_no_node_can_mend(claim: str, why: str) -> None:
    assert STORAGE.of("ml", ["bound", claim], Population()).waits == why


def test_a_claim_for_one_pod_waits_while_another_uses_it() -> None:
    assert not STORAGE.of("ml", ["once"], Population()).waits
    assert STORAGE.of("ml", ["once"], using("once")).waits.endswith("is ReadWriteOncePod, and a pod uses it")


@pytest.mark.parametrize(
    ("claim", "doubt"), [("local", "made by hand"), ("counted", "publishes where storage is left")]
)
def test_what_depends_on_volumes_that_cannot_be_seen_is_in_doubt(claim: str, doubt: str) -> None:
    assert doubt in STORAGE.of("ml", [claim], Population()).doubt


def test_without_the_right_to_read_storage_all_of_it_is_in_doubt_and_before_the_first_list_it_waits() -> None:
    unread = Storage(doubt="persistentvolumes cannot be read")
    assert unread.of("ml", ["bound"], Population()).doubt == "persistentvolumes cannot be read"
    assert Storage(waits="its volumes are being looked up").of("ml", ["bound"], Population()).waits


@pytest.mark.parametrize(
    ("there", "asked", "node", "why"),
    [
        (("bound",), ("other",), "a", ""),
        (("bound", "other"), ("waits",), "a", f"has 2 volumes of {EBS} at most, with the pod 3"),
        (("bound", "other"), ("bound",), "a", ""),  # attached already
        (("bound", "other"), ("waits",), "b", ""),  # its driver says no number there
        ((), ("bound", "other", "waits"), "a", f"has 2 volumes of {EBS} at most, with the pod 3"),
        (("bound", "other"), ("counted",), "a", ""),
    ],
)
def test_no_more_volumes_are_attached_than_the_driver_can(
    there: tuple[str, ...], asked: tuple[str, ...], node: str, why: str
) -> None:
    population = using(*there, node=node)
    volumes = STORAGE.of("ml", asked, population)
    assert STORAGE.too_many_attached(node, volumes, population.claimants(node)) == why


def test_a_copy_is_as_of_now() -> None:
    storage = replace(STORAGE, claims=dict(STORAGE.claims))
    copied = storage.copy()
    storage.claims.clear()  # type: ignore[attr-defined]  # a dict here
    assert copied.of("ml", ["bound"], Population()).wants
