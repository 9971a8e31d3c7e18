"""What commands come out as in tests."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias


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
