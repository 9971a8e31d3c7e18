from __future__ import annotations

from pathlib import Path

import pytest

from neuron_plugin.instance_file import load_catalogue
from neuron_plugin.settings import SettingsError
from neuron_plugin.topology import InstanceType, Topology, catalogue

FULL = """\
instance-types:
  - name: trn9.48xlarge
    device-name: Trainium9
    devices: 16
    cores-per-device: 8
    memory-gib: 144
    topology: torus
    logical-core-size: 2
    block-sizes: [1, 4, 8, 16]
    core-block-sizes: [1, 2, 4]
    numa-nodes: [0, 0, 1, 1, 0, 0, 1, 1, 0, 0, 1, 1, 0, 0, 1, 1]
"""


def load(tmp_path: Path, text: str) -> dict[str, InstanceType]:
    file = tmp_path / "types.yaml"
    file.write_text(text)
    return load_catalogue(file)


def entry(tmp_path: Path, fields: str) -> InstanceType:
    return load(tmp_path, f"instance-types: [{{name: x9.xlarge, {fields}}}]")["x9.xlarge"]


def test_without_a_file_the_shipped_types_are_known() -> None:
    assert load_catalogue(None) == catalogue()


def test_a_type_is_added_with_everything_it_says(tmp_path: Path) -> None:
    types = load(tmp_path, FULL)
    assert types["trn9.48xlarge"] == InstanceType(
        "trn9.48xlarge", "Trainium9", 16, 8, 144, Topology.TORUS, 2, (1, 4, 8, 16), (1, 2, 4), (0, 0, 1, 1) * 4
    )
    assert types.keys() == catalogue().keys() | {"trn9.48xlarge"}


def test_a_device_has_its_memory_and_the_amounts_of_the_file(tmp_path: Path) -> None:
    fields = "devices: 1, cores-per-device: 2, topology: single, memory-gib: 8, amounts: {shares: 100, links: 4}"
    assert entry(tmp_path, fields).device_amounts == (("memory", 8192), ("links", 4), ("shares", 100))
    assert entry(tmp_path, "devices: 1, cores-per-device: 2, topology: single").device_amounts == ()


def test_a_shipped_type_can_be_corrected(tmp_path: Path) -> None:
    fields = "name: inf2.24xlarge, devices: 6, cores-per-device: 2, topology: ring"
    assert load(tmp_path, f"instance-types: [{{{fields}}}]")["inf2.24xlarge"].topology is Topology.RING


@pytest.mark.parametrize(
    ("fields", "blocks"),
    [
        ("devices: 16, cores-per-device: 8, topology: torus", (1, 4, 8, 16)),
        ("devices: 4, cores-per-device: 8, topology: unlinked", (1,)),
        ("devices: 4, cores-per-device: 8, topology: ring", ()),
        ("devices: 4, cores-per-device: 8, topology: ring, block-sizes: [1, 2]", (1, 2)),
        ("devices: 16, cores-per-device: 8, topology: torus, block-sizes: []", ()),
    ],
)
def test_block_sizes_follow_the_topology_unless_they_are_given(
    tmp_path: Path, fields: str, blocks: tuple[int, ...]
) -> None:
    assert entry(tmp_path, fields).block_sizes == blocks


def test_what_is_left_out_is_modest(tmp_path: Path) -> None:
    instance = entry(tmp_path, "devices: 1, cores-per-device: 2, topology: single")
    assert (instance.device_name, instance.memory_gib, instance.logical_core_size, instance.numa_nodes) == (
        "",
        0,
        1,
        (),
    )


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ("devices: 0, cores-per-device: 2, topology: line", "Expected `int` >= 1"),
        ("devices: 65, cores-per-device: 2, topology: line", "Expected `int` <= 64"),
        ("devices: 4, cores-per-device: 9, topology: line", "Expected `int` <= 8"),
        ("devices: 4, cores-per-device: 2, topology: star", "Invalid enum value 'star'"),
        ("devices: 4, cores-per-device: 2", "missing required field `topology`"),
        ("devices: 4, cores-per-device: 2, topology: line, colour: red", "unknown field `colour`"),
        ("devices: four, cores-per-device: 2, topology: line", "Expected `int`, got `str`"),
        ("devices: 4, cores-per-device: 2, topology: line, numa-nodes: [0]", "1 numa-nodes, expected one for each of"),
        ("devices: 12, cores-per-device: 2, topology: torus", "torus with 12 devices"),
        ("devices: 2, cores-per-device: 2, topology: single", "single with 2 devices"),
        ("devices: 1, cores-per-device: 2, topology: single, amounts: {memory: 1}", "expected it as memory-gib"),
        ("devices: 1, cores-per-device: 2, topology: single, amounts: {a/b: 1}", "Expected `str` matching regex"),
        ("devices: 1, cores-per-device: 2, topology: single, amounts: {shares: -1}", "Expected `int` >= 0"),
        (
            "devices: 2, cores-per-device: 2, topology: line, logical-core-size: 4",
            "logical-core-size 4 does not divide 2 cores-per-device",
        ),
    ],
)
def test_a_type_that_cannot_be_is_refused_with_file_and_reason(tmp_path: Path, fields: str, said: str) -> None:
    with pytest.raises(SettingsError) as refused:
        entry(tmp_path, fields)
    assert said in str(refused.value)
    assert str(tmp_path / "types.yaml") in str(refused.value)


@pytest.mark.parametrize("key", ["name", "device-name"])
def test_a_name_is_no_longer_than_the_extender_takes(tmp_path: Path, key: str) -> None:
    old = f"{key}: {'trn9.48xlarge' if key == 'name' else 'Trainium9'}"
    load(tmp_path, FULL.replace(old, f"{key}: {'x' * 256}"))
    with pytest.raises(SettingsError, match=rf"types.yaml: Expected `str` of length <= 256 .*\.{key}"):
        load(tmp_path, FULL.replace(old, f"{key}: {'x' * 257}"))


@pytest.mark.parametrize("text", ["", "instance-types: 3", "types: []", "- a", "instance-types: [", "[1, 2]"])
def test_a_file_that_is_none_is_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(SettingsError):
        load(tmp_path, text)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"cannot read .*nowhere"):
        load_catalogue(tmp_path / "nowhere.yaml")


def test_a_user_type_of_32_devices_is_two_tori(tmp_path: Path) -> None:
    assert entry(tmp_path, "devices: 32, cores-per-device: 2, topology: torus").devices == 32
