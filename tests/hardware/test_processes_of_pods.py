"""Pods that still have a process, by their cgroups: both versions, both drivers of the kubelet, and other roots."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

from neuron_plugin.hardware import is_populated
from neuron_plugin.hardware import processes as module

UID = "0f1c2d3e-4a5b-6c7d-8e9f-001122334455"
OTHER = "11111111-2222-3333-4444-555555555555"
STATIC = "0123456789abcdef0123456789abcdef"
QUALITIES = ("", "burstable", "besteffort")


@dataclass
class Cgroups:
    """A tree of plain files, as a version of cgroups and a driver of the kubelet make it, below a prefix."""

    root: Path
    version: int = 2
    systemd: bool = True
    prefix: str = ""

    def __post_init__(self) -> None:
        self.root.mkdir(exist_ok=True)
        if self.version == 2:
            (self.root / "cgroup.controllers").write_text("cpu memory\n")
            self.bases = [self.root]
        else:
            self.bases = [self.root / controller for controller in ("cpu", "memory", "systemd")]
        for base in self.bases:
            self.make(base / "system.slice/containerd.service", populated=True)
            self.make(base / self.kubepods, populated=False)

    @property
    def kubepods(self) -> str:
        if not self.systemd:
            return f"{self.prefix}/kubepods".lstrip("/")
        return f"{self.prefix}.slice/{self.prefix}-kubepods.slice" if self.prefix else "kubepods.slice"

    def add(self, uid: str, quality: str = "", *, populated: bool = True, container: str = "cri-containerd-aa") -> None:
        stem = Path(self.kubepods).stem
        if self.systemd:
            parents = f"{stem}-{quality}.slice/" if quality else ""
            pod = f"{parents}{stem}{f'-{quality}' if quality else ''}-pod{uid.replace('-', '_')}.slice"
        else:
            pod = f"{quality}/pod{uid}".lstrip("/")
        for base in self.bases:
            self.make(base / self.kubepods / pod / container, populated=populated)
            if self.version == 2:  # recursive: the parent's file says it of the container, too
                events = f"populated {int(populated)}\nfrozen 0\n"
                (base / self.kubepods / pod / "cgroup.events").write_text(events)

    def make(self, path: Path, *, populated: bool) -> None:
        path.mkdir(parents=True, exist_ok=True)
        (path / "cgroup.procs").write_text("4711\n" if populated else "")
        if self.version == 2:
            (path / "cgroup.events").write_text(f"populated {int(populated)}\nfrozen 0\n")
        else:
            (path / "tasks").write_text("4711\n" if populated else "")


@pytest.fixture(
    params=[
        (version, systemd, prefix) for version in (2, 1) for systemd in (True, False) for prefix in ("", "kubelet")
    ],
    ids=lambda case: f"v{case[0]}-{'systemd' if case[1] else 'cgroupfs'}{'-below-kubelet' if case[2] else ''}",
)
def cgroups(request: pytest.FixtureRequest, tmp_path: Path) -> Cgroups:
    return Cgroups(tmp_path / "cgroup", *request.param)


@pytest.mark.parametrize("quality", QUALITIES)
def test_a_pod_with_a_process_is_populated_until_the_process_has_ended(cgroups: Cgroups, quality: str) -> None:
    for uid in (UID, STATIC):  # the kubelet's own have no dashes
        cgroups.add(uid, quality)
        cgroups.add(OTHER, quality, populated=False)
        assert is_populated(cgroups.root, uid) is True
        assert is_populated(cgroups.root, OTHER) is False
        cgroups.add(uid, quality, populated=False)
        assert is_populated(cgroups.root, uid) is False


def test_a_pod_whose_cgroup_is_gone_has_no_process(cgroups: Cgroups) -> None:
    assert is_populated(cgroups.root, UID) is False


def test_a_process_of_any_container_counts(cgroups: Cgroups) -> None:
    cgroups.add(UID, populated=False, container="cri-containerd-aa")
    cgroups.add(UID, populated=True, container="cri-containerd-bb")
    assert is_populated(cgroups.root, UID) is True


def test_without_a_directory_of_pods_the_answer_is_unknown(tmp_path: Path) -> None:
    """As in a container with a cgroup namespace of its own, and no mount of the host's."""
    assert is_populated(tmp_path / "nowhere", UID) is None
    (tmp_path / "cgroup.controllers").touch()
    (tmp_path / "cgroup.procs").write_text("1\n")
    assert is_populated(tmp_path, UID) is None


def test_pods_deeper_than_the_grandchildren_of_the_root_are_not_searched_for(tmp_path: Path) -> None:
    Cgroups(tmp_path / "cgroup", 2, systemd=False, prefix="a/b").add(UID)
    assert is_populated(tmp_path / "cgroup", UID) is None


def test_a_kubelet_in_a_container_has_a_tree_of_its_own(tmp_path: Path) -> None:
    """As kind on a Kubernetes node: both trees are in sight."""
    Cgroups(tmp_path / "cgroup").add(UID)
    Cgroups(tmp_path / "cgroup", systemd=False, prefix="kubelet").add(OTHER)
    assert is_populated(tmp_path / "cgroup", UID) is True
    assert is_populated(tmp_path / "cgroup", OTHER) is True


def test_a_controller_that_has_no_pods_is_passed_over(tmp_path: Path) -> None:
    cgroups = Cgroups(tmp_path / "cgroup", 1)
    cgroups.add(UID)
    for path in sorted((tmp_path / "cgroup/memory/kubepods.slice").rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    (tmp_path / "cgroup/memory/kubepods.slice/cgroup.procs").unlink(missing_ok=True)
    (tmp_path / "cgroup/memory/kubepods.slice").rmdir()
    assert is_populated(tmp_path / "cgroup", UID) is True


def test_a_look_at_one_pod_reads_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cgroups = Cgroups(tmp_path / "cgroup")
    for number in range(500):
        cgroups.add(f"{number:08x}-2222-3333-4444-555555555555", "burstable")
    read: list[Path] = []
    text = module._text

    def reading(path: Path, *rest: int) -> str:
        read.append(path)
        return text(path, *rest)

    monkeypatch.setattr(module, "_text", reading)
    begun = time.perf_counter()
    assert is_populated(cgroups.root, "000001f3-2222-3333-4444-555555555555") is True
    assert time.perf_counter() - begun < 0.1
    assert len(read) <= len(QUALITIES)


@pytest.mark.skipif(not os.path.isdir("/sys/fs/cgroup"), reason="no cgroups here")  # noqa: PTH112 - at import
def test_the_cgroups_of_this_machine_can_be_read() -> None:
    assert is_populated(Path("/sys/fs/cgroup"), UID) in {None, False}
