"""kube-scheduler's extender messages: what comes in, as values, and what goes out, in Go's names.

The Go types carry no JSON tags, so today's scheduler sends their capitalised names and older callers lower-case ones
(staging/src/k8s.io/kube-scheduler/extender/v1/types.go). The usual spelling is decoded in one pass; only a body
without the expected keys is looked at again with its keys in any case. Whole nodes pass through as the bytes they
came in: the scheduler goes on with the objects we return.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import msgspec
from msgspec import UNSET, Raw, UnsetType

_Message = TypeVar("_Message")


class WireError(ValueError):
    """A body that is not the message the verb takes; the text says what was expected."""


class _NodeList(msgspec.Struct):
    items: list[Raw] | None = None


class _Args(msgspec.Struct, rename="pascal"):
    pod: Raw | None | UnsetType = UNSET
    nodes: _NodeList | None | UnsetType = UNSET
    node_names: list[str] | None | UnsetType = UNSET


class _BindArgs(msgspec.Struct):
    PodName: str | UnsetType = UNSET
    PodNamespace: str | UnsetType = UNSET
    PodUID: str | UnsetType = UNSET
    Node: str | UnsetType = UNSET


class _MetaPod(msgspec.Struct):
    UID: str


class _MetaVictims(msgspec.Struct):
    Pods: list[_MetaPod] | None = None
    NumPDBViolations: int = 0


class _Metadata(msgspec.Struct):
    name: str = ""
    uid: str = ""


class _Named(msgspec.Struct):
    metadata: _Metadata = msgspec.field(default_factory=_Metadata)


class _Victims(msgspec.Struct):
    Pods: list[_Named] | None = None
    NumPDBViolations: int = 0


class _PreemptArgs(msgspec.Struct):
    Pod: Raw | None | UnsetType = UNSET
    NodeNameToMetaVictims: dict[str, _MetaVictims] | None | UnsetType = UNSET
    NodeNameToVictims: dict[str, _Victims] | None | UnsetType = UNSET


class _FilterResult(msgspec.Struct):
    Nodes: dict[str, list[Raw]] | None
    NodeNames: list[str] | None
    FailedNodes: Mapping[str, str]
    FailedAndUnresolvableNodes: Mapping[str, str]
    Error: str


class _HostPriority(msgspec.Struct):
    Host: str
    Score: int


@dataclass(frozen=True, slots=True)
class FilterArgs:
    """One filter or prioritize call: the pod's JSON, the candidate names once each, and whole nodes if those came."""

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
_object_decoder = msgspec.json.Decoder(dict[str, Raw])
_encoder = msgspec.json.Encoder()

_FILTER_KEYS = ("Pod", "Nodes", "NodeNames")
_BIND_KEYS = ("PodName", "PodNamespace", "PodUID", "Node")
_PREEMPT_KEYS = ("Pod", "NodeNameToMetaVictims", "NodeNameToVictims")
_VICTIMS_KEYS = ("Pods", "NumPDBViolations")


def decode_filter(body: bytes) -> FilterArgs:
    """Read ``ExtenderArgs``. Names decide where both forms came; an empty list is a list.

    Raises:
        WireError: no ExtenderArgs, no Pod, or neither NodeNames nor Nodes.
    """
    args = _decoded(_args_decoder, body, "ExtenderArgs")
    if not args.pod or not (isinstance(args.node_names, list) or args.nodes):
        args = _decoded(_args_decoder, _canonical(body, _FILTER_KEYS, {"Nodes": _canonical_list}), "ExtenderArgs")
    if not args.pod:
        raise WireError("ExtenderArgs without Pod: send the pod that is to be scheduled")
    if isinstance(args.node_names, list):
        return FilterArgs(bytes(args.pod), _once(args.node_names))
    if not args.nodes:
        raise WireError("ExtenderArgs with neither NodeNames nor Nodes: send the candidate nodes")
    nodes = {_name_of(node): node for node in args.nodes.items or []}
    return FilterArgs(bytes(args.pod), list(nodes), nodes)


def decode_bind(body: bytes) -> BindArgs:
    """Read ``ExtenderBindingArgs``.

    Raises:
        WireError: not that, or one of its four texts is missing or empty.
    """
    args = _decoded(_bind_decoder, body, "ExtenderBindingArgs")
    if not (args.PodName and args.PodNamespace and args.PodUID and args.Node):
        args = _decoded(_bind_decoder, _canonical(body, _BIND_KEYS), "ExtenderBindingArgs")
    if not (args.PodName and args.PodNamespace and args.PodUID and args.Node):
        raise WireError(f"ExtenderBindingArgs needs {', '.join(_BIND_KEYS)}, none of them empty")
    return BindArgs(args.PodNamespace, args.PodName, args.PodUID, args.Node)


def decode_preempt(body: bytes) -> PreemptArgs:
    """Read ``ExtenderPreemptionArgs``, with victims as UIDs or as whole pods.

    Raises:
        WireError: not that, no Pod, or no victims in either form.
    """
    if not _has_preempt_keys(args := _decoded(_preempt_decoder, body, "ExtenderPreemptionArgs")):
        nested = {key: _canonical_victims for key in _PREEMPT_KEYS[1:]}
        args = _decoded(_preempt_decoder, _canonical(body, _PREEMPT_KEYS, nested), "ExtenderPreemptionArgs")
    if not args.Pod:
        raise WireError("ExtenderPreemptionArgs without Pod: send the pod that is to be scheduled")
    if args.NodeNameToMetaVictims:
        by_uid = args.NodeNameToMetaVictims.items()
        offered = {node: _victims([pod.UID for pod in v.Pods or []], v.NumPDBViolations) for node, v in by_uid}
    elif args.NodeNameToVictims:
        whole = args.NodeNameToVictims.items()
        offered = {node: _victims([pod.metadata.uid for pod in v.Pods or []], v.NumPDBViolations) for node, v in whole}
    else:
        offered = {}
    return PreemptArgs(bytes(args.Pod), offered)


def encode_filter(
    args: FilterArgs, passed: list[str], failed: Mapping[str, str], unresolvable: Mapping[str, str]
) -> bytes:
    """An ``ExtenderFilterResult`` in the form the question had: names, or the whole nodes unchanged."""
    if args.nodes is None:
        return _encoder.encode(_FilterResult(None, passed, failed, unresolvable, ""))
    items = [args.nodes[name] for name in passed]
    return _encoder.encode(_FilterResult({"items": items}, None, failed, unresolvable, ""))


def encode_scores(names: Sequence[str], scores: Sequence[int]) -> bytes:
    """A ``HostPriorityList``: a bare list."""
    return _encoder.encode([_HostPriority(name, score) for name, score in zip(names, scores, strict=True)])


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


def _decoded(decoder: msgspec.json.Decoder[_Message], body: bytes | Raw, expected: str) -> _Message:
    try:
        return decoder.decode(body)
    except RecursionError:
        raise WireError(f"the body is nested too deeply, expected {expected} as JSON") from None
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise WireError(f"{error}, expected {expected} as JSON") from None


def _canonical(
    body: bytes | Raw, keys: Sequence[str], nested: Mapping[str, _Canonicaliser] | None = None
) -> bytes:
    """The same object with known keys in Go's spelling; of two spellings of one key the later wins, as in Go."""
    spelling = {key.lower(): key for key in keys}
    found = {spelling.get(key.lower(), key): value for key, value in _decoded(_object_decoder, body, "an object").items()}
    for key, canonicalise in (nested or {}).items():
        if key in found and bytes(found[key]) != b"null":
            found[key] = Raw(canonicalise(found[key]))
    return _encoder.encode(found)


def _canonical_list(value: Raw) -> bytes:
    return _canonical(value, ("items",))


def _canonical_victims(value: Raw) -> bytes:
    by_node = _decoded(_object_decoder, value, "victims by node")
    return _encoder.encode({node: Raw(_canonical(raw, _VICTIMS_KEYS, {"Pods": _canonical_pods})) for node, raw in by_node.items()})


def _canonical_pods(value: Raw) -> bytes:
    pods = _decoded(msgspec.json.Decoder(list[Raw]), value, "a list of pods")
    return _encoder.encode([Raw(_canonical(pod, ("UID", "metadata"))) for pod in pods])


def _has_preempt_keys(args: _PreemptArgs) -> bool:
    offered = args.NodeNameToMetaVictims or args.NodeNameToVictims or {}
    return bool(args.Pod) and bool(offered) and all(victims.Pods for victims in offered.values())


def _victims(uids: list[str], violations: int) -> Victims:
    return Victims(tuple(uids), violations)


def _name_of(node: Raw) -> str:
    name = _decoded(_named_decoder, node, "a Node").metadata.name
    if not name:
        raise WireError("Nodes holds a node without metadata.name")
    return name


def _once(names: list[str]) -> list[str]:
    return names if len(set(names)) == len(names) else list(dict.fromkeys(names))
