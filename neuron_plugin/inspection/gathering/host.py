"""What ``doctor`` reads of the machine outside the driver's tree: device nodes, PCI bus, leftovers of the vendor's.

Nothing is opened but plain text files, and nothing that is found is an error here.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator
from pathlib import Path

from neuron_plugin.hardware import DEVICE_NAME, SIMULATED_MARKER, MachinePaths, Sysfs, SysfsError
from neuron_plugin.inspection.checks.vendor import WRAPPER
from neuron_plugin.inspection.facts import Host, NodeFile, PciFunction
from neuron_plugin.inspection.unknown import Unknown

_AMAZON = "0x1d0f"
_PRODUCTS = {
    **dict.fromkeys(("0x7064", "0x7065", "0x7066", "0x7067"), "Inferentia"),
    "0x7164": "Trainium1",
    "0x7264": "Inferentia2",
    "0x7364": "Trainium2",
    **dict.fromkeys(("0x7564", "0x7565"), "Trainium3"),
}
"""PCI device ids of the Neuron driver, 2.24.7 and 2.25.4."""

_CHARACTER_DEVICES = re.compile(r"^\s*(\d+) neuron$", re.MULTILINE)
_RUNTIME_FILES = (
    "etc/docker/daemon.json",
    "etc/containerd/config.toml",
    "etc/containerd/conf.d/*.toml",
    "etc/containerd/config.d/*.toml",
    "etc/crio/crio.conf",
    "etc/crio/crio.conf.d/*.conf",
    "etc/containers/oci/hooks.d/*.json",
    "usr/share/containers/oci/hooks.d/*.json",
)
_HOOK_DIRECTORIES = ("opt/aws/neuron/bin", "opt/aws/neuron/share")
_MOST_BYTES = 1 << 20


def gather_host(root: Path | None, paths: MachinePaths, *, in_pod: bool) -> Host:
    """Everything; ``root`` None is this machine. ``in_pod``: then the host's configuration files are out of sight."""
    base, sysfs = root or Path("/"), Sysfs(paths.sysfs)
    return Host(
        simulated=_exists(paths.dev / SIMULATED_MARKER),
        driver_loaded=_exists(sysfs.class_dir) or _exists(paths.sysfs / "module/neuron"),
        major=_major(base / "proc/devices"),
        nodes=_nodes(paths.dev),
        numbers=_numbers(sysfs),
        pci=_pci(paths.sysfs / "bus/pci/devices"),
        hook_files=tuple(_hook_files(base)),
        runtime_files=_out_of_sight() if in_pod and root is None else dict(_runtime_files(base)),
    )


def _out_of_sight() -> Unknown:
    return Unknown(
        "the container runtime's configuration is the host's, and a pod does not see it",
        "run this as root on the node; it may hold passwords of registries, so do not mount it in the plugin's pod",
    )


def _major(devices: Path) -> int | Unknown | None:
    text = _text(devices)
    if isinstance(text, Unknown):
        return text
    found = _CHARACTER_DEVICES.search(text.partition("Block devices:")[0])
    return int(found[1]) if found else None


def _nodes(dev: Path) -> tuple[NodeFile, ...] | Unknown:
    try:
        names = sorted(entry.name for entry in dev.iterdir() if DEVICE_NAME.match(entry.name))
    except OSError as error:
        return Unknown(f"{dev} cannot be listed ({error.strerror})", "run this as root, or give --dev")
    found = (_node(dev / name) for name in names)
    return tuple(node for node in found if node)


def _node(path: Path) -> NodeFile | None:
    try:
        status = path.stat()
    except OSError:
        return None  # gone meanwhile, or a dangling link: as good as missing
    numbers = os.major(status.st_rdev), os.minor(status.st_rdev)
    device = int(path.name.removeprefix("neuron"))
    return NodeFile(device, stat.S_ISCHR(status.st_mode), stat.S_IMODE(status.st_mode), numbers)


def _numbers(sysfs: Sysfs) -> dict[int, tuple[int, int] | None]:
    try:
        devices = sysfs.device_ids()
    except SysfsError:
        return {}
    numbers: dict[int, tuple[int, int] | None] = {}
    for device in devices:
        try:
            numbers[device] = sysfs.device(device).numbers()
        except SysfsError:
            numbers[device] = None
    return numbers


def _pci(bus: Path) -> tuple[PciFunction, ...] | Unknown:
    try:
        functions = sorted(bus.iterdir())
    except OSError:
        return Unknown(f"there is no PCI bus at {bus}")
    found = (
        (function.name, _PRODUCTS.get(_word(function / "device"))) for function in functions if _is_amazons(function)
    )
    return tuple(PciFunction(address, product) for address, product in found if product)


def _is_amazons(function: Path) -> bool:
    return _word(function / "vendor") == _AMAZON


def _word(path: Path) -> str:
    text = _text(path)
    return "" if isinstance(text, Unknown) else text.strip()


def _hook_files(base: Path) -> Iterator[str]:
    for directory in _HOOK_DIRECTORIES:
        try:
            entries = sorted((base / directory).iterdir())
        except OSError:
            continue
        yield from (str(entry) for entry in entries if WRAPPER in entry.name)


def _runtime_files(base: Path) -> Iterator[tuple[str, str | Unknown]]:
    for pattern in _RUNTIME_FILES:
        for path in sorted(base.glob(pattern)):
            yield str(path), _text(path)


def _text(path: Path) -> str | Unknown:
    try:
        with path.open("rb") as file:
            return file.read(_MOST_BYTES).decode("utf-8", "backslashreplace")
    except PermissionError:
        return Unknown("no permission", "run this as root")
    except OSError as error:
        return Unknown(f"{path} cannot be read ({error.strerror})")


def _exists(path: Path) -> bool:
    return os.path.exists(path)  # noqa: PTH110 - Path.exists raises on EACCES
