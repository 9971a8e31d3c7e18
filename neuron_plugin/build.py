"""Which build this is, for issue reports, logs and a fleet's metrics.

gRPC's version is read off the name of its installed metadata: importing it takes a tenth of a second, and the library
that reads metadata two megabytes on every node.
"""

from __future__ import annotations

import platform
import sys
from functools import cache
from pathlib import Path
from typing import NamedTuple

from neuron_plugin import __version__

REVISION_FILE = Path(__file__).with_name("REVISION")
"""Written beside the package by the Dockerfile (``--build-arg REVISION``); a checkout has none."""

UNKNOWN = "unknown"


class Build(NamedTuple):
    """One build; ``revision`` is the git commit that the image was made from, ``unknown`` where it is not recorded."""

    version: str
    revision: str
    python: str
    grpc: str


@cache
def build() -> Build:
    """This build."""
    return Build(__version__, _revision(REVISION_FILE), platform.python_version(), _installed_version("grpcio"))


def _revision(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8").strip() or UNKNOWN
    except OSError:
        return UNKNOWN


def _installed_version(distribution: str) -> str:
    """Read by the form of the name that wheels are installed under: ``grpcio-1.85.1.dist-info``."""
    installed = (path.stem for place in sys.path for path in Path(place).glob(f"{distribution}-*.dist-info"))
    return next(installed, UNKNOWN).rpartition("-")[2]
