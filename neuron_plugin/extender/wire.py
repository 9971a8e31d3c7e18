"""kube-scheduler's extender messages: what comes in, as values, and what goes out, in Go's names.

Go's own names are decoded in one pass; only a body with any other key is rewritten (`spelling`) and read again. Whole
nodes pass through as the bytes they came in: the scheduler goes on with the objects we return.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import msgspec
from msgspec import Raw

from neuron_plugin.extender.spelling import NULL, Rewrite, WireError, decoded, each_item, each_value, keys_of

_Message = TypeVar("_Message")
_ABSENT = Raw(NULL)
_GO_NAMES = {
    "pod_name": "PodName",
    "pod_namespace": "PodNamespace",
    "pod_uid": "PodUID",
    "node": "Node",
    "uid": "UID",
    "pods": "Pods",
    "violations": "NumPDBViolations",
}


class _NodeList(msgspec.Struct, rename="camel", forbid_unknown_fields=True):
    items: list[Raw] | None = None
    metadata: Raw = _ABSENT
    kind: Raw = _ABSENT
    api_version: Raw = _ABSENT


class _Args(msgspec.Struct, rename="pascal", forbid_unknown_fields=True):
    pod: Raw = _ABSENT
    nodes: _NodeList | None = None
    node_names: list[str] | None = None


class _BindArgs(msgspec.Struct, rename=_GO_NAMES, forbid_unknown_fields=True):
    pod_name: str = ""
    pod_namespace: str = ""
    pod_uid: str = ""
    node: str = ""


class _MetaPod(msgspec.Struct, rename=_GO_NAMES):
    uid: str


class _MetaVictims(msgspec.Struct, rename=_GO_NAMES, forbid_unknown_fields=True):
    pods: list[_MetaPod] | None = None
    violations: int = 0


class _Metadata(msgspec.Struct):
    name: str = ""
    uid: str = ""


class _Named(msgspec.Struct):
    metadata: _Metadata = msgspec.field(default_factory=_Metadata)


class _Victims(msgspec.Struct, rename=_GO_NAMES, forbid_unknown_fields=True):
    pods: list[_Named] | None = None
    violations: int = 0


class _PreemptArgs(msgspec.Struct, rename="pascal", forbid_unknown_fields=True):
    pod: Raw = _ABSENT
    node_name_to_meta_victims: dict[str, _MetaVictims] | None = None
    node_name_to_victims: dict[str, _Victims] | None = None


class _FilterResult(msgspec.Struct, rename="pascal"):
    nodes: dict[str, list[Raw]] | None
    node_names: list[str] | None
    failed_nodes: Mapping[str, str]
    failed_and_unresolvable_nodes: Mapping[str, str]
    error: str = ""


class _HostPriority(msgspec.Struct, rename="pascal", gc=False):
    host: str
    score: int


@dataclass(frozen=True, slots=True)
class FilterArgs:
    """One filter or prioritize call: the pod's JSON, the candidate names, and whole nodes if those came.

    kube-scheduler names a candidate once, so nobody here looks for a name that comes twice: that would cost a third
    of what the decision does.
    """

    pod: bytes
    names: list[str]
    nodes: Mapping[str, Raw] | None = None


@dataclass(frozen=True, slots=True)
class BindArgs:
    """One bind call."""

    namespace: str
    name: str
    uid: str
    node: str


@dataclass(frozen=True, slots=True)
class Victims:
    """The pods, by UID in falling priority, whose eviction the scheduler considers on one node."""

    uids: tuple[str, ...]
    pdb_violations: int = 0


@dataclass(frozen=True, slots=True)
class PreemptArgs:
    """One preempt call: the pod's JSON and the victims offered per node."""

    pod: bytes
    victims: Mapping[str, Victims]


_args_decoder = msgspec.json.Decoder(_Args)
_bind_decoder = msgspec.json.Decoder(_BindArgs)
_preempt_decoder = msgspec.json.Decoder(_PreemptArgs)
_named_decoder = msgspec.json.Decoder(_Named)
_encoder = msgspec.json.Encoder()

_BIND_KEYS = ("PodName", "PodNamespace", "PodUID", "Node")

_filter_keys = keys_of("ExtenderArgs", "Pod", "Nodes", "NodeNames", nested={"Nodes": keys_of("Nodes", "items")})
_bind_keys = keys_of("ExtenderBindingArgs", *_BIND_KEYS)
_victims_keys = each_value(
    "victims by node",
    keys_of(
        "Victims",
        "Pods",
        "NumPDBViolations",
        nested={"Pods": each_item("pods", keys_of("a pod", "UID", "metadata"))},
    ),
)
_preempt_keys = keys_of(
    "ExtenderPreemptionArgs",
    "Pod",
    "NodeNameToMetaVictims",
    "NodeNameToVictims",
    nested={"NodeNameToMetaVictims": _victims_keys, "NodeNameToVictims": _victims_keys},
)


def decode_filter(body: bytes) -> FilterArgs:
    """Read ``ExtenderArgs``. Names decide where both forms came; an empty list is a list.

    Raises:
        WireError: no ExtenderArgs, no Pod, or neither NodeNames nor Nodes.
    """
    args = _in_any_case(_args_decoder, body, _filter_keys, "ExtenderArgs")
    pod = bytes(args.pod)
    if pod == NULL:
        raise WireError("ExtenderArgs without Pod: send the pod that is to be scheduled")
    if args.node_names is not None:
        return FilterArgs(pod, args.node_names)
    if args.nodes is None:
        raise WireError("ExtenderArgs with neither NodeNames nor Nodes: send the candidate nodes")
    nodes = {_name_of(node): node for node in args.nodes.items or ()}
    return FilterArgs(pod, list(nodes), nodes)


def decode_bind(body: bytes) -> BindArgs:
    """Read ``ExtenderBindingArgs``.

    Raises:
        WireError: not that, or one of its four texts is missing or empty.
    """
    args = _in_any_case(_bind_decoder, body, _bind_keys, "ExtenderBindingArgs")
    if not all(msgspec.structs.astuple(args)):
        raise WireError(f"ExtenderBindingArgs needs {', '.join(_BIND_KEYS)}, none of them empty")
    return BindArgs(args.pod_namespace, args.pod_name, args.pod_uid, args.node)


def decode_preempt(body: bytes) -> PreemptArgs:
    """Read ``ExtenderPreemptionArgs``, with victims as UIDs or as whole pods.

    Raises:
        WireError: not that, or no Pod.
    """
    args = _in_any_case(_preempt_decoder, body, _preempt_keys, "ExtenderPreemptionArgs")
    pod = bytes(args.pod)
    if pod == NULL:
        raise WireError("ExtenderPreemptionArgs without Pod: send the pod that is to be scheduled")
    return PreemptArgs(pod, _offered(args))


def encode_filter(
    args: FilterArgs, passed: list[str], failed: Mapping[str, str], unresolvable: Mapping[str, str]
) -> bytes:
    """An ``ExtenderFilterResult`` in the form the question had: names, or the whole nodes unchanged."""
    if args.nodes is None:
        return _encoder.encode(_FilterResult(None, passed, failed, unresolvable))
    items = [args.nodes[name] for name in passed]
    return _encoder.encode(_FilterResult({"items": items}, None, failed, unresolvable))


def encode_scores(names: Sequence[str], scores: Sequence[int]) -> bytes:
    """A ``HostPriorityList``: a bare list."""
    return _encoder.encode(list(map(_HostPriority, names, scores)))


def encode_victims(victims: Mapping[str, Victims]) -> bytes:
    """An ``ExtenderPreemptionResult``, always by UID."""
    answer = {
        node: _MetaVictims([_MetaPod(uid) for uid in chosen.uids], chosen.pdb_violations)
        for node, chosen in victims.items()
    }
    return _encoder.encode({"NodeNameToMetaVictims": answer})


def encode_error(text: str) -> bytes:
    """Any verb's failure. It goes out with HTTP 200: of any other status the scheduler does not read the body."""
    return _encoder.encode({"Error": text})


def _in_any_case(decoder: msgspec.json.Decoder[_Message], body: bytes, rewrite: Rewrite, expected: str) -> _Message:
    try:
        return decoder.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return decoded(decoder, rewrite(body), expected)


def _offered(args: _PreemptArgs) -> dict[str, Victims]:
    if args.node_name_to_meta_victims:
        by_uid = args.node_name_to_meta_victims.items()
        return {node: Victims(tuple(pod.uid for pod in found.pods or ()), found.violations) for node, found in by_uid}
    whole = (args.node_name_to_victims or {}).items()
    return {
        node: Victims(tuple(pod.metadata.uid for pod in found.pods or ()), found.violations) for node, found in whole
    }


def _name_of(node: Raw) -> str:
    name = decoded(_named_decoder, node, "a Node").metadata.name
    if not name:
        raise WireError("Nodes holds a node without metadata.name")
    return name
