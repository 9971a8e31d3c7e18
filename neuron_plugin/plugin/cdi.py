"""The CDI specification file of this node's devices.

Runtimes read ``/var/run/cdi`` anew at each container. It is on tmpfs and not ours alone, so the file is looked at
every few seconds and written again when it is gone or says something else.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable
from pathlib import Path

import msgspec

logger = logging.getLogger(__name__)

FILE_NAME = "neuron-plugin.io-device.json"
PERIOD_SECONDS = 5.0

Specification = dict[str, object]


def write_specification(directory: Path, specification: Specification) -> bool:
    """Write the file whole (by rename) unless it already says this; whether it was written."""
    path, text = directory / FILE_NAME, msgspec.json.encode(specification)
    if path.is_file() and path.read_bytes() == text:
        return False
    directory.mkdir(mode=0o755, parents=True, exist_ok=True)
    unfinished = path.with_suffix(f".{os.getpid()}")
    unfinished.write_bytes(text)
    unfinished.replace(path)
    return True


async def keep_written(directory: Path, current: Callable[[], Specification | None]) -> None:
    """Keep the file true to ``current`` until cancelled; None means that there is nothing to say yet."""
    told = ""
    while True:
        specification = current()
        try:
            if specification is not None and write_specification(directory, specification):
                logger.info("wrote the CDI specification", extra={"path": str(directory / FILE_NAME)})
            told = ""
        except OSError as error:
            if str(error) != told:
                logger.warning("cannot write the CDI specification", extra={"why": str(error)})
            told = str(error)
        await asyncio.sleep(PERIOD_SECONDS)
