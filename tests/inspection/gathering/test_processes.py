from __future__ import annotations

import os
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from neuron_plugin.inspection.facts import DeviceUser, DeviceUsers
from neuron_plugin.inspection.gathering import processes
from neuron_plugin.inspection.gathering.processes import gather_users
from neuron_plugin.inspection.unknown import Unknown

NOWHERE = Path("/nowhere/kubelet.sock")
UID = "1b4e28ba-2fa1-41d2-883f-0016d3cca427"


def make_nodes(directory: Path, count: int) -> dict[int, Path]:
    directory.mkdir()
    nodes = {device: directory / f"neuron{device}" for device in range(count)}
    for node in nodes.values():
        node.touch()
    return nodes


def make_process(proc: Path, pid: int, *opened: Path, cgroup: str = "0::/user.slice\n", environ: str = "") -> Path:
    """A process as /proc shows it, with files open for reading and writing."""
    process = proc / str(pid)
    for name in ("fd", "fdinfo", "root/dev"):
        (process / name).mkdir(parents=True)
    for number, path in enumerate(opened, 3):
        (process / "fd" / str(number)).symlink_to(path)
        (process / "fdinfo" / str(number)).write_text(f"pos:\t0\nflags:\t{os.O_RDWR:07o}\n")
    (process / "cmdline").write_text("python\0train.py\0")
    (process / "cgroup").write_text(cgroup)
    (process / "environ").write_text(environ)
    return process


def test_a_container_is_told_with_its_pod_its_view_and_its_cores(tmp_path: Path) -> None:
    nodes, proc = make_nodes(tmp_path / "dev", 6), tmp_path / "proc"
    cgroup = f"0::/kubepods.slice/kubepods-pod{UID.replace('-', '_')}.slice/cri-containerd-0.scope\n"
    environ = "PATH=/bin\0NEURON_RT_VISIBLE_CORES=0-3\0"
    process = make_process(proc, 4711, nodes[4], nodes[5], cgroup=cgroup, environ=environ)
    for inside, host in ((0, 4), (1, 5)):
        (process / f"root/dev/neuron{inside}").hardlink_to(nodes[host])
    (process / "root/dev/null").touch()
    (proc / "2").mkdir()
    (proc / "2/comm").write_text("kthreadd\n")
    found = gather_users(nodes, proc, NOWHERE)
    expected = DeviceUser(4711, "python train.py", (4, 5), UID, inside={0: 4, 1: 5}, visible_cores="0-3")
    assert found == DeviceUsers((expected,))


def test_nobody_and_somebody_without_devices_use_nothing(tmp_path: Path) -> None:
    nodes, proc = make_nodes(tmp_path / "dev", 1), tmp_path / "proc"
    make_process(proc, 1, tmp_path / "elsewhere")
    found = gather_users(nodes, proc, NOWHERE)
    assert isinstance(found, DeviceUsers)
    assert found.users == ()


def test_a_mounted_proc_that_is_not_the_machines_is_not_mended_by_mounting_it(tmp_path: Path) -> None:
    make_process(tmp_path / "proc", 1)
    found = gather_users({}, tmp_path / "proc", NOWHERE)
    assert isinstance(found, DeviceUsers)
    assert found.unseen is not None
    assert "is not the machine's own" in found.unseen.why
    assert "watchProcesses" not in found.unseen.action


def test_where_the_kubelet_is_seen_all_processes_of_pods_are(tmp_path: Path) -> None:
    """As on a node that is itself a container (kind); the daemon has it so, too."""
    make_process(tmp_path / "proc", os.getpid())
    path = tmp_path / "kubelet.sock"
    with socket.socket(socket.AF_UNIX) as kubelet:
        kubelet.bind(str(path))
        kubelet.listen()
        assert gather_users({}, tmp_path / "proc", path) == DeviceUsers(())


def test_processes_that_may_not_be_looked_into_are_counted_and_ask_for_the_right(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    process = make_process(tmp_path / "proc", 2)
    (process / "comm").write_text("kthreadd\n")

    def denied(_nodes: object, _proc: Path, on_denied: Callable[[Path], None]) -> dict[Path, object]:
        on_denied(process)
        return {}

    monkeypatch.setattr(processes, "device_processes", denied)
    found = gather_users({}, tmp_path / "proc", NOWHERE)
    assert found == DeviceUsers(
        (),
        Unknown(
            "1 process may not be looked into",
            "run this as root; in a pod it takes CAP_SYS_PTRACE and CAP_DAC_READ_SEARCH",
        ),
    )


def test_in_a_pod_the_way_to_see_the_host_s_processes_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "shows_containers", lambda _socket, _proc: False)
    found = gather_users({}, Path("/proc"), NOWHERE)
    assert isinstance(found, DeviceUsers)
    assert found.unseen is not None
    assert "watchProcesses" in found.unseen.action


def test_descriptors_that_only_probe_do_not_count(tmp_path: Path) -> None:
    nodes, proc = make_nodes(tmp_path / "dev", 1), tmp_path / "proc"
    process = make_process(proc, 7, nodes[0])
    (process / "fdinfo/3").write_text(f"flags:\t{os.O_WRONLY:07o}\n")
    found = gather_users(nodes, proc, NOWHERE)
    assert isinstance(found, DeviceUsers)
    assert found.users == ()


def test_a_process_whose_root_may_not_be_seen_has_an_unknown_view(tmp_path: Path) -> None:
    nodes, proc = make_nodes(tmp_path / "dev", 1), tmp_path / "proc"
    process = make_process(proc, 7, nodes[0])
    (process / "root/dev").rmdir()
    (process / "environ").unlink()
    found = gather_users(nodes, proc, NOWHERE)
    assert isinstance(found, DeviceUsers)
    assert [(each.inside, each.visible_cores, each.pod_uid) for each in found.users] == [(None, "", "")]


def test_without_proc_it_is_not_known(tmp_path: Path) -> None:
    assert isinstance(gather_users({}, tmp_path / "proc", NOWHERE), Unknown)


def test_this_very_process_is_seen_in_the_real_proc(tmp_path: Path) -> None:
    nodes = make_nodes(tmp_path / "dev", 2)
    with nodes[1].open("r+b"):
        found = gather_users(nodes, Path("/proc"), NOWHERE)
    assert isinstance(found, DeviceUsers)
    assert os.getpid() in [each.pid for each in found.users if each.devices == (1,)]
