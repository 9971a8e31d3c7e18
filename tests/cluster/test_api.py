from __future__ import annotations

import pytest

from neuron_plugin.cluster.api import ApiError, ApiRequest, Response, UnreachableError, refusal, send
from tests.support.scripted_server import ScriptedServer

ASKED = ApiRequest("PATCH", "/api/v1/namespaces/ns/pods/p/status")


def answering(response: Response) -> ScriptedServer:
    async def answer(_: ApiRequest) -> Response:
        return response

    return ScriptedServer(answer)


def status(code: int, reason: str, message: str, details: str = "{}") -> bytes:
    return f'{{"kind":"Status","code":{code},"reason":"{reason}","message":"{message}","details":{details}}}'.encode()


def refused(code: int, body: bytes, retry_after_seconds: float | None = None) -> ApiError:
    return refusal(Response(code, body, retry_after_seconds), ASKED)


async def test_send_returns_the_body_of_a_success() -> None:
    api = answering(Response(201, b"made"))
    assert await send(api, ASKED, timeout_seconds=4) == b"made"
    assert (api.requests, api.timeout_seconds) == ([ASKED], 4)


async def test_send_raises_a_refusal_with_everything_the_server_said() -> None:
    body = status(409, "Conflict", "pod p is already assigned")
    with pytest.raises(ApiError) as raised:
        await send(answering(Response(409, body)), ASKED, timeout_seconds=4)
    error = raised.value
    assert (error.status, error.reason, error.message) == (409, "Conflict", "pod p is already assigned")
    assert str(error) == "PATCH /api/v1/namespaces/ns/pods/p/status: 409 Conflict: pod p is already assigned"
    assert error.conflict


@pytest.mark.parametrize(
    ("code", "missing", "conflict", "expired"),
    [(404, True, False, False), (409, False, True, False), (410, False, False, True), (500, False, False, False)],
)
def test_a_refusal_says_what_kind_it_is(code: int, missing: bool, conflict: bool, expired: bool) -> None:  # noqa: FBT001 - a table's columns
    error = refused(code, status(code, "R", "m"))
    assert (error.missing, error.conflict, error.expired) == (missing, conflict, expired)


@pytest.mark.parametrize(
    ("code", "message", "other"),
    [
        (409, "Precondition failed: UID in precondition: a, UID in object meta: b", True),
        (422, "Pod p is invalid: metadata.uid: Invalid value: a: field is immutable", True),
        (422, "Pod p is invalid: metadata.annotations: Invalid value", False),
        (404, "pods p not found", False),
    ],
)
def test_t31_a_patch_that_met_another_uid_is_known_by_its_refusal(code: int, message: str, other: bool) -> None:  # noqa: FBT001 - as above
    assert refused(code, status(code, "R", message)).other_object is other


def test_the_time_that_a_busy_server_asks_for_is_read() -> None:
    busy = status(429, "TooManyRequests", "slow down", '{"retryAfterSeconds":3}')
    assert refused(429, busy).retry_after_seconds == 3.0
    assert refused(429, status(429, "R", "m")).retry_after_seconds is None


def test_the_time_may_be_in_a_header_only() -> None:
    assert refused(429, b"Too many requests, please try again later.", 5.0).retry_after_seconds == 5.0


def test_an_error_event_has_its_code_inside() -> None:
    assert refused(0, status(410, "Expired", "too old resource version")).expired


@pytest.mark.parametrize("body", [b"<html>Bad Gateway</html>", b"", b"\xff\xfe", b"[]", b'{"message": 7}'])
def test_a_refusal_without_a_status_object_is_quoted(body: bytes) -> None:
    error = refused(502, body)
    assert (error.status, error.reason) == (502, "Unknown")
    assert error.message == body.decode(errors="replace")


def test_a_refusal_nested_beyond_reading_is_quoted() -> None:
    assert refused(502, b'{"x":' + b"[" * 100_000).message.startswith('{"x":[[')


def test_a_proxys_long_page_is_cut() -> None:
    assert len(refused(502, b"x" * 10_000).message) == 200


def test_unreachable_names_the_call_and_what_to_look_at() -> None:
    error = UnreachableError("GET", "/api/v1/pods", "connection refused", may_have_arrived=False)
    assert str(error) == "GET /api/v1/pods: connection refused; is the API server up and reachable from here?"
