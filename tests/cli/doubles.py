"""What commands come out as in tests."""

from __future__ import annotations

import asyncio
import subprocess
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, TypeAlias


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
