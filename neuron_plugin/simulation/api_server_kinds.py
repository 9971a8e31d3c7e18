"""Which kinds the stand-in API server serves, and what a path addresses."""

from __future__ import annotations

from dataclasses import dataclass

from neuron_plugin.simulation.api_server_status import unknown_path


@dataclass(frozen=True, slots=True)
class ServedKind:
    """One kind: its API group's path, its names, and the fields that its lists can be selected by."""

    group: str
    version: str
    plural: str
    kind: str
    namespaced: bool = True
    fields: tuple[str, ...] = ()
    subresources: tuple[str, ...] = ()

    @property
    def resource(self) -> str:
        """The name used in messages: the plural, and the group unless it is the core group."""
        group = self.version.rpartition("/")[0]
        return f"{self.plural}.{group}" if group else self.plural


# The selectable fields are those of pkg/apis/core/v1/conversion.go.
_POD_FIELDS = (
    "spec.nodeName",
    "spec.restartPolicy",
    "spec.schedulerName",
    "spec.serviceAccountName",
    "status.phase",
    "status.podIP",
    "status.nominatedNodeName",
)
PODS = ServedKind("/api/v1", "v1", "pods", "Pod", fields=_POD_FIELDS, subresources=("status", "binding"))
NODES = ServedKind(
    "/api/v1", "v1", "nodes", "Node", namespaced=False, fields=("spec.unschedulable",), subresources=("status",)
)
LEASES = ServedKind("/apis/coordination.k8s.io/v1", "coordination.k8s.io/v1", "leases", "Lease")
EVENTS = ServedKind("/apis/events.k8s.io/v1", "events.k8s.io/v1", "events", "Event", fields=("reason", "type"))
KINDS = (PODS, NODES, LEASES, EVENTS)


@dataclass(frozen=True, slots=True)
class Target:
    """What a path addresses: a collection if ``name`` is empty, else an object or its ``subresource``."""

    kind: ServedKind
    namespace: str = ""
    name: str = ""
    subresource: str = ""


def parse_path(path: str) -> Target:
    """Read a path of the API.

    Raises:
        Refusal: 404, as the real server answers for what it does not serve.
    """
    for group in {kind.group for kind in KINDS}:
        if path.startswith(group + "/"):
            return _parse_in_group(group, path[len(group) + 1 :].split("/"))
    raise unknown_path()


def _parse_in_group(group: str, parts: list[str]) -> Target:
    namespace = ""
    if parts[0] == "namespaces" and len(parts) > 2:  # noqa: PLR2004 - namespaces/NAME/PLURAL
        namespace, parts = parts[1], parts[2:]
    plural, name, subresource, *rest = [*parts, "", "", ""][: max(3, len(parts))]
    for kind in KINDS:
        if (
            (kind.group, kind.plural) == (group, plural)
            and not rest
            and _addressable(kind, namespace, name, subresource)
        ):
            return Target(kind, namespace, name, subresource)
    raise unknown_path()


def _addressable(kind: ServedKind, namespace: str, name: str, subresource: str) -> bool:
    if namespace and not kind.namespaced:
        return False
    if name and kind.namespaced and not namespace:
        return False
    return not subresource or subresource in kind.subresources
