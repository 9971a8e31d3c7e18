"""Where a driver keeps an attribute that is not at its usual path.

Driver 2.31 moved attributes to other directories (SDK 2.33's sysfs guide; it names no way to tell but to look), and
a later one may again. Their names stayed, so what is missing where it should be is looked for by its name below the
same directory. A name that is there twice is none: nothing is guessed.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

_DEEPEST = 5
"""Directories below the device's; the deepest known file (a core's) is at four."""

_CLOSED = re.compile(r"(neuron_core\d+|memory_usage)\Z")
"""Not looked into: a core has attributes of the same names as its device, and counters of memory are half the tree."""

_KERNELS_OWN = frozenset({"power"})
"""Directly below a device: every device of the kernel has it."""


def by_name(root: Path) -> Mapping[str, Path]:
    """Every file and directory below ``root`` by its name, the least deep of each; links and cores are passed over."""
    found: dict[str, tuple[int, Path | None]] = {}
    for depth, path in _below(root, 1):
        known = found.get(path.name)
        if known is None or depth < known[0]:
            found[path.name] = (depth, path)
        elif depth == known[0]:
            found[path.name] = (depth, None)
    return {name: path for name, (_, path) in found.items() if path is not None}


def _below(directory: Path, depth: int) -> Iterator[tuple[int, Path]]:
    try:
        entries = sorted(os.scandir(directory), key=lambda entry: entry.name)
    except OSError:
        return  # gone meanwhile, or closed to us: as good as empty
    for entry in entries:
        if entry.is_symlink() or (depth == 1 and entry.name in _KERNELS_OWN):
            continue
        path = directory / entry.name
        yield depth, path
        if depth < _DEEPEST and entry.is_dir() and not _CLOSED.match(entry.name):
            yield from _below(path, depth + 1)
