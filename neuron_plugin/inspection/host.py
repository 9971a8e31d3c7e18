"""How ``doctor`` learns its facts from the machine outside the driver's tree.

Device nodes, PCI bus, leftovers of the vendor's, and the processes that use devices, as /proc shows them. No file is
opened but plain text files, and nothing that is missing is an error here.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from neuron_plugin.hardware import (
    DEVICE_NAME,
    SIMULATED_MARKER,
    MachinePaths,
    Process,
    Sysfs,
    SysfsError,
    device_processes,
    has_kernel_threads,
)
from neuron_plugin.inspection.facts import OCI_HOOK, DeviceUser, DeviceUsers, Host, NodeFile
from neuron_plugin.inspection.findings import Unknown
from neuron_plugin.wording import plural

_AMAZON = "0x1d0f"
_PRODUCTS = {
    **dict.fromkeys(("0x7064", "0x7065", "0x7066", "0x7067"), "Inferentia"),
    "0x7164": "Trainium1",
    "0x7264": "Inferentia2",
    "0x7364": "Trainium2",
    **dict.fromkeys(("0x7564", "0x7565"), "Trainium3"),
}
"""PCI device ids of the Neuron driver, 2.24.7 and 2.25.4."""

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
_HOOK_FILES = (f"opt/aws/neuron/bin/*{OCI_HOOK}*", f"opt/aws/neuron/share/*{OCI_HOOK}*")
_MOST_BYTES = 1 << 20
"""Of a file in /proc or /etc."""


def gather_host(root: Path | None, paths: MachinePaths, *, in_pod: bool) -> Host:
    """The machine at ``root``, None for this one; ``in_pod``: the host's configuration files cannot be seen then."""
    base, sysfs = root or Path("/"), Sysfs(paths.sysfs)
    texts: dict[str, str | Unknown] = {
        str(path): _text(path) for pattern in _RUNTIME_FILES for path in sorted(base.glob(pattern))
    }
    for directory in {(base / pattern).parent for pattern in _RUNTIME_FILES}:
        if os.access(directory, os.F_OK) and not os.access(directory, os.R_OK | os.X_OK):  # a glob finds nothing there
            texts[str(directory)] = Unknown("no permission", "run this as root")
    runtime_files: dict[str, str | Unknown] | Unknown = texts
    if in_pod and root is None:
        runtime_files = Unknown(
            "the container runtime's configuration is the host's, and a pod does not see it",
            "run this as root on the node; it may hold passwords of registries, so do not mount it in the plugin's pod",
        )
    numbers: dict[int, tuple[int, int] | None] = {}
    with suppress(SysfsError):
        for device in sysfs.device_ids():
            numbers[device] = None
            with suppress(SysfsError):
                numbers[device] = sysfs.numbers(device)
    pci: tuple[str, ...] | Unknown = Unknown(f"there is no PCI bus at {paths.sysfs}")
    with suppress(OSError):
        functions = sorted((paths.sysfs / "bus/pci/devices").iterdir())
        ids = [[str(_text(function / name)).strip() for name in ("vendor", "device")] for function in functions]
        pci = tuple(_PRODUCTS[device] for vendor, device in ids if vendor == _AMAZON and device in _PRODUCTS)
    return Host(
        simulated=_exists(paths.dev / SIMULATED_MARKER),
        driver_loaded=_exists(sysfs.class_dir) or _exists(paths.sysfs / "module/neuron"),
        nodes=_nodes(paths.dev),
        numbers=numbers,
        pci=pci,
        hook_files=tuple(str(path) for pattern in _HOOK_FILES for path in sorted(base.glob(pattern))),
        runtime_files=runtime_files,
    )


def _nodes(dev: Path) -> tuple[NodeFile, ...] | Unknown:
    nodes = []
    try:
        names = sorted(entry.name for entry in dev.iterdir() if DEVICE_NAME.match(entry.name))
    except OSError as error:
        return Unknown(f"{dev} cannot be listed ({error.strerror})", "run this as root, or give --dev")
    for name in names:
        with suppress(OSError):  # gone meanwhile, or a dangling link: the same as missing
            status = (dev / name).stat()
            numbers = os.major(status.st_rdev), os.minor(status.st_rdev)
            mode, device = status.st_mode, int(name.removeprefix("neuron"))
            nodes.append(NodeFile(device, stat.S_ISCHR(mode), stat.S_IMODE(mode), numbers))
    return tuple(nodes)


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


def gather_users(nodes: Mapping[int, Path], proc: Path, kubelet_socket: Path) -> DeviceUsers | Unknown:
    """The processes that have ``nodes`` (by device) open. Descriptors that only probe a device do not count."""
    if not proc.is_dir():
        return Unknown(f"there is no {proc}", "run this on the machine itself")
    denied: list[Path] = []
    opened = device_processes(list(nodes.values()), proc, denied)
    by_pid: dict[int, tuple[Process, list[int]]] = {}
    for device, node in sorted(nodes.items()):
        for process in opened.get(node, ()):
            if process.uses:
                by_pid.setdefault(process.pid, (process, []))[1].append(device)
    users = tuple(
        DeviceUser(pid, process.command, tuple(devices), process.pod_uid)
        for pid, (process, devices) in sorted(by_pid.items())
    )
    hidden = None
    if not shows_containers(kubelet_socket, proc):
        # What the chart can do about it is said only where it would help.
        hidden = Unknown(
            f"{proc} is not the machine's own and does not show the kubelet: processes of pods may be missing",
            "run this as root on the machine itself",
        )
        if proc == Path("/proc"):
            hidden = Unknown(
                "processes of other containers cannot be seen from here",
                "run this as root on the node itself; in the plugin's pod it takes devicePlugin.watchProcesses of the "
                "chart (the host's /proc, CAP_SYS_PTRACE and CAP_DAC_READ_SEARCH)",
            )
    elif denied:
        action = "run this as root; in a pod it takes CAP_SYS_PTRACE and CAP_DAC_READ_SEARCH"
        hidden = Unknown(f"{plural(len(denied), 'process', 'processes')} may not be looked into", action)
    return DeviceUsers(users, hidden)


def shows_containers(kubelet_socket: Path, proc: Path) -> bool:
    """Whether ``proc`` shows the processes of containers: it shows the kubelet's.

    That is so on the machine, and on the "machine" of a kubelet that runs in a container (kind).
    """
    if has_kernel_threads(proc):
        return True
    if not _exists(kubelet_socket):
        return False
    from neuron_plugin.kubelet import server_pid

    kubelet = server_pid(kubelet_socket)
    return kubelet is not None and (proc / str(kubelet)).is_dir()
