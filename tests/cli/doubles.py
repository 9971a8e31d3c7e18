"""What commands come out as in tests, and a kubelet's answer as plain values."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from neuron_plugin.simulation.node import SimulatedNode


@dataclass(frozen=True)
class Outcome:
    status: int
    out: str
    err: str

    @property
    def rows(self) -> list[list[str]]:
        """The output's lines as words."""
        return [line.split() for line in self.out.splitlines()]


@dataclass(frozen=True)
class Container:
    container: str
    resource: str
    ids: tuple[str, ...]


@dataclass(frozen=True)
class Pod:
    namespace: str
    name: str
    containers: tuple[Container, ...]


Cli: TypeAlias = Callable[..., Outcome]
CliProcess: TypeAlias = Callable[..., subprocess.Popen[str]]
MakeNode: TypeAlias = Callable[..., SimulatedNode]
Hold: TypeAlias = Callable[..., None]
