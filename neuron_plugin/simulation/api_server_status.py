"""How the stand-in API server says no: the Status object, with the real server's reasons and texts.

The texts matter: clients tell "bound already" from "being deleted" by nothing else. They follow
``staging/src/k8s.io/apimachinery/pkg/api/errors/errors.go``.
"""

from __future__ import annotations

from typing import Any

JsonObject = dict[str, Any]


class Refusal(Exception):  # noqa: N818 - the field's word for it; an answer, not a failure of this program
    """An answer of 400 or more, as a Status object."""

    def __init__(self, code: int, reason: str, message: str, **details: Any) -> None:
        super().__init__(message)
        self.code = code
        self.reason = reason
        self.message = message
        self.details = details

    def status(self) -> JsonObject:
        """Return the Status object, as answers and ERROR events carry it."""
        status: JsonObject = {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "message": self.message,
            "reason": self.reason,
            "code": self.code,
        }
        return status | {"details": self.details} if self.details else status


def success(resource: str, name: str) -> JsonObject:
    """Return the Status object that a binding or a deletion answers with."""
    return {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Success",
        "code": 200,
        "details": {"name": name, "kind": resource},
    }


def not_found(resource: str, name: str) -> Refusal:
    """No such object."""
    return Refusal(404, "NotFound", f'{resource} "{name}" not found', name=name, kind=resource)


def unknown_path() -> Refusal:
    """No such kind, or no such way to address it."""
    return Refusal(404, "NotFound", "the server could not find the requested resource")


def already_exists(resource: str, name: str) -> Refusal:
    """The name is taken."""
    return Refusal(409, "AlreadyExists", f'{resource} "{name}" already exists', name=name, kind=resource)


def conflict(resource: str, name: str, why: str) -> Refusal:
    """A precondition does not hold."""
    text = f'Operation cannot be fulfilled on {resource} "{name}": {why}'
    return Refusal(409, "Conflict", text, name=name, kind=resource)


def invalid(kind: str, name: str, why: str) -> Refusal:
    """The object would not be valid."""
    return Refusal(422, "Invalid", f'{kind} "{name}" is invalid: {why}', name=name, kind=kind)


def bad_request(why: str) -> Refusal:
    """The request makes no sense."""
    return Refusal(400, "BadRequest", why)


def expired(why: str) -> Refusal:
    """The version asked for is older than the server's memory."""
    return Refusal(410, "Expired", why)


def unauthorized() -> Refusal:
    """No token, or a wrong one."""
    return Refusal(401, "Unauthorized", "Unauthorized")


def method_not_allowed() -> Refusal:
    """The path is right, the verb is not."""
    return Refusal(405, "MethodNotAllowed", "the server does not allow this method on the requested resource")


def unsupported_media_type(content_type: str) -> Refusal:
    """A patch format that the stand-in does not speak."""
    text = f"the body of the request was in an unknown format - accepted media types include: {content_type}"
    return Refusal(415, "UnsupportedMediaType", text)
