"""What commands come out as in tests."""

from __future__ import annotations

import asyncio
import subprocess
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any, TypeAlias

from neuron_plugin.allocation import PodReference, PodUid, Resource
from neuron_plugin.decision_log import DecisionLog, LoggedDecision, Step, decisions_document
from tests.topology.oracle import TRN1


@dataclass(frozen=True)
class Outcome:
    status: int
    out: str
    err: str

    @property
    def rows(self) -> list[list[str]]:
        """The output's lines as words."""
        return [line.split() for line in self.out.splitlines()]


Cli: TypeAlias = Callable[..., Outcome]
CliProcess: TypeAlias = Callable[..., subprocess.Popen[str]]
Hold: TypeAlias = Callable[..., None]


class Background:
    """An event loop in a thread, for servers that a command is to meet from outside."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()

    def do(self, work: Coroutine[Any, Any, Any]) -> Any:
        found: Future[Any] = asyncio.run_coroutine_threadsafe(work, self._loop)
        return found.result(10)

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


def decision_log() -> DecisionLog:
    """As a plugin keeps it: two pods, one of them refused."""
    kept = DecisionLog()
    for number, (name, step) in enumerate(
        [("train", Step.PREFERRED), ("train", Step.ALLOCATED), ("serve", Step.REFUSED)]
    ):
        kept.record(
            LoggedDecision(
                at_ns=1_789_352_350_678_000_000 + number,
                step=step,
                node="n1",
                geometry=TRN1,
                resource=Resource.NEURONDEVICE,
                chosen=TRN1.devices_mask([4, 5, 6, 7]),
                reason="why so",
                pod=PodReference(PodUid(f"uid-{name}"), "default", name),
                container="main",
                usable=lambda: TRN1.all_mask,
            )
        )
    return kept


class Daemon:
    """Answers one page, with what a test says."""

    def __init__(self) -> None:
        self.body, self.status, self.asked = decisions_document(decision_log()), 200, list[str]()
        daemon = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                daemon.asked.append(self.path)
                self.send_response(daemon.status)
                self.end_headers()
                self.wfile.write(daemon.body)

            def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the library's name
                """Say nothing."""

        self.server = HTTPServer(("127.0.0.1", 0), Handler)
        self.address = f"127.0.0.1:{self.server.server_port}"
