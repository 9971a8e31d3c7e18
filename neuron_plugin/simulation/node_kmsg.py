"""The kernel log of a simulated machine: a plain file ``dev/kmsg`` that grows by records in the kernel's form.

Unlike the kernel's own it keeps everything, and nobody can wait for it. Source: kernel ABI document ``dev-kmsg``.
"""

from __future__ import annotations

import time
from pathlib import Path

from neuron_plugin.simulation.node_description import SimulationError
from neuron_plugin.simulation.node_files import exclusively

KMSG = "kmsg"

_ERROR_LEVEL = 3
_USER_FACILITY = 1 << 3


def append_record(root: Path, text: str, *, by_kernel: bool, age_seconds: float = 0.0) -> None:
    """Add one record of one line, stamped with this machine's monotonic clock ``age_seconds`` ago.

    Raises:
        SimulationError: ``root`` holds no simulated machine with a kernel log.
    """
    path = root / "dev" / KMSG
    if not path.is_file():
        raise SimulationError(f"{path} is not there: write a simulated node first")
    priority = _ERROR_LEVEL | (0 if by_kernel else _USER_FACILITY)
    microseconds = max(0, int((time.monotonic() - age_seconds) * 1e6))
    with exclusively(root), path.open("rb+") as log:
        sequence = log.read().count(b"\n")
        log.write(f"{priority},{sequence},{microseconds},-;{' '.join(text.split())}\n".encode())
