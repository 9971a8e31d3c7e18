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
    """This build. gRPC is found by the name that wheels are installed under, such as ``grpcio-1.85.1.dist-info``."""
    revision = REVISION_FILE.read_text(encoding="utf-8").strip() if REVISION_FILE.exists() else ""
    installed = (path.stem for place in sys.path for path in Path(place).glob("grpcio-*.dist-info"))
    grpc = next(installed, "").rpartition("-")[2]
    return Build(__version__, revision or UNKNOWN, platform.python_version(), grpc or UNKNOWN)
