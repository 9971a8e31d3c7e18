"""What is reserved, as it is written into the leader's Lease."""

from __future__ import annotations

import random
import uuid

import pytest

from neuron_plugin.allocation.keys import GROUP_KEY, GROUP_SIZE_KEY
from neuron_plugin.placement.reserves import (
    MOST_PLAIN_BYTES,
    ReserveRecord,
    read_records,
    see_reserves,
    write_records,
)
from tests.support.manifests import pod_manifest
from tests.support.world import DEVICE, World

MOST_ANNOTATIONS = 256 << 10
"""Bytes of all annotations of an object (apimachinery, TotalAnnotationSizeLimitB)."""


def records(number: int) -> list[ReserveRecord]:
    """What is kept for the pods of a group, whose UIDs are random as those of an API server are."""
    chance = random.Random(1)  # noqa: S311
    return [
        ReserveRecord(
            uid=str(uuid.UUID(int=chance.getrandbits(128), version=4)),
            namespace="default",
            name=f"train-{each}",
            node=f"ip-10-0-{each // 250}-{each % 250}.us-west-2.compute.internal",
            cores="0-31",
            at=1764416000.5,
            group="default/train",
        )
        for each in range(number)
    ]


@pytest.mark.parametrize("number", [0, 1, 4000])
def test_what_was_written_is_read(number: int) -> None:
    written = write_records(records(number))
    assert list(read_records(written)) == records(number)
    assert len(written) < MOST_ANNOTATIONS
    assert written.startswith("[") is (len(written) <= MOST_PLAIN_BYTES and number < 4000)


def test_what_is_too_much_for_an_annotation_keeps_moves_ranks_and_spares() -> None:
    move = ReserveRecord(f"{0:036}", "default", "big", "a", "0-31", owners=("default/ReplicaSet/web",))
    rank, spare = record("default/ring#3", group="default/ring"), record("r#spare.1", group="default/r", lent_below=0)
    many = records(8000)
    written = write_records([*many[:4000], move, rank, *many[4000:], spare])
    assert len(written) < MOST_ANNOTATIONS
    assert list(read_records(written)) == [move, rank, spare]


def record(uid: str, *, group: str = "", lent_below: int | None = None) -> ReserveRecord:
    return ReserveRecord(uid, "default", uid, "node", "0-7", at=1.0, group=group, lent_below=lent_below)


SHOWN = {
    "a pod that waits": (record("waits"), True),
    "one that has its place": (record("runs"), False),
    "one that is gone": (record("gone"), False),
    "a rank of a group that is there": (record("default/ring#3", group="default/ring"), True),
    "a spare node of it": (record("default/ring#spare.1", group="default/ring", lent_below=0), True),
    "a rank of a group that is gone": (record("default/old#3", group="default/old"), False),
    "a rank of a replica that is made again": (record("default/lws/0#1", group="default/lws/0"), True),
}


@pytest.mark.parametrize(("kept", "is_shown"), SHOWN.values(), ids=SHOWN)
def test_who_does_not_lead_shows_what_the_leader_keeps_as_long_as_it_is_needed(
    world: World, kept: ReserveRecord, *, is_shown: bool
) -> None:
    world.node("node", "trn1.32xlarge")
    for name, group in (("waits", ""), ("runs", ""), ("ring-0", "ring")):
        manifest = pod_manifest(name, DEVICE, 1, node="node" if name == "runs" else "")
        manifest["metadata"]["uid"] = name
        if group:
            manifest["metadata"]["annotations"] = {GROUP_KEY: group, GROUP_SIZE_KEY: "2"}
        world.show(manifest)
    see_reserves(world.state, write_records([kept]))
    assert world.state.nodes["node"].reserved_mask == (0xFF if is_shown else 0)
    for text in ("{", "[]"):
        see_reserves(world.state, write_records([kept]))
        see_reserves(world.state, text)
        assert world.state.nodes["node"].reserved_mask == 0


@pytest.mark.parametrize("text", ["", "{", "[1]", "e30=", "eJw=", '[{"uid": "x"}]'])
def test_what_is_none_of_it_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"no records|base64|Incorrect padding"):
        read_records(text)
