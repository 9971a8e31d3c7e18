from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from neuron_plugin.hardware.processes import Process, device_processes, has_kernel_threads, look_at_processes

UID = "0f1c2d3e-4a5b-6c7d-8e9f-001122334455"
IN_POD = f"0::/kubepods/burstable/pod{UID}/aa\n"


class ProcTree:
    """A /proc as plain files."""

    def __init__(self, root: Path) -> None:
        self.root = root / "proc"
        self.root.mkdir()

    def add(self, pid: int, opened: list[Path], *, cgroup: str = "0::/init.scope\n", flags: str = "0100002") -> None:
        process = self.root / str(pid)
        (process / "fd").mkdir(parents=True)
        (process / "fdinfo").mkdir()
        for number, path in enumerate(opened):
            (process / "fd" / str(number)).symlink_to(path)
            (process / "fdinfo" / str(number)).write_text(f"pos:\t0\nflags:\t{flags}\nmnt_id:\t15\n")
        (process / "cmdline").write_bytes(b"python\0train.py\0")
        (process / "cgroup").write_text(cgroup)


@pytest.fixture
def proc(tmp_path: Path) -> ProcTree:
    return ProcTree(tmp_path)


@pytest.fixture
def node(tmp_path: Path) -> Path:
    path = tmp_path / "neuron0"
    path.touch()
    return path


def yes(_proc: Path) -> bool:
    return True


@pytest.mark.parametrize(
    "cgroup",
    [
        f"0::/kubepods.slice/kubepods-pod{UID.replace('-', '_')}.slice/cri-containerd-aa.scope\n",
        IN_POD,
        f"5:devices:/kubepods/besteffort/pod{UID}/aa\n4:memory:/kubepods/besteffort/pod{UID}/aa\n",
        f"0::/../../kubepods-burstable-pod{UID.replace('-', '_')}.slice/cri-containerd-aa.scope\n",
    ],
    ids=["systemd", "cgroupfs", "cgroup v1", "seen from another cgroup namespace"],
)
def test_the_pod_of_a_process_is_read_from_its_cgroup(proc: ProcTree, node: Path, cgroup: str) -> None:
    proc.add(7, [node], cgroup=cgroup)
    assert device_processes([node], proc.root) == {node: (Process(7, "python train.py", UID),)}


def test_a_static_pods_hash_counts_as_its_uid(proc: ProcTree, node: Path) -> None:
    proc.add(7, [node], cgroup="0::/kubepods/pod0123456789abcdef0123456789abcdef/aa\n")
    assert device_processes([node], proc.root)[node][0].pod_uid == "0123456789abcdef0123456789abcdef"


def test_of_a_very_long_command_line_only_the_beginning_is_read(proc: ProcTree, node: Path) -> None:
    proc.add(7, [node])
    (proc.root / "7/cmdline").write_bytes(b"train\0" + b"x" * 2_000_000)
    command = device_processes([node], proc.root)[node][0].command
    assert command.startswith("train xxx")
    assert len(command) == 4096


def test_a_process_of_the_host_names_no_pod(proc: ProcTree, node: Path) -> None:
    proc.add(7, [node], cgroup="0::/system.slice/podman.service\n")
    assert device_processes([node], proc.root)[node][0].pod_uid == ""


@pytest.mark.parametrize(
    ("flags", "uses"),
    [("0100000", True), ("0100002", True), ("0100001", False), ("02100001", False)],
    ids=["read", "read and write", "write only", "write only, close on exec"],
)
def test_a_device_opened_write_only_is_only_probed(proc: ProcTree, node: Path, flags: str, *, uses: bool) -> None:
    proc.add(7, [node], flags=flags)
    assert device_processes([node], proc.root)[node][0].uses is uses


def test_one_ordinary_descriptor_among_probes_is_use(proc: ProcTree, node: Path) -> None:
    proc.add(7, [node, node], flags="0100001")
    (proc.root / "7/fdinfo/1").write_text("flags:\t0100002\n")
    assert device_processes([node], proc.root)[node][0].uses


def test_flags_that_cannot_be_read_count_as_use(proc: ProcTree, node: Path) -> None:
    proc.add(7, [node])
    (proc.root / "7/fdinfo/0").unlink()
    assert device_processes([node], proc.root)[node][0].uses


def test_a_look_is_complete_where_every_process_of_the_machine_is_seen(proc: ProcTree, node: Path) -> None:
    proc.add(7, [node])
    assert look_at_processes([node], proc.root, is_whole_machine=yes).complete
    assert not look_at_processes([node], proc.root, is_whole_machine=lambda _proc: False).complete


@pytest.mark.parametrize(
    ("cgroup", "complete"),
    [(IN_POD, False), ("0::/init.scope\n", True), ("", False)],
    ids=["of a pod", "of the machine", "of nobody knows whom"],
)
def test_a_process_that_may_not_be_looked_into_makes_a_look_incomplete_unless_it_is_of_no_pod(
    proc: ProcTree, node: Path, monkeypatch: pytest.MonkeyPatch, cgroup: str, *, complete: bool
) -> None:
    proc.add(7, [node])
    proc.add(8, [], cgroup=cgroup)
    listed = Path.iterdir

    def denying(path: Path) -> object:
        if path == proc.root / "8/fd":
            raise PermissionError(13, "Permission denied")
        return listed(path)

    monkeypatch.setattr(Path, "iterdir", denying)
    look = look_at_processes([node], proc.root, is_whole_machine=yes)
    assert [each.pid for each in look.processes[node]] == [7]
    assert look.complete is complete


def test_a_process_whose_descriptors_may_be_listed_but_not_followed_may_not_be_looked_into(
    proc: ProcTree, node: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So it is with the right to list, and without that to trace."""
    proc.add(7, [node])
    proc.add(8, [node], cgroup=IN_POD)
    followed = Path.stat

    def denying(path: Path, *, follow_symlinks: bool = True) -> os.stat_result:
        if path.parent == proc.root / "8/fd":
            raise PermissionError(13, "Permission denied")
        return followed(path, follow_symlinks=follow_symlinks)

    monkeypatch.setattr(Path, "stat", denying)
    look = look_at_processes([node], proc.root, is_whole_machine=yes)
    assert [each.pid for each in look.processes[node]] == [7]
    assert not look.complete


def test_a_descriptor_that_was_closed_meanwhile_leaves_a_look_complete(proc: ProcTree, node: Path) -> None:
    proc.add(7, [node / "closed", node])
    look = look_at_processes([node], proc.root, is_whole_machine=yes)
    assert [each.pid for each in look.processes[node]] == [7]
    assert look.complete


def test_a_process_that_ended_meanwhile_leaves_a_look_complete(proc: ProcTree, node: Path) -> None:
    (proc.root / "9").mkdir()
    assert look_at_processes([node], proc.root, is_whole_machine=yes).complete


def test_a_machines_own_namespace_is_known_by_its_kernel_threads(proc: ProcTree) -> None:
    assert not has_kernel_threads(proc.root)
    (proc.root / "2").mkdir()
    (proc.root / "2/comm").write_text("bash\n")
    assert not has_kernel_threads(proc.root)
    (proc.root / "2/comm").write_text("kthreadd\n")
    assert has_kernel_threads(proc.root)


def test_a_real_process_is_found_with_how_it_opened_the_file(node: Path) -> None:
    script = "import os, sys; os.open(sys.argv[1], int(sys.argv[2])); print('open', flush=True); sys.stdin.read()"
    for flags, uses in ((os.O_RDWR, True), (os.O_WRONLY, False)):
        arguments = [sys.executable, "-c", script, str(node), str(flags)]
        with subprocess.Popen(arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:  # noqa: S603 - our own
            assert process.stdout is not None
            process.stdout.readline()
            found = device_processes([node])[node]
            assert [(each.pid, each.uses) for each in found] == [(process.pid, uses)]
            process.kill()
