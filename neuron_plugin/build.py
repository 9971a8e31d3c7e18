"""Which build this is: what an issue report, a log and a fleet's metrics have to name.

Versions of libraries are read from their installed metadata, so nothing heavy is imported to tell them.
"""

from __future__ import annotations

import platform
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import NamedTuple

from neuron_plugin import __version__

REVISION_FILE = Path(__file__).with_name("REVISION")
"""Written beside the package by the Dockerfile (``--build-arg REVISION``); a checkout has none."""

UNKNOWN = "unknown"


class Build(NamedTuple):
    """One build; ``revision`` is the git commit that the image was made from, ``unknown`` where none was told."""

    version: str
    revision: str
    python: str
    grpc: str


@cache
def build() -> Build:
    """This build."""
    return Build(__version__, _revision(REVISION_FILE), platform.python_version(), _version_of("grpcio"))


def _revision(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8").strip() or UNKNOWN
    except OSError:
        return UNKNOWN


def _version_of(distribution: str) -> str:
    try:
        return version(distribution)
    except PackageNotFoundError:
        return UNKNOWN
