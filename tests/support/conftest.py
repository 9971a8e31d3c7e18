from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture
def directory() -> Iterator[Path]:
    """A directory with a name short enough for sockets in it; pytest's own are too long."""
    with tempfile.TemporaryDirectory(prefix="np-") as path:
        yield Path(path)
