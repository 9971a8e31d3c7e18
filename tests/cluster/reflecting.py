"""What the tests of the reflector share: which requests are meant, and what the server saw."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.support.api_server import Match, StandInApiServer

# What conftest.py hands over.
Manifest = Callable[..., dict[str, Any]]
Follow = Callable[..., Any]

WATCHES = Match(method="GET", watch=True)
LISTS = Match(method="GET", path="/pods$", watch=False)


def watches(server: StandInApiServer) -> list[dict[str, str]]:
    return [dict(seen.query) for seen in server.requests if seen.query.get("watch") == "true"]


def lists(server: StandInApiServer) -> list[dict[str, str]]:
    return [dict(seen.query) for seen in server.requests if seen.query.get("watch") != "true"]


BOOKMARK = b'{"type":"BOOKMARK","object":{"metadata":{"resourceVersion":"9"}}}'
