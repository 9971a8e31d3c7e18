"""What the simulated API server does with the objects of Dynamic Resource Allocation alone.

The rules are functions of values. Facts: ``pkg/apis/resource/validation/validation.go`` and
``pkg/registry/resource/*/strategy.go`` of 1.36.2. Of an object only what this project's programs, kubectl and the
controllers write is looked at.
"""

from __future__ import annotations

from collections.abc import Iterator

from neuron_plugin.simulation.api_server_kinds import RESOURCE_SLICES, AnyJson, Refusal, ServedKind, invalid

MOST_RESERVED = 256
"""Pods that may use one claim."""
_IMMUTABLE = "Invalid value: field is immutable"


def claim_as_made(claim: AnyJson) -> AnyJson:
    """A new claim: its status is dropped, and its exact requests get their defaults."""
    made = {name: value for name, value in claim.items() if name != "status"}
    return made | {"spec": with_defaults(made.get("spec") or {}), "status": {}}


def with_defaults(spec: AnyJson) -> AnyJson:
    """A claim's spec with the mode and count that exact requests default to (``pkg/apis/resource/v1/defaults.go``)."""
    devices = dict(spec.get("devices") or {})
    requests = []
    for request in devices.get("requests") or ():
        exact = request.get("exactly")
        if exact is not None:
            exact = {"allocationMode": "ExactCount", **exact}
            exact = {"count": 1, **exact} if exact["allocationMode"] == "ExactCount" else exact
        requests.append(request if exact is None else {**request, "exactly": exact})
    if requests:
        devices["requests"] = requests
    return spec | {"devices": devices}


def check_claim(old: AnyJson, new: AnyJson) -> None:
    """Check what a write makes of a claim: its spec stays, and an allocation is only set or cleared as a whole.

    Raises:
        Refusal: 422, with the real server's texts.
    """
    if problems := list(_claim_problems(old, new)):
        raise _refused("ResourceClaim", old, problems)


def _claim_problems(old: AnyJson, new: AnyJson) -> Iterator[str]:
    if new.get("spec") != old.get("spec"):
        yield f"spec: {_IMMUTABLE}"
    before, after = old.get("status") or {}, new.get("status") or {}
    had, has = before.get("allocation"), after.get("allocation")
    if had and has and had != has:
        yield f"status.allocation: {_IMMUTABLE}"
    known, reserved = before.get("reservedFor") or [], after.get("reservedFor") or []
    if len(reserved) > MOST_RESERVED:
        yield f"status.reservedFor: Too many: {len(reserved)}: must have at most {MOST_RESERVED} items"
    if len({consumer.get("uid") for consumer in reserved}) < len(reserved):
        yield "status.reservedFor: Duplicate value"
    if reserved and not has:
        yield "status.reservedFor: Forbidden: may not be specified when `allocated` is not set"
    elif old["metadata"].get("deletionTimestamp") and any(consumer not in known for consumer in reserved):
        yield (
            "status.reservedFor: Forbidden: new entries may not be added while `deallocationRequested` or "
            "`deletionTimestamp` are set"
        )


def check_fixed(kind: ServedKind, old: AnyJson, new: AnyJson) -> None:
    """Check that a template stays, and that a slice stays one of the same node, driver and pool.

    Raises:
        Refusal: 422, with the real server's texts.
    """
    before, after = old.get("spec") or {}, new.get("spec") or {}
    problems = [f"spec: {_IMMUTABLE}"] if before != after else []
    if kind is RESOURCE_SLICES:
        parts = {name: (before.get(name), after.get(name)) for name in ("driver", "nodeName")}
        pool, would_be = before.get("pool") or {}, after.get("pool") or {}
        parts["pool.name"] = pool.get("name"), would_be.get("name")
        problems = [f"spec.{name}: {_IMMUTABLE}" for name, (was, would) in parts.items() if was != would]
    if problems:
        raise _refused(kind.kind, old, problems)


def _refused(kind: str, old: AnyJson, problems: list[str]) -> Refusal:
    text = problems[0] if len(problems) == 1 else f"[{', '.join(problems)}]"
    return invalid(kind, old["metadata"]["name"], text)


# For kubectl's tables (pkg/printers/internalversion/printers.go).


def claim_state(claim: AnyJson) -> str:
    """What becomes of a claim, in a word or some."""
    status, deleted = claim.get("status") or {}, bool(claim["metadata"].get("deletionTimestamp"))
    words = ["deleted"] * deleted
    if status.get("allocation"):
        words += ["allocated", *["reserved"] * bool(status.get("reservedFor"))]
    return ",".join(words if deleted or status.get("allocation") else ["pending"])


def claim_node(claim: AnyJson) -> str:
    """The node that a claim's allocation names; empty where it names none."""
    allocation = (claim.get("status") or {}).get("allocation") or {}
    for term in (allocation.get("nodeSelector") or {}).get("nodeSelectorTerms") or ():
        for requirement in (*(term.get("matchFields") or ()), *(term.get("matchExpressions") or ())):
            if requirement.get("key") in {"metadata.name", "kubernetes.io/hostname"} and requirement.get("values"):
                return str(requirement["values"][0])
    return ""
