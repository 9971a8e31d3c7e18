"""What is said to the API server, and what it may answer, as values.

A request is built without knowing how it travels, so that what this project writes to a cluster can be read and tested
without one; only ``transport`` sends. Failures are told apart by the one thing that matters after a write: did the
server say no (``ApiError``), or does nobody know whether it happened (``UnreachableError``)?
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

import msgspec

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping
    from contextlib import AbstractAsyncContextManager

JSON = "application/json"
MERGE_PATCH = "application/merge-patch+json"
STRATEGIC_MERGE_PATCH = "application/strategic-merge-patch+json"

_FAILURES_START = 400
_NOT_FOUND = 404
_CONFLICT = 409
_GONE = 410
_UNPROCESSABLE = 422

JsonObject = dict[str, object]

UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""What msgspec raises for bytes that are not what was asked for: of another form, no UTF-8, nested too deep."""


@dataclass(frozen=True, slots=True)
class ApiRequest:
    """One call: verb, path with every name in place, query, and a JSON body if there is one."""

    method: str
    path: str
    query: Mapping[str, str] = field(default_factory=dict)
    body: JsonObject | None = None
    content_type: str = JSON


@dataclass(frozen=True, slots=True)
class Response:
    """A whole answer. ``status`` is HTTP's, and 4xx and 5xx come like any other.

    ``retry_after_seconds`` is its header ``Retry-After``, if there is one.
    """

    status: int
    body: bytes
    retry_after_seconds: float | None = None


class ClusterError(Exception):
    """Anything that kept the API server from doing, or us from understanding, what was asked."""


class ConnectionSettingsError(ClusterError):
    """The kubeconfig, or the pod's service account, does not say how to reach an API server."""


class UnreachableError(ClusterError):
    """No whole answer came: refused, broken off, or too late.

    ``may_have_arrived`` is False only if the request cannot have reached the server; after a write that may have
    arrived, read before acting on either assumption.
    """

    def __init__(self, method: str, path: str, trouble: str, *, may_have_arrived: bool) -> None:
        super().__init__(f"{method} {path}: {trouble}; is the API server up and reachable from here?")
        self.method = method
        self.path = path
        self.may_have_arrived = may_have_arrived


class DecodeError(ClusterError):
    """An answer that is not what the Kubernetes API promises; the text names what was read and where it broke."""


class ApiError(ClusterError):
    """The API server refused: ``status`` is HTTP's, ``reason`` and ``message`` are those of its Status object.

    ``retry_after_seconds`` is the server's own wish, or None: a header where there is no Status object (priority and
    fairness, a server that shuts down), or among its details.
    """

    def __init__(
        self,
        *,
        status: int,
        reason: str,
        message: str,
        method: str,
        path: str,
        retry_after_seconds: float | None = None,
    ) -> None:
        super().__init__(f"{method} {path}: {status} {reason}: {message}")
        self.status = status
        self.reason = reason
        self.message = message
        self.method = method
        self.path = path
        self.retry_after_seconds = retry_after_seconds

    @property
    def missing(self) -> bool:
        """The object (or the whole kind) is not there."""
        return self.status == _NOT_FOUND

    @property
    def conflict(self) -> bool:
        """Somebody was faster, or a precondition does not hold."""
        return self.status == _CONFLICT

    @property
    def expired(self) -> bool:
        """The resource version asked for is older than the server's memory: list again."""
        return self.status == _GONE

    @property
    def other_object(self) -> bool:
        """A patch met an object with another UID under the same name.

        The binding subresource answers a 409 for it, a patch a 422 that names ``metadata.uid``
        (``pkg/controller/controller_ref_manager.go`` relies on the latter).
        """
        return self.conflict or (self.status == _UNPROCESSABLE and "metadata.uid" in self.message)


class ApiServer(Protocol):
    """The two ways to talk to an API server."""

    async def request(self, request: ApiRequest, *, timeout_seconds: float) -> Response:
        """Send and read the whole answer; refusals are returned, not raised.

        Raises:
            UnreachableError: no whole answer within ``timeout_seconds``.
        """

    def stream(
        self, request: ApiRequest, *, silence_seconds: float
    ) -> AbstractAsyncContextManager[AsyncIterator[bytes]]:
        """Open a watch and hand out its lines, without their newline, until the server ends it.

        Raises:
            ApiError: the server refused to open it.
            UnreachableError: it could not be opened, broke off, or nothing at all came for ``silence_seconds``.
        """


class _Details(msgspec.Struct, frozen=True, rename="camel"):
    retry_after_seconds: float | None = None


class _Status(msgspec.Struct, frozen=True, rename="camel"):
    reason: str = ""
    message: str = ""
    code: int = 0
    details: _Details | None = None


_status_decoder = msgspec.json.Decoder(_Status)
_MAX_QUOTED = 200


def refusal(response: Response, request: ApiRequest) -> ApiError:
    """Read a refusal; a body that is no Status object (a proxy's page, say) is quoted as it is.

    ``status`` 0 takes the Status object's own code: an ERROR event of a watch has no HTTP status.
    """
    try:
        told = _status_decoder.decode(response.body)
    except UNREADABLE:
        told = _Status(message=response.body[:_MAX_QUOTED].decode(errors="replace"))
    detailed = told.details.retry_after_seconds if told.details else None
    return ApiError(
        status=response.status or told.code,
        reason=told.reason or "Unknown",
        message=told.message,
        method=request.method,
        path=request.path,
        retry_after_seconds=response.retry_after_seconds if detailed is None else detailed,
    )


async def send(api: ApiServer, request: ApiRequest, *, timeout_seconds: float) -> bytes:
    """Send and return the body of a success.

    Raises:
        ApiError: the server refused.
        UnreachableError: no whole answer within ``timeout_seconds``.
    """
    response = await api.request(request, timeout_seconds=timeout_seconds)
    if response.status >= _FAILURES_START:
        raise refusal(response, request)
    return response.body
