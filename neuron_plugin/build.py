"""The version of this build, for issue reports, logs and metrics.

gRPC's version is read from the name of its installed metadata: importing gRPC takes a tenth of a second, and the
library for metadata takes two megabytes on every node.
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
    """One build; ``revision`` is the git commit that the image was made from, ``unknown`` if it is not recorded."""

    version: str
    revision: str
    python: str
    grpc: str


@cache
def build() -> Build:
    """This build. gRPC's version is in the name of its installed directory, such as ``grpcio-1.85.1.dist-info``."""
    revision = REVISION_FILE.read_text(encoding="utf-8").strip() if REVISION_FILE.exists() else ""
    installed = (path.stem for place in sys.path for path in Path(place).glob("grpcio-*.dist-info"))
    grpc = next(installed, "").rpartition("-")[2]
    return Build(__version__, revision or UNKNOWN, platform.python_version(), grpc or UNKNOWN)
