"""Who may do what at the stand-in API server: RBAC's question, and its words for no.

Whether the rights that a chart gives are enough for what its programs do, and whether any is to spare, shows where each
program comes in as a user of its own. Source: ``staging/src/k8s.io/apiserver/pkg/endpoints`` of 1.36.2
(``request/requestinfo.go`` for the verbs, ``handlers/responsewriters/errors.go`` for the text).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from neuron_plugin.simulation.api_server_kinds import Target
from neuron_plugin.simulation.api_server_status import Refusal, unauthorized

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


def action_of(method: str, target: Target, *, watch: bool) -> Right:
    """What a request is about to do."""
    kind = target.kind
    verb = _VERBS.get(method) or ("get" if target.name else "watch" if watch else "list")
    resource = f"{kind.plural}/{target.subresource}" if target.subresource else kind.plural
    return Right(kind.version.rpartition("/")[0], resource, verb, target.name, target.namespace)


class Access:
    """The users and their rights; while there are none, everybody may do everything.

    A user's token is its name. ``used`` is what each has made use of so far.
    """

    def __init__(self) -> None:
        self.used: dict[str, set[Right]] = {}
        self._rights: dict[str, frozenset[Right]] = {}

    def permit(self, user: str, rights: Iterable[Right]) -> None:
        """Let a user in, with these rights and no others."""
        self._rights[user] = frozenset(rights)
        self.used.setdefault(user, set())

    def check(self, user: str, action: Right) -> None:
        """Let an action pass, or not.

        Raises:
            Refusal: 401, nobody has that name; 403, the user has no right to it.
        """
        if not self._rights:
            return
        if user not in self._rights:
            raise unauthorized()
        taken = {right for right in self._rights[user] if right.covers(action)}
        if not taken:
            raise _forbidden(user, action)
        self.used[user] |= taken


def in_namespace(rights: Iterable[Right], namespace: str) -> list[Right]:
    """The rights of a Role: only in its namespace."""
    return [replace(right, namespace=namespace) for right in rights]


def _forbidden(user: str, action: Right) -> Refusal:
    plural = action.resource.partition("/")[0]
    named = f'{plural} "{action.name}"' if action.name else plural
    where = f'in the namespace "{action.namespace}"' if action.namespace else "at the cluster scope"
    text = f'cannot {action.verb} resource "{action.resource}" in API group "{action.group}" {where}'
    return Refusal(403, "Forbidden", f'{named} is forbidden: User "{user}" {text}', name=action.name, kind=plural)
