"""Who has which device open, by the files of /proc."""

from __future__ import annotations

import os
from pathlib import Path

from neuron_plugin.hardware.processes import Process, device_processes


def make_process(proc: Path, pid: int, opened: list[Path], cmdline: bytes = b"python\0train.py\0") -> None:
    descriptors = proc / str(pid) / "fd"
    descriptors.mkdir(parents=True)
    for number, path in enumerate(opened):
        (descriptors / str(number)).symlink_to(path)
    (proc / str(pid) / "cmdline").write_bytes(cmdline)


def make_nodes(directory: Path, count: int) -> list[Path]:
    directory.mkdir()
    nodes = [directory / f"neuron{number}" for number in range(count)]
    for node in nodes:
        node.touch()
    return nodes


def test_each_device_has_the_processes_that_opened_it(tmp_path: Path) -> None:
    nodes, proc = make_nodes(tmp_path / "dev", 3), tmp_path / "proc"
    make_process(proc, 20, [nodes[0], nodes[1]])
    make_process(proc, 3, [nodes[0]])
    make_process(proc, 4, [])
    found = device_processes(nodes, proc)
    assert {path.name: [each.pid for each in processes] for path, processes in found.items()} == {
        "neuron0": [3, 20],
        "neuron1": [20],
    }


def test_a_command_is_its_words_and_needs_no_utf8(tmp_path: Path) -> None:
    nodes, proc = make_nodes(tmp_path / "dev", 1), tmp_path / "proc"
    make_process(proc, 5, nodes, b"python\0-m\0train \xff\0")
    assert device_processes(nodes, proc) == {nodes[0]: (Process(5, "python -m train \\xff"),)}


def test_the_same_device_under_another_name_is_found(tmp_path: Path) -> None:
    """A container's /dev/neuron0 may be the host's neuron2."""
    nodes, proc = make_nodes(tmp_path / "dev", 3), tmp_path / "proc"
    inside = tmp_path / "container-neuron0"
    os.link(nodes[2], inside)
    make_process(proc, 5, [inside])
    assert list(device_processes(nodes, proc)) == [nodes[2]]


def test_real_character_devices_are_told_apart_by_their_numbers(tmp_path: Path) -> None:
    proc = tmp_path / "proc"
    make_process(proc, 5, [Path("/dev/null")])
    assert list(device_processes([Path("/dev/null"), Path("/dev/zero")], proc)) == [Path("/dev/null")]


def test_a_process_that_opened_a_device_twice_is_named_once(tmp_path: Path) -> None:
    nodes, proc = make_nodes(tmp_path / "dev", 1), tmp_path / "proc"
    make_process(proc, 5, [nodes[0], nodes[0]])
    assert [each.pid for each in device_processes(nodes, proc)[nodes[0]]] == [5]


def test_what_ended_or_is_no_process_is_passed_over(tmp_path: Path) -> None:
    nodes, proc = make_nodes(tmp_path / "dev", 1), tmp_path / "proc"
    make_process(proc, 5, [nodes[0], tmp_path / "gone"])
    (proc / "5" / "cmdline").unlink()
    (proc / "6").mkdir()
    (proc / "self").mkdir()
    assert device_processes(nodes, proc) == {nodes[0]: (Process(5, ""),)}


def test_without_proc_nobody_is_seen(tmp_path: Path) -> None:
    nodes = make_nodes(tmp_path / "dev", 1)
    assert device_processes([*nodes, tmp_path / "gone"], tmp_path / "nowhere") == {}
