"""RBAC for the simulated API server: its question, and its words for no.

Whether the rights that a chart gives are enough for what its programs do, and whether any is to spare, shows where each
program comes in as a user of its own. Source: ``staging/src/k8s.io/apiserver/pkg/endpoints`` of 1.36.2
(``request/requestinfo.go`` for the verbs, ``handlers/responsewriters/errors.go`` for the text).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from neuron_plugin.simulation.api_server_kinds import Refusal, Target
from tests.support.api_server import StandInApiServer

_VERBS = {"POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}


@dataclass(frozen=True, slots=True)
class Right:
    """One thing that may be done, or that is about to be. Empty as a right, ``name`` and ``namespace`` mean any."""

    group: str
    resource: str
    verb: str
    name: str = ""
    namespace: str = ""

    def covers(self, action: Right) -> bool:
        """Whether the right is to what is about to be done."""
        same = (self.group, self.resource, self.verb) == (action.group, action.resource, action.verb)
        return same and self.name in {"", action.name} and self.namespace in {"", action.namespace}


class Access:
    """The users of a server and their rights; a user's token is its name. ``used`` is what each has used so far."""

    def __init__(self, server: StandInApiServer) -> None:
        self.used: dict[str, set[Right]] = {}
        self._rights: dict[str, frozenset[Right]] = {}
        server.guard_by(self)

    def permit(self, user: str, rights: Iterable[Right]) -> None:
        """Let a user in, with these rights and no others."""
        self._rights[user] = frozenset(rights)
        self.used.setdefault(user, set())

    def check(self, user: str, method: str, target: Target, *, watch: bool) -> None:
        """Let a request pass, or not.

        Raises:
            Refusal: 401, no user has that name; 403, the user has no right to it.
        """
        if user not in self._rights:
            raise Refusal(401, "Unauthorized")
        kind = target.kind
        verb = _VERBS.get(method) or ("get" if target.name else "watch" if watch else "list")
        if verb == "delete" and not target.name:
            verb = "deletecollection"
        resource = f"{kind.plural}/{target.subresource}" if target.subresource else kind.plural
        action = Right(kind.version.rpartition("/")[0], resource, verb, target.name, target.namespace)
        covering = {right for right in self._rights[user] if right.covers(action)}
        if not covering:
            named = f'{kind.plural} "{target.name}"' if target.name else kind.plural
            where = f'in the namespace "{target.namespace}"' if target.namespace else "at the cluster scope"
            text = f'cannot {verb} resource "{resource}" in API group "{action.group}" {where}'
            message = f'{named} is forbidden: User "{user}" {text}'
            raise Refusal(403, message, name=target.name, kind=kind.plural)
        self.used[user] |= covering


def in_namespace(rights: Iterable[Right], namespace: str) -> list[Right]:
    """The rights of a Role: only in its namespace."""
    return [replace(right, namespace=namespace) for right in rights]
