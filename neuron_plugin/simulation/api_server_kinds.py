"""The kinds, paths and selectors that the simulated API server knows, and the Status object of a refusal.

The texts of refusals matter: only they tell clients "bound already" from "being deleted". They follow
``staging/src/k8s.io/apimachinery/pkg/api/errors/errors.go``.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

from neuron_plugin.allocation.node_rules import Requirement

AnyJson = dict[str, Any]
Selector = Callable[[AnyJson], bool]

_REASONS = {410: "Expired", 422: "Invalid", 500: "InternalError"}
"""Reasons that differ from HTTP's reason phrases."""
_NAME = r"[A-Za-z0-9](?:[-\w.]{0,61}[A-Za-z0-9])?"
_REQUIREMENT = re.compile(
    rf"""\s* (?P<absent>!\s*)? (?P<label>(?:[a-z0-9][-a-z0-9.]*/)?{_NAME}) (?(absent)|(?:
        \s* (?P<equals>==?|!=) \s* (?P<value>(?:{_NAME})?) |
        \s+ (?P<among>in|notin) \s* \( (?!\s*\)) (?P<values>\s*(?:{_NAME})?\s*(?:,\s*(?:{_NAME})?\s*)*) \) )? )
    \s* (?:,(?=.)|$)""",
    re.ASCII | re.VERBOSE,
)
_OPERATORS = {None: "Exists", "!": "DoesNotExist", "in": "In", "notin": "NotIn", "=": "In", "==": "In", "!=": "NotIn"}
_TERM = re.compile(r"^\s*([^\s!=,()]+)\s*(=|==|!=)\s*([^\s!=,()]*)\s*$")


class Refusal(Exception):  # noqa: N818 - an answer, not a failure of this program
    """An answer of 400 or more, with the real server's code and text. The reason follows from the code by default."""

    def __init__(self, code: int, message: str, *, reason: str = "", **details: Any) -> None:
        super().__init__(message)
        self.code = code
        self.reason = reason or _REASONS.get(code) or HTTPStatus(code).phrase.replace(" ", "")
        self.message = message
        self.details = details

    def status(self) -> AnyJson:
        """Return the Status object of answers and ERROR events."""
        status: AnyJson = {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "message": self.message,
            "reason": self.reason,
            "code": self.code,
        }
        return status | {"details": self.details} if self.details else status


def conflict(resource: str, name: str, why: str) -> Refusal:
    """Return the refusal of a request with an unmet precondition."""
    text = f'Operation cannot be fulfilled on {resource} "{name}": {why}'
    return Refusal(409, text, name=name, kind=resource)


def invalid(kind: str, name: str, why: str) -> Refusal:
    """Return the refusal of an object that breaks a rule."""
    return Refusal(422, f'{kind} "{name}" is invalid: {why}', name=name, kind=kind)


@dataclass(frozen=True, slots=True)
class ServedKind:
    """A kind: the path of its API group, its names, and its selectable fields."""

    group: str
    plural: str
    kind: str
    namespaced: bool = True
    fields: tuple[str, ...] = ()
    subresources: tuple[str, ...] = ()

    @property
    def version(self) -> str:
        """The ``apiVersion``."""
        return self.group.removeprefix("/apis/").removeprefix("/api/")

    @property
    def resource(self) -> str:
        """The name in messages: plural and group, such as ``leases.coordination.k8s.io``."""
        group = self.version.rpartition("/")[0]
        return f"{self.plural}.{group}" if group else self.plural


_CORE, _APPS, _POLICY = "/api/v1", "/apis/apps/v1", "/apis/policy/v1"
_STORAGE, _DRA, _SCHEDULING = "/apis/storage.k8s.io/v1", "/apis/resource.k8s.io/v1", "/apis/scheduling.k8s.io/v1"
# The selectable fields are those of pkg/apis/core/v1/conversion.go.
_POD_FIELDS = (
    *("spec.nodeName", "spec.restartPolicy", "spec.schedulerName", "spec.serviceAccountName"),
    *("status.phase", "status.podIP", "status.nominatedNodeName"),
)
PODS = ServedKind(
    _CORE, "pods", "Pod", fields=_POD_FIELDS, subresources=("status", "binding", "eviction", "log", "resize")
)
NODES = ServedKind(_CORE, "nodes", "Node", namespaced=False, fields=("spec.unschedulable",), subresources=("status",))
LEASES = ServedKind("/apis/coordination.k8s.io/v1", "leases", "Lease")
CONFIG_MAPS = ServedKind(_CORE, "configmaps", "ConfigMap")
EVENTS = ServedKind(
    "/apis/events.k8s.io/v1",
    "events",
    "Event",
    fields=("reason", "type", *(f"regarding.{part}" for part in ("apiVersion", "kind", "name", "namespace", "uid"))),
)
CLAIMS = ServedKind(_CORE, "persistentvolumeclaims", "PersistentVolumeClaim")
VOLUMES = ServedKind(_CORE, "persistentvolumes", "PersistentVolume", namespaced=False)
STORAGE_CLASSES = ServedKind(_STORAGE, "storageclasses", "StorageClass", namespaced=False)
CSI_NODES = ServedKind(_STORAGE, "csinodes", "CSINode", namespaced=False)
CSI_DRIVERS = ServedKind(_STORAGE, "csidrivers", "CSIDriver", namespaced=False)
NAMESPACES = ServedKind(_CORE, "namespaces", "Namespace", namespaced=False)
STATEFUL_SETS = ServedKind(_APPS, "statefulsets", "StatefulSet")
LEADER_WORKER_SETS = ServedKind("/apis/leaderworkerset.x-k8s.io/v1", "leaderworkersets", "LeaderWorkerSet")
BUDGETS = ServedKind(_POLICY, "poddisruptionbudgets", "PodDisruptionBudget", subresources=("status",))
RESOURCE_CLAIMS = ServedKind(_DRA, "resourceclaims", "ResourceClaim", subresources=("status",))
CLAIM_TEMPLATES = ServedKind(_DRA, "resourceclaimtemplates", "ResourceClaimTemplate")
RESOURCE_SLICES = ServedKind(
    _DRA, "resourceslices", "ResourceSlice", namespaced=False, fields=("spec.nodeName", "spec.driver")
)
DEVICE_CLASSES = ServedKind(_DRA, "deviceclasses", "DeviceClass", namespaced=False)
PRIORITY_CLASSES = ServedKind(_SCHEDULING, "priorityclasses", "PriorityClass", namespaced=False)
POD_GROUPS = ServedKind("/apis/scheduling.k8s.io/v1beta1", "podgroups", "PodGroup")
KINDS = tuple(kind for kind in tuple(vars().values()) if isinstance(kind, ServedKind))
"""All served kinds. The first version of a group is the preferred one."""


@dataclass(frozen=True, slots=True)
class Target:
    """What a path addresses: a collection if ``name`` is empty, else an object or its ``subresource``."""

    kind: ServedKind
    namespace: str = ""
    name: str = ""
    subresource: str = ""


OLD_EVENTS = re.compile(r"/api/v1((?:/namespaces/[^/]+)?/events(?:/.*)?)")
"""The events path that kubectl uses."""
_IN_CONTAINERS = ("attach", "ephemeralcontainers", "exec", "portforward", "proxy")
"""Pod subresources that need a running container."""


def parse_path(path: str) -> Target:
    """Read a path of the API."""
    if old := OLD_EVENTS.fullmatch(path):
        path = EVENTS.group + old[1]
    for kind in KINDS:
        if not path.startswith(kind.group + "/"):
            continue
        namespace, parts = "", path[len(kind.group) + 1 :].split("/")
        if parts[0] == "namespaces" and len(parts) > 2:  # noqa: PLR2004 - namespaces/NAME/PLURAL
            namespace, parts = parts[1], parts[2:]
        plural, name, subresource, *rest = [*parts, "", "", ""][: max(3, len(parts))]
        if (plural, rest) != (kind.plural, []) or (namespace and not kind.namespaced):
            continue
        if name and kind.namespaced and not namespace:
            continue
        if not subresource or subresource in kind.subresources:
            return Target(kind, namespace, name, subresource)
        if subresource in _IN_CONTAINERS:
            raise Refusal(501, f"{subresource} is not simulated: no container runs anything here")
    raise Refusal(404, "the server could not find the requested resource")


def selector(kind: ServedKind, fields: str) -> Selector:
    """Read a field selector; an empty text selects everything.

    Fields that the real server cannot select are refused, so that no program relies on them.
    """
    tests: list[tuple[str, str, bool]] = []  # field, value, negated
    for term in filter(str.strip, fields.split(",")):
        match = _TERM.match(term)
        if match is None:
            raise Refusal(400, f"invalid selector: '{term}'; can't understand '{term}'")
        field, operator, wanted = match.groups()
        if field not in {"metadata.name", "metadata.namespace", *kind.fields}:
            raise Refusal(400, f"field label not supported: {field}")
        tests.append((field, wanted, operator == "!="))
    return lambda candidate: all((_field(candidate, field) == wanted) != no for field, wanted, no in tests)


def label_selector(text: str) -> Selector:
    """Read a label selector, as ``labels.Parse`` does except for ``<`` and ``>``; an empty text selects everything."""
    rules: list[Requirement] = []
    place, end = 0, len(text.rstrip())
    while place < end:
        match = _REQUIREMENT.match(text, place)
        if match is None:
            problem = f"found '{text[place:]}', expected: a label, an operator and values"
            raise Refusal(400, f"unable to parse requirement: {problem}")
        values = [match["value"]] if match["equals"] else (match["values"] or "").split(",")
        operator = _OPERATORS[(match["absent"] and "!") or match["equals"] or match["among"]]
        rules.append(Requirement(match["label"], operator, tuple(value.strip() for value in values)))
        place = match.end()
    return lambda candidate: all(rule.is_met(candidate["metadata"].get("labels") or {}) for rule in rules)


def _field(candidate: AnyJson, path: str) -> str:
    value: Any = candidate
    for step in path.split("."):
        value = value.get(step, "") if isinstance(value, dict) else ""
    return str(value).lower() if isinstance(value, bool) else str(value)
