"""What a container runtime makes of CDI devices."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from neuron_plugin.kubelet import DeviceNode
from neuron_plugin.simulation.cdi import UnresolvableError, resolve


def write(directory: Path, *devices: tuple[str, dict[str, object]], name: str = "a.json") -> None:
    entries = [{"name": device, "containerEdits": edits} for device, edits in devices]
    (directory / name).write_bytes(msgspec.json.encode({"kind": "example.com/d", "devices": entries}))


def node(path: str, host: str = "") -> dict[str, object]:
    return {"deviceNodes": [{"path": path} | ({"hostPath": host, "permissions": "rw"} if host else {})]}


def test_nodes_and_variables_of_all_names_are_joined_and_the_last_one_holds(tmp_path: Path) -> None:
    write(tmp_path, ("0", node("/dev/a", "/host/a")), ("1", node("/dev/a")), ("x", {"env": ["A=1", "B=x=y"]}))
    write(tmp_path, ("y", {"env": ["A=2"]}), name="b.json")
    found = resolve(tmp_path, [f"example.com/d={name}" for name in ("0", "1", "x", "y")])
    assert found.devices == (DeviceNode("/dev/a", "/dev/a", "rwm"),)
    assert found.envs == {"A": "2", "B": "x=y"}
    assert resolve(tmp_path, ["example.com/d=0"]).devices == (DeviceNode("/host/a", "/dev/a", "rw"),)


def test_names_that_nobody_describes_keep_the_container_from_starting(tmp_path: Path) -> None:
    write(tmp_path, ("0", {}))
    with pytest.raises(UnresolvableError, match=r"unresolvable CDI devices example\.com/d=7"):
        resolve(tmp_path, ["example.com/d=0", "example.com/d=7"])


def test_a_file_with_one_name_twice_describes_nothing(tmp_path: Path) -> None:
    write(tmp_path, ("0", {}), ("0", {}), ("1", {}))
    (tmp_path / "b.json").write_text("{")
    with pytest.raises(UnresolvableError):
        resolve(tmp_path, ["example.com/d=1"])
