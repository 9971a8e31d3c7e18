"""A simulated machine for every test of the hardware room, and ways to let its files fail."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

import pytest

from neuron_plugin.simulation import SimulatedNode, write_node

# pytest-asyncio asks for the main thread's loop before the first test, and up to Python 3.13 asking makes one that
# nothing closes: a warning at some later collection, hence an error in an innocent test.
asyncio.set_event_loop(None)

MakeNode = Callable[..., SimulatedNode]
Interfere = Callable[[str, Callable[[], None]], None]


@pytest.fixture
def make_node(tmp_path: Path) -> MakeNode:
    """Write a simulated machine; its usage counters, which nothing here reads, are left out."""

    def make(instance_type: str = "inf2.24xlarge", **options: Any) -> SimulatedNode:
        return write_node(tmp_path / "node", instance_type, usage_counters=False, **options)

    return make


@pytest.fixture
def on_open(monkeypatch: pytest.MonkeyPatch) -> Interfere:
    """Do something whenever a file whose path ends as given is opened, before it is."""
    actions: dict[str, Callable[[], None]] = {}
    real_open = Path.open

    def opening(self: Path, *args: Any, **kwargs: Any) -> IO[Any]:
        for ending, action in actions.items():
            if str(self).endswith(ending):
                action()
        opened: IO[Any] = real_open(self, *args, **kwargs)
        return opened

    monkeypatch.setattr(Path, "open", opening)
    return actions.__setitem__


@pytest.fixture
def fail_open(on_open: Interfere) -> Callable[[str, int], None]:
    """Let opening a file whose path ends as given fail with an errno: root cannot be denied by modes."""

    def fail(ending: str, number: int) -> None:
        def refuse() -> None:
            raise OSError(number, os.strerror(number))

        on_open(ending, refuse)

    return fail
