"""Processes that have a device open, by the files of /proc."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from neuron_plugin.hardware.processes import Process, device_processes, has_kernel_threads

UID = "0f1c2d3e-4a5b-6c7d-8e9f-001122334455"
IN_POD = f"0::/kubepods/burstable/pod{UID}/aa\n"


class ProcTree:
    """A /proc as plain files."""

    def __init__(self, root: Path) -> None:
        self.root = root / "proc"
        self.root.mkdir()

    def add(
        self,
        pid: int,
        opened: list[Path],
        *,
        cgroup: str = "0::/init.scope\n",
        flags: str = "0100002",
        command: bytes = b"python\0train.py\0",
    ) -> None:
        process = self.root / str(pid)
        (process / "fd").mkdir(parents=True)
        (process / "fdinfo").mkdir()
        for number, path in enumerate(opened):
            (process / "fd" / str(number)).symlink_to(path)
            (process / "fdinfo" / str(number)).write_text(f"pos:\t0\nflags:\t{flags}\nmnt_id:\t15\n")
        (process / "cmdline").write_bytes(command)
        (process / "cgroup").write_text(cgroup)


@pytest.fixture
def proc(tmp_path: Path) -> ProcTree:
    return ProcTree(tmp_path)


@pytest.fixture
def node(tmp_path: Path) -> Path:
    path = tmp_path / "neuron0"
    path.touch()
    return path


@pytest.fixture
def nodes(tmp_path: Path) -> list[Path]:
    made = [tmp_path / f"neuron{number}" for number in range(3)]
    for node in made:
        node.touch()
    return made


def test_each_device_has_the_processes_that_opened_it_once(proc: ProcTree, nodes: list[Path]) -> None:
    proc.add(20, [nodes[0], nodes[1]])
    proc.add(3, [nodes[0], nodes[0]])
    proc.add(4, [])
    (proc.root / "self").mkdir()
    found = device_processes(nodes, proc.root)
    assert {path.name: [each.pid for each in processes] for path, processes in found.items()} == {
        "neuron0": [3, 20],
        "neuron1": [20],
    }


def test_a_command_is_its_words_and_needs_no_utf8(proc: ProcTree, node: Path) -> None:
    proc.add(5, [node], command=b"python\0-m\0train \xff\0")
    assert device_processes([node], proc.root) == {node: (Process(5, "python -m train \\xff"),)}


def test_the_same_device_under_another_name_is_found(proc: ProcTree, nodes: list[Path], tmp_path: Path) -> None:
    """A container's /dev/neuron0 may be the host's neuron2."""
    os.link(nodes[2], inside := tmp_path / "container-neuron0")
    proc.add(5, [inside])
    assert list(device_processes(nodes, proc.root)) == [nodes[2]]


def test_real_character_devices_are_distinguished_by_their_numbers(proc: ProcTree) -> None:
    proc.add(5, [Path("/dev/null")])
    assert list(device_processes([Path("/dev/null"), Path("/dev/zero")], proc.root)) == [Path("/dev/null")]


def test_without_proc_no_process_is_seen(node: Path, tmp_path: Path) -> None:
    assert device_processes([node, tmp_path / "gone"], tmp_path / "nowhere") == {}


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


def test_a_process_that_may_not_be_looked_into_is_named(
    proc: ProcTree, node: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    proc.add(7, [node])
    proc.add(8, [])
    listed = Path.iterdir

    def denying(path: Path) -> object:
        if path == proc.root / "8/fd":
            raise PermissionError(13, "Permission denied")
        return listed(path)

    monkeypatch.setattr(Path, "iterdir", denying)
    denied: list[Path] = []
    assert [each.pid for each in device_processes([node], proc.root, denied)[node]] == [7]
    assert denied == [proc.root / "8"]


def test_a_process_whose_descriptors_may_be_listed_but_not_followed_may_not_be_looked_into(
    proc: ProcTree, node: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So it is with the right to list, and without that to trace."""
    proc.add(7, [node])
    proc.add(8, [node])
    followed = Path.stat

    def denying(path: Path, *, follow_symlinks: bool = True) -> os.stat_result:
        if path.parent == proc.root / "8/fd":
            raise PermissionError(13, "Permission denied")
        return followed(path, follow_symlinks=follow_symlinks)

    monkeypatch.setattr(Path, "stat", denying)
    denied: list[Path] = []
    assert [each.pid for each in device_processes([node], proc.root, denied)[node]] == [7]
    assert denied == [proc.root / "8"]


def test_a_descriptor_or_process_that_has_just_gone_is_passed_over(proc: ProcTree, node: Path) -> None:
    proc.add(7, [node / "closed", node])
    (proc.root / "7/cmdline").unlink()
    (proc.root / "7/fdinfo/1").unlink()
    (proc.root / "9").mkdir()
    denied: list[Path] = []
    (found,) = device_processes([node], proc.root, denied)[node]
    assert (found.pid, found.command, found.uses) == (7, "", True), "what cannot be read of it counts as use"
    assert denied == []


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
