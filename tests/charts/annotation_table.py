"""Texts of our annotations that people write, and how the program reads each of them.

Unit tests hold the table against the readers. The conformance suite holds it against the admission policy, as an API
server evaluates it: what the program reads is admitted, what it cannot read is refused.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import product
from typing import Final

import msgspec

from neuron_plugin.allocation import IdListError, Rejection, Resource
from neuron_plugin.allocation.constraints import read_constraints
from neuron_plugin.allocation.inventory import disabled_devices
from neuron_plugin.allocation.keys import (
    CONSTRAINT_KEYS,
    DISABLE_KEY,
    GROUP_KEY,
    GROUP_SIZE_KEY,
    LAST_CHECKPOINT_KEY,
    MOVABLE_KEY,
    PLACEMENT_KEY,
    PREFIX,
    PREFLIGHT_KEY,
    RANK_KEY,
    SLICE_KEY,
    SPARES_KEY,
    TOPOLOGY_KEY,
    WINDOW_KEY,
)
from neuron_plugin.allocation.pod import is_movable
from neuron_plugin.cluster import Pod
from neuron_plugin.cluster.pods import neuron_pod
from neuron_plugin.topology import MOST_DEVICES, Unit

OPT_OUT_KEY = f"{PREFIX}pod-defaults"
"""Only the admission policy ``pod-defaults`` reads it."""

KEYS: Final = (
    *CONSTRAINT_KEYS,
    PLACEMENT_KEY,
    MOVABLE_KEY,
    LAST_CHECKPOINT_KEY,
    GROUP_SIZE_KEY,
    PREFLIGHT_KEY,
    RANK_KEY,
    SLICE_KEY,
    SPARES_KEY,
    TOPOLOGY_KEY,
    WINDOW_KEY,
    DISABLE_KEY,
    OPT_OUT_KEY,
)

SHARING = ("a", "b")
"""Containers of the pod that has the annotations; each asks for cores."""


@dataclass(frozen=True)
class Texts:
    """What is read and what is refused of some annotations that have the same syntax."""

    keys: tuple[str, ...]
    read: tuple[str, ...]
    refused: tuple[str, ...]
    alphabet: str = field(default="", kw_only=True)
    """All texts of up to three of these characters are tried, too."""


def _keys(*names: str) -> tuple[str, ...]:
    return tuple(PREFIX + name for name in names)


_LONG = ",".join(map(str, range(MOST_DEVICES)))

TABLE: Final = (
    Texts(
        _keys("allow-devices", "deny-devices", "prefer-devices"),
        (" 0-7, 12", "63", "003", "3-3", "0-63", _LONG, " \t1\n", "0063", "\u00a01"),
        (
            *("", " ", "1;2", "neuron3", "64", "0-64", "0-", "-1", "1,,2", "1 - 3", "1-2-3", "00063", "٣", "1\n2"),
            "1".ljust(1025),
        ),
        alphabet="0-3, ",
    ),
    Texts(
        _keys("allow-devices", "disable-devices"),
        ("0", "5,7", "0-3"),
        ("9-3", "1,1", "0-3,2", "2,0-3", "0-3,3-5", "1," * 511 + "1", "1;2", ",", "64"),
        alphabet="0-3, ",
    ),
    Texts(_keys("disable-devices"), ("", " "), ()),
    Texts(
        _keys("device-name"),
        ("Trainium1, TRN2,trainium9", "trn9", "x" * 63, "a,a", "a.b_c-d"),
        ("", ",", "trn1,", "trn1 trn2", "-a", "a-", "x" * 64, "x," * 600 + "x", "trn1;trn2", "ä"),
        alphabet="a-, ",
    ),
    Texts(
        _keys("same-device"),
        ("a,b", " b , a "),
        ("", "a", "a,", "a,a", "a,b,a", "a,c", "A,b", "a b", "a," * 300 + "a"),
        alphabet="ab, ",
    ),
    Texts(_keys("prefer-numa"), ("true", " false ", "true\n"), ("", "yes", "True", "TRUE", "true,false", "1")),
    Texts(_keys("pod-defaults"), ("true", "false"), ("", "no", "False")),
    Texts(
        _keys("balance"), ("memory", " shares", "a" * 63), ("", "memory,other", "a" * 64, "-", "a b"), alphabet="a-, "
    ),
    Texts(_keys("placement"), ("pack", "spread", " spread ", ""), ("foo", "Pack", "spraed", "pack,spread")),
    Texts(_keys("group-size"), ("4", " 16\n", "99999"), ("", "0", "01", "-1", "four", "4.0", "100000", "1,2", "٤")),
    Texts(_keys("rank"), ("0", " 17", "999999"), ("", "-1", "1.0", "1000000", "first", "٤")),
    Texts(
        _keys("topology"),
        ("", "none", " required=leaf", "preferred=zone", "required=example.com/rack,preferred=node"),
        ("ultraserver", "required", "required=", "required=a,required=b", "required = leaf", "near=leaf", "required=-"),
    ),
    Texts(
        _keys("slice"),
        ("", "size=4,required=ultraserver", "required=topology.k8s.aws/network-node-layer-3,size=16 "),
        (
            *("size=4", "required=leaf", "size=0,required=leaf", "size=4,required=leaf,size=4"),
            *("4,leaf", "size=4;required=a"),
        ),
    ),
    Texts(_keys("spares"), ("0", " 1", "8\n", ""), ("9", "-1", "01", "1.0", "one", "1,2", "٤")),
    Texts(_keys("preflight"), ("group", " group", ""), ("groups", "node", "true")),
    Texts(_keys("window"), ("any", " any", ""), ("same", "ANY", "any,any")),
    Texts(_keys("movable"), ("true", "True", "FALSE", " false", "true\n"), ("", "maybe", "yes", "1", "true,false")),
    Texts(
        _keys("last-checkpoint"),
        (
            *("2026-11-22T16:00:00Z", "2026-11-22T16:00:00.123456789Z", " 1971-01-01T00:00:00+14:00"),
            *("2026-01-01T00:00:00.5Z", "2026-12-31T23:59:59+23:59", "9999-12-31T00:00:00Z", "1972-02-29T00:00:00Z"),
            *("1976-02-29T00:00:00Z", "2000-02-29T00:00:00Z", "2024-02-29T23:59:59-23:59", "2400-02-29T00:00:00Z"),
        ),
        (
            *("", "yesterday", "1767225600", "2026-11-22", "2026-11-22T16:00:00", "2026-11-22 16:00:00Z"),
            # No day, no time or no zone that there is.
            *("2026-11-22T16:00Z", "2026-02-29T00:00:00Z", "2100-02-29T00:00:00Z", "2026-04-31T00:00:00Z"),
            *("2026-13-01T00:00:00Z", "2026-00-01T00:00:00Z", "2026-01-00T00:00:00Z", "2026-01-01T24:00:00Z"),
            *("2026-01-01T23:60:00Z", "2026-01-01T23:59:60Z", "2026-01-01T00:00:00+24:00", "2026-01-01T00:00:00+01:60"),
            # Too early, and what other readers of ISO 8601 take.
            *("1970-12-31T00:00:00Z", "0001-01-01T00:00:00+14:00", "20260101T000000Z", "2026-W01-1T00:00:00Z"),
            *("2026-01-01T00:00:00z", "2026-01-01t00:00:00Z", "2026-01-01T00:00:00,5Z", "2026-01-01T00:00:00.Z"),
            "2026-01-01T00:00:00+0100",
        ),
    ),
)


def rows() -> list[tuple[str, str, bool]]:
    """Key, text, and whether the program reads it."""
    return [
        (key, text, text in texts.read)
        for texts in TABLE
        for key in texts.keys
        for text in (*texts.read, *texts.refused)
    ]


def short_texts() -> list[tuple[str, str]]:
    """Key and text: every text of up to three characters that matter in a key of each syntax."""
    return [
        (texts.keys[-1], "".join(characters))
        for texts in TABLE
        if texts.alphabet
        for length in range(4)
        for characters in product(texts.alphabet, repeat=length)
    ]


def reads(key: str, text: str) -> bool:
    """Whether the program reads a text. What it cannot read it refuses, or takes for the safer of two answers."""
    if key in CONSTRAINT_KEYS:
        return not isinstance(read_constraints({key: text}, [(name, Unit.CORE) for name in SHARING]), Rejection)
    if key == DISABLE_KEY:
        return _disables(text)
    limits = {Resource.NEURON.value: "1"}
    container = {"name": "main", "resources": {"limits": limits}}
    annotations = {GROUP_KEY: "g", key: text}
    found = {"metadata": {"name": "p", "annotations": annotations}, "spec": {"containers": [container]}}
    pod = neuron_pod(msgspec.convert(found, Pod))
    if key == PLACEMENT_KEY:
        return not isinstance(pod.strategy, Rejection)
    assert pod.member
    if key == GROUP_SIZE_KEY:
        return pod.member.size > 0
    if key == RANK_KEY:
        return pod.member.rank is not None
    if key in {PREFLIGHT_KEY, SLICE_KEY, SPARES_KEY, TOPOLOGY_KEY, WINDOW_KEY}:
        return pod.member.unreadable is None
    if key == LAST_CHECKPOINT_KEY:
        return pod.last_checkpoint > 0
    word = text.strip()
    if key == MOVABLE_KEY:
        assert is_movable({key: text}) is (word.lower() == "true")
        return word.lower() in {"true", "false"}
    return word in {"true", "false"}


def _disables(text: str) -> bool:
    """Ids that no node can have are read, and the node's event names them: the policy refuses these, too."""
    try:
        return all(device < MOST_DEVICES for device in disabled_devices(text))
    except IdListError:
        return False
