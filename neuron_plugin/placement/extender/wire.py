"""kube-scheduler's extender messages: what comes in, as values, and what goes out, in Go's names.

The Go types carry no JSON tags, so the keys are the names of Go's fields
(staging/src/k8s.io/kube-scheduler/extender/v1/types.go). Unknown keys are passed over. Whole nodes pass through as the
bytes they came in: the scheduler goes on with the objects that it gets back.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TypeVar

import msgspec
from msgspec import Raw

from neuron_plugin.placement.extender.preempt import Victims

_Message = TypeVar("_Message")
_NULL = b"null"
LOOKS_BEFORE_DECODING = 8
"""From so many single names on, decoding the whole list costs less."""
_ABSENT = Raw(_NULL)


class WireError(ValueError):
    """A call that cannot be decided, for one because its body is not the verb's message; the text is the answer."""


class _NodeList(msgspec.Struct):
    items: list[Raw] | None = None


class _Metadata(msgspec.Struct):
    name: str = ""
    uid: str = ""


class _Named(msgspec.Struct):
    metadata: _Metadata = msgspec.field(default_factory=_Metadata)


class _Args(msgspec.Struct, rename="pascal"):
    pod: Raw = _ABSENT
    nodes: _NodeList | None = None
    node_names: Raw = _ABSENT


class _VictimPod(_Named):
    """A whole pod, or its UID alone."""

    uid: str = msgspec.field(default="", name="UID")


class _Victims(msgspec.Struct):
    pods: list[_VictimPod] | None = msgspec.field(default=None, name="Pods")
    violations: int = msgspec.field(default=0, name="NumPDBViolations")


class _PreemptArgs(msgspec.Struct, rename="pascal"):
    pod: Raw = _ABSENT
    node_name_to_meta_victims: dict[str, _Victims] | None = None
    node_name_to_victims: dict[str, _Victims] | None = None


class _HostPriority(msgspec.Struct, rename="pascal", gc=False):
    host: str
    score: int


class BindArgs(msgspec.Struct, frozen=True):
    """One bind call."""

    namespace: str = msgspec.field(default="", name="PodNamespace")
    name: str = msgspec.field(default="", name="PodName")
    uid: str = msgspec.field(default="", name="PodUID")
    node: str = msgspec.field(default="", name="Node")


@dataclass
class Names:
    """The candidates' names as they came. To look for one or two costs a tenth of decoding them all."""

    text: bytes
    looks: int = LOOKS_BEFORE_DECODING
    """How often a name is looked for in the text. In one with escapes it cannot be."""

    def __contains__(self, name: object) -> bool:
        if self.looks and isinstance(name, str):
            self.looks -= 1
            return b'"%s"' % name.encode() in self.text
        return name in self._as_set

    @cached_property
    def listed(self) -> list[str]:
        """All of them.

        Raises:
            WireError: no list of names.
        """
        return _decoded(list[str], self.text, "ExtenderArgs")

    @cached_property
    def _as_set(self) -> frozenset[str]:
        return frozenset(self.listed)


@dataclass(frozen=True, slots=True)
class FilterArgs:
    """One filter or prioritize call: the pod's JSON and UID, the candidate names, and whole nodes if those came.

    ``one_node``: no more than one candidate is there. A candidate is named once, so nothing here looks for a name that
    comes twice: that would cost a third of what the decision does.
    """

    pod: bytes
    uid: str
    called: Names
    nodes: Mapping[str, Raw] | None = None
    one_node: bool = False

    @property
    def names(self) -> list[str]:
        """The candidate names, decoded."""
        return self.called.listed


@dataclass(frozen=True, slots=True)
class PreemptArgs:
    """One preempt call: the pod's JSON and UID, and the victims offered per node."""

    pod: bytes
    uid: str
    victims: Mapping[str, Victims]


_encode = msgspec.json.Encoder().encode


def decode_filter(body: bytes) -> FilterArgs:
    """Read ``ExtenderArgs``. Names decide where both forms came; an empty list is a list.

    Raises:
        WireError: no ExtenderArgs, no Pod, or neither NodeNames nor Nodes.
    """
    args = _decoded(_Args, body, "ExtenderArgs")
    if (pod := bytes(args.pod)) == _NULL:
        raise WireError("ExtenderArgs without Pod: send the pod that is to be scheduled")
    uid = _decoded(_Named, pod, "a Pod").metadata.uid
    if (names := bytes(args.node_names)) != _NULL:
        if not names.startswith(b"["):
            raise WireError("NodeNames is no list, expected ExtenderArgs as JSON")
        called = Names(names, 0 if b"\\" in names else LOOKS_BEFORE_DECODING)
        return FilterArgs(pod, uid, called, one_node=b"," not in names)
    if args.nodes is None:
        raise WireError("ExtenderArgs with neither NodeNames nor Nodes: send the candidate nodes")
    nodes = {}
    for node in args.nodes.items or ():
        name = _decoded(_Named, node, "a Node").metadata.name
        if not name:
            raise WireError("Nodes holds a node without metadata.name")
        nodes[name] = node
    return FilterArgs(pod, uid, Names(_encode(list(nodes)), 0), nodes, one_node=len(nodes) <= 1)


def decode_bind(body: bytes) -> BindArgs:
    """Read ``ExtenderBindingArgs``.

    Raises:
        WireError: not that, or one of its four texts is missing or empty.
    """
    args = _decoded(BindArgs, body, "ExtenderBindingArgs")
    if not all(msgspec.structs.astuple(args)):
        raise WireError("ExtenderBindingArgs needs PodName, PodNamespace, PodUID, Node, none of them empty")
    return args


def decode_preempt(body: bytes) -> PreemptArgs:
    """Read ``ExtenderPreemptionArgs``, with victims as UIDs or as whole pods.

    Raises:
        WireError: not that, or no Pod.
    """
    args = _decoded(_PreemptArgs, body, "ExtenderPreemptionArgs")
    if (pod := bytes(args.pod)) == _NULL:
        raise WireError("ExtenderPreemptionArgs without Pod: send the pod that is to be scheduled")
    offered = {
        node: Victims(tuple(victim.uid or victim.metadata.uid for victim in victims.pods or ()), victims.violations)
        for node, victims in (args.node_name_to_meta_victims or args.node_name_to_victims or {}).items()
    }
    return PreemptArgs(pod, _decoded(_Named, pod, "a Pod").metadata.uid, offered)


def encode_filter(
    args: FilterArgs, passed: list[str], failed: Mapping[str, str], unresolvable: Mapping[str, str]
) -> bytes:
    """An ``ExtenderFilterResult`` in the form the question had: names, or the whole nodes unchanged."""
    answer = {
        "Nodes": None if args.nodes is None else {"items": [args.nodes[name] for name in passed]},
        "NodeNames": passed if args.nodes is None else None,
        "FailedNodes": failed,
        "FailedAndUnresolvableNodes": unresolvable,
        "Error": "",
    }
    return _encode(answer)


def encode_scores(names: Sequence[str], scores: Sequence[int]) -> bytes:
    """A ``HostPriorityList``: a bare list."""
    return _encode(list(map(_HostPriority, names, scores)))


def encode_victims(victims: Mapping[str, Victims]) -> bytes:
    """An ``ExtenderPreemptionResult``, always by UID."""
    answer = {
        node: {"Pods": [{"UID": uid} for uid in chosen.uids], "NumPDBViolations": chosen.pdb_violations}
        for node, chosen in victims.items()
    }
    return _encode({"NodeNameToMetaVictims": answer})


def encode_error(text: str) -> bytes:
    """Any verb's failure. It goes out with HTTP 200: of any other status the scheduler does not read the body."""
    return _encode({"Error": text})


def _decoded(message: type[_Message], body: bytes | Raw, expected: str) -> _Message:
    try:
        return msgspec.json.decode(body, type=message)
    except RecursionError:
        raise WireError(f"the body is nested too deeply, expected {expected} as JSON") from None
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise WireError(f"{error}, expected {expected} as JSON") from None
