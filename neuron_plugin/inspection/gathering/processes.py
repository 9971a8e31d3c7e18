"""Which processes use devices, and what devices they see: from /proc, where that may be read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from neuron_plugin.hardware import DEVICE_NAME, Identity, Process, device_processes, identity_of
from neuron_plugin.inspection.facts import DeviceUser, DeviceUsers
from neuron_plugin.inspection.text import plural
from neuron_plugin.inspection.unknown import Unknown
from neuron_plugin.plugin.device_users import shows_containers

_USUAL_PROC = Path("/proc")
_FROM_A_POD = (
    "run this as root on the node itself; in the plugin's pod it takes devicePlugin.watchProcesses of the chart (the "
    "host's /proc, CAP_SYS_PTRACE and CAP_DAC_READ_SEARCH)"
)
VISIBLE_CORES = "NEURON_RT_VISIBLE_CORES"


def gather_users(nodes: Mapping[int, Path], proc: Path, kubelet_socket: Path) -> DeviceUsers | Unknown:
    """Who has which of ``nodes`` (by device) open, as ``proc`` shows it. Descriptors that only probe do not count."""
    if not proc.is_dir():
        return Unknown(f"there is no {proc}", "run this on the machine itself")
    denied: list[Path] = []
    opened = device_processes(list(nodes.values()), proc, denied.append)
    devices: dict[int, set[int]] = {}
    processes: dict[int, Process] = {}
    for device, node in nodes.items():
        for process in opened.get(node, ()):
            if process.uses:
                processes[process.pid] = process
                devices.setdefault(process.pid, set()).add(device)
    hosts = {identity: device for device, node in nodes.items() if (identity := identity_of(node))}
    users = (_user(processes[pid], tuple(sorted(devices[pid])), hosts, proc) for pid in sorted(processes))
    return DeviceUsers(tuple(users), _unseen(proc, kubelet_socket, denied))


def _unseen(proc: Path, kubelet_socket: Path, denied: Sequence[Path]) -> Unknown | None:
    """Why processes may have been missed. What the chart can do about it helps only where it has not been done."""
    if not shows_containers(kubelet_socket, proc):
        if proc == _USUAL_PROC:
            return Unknown("processes of other containers cannot be seen from here", _FROM_A_POD)
        return Unknown(
            f"{proc} is not the machine's own and does not show the kubelet: processes of pods may be missing",
            "run this as root on the machine itself",
        )
    if denied:
        action = "run this as root; in a pod it takes CAP_SYS_PTRACE and CAP_DAC_READ_SEARCH"
        return Unknown(f"{plural(len(denied), 'process', 'processes')} may not be looked into", action)
    return None


def _user(process: Process, devices: tuple[int, ...], hosts: Mapping[Identity, int], proc: Path) -> DeviceUser:
    own = proc / str(process.pid)
    return DeviceUser(
        process.pid,
        process.command,
        devices,
        process.pod_uid,
        inside=_inside(own / "root/dev", hosts),
        visible_cores=_environment(own / "environ").get(VISIBLE_CORES, ""),
    )


def _inside(dev: Path, hosts: Mapping[Identity, int]) -> dict[int, int] | None:
    """The host's device behind each device node that the process sees; None where that may not be seen."""
    try:
        entries = [entry for entry in dev.iterdir() if DEVICE_NAME.match(entry.name)]
    except OSError:
        return None
    found = ((int(entry.name.removeprefix("neuron")), identity_of(entry)) for entry in entries)
    return {number: hosts[identity] for number, identity in found if identity and identity in hosts}


def _environment(path: Path) -> dict[str, str]:
    try:
        text = path.read_bytes().decode("utf-8", "backslashreplace")
    except OSError:
        return {}
    pairs = (entry.partition("=") for entry in text.split("\0"))
    return {name: value for name, separator, value in pairs if separator}
