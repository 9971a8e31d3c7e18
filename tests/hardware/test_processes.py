"""Processes that have a device open, by the files of /proc."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

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


UNDERLINED = UID.replace("-", "_")
TRAIN, STATIC = "python train.py", "0123456789abcdef0123456789abcdef"
LOOKS: dict[str, tuple[dict[str, Any], Process]] = {
    "a command is its words and needs no UTF-8": (
        {"command": b"python\0-m\0train \xff\0"},
        Process(7, "python -m train \\xff"),
    ),
    "of a very long one only the beginning is read": (
        {"command": b"train\0" + b"x" * 2_000_000},
        Process(7, "train " + "x" * 4090),
    ),
    "its pod, by a cgroup of systemd": (
        {"cgroup": f"0::/kubepods.slice/kubepods-pod{UNDERLINED}.slice/cri-containerd-aa.scope\n"},
        Process(7, TRAIN, UID),
    ),
    "of cgroupfs": ({"cgroup": IN_POD}, Process(7, TRAIN, UID)),
    "of cgroup v1": (
        {"cgroup": f"5:devices:/kubepods/pod{UID}/aa\n4:memory:/kubepods/pod{UID}/aa\n"},
        Process(7, TRAIN, UID),
    ),
    "seen from another cgroup namespace": (
        {"cgroup": f"0::/../../kubepods-burstable-pod{UNDERLINED}.slice/cri-containerd-aa.scope\n"},
        Process(7, TRAIN, UID),
    ),
    "a static pod's hash counts as its UID": ({"cgroup": f"0::/kubepods/pod{STATIC}/aa\n"}, Process(7, TRAIN, STATIC)),
    "a process of the host names no pod": ({"cgroup": "0::/system.slice/podman.service\n"}, Process(7, TRAIN)),
    "opened to read": ({"flags": "0100000"}, Process(7, TRAIN)),
    "opened to read and write": ({"flags": "0100002"}, Process(7, TRAIN)),
    "opened write-only it is only probed": ({"flags": "0100001"}, Process(7, TRAIN, uses=False)),
    "also if it closes on exec": ({"flags": "02100001"}, Process(7, TRAIN, uses=False)),
}
"""What /proc has of a process that has the device open, and what it is taken for."""


@pytest.mark.parametrize(("has", "process"), LOOKS.values(), ids=LOOKS)
def test_what_is_read_of_a_process(proc: ProcTree, node: Path, has: dict[str, Any], process: Process) -> None:
    proc.add(7, [node], **has)
    assert device_processes([node], proc.root) == {node: (process,)}


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


def test_one_ordinary_descriptor_among_probes_is_use(proc: ProcTree, node: Path) -> None:
    proc.add(7, [node, node], flags="0100001")
    (proc.root / "7/fdinfo/1").write_text("flags:\t0100002\n")
    assert device_processes([node], proc.root)[node][0].uses


@pytest.mark.parametrize(
    ("call", "is_denied"),
    [
        pytest.param("iterdir", lambda path: path.match("8/fd"), id="its descriptors may not be listed"),
        # So it is with the right to list, and without that to trace.
        pytest.param("stat", lambda path: path.parent.match("8/fd"), id="they may not be followed"),
    ],
)
def test_a_process_that_may_not_be_looked_into_is_named(
    proc: ProcTree, node: Path, monkeypatch: pytest.MonkeyPatch, call: str, is_denied: Callable[[Path], bool]
) -> None:
    proc.add(7, [node])
    proc.add(8, [node])
    allowed = getattr(Path, call)

    def denying(path: Path, **options: bool) -> object:
        if is_denied(path):
            raise PermissionError(13, "Permission denied")
        return allowed(path, **options)

    monkeypatch.setattr(Path, call, denying)
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
