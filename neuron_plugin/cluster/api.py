"""Requests to the API server and its answers, as values.

A request is a value, so everything that this project writes to a cluster can be tested without a cluster; only
``client`` sends. After a write there are two kinds of error: the server refused it (``ApiError``), or it is unknown
whether the write happened (``UnreachableError``).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from http import HTTPStatus
from typing import TYPE_CHECKING, Protocol

import msgspec

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping
    from contextlib import AbstractAsyncContextManager

JSON = "application/json"
MERGE_PATCH = "application/merge-patch+json"
STRATEGIC_MERGE_PATCH = "application/strategic-merge-patch+json"

JsonObject = dict[str, object]

UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""msgspec's errors for bytes that it cannot decode: an unexpected form, no UTF-8, nested too deep."""

_MAX_QUOTED = 200
"""Bytes that an error's text quotes of an answer without a Status object."""

REQUEST_SECONDS = 5.0
"""The deadline of a small request that something waits for."""

PAGE_SECONDS = 30.0
"""The deadline of one page of a list, or of a request that nothing waits for."""


@dataclass(frozen=True, slots=True)
class ApiRequest:
    """One call: verb, complete path, query, and JSON body if any."""

    method: str
    path: str
    query: Mapping[str, str] = field(default_factory=dict)
    body: JsonObject | None = None
    content_type: str = JSON


@dataclass(frozen=True, slots=True)
class Response:
    """A complete answer; refusals (4xx and 5xx) are answers, too.

    ``status`` is the HTTP status, ``retry_after_seconds`` the header ``Retry-After`` if any.
    """

    status: int
    body: bytes
    retry_after_seconds: float | None = None


class ClusterError(Exception):
    """The API server did not carry out a request, or its answer cannot be decoded."""


class ConnectionSettingsError(ClusterError):
    """The kubeconfig, or the pod's service account, does not say how to reach an API server."""


class UnreachableError(ClusterError):
    """No complete answer: the connection was refused, broke, or the deadline passed.

    ``may_have_arrived`` is False only if the request cannot have reached the server. After a write that may have
    arrived, read the object before acting on either assumption.
    """

    def __init__(self, method: str, path: str, cause: str, *, may_have_arrived: bool) -> None:
        super().__init__(f"{method} {path}: {cause}; is the API server up and reachable from here?")
        self.cause = cause
        self.may_have_arrived = may_have_arrived


class DecodeError(ClusterError):
    """An answer that does not follow the Kubernetes API; the text says what was decoded and where it failed."""


@dataclass(eq=False, kw_only=True)
class ApiError(ClusterError):
    """The API server refused: ``status`` is the HTTP status, ``reason`` and ``message`` are from its Status object.

    ``retry_after_seconds`` is the requested wait or None: from the Status object's details, or from the header if there
    is no Status object (priority and fairness, a server that shuts down).
    """

    status: int
    reason: str
    message: str
    method: str
    path: str
    retry_after_seconds: float | None = None

    def __str__(self) -> str:
        return f"{self.method} {self.path}: {self.status} {self.reason}: {self.message}"

    @property
    def missing(self) -> bool:
        """The object, or its whole kind, does not exist."""
        return self.status == HTTPStatus.NOT_FOUND

    @property
    def withheld(self) -> bool:
        """The object is missing, or this account may not read it: a retry would not help soon."""
        return self.missing or self.status == HTTPStatus.FORBIDDEN

    @property
    def conflict(self) -> bool:
        """Another writer was faster, or a precondition does not hold."""
        return self.status == HTTPStatus.CONFLICT

    @property
    def expired(self) -> bool:
        """The server no longer has the requested resource version: list again."""
        return self.status == HTTPStatus.GONE

    @property
    def other_object(self) -> bool:
        """The object of this name has another UID than the patch.

        The binding subresource then answers 409, a patch 422 with ``metadata.uid``
        (``pkg/controller/controller_ref_manager.go`` relies on the latter).
        """
        named = self.status == HTTPStatus.UNPROCESSABLE_ENTITY and "metadata.uid" in self.message
        return self.conflict or named


class ApiServer(Protocol):
    """The two ways to talk to an API server."""

    async def request(self, request: ApiRequest, *, timeout_seconds: float) -> Response:
        """Send and read the complete answer; refusals are returned, not raised.

        Raises:
            UnreachableError: no complete answer within ``timeout_seconds``.
        """

    def stream(
        self, request: ApiRequest, *, silence_seconds: float
    ) -> AbstractAsyncContextManager[AsyncIterator[bytes]]:
        """Open a watch and yield its lines, without their newline, until the server ends it.

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


def refusal(response: Response, request: ApiRequest) -> ApiError:
    """Read a refusal; a body that is no Status object, such as a proxy's page, is quoted.

    ``status`` 0 takes the Status object's own code: an ERROR event of a watch has no HTTP status.
    """
    try:
        status = msgspec.json.decode(response.body, type=_Status)
    except UNREADABLE:
        status = _Status(message=response.body[:_MAX_QUOTED].decode(errors="replace"))
    detailed = status.details.retry_after_seconds if status.details else None
    return ApiError(
        status=response.status or status.code,
        reason=status.reason or "Unknown",
        message=status.message,
        method=request.method,
        path=request.path,
        retry_after_seconds=response.retry_after_seconds if detailed is None else detailed,
    )


async def send(api: ApiServer, request: ApiRequest, *, timeout_seconds: float) -> bytes:
    """Send and return the body of a success.

    Raises:
        ApiError: the server refused.
        UnreachableError: no complete answer within ``timeout_seconds``.
    """
    response = await api.request(request, timeout_seconds=timeout_seconds)
    if response.status >= HTTPStatus.BAD_REQUEST:
        raise refusal(response, request)
    return response.body
