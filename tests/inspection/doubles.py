"""A kubelet's answer as plain values, and simulated machines."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from neuron_plugin import settings
from neuron_plugin.inspection.findings import Unknown
from neuron_plugin.kubelet import PodDevices as Pod
from neuron_plugin.kubelet.pod_resources import ContainerDevices as Container
from neuron_plugin.simulation import SimulatedNode, write_node

__all__ = ["Container", "MakeNode", "Pod", "make_node", "short_directory", "unknown", "usual_file"]

MakeNode: TypeAlias = Callable[..., SimulatedNode]


@pytest.fixture
def usual_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the chart mounts the daemon's configuration; nothing is there yet."""
    monkeypatch.setattr(settings, "USUAL_FILE", tmp_path / "config.yaml")
    return tmp_path / "config.yaml"


@pytest.fixture
def make_node(tmp_path: Path) -> MakeNode:
    """Write a simulated machine without the counters that only monitors read."""

    def make(instance_type: str = "trn1.32xlarge", **options: Any) -> SimulatedNode:
        return write_node(tmp_path / "node", instance_type, usage_counters=False, **options)

    return make


@pytest.fixture
def short_directory() -> Iterator[Path]:
    """Socket paths may have 107 characters; pytest's directories take most of that."""
    directory = Path(tempfile.mkdtemp())
    yield directory
    shutil.rmtree(directory)


def unknown(found: object) -> str:
    """Why something is not known, and what to do about it."""
    assert isinstance(found, Unknown)
    return f"{found.why}: {found.action}"
