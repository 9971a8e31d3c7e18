"""Looking at the files of a simulated machine."""

from __future__ import annotations

import stat
from collections.abc import Callable
from pathlib import Path

from neuron_plugin.simulation.node import SimulatedNode

MakeNode = Callable[..., SimulatedNode]


def device_dir(node: SimulatedNode, device: int) -> Path:
    return node.root / "sys/devices/virtual/neuron_device" / f"neuron{device}"


def text(node: SimulatedNode, device: int, name: str) -> str:
    return (device_dir(node, device) / name).read_bytes().decode()


def mode(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


def everything(root: Path) -> dict[str, tuple[int, bytes]]:
    """Every file and link below sys/, dev/ and opt/ with its mode and content."""
    return {
        str(path.relative_to(root)): (
            path.lstat().st_mode,
            str(path.readlink()).encode() if path.is_symlink() else path.read_bytes(),
        )
        for part in ("sys", "dev", "opt")
        for path in (root / part).rglob("*")
        if path.is_symlink() or path.is_file()
    }
