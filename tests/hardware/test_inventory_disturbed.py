"""Looks at a machine whose files hold anything, or go while they are read: each costs at most its own device."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import IO, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from neuron_plugin.hardware.inventory import EVERY_DEVICE, Inventory, read_inventory
from neuron_plugin.simulation import SimulatedNode, write_node
from neuron_plugin.topology import DeviceId

MakeNode = Callable[..., SimulatedNode]

DEVICE_ATTRIBUTES = [
    "core_count",
    "connected_devices",
    "reset",
    "dev",
    "info/serial_number",
    "info/architecture/device_name",
    "info/architecture/arch_type",
    "stats/hardware/mem_ecc_uncorrected",
    "stats/hardware/health_status/unhealthy_components",
]
MACHINE_FILES = [
    "sys/module/neuron/version",
    "sys/class/dmi/id/product_name",
    "sys/class/neuron_device/ultraserver_mode",
    "sys/class/neuron_device/server_id_4",
    "opt/aws/neuron/logical_nc_config",
]
garbage = st.one_of(
    st.binary(max_size=40), st.text(max_size=20).map(str.encode), st.integers().map(lambda n: b"%d\n" % n)
)


@pytest.fixture(scope="module")
def shared_node(tmp_path_factory: pytest.TempPathFactory) -> SimulatedNode:
    return write_node(
        tmp_path_factory.mktemp("shared") / "node", "inf2.24xlarge", logical_core_size=1, usage_counters=False
    )


def with_bytes(node: SimulatedNode, path: Path, content: bytes) -> Iterator[Inventory]:
    kept = path.read_bytes()
    path.chmod(0o644)
    path.write_bytes(content)
    try:
        yield read_inventory(node.paths)
        yield read_inventory(node.paths, settled=EVERY_DEVICE)
    finally:
        path.write_bytes(kept)


@given(attribute=st.sampled_from(DEVICE_ATTRIBUTES), content=garbage)
def test_p27_whatever_an_attribute_reads_costs_at_most_its_own_device(
    shared_node: SimulatedNode, attribute: str, content: bytes
) -> None:
    path = shared_node.paths.sysfs / "class/neuron_device/neuron2" / attribute
    for inventory in with_bytes(shared_node, path, content):
        assert set(inventory.device_ids) >= {0, 1, 3, 4, 5}
        assert 2 in inventory.device_ids or inventory.skipped[0].id == 2
        assert all("neuron2" in skipped.reason for skipped in inventory.skipped)


@pytest.mark.parametrize("attribute", DEVICE_ATTRIBUTES)
@pytest.mark.parametrize("instead", ["directory", "dangling link", "link to itself"])
def test_p27_whatever_stands_in_an_attributes_place_costs_at_most_its_own_device(
    make_node: MakeNode, attribute: str, instead: str
) -> None:
    node = make_node("inf2.24xlarge")
    path = node.paths.sysfs / "class/neuron_device/neuron2" / attribute
    path.unlink()
    if instead == "directory":
        path.mkdir()
    else:
        path.symlink_to("nowhere" if instead == "dangling link" else path.name)
    for settled in (frozenset[DeviceId](), EVERY_DEVICE):
        inventory = read_inventory(node.paths, settled=settled)
        assert set(inventory.device_ids) >= {0, 1, 3, 4, 5}
        assert 2 in inventory.device_ids or inventory.skipped[0].id == 2


def test_a_class_link_to_a_device_that_is_gone_is_no_device(make_node: MakeNode) -> None:
    node = make_node("inf2.24xlarge")
    (node.paths.sysfs / "class/neuron_device/neuron9").symlink_to("../../devices/virtual/neuron_device/neuron9")
    inventory = read_inventory(node.paths)
    assert inventory.device_ids == (0, 1, 2, 3, 4, 5)
    assert inventory.skipped == ()


@given(name=st.sampled_from(MACHINE_FILES), content=garbage)
def test_p27_whatever_the_machines_own_files_read_costs_no_device(
    shared_node: SimulatedNode, name: str, content: bytes
) -> None:
    for inventory in with_bytes(shared_node, shared_node.root / name, content):
        assert len(inventory.devices) == 6
        assert inventory.cores_per_device == 2


@pytest.fixture
def at_open(monkeypatch: pytest.MonkeyPatch) -> Callable[[str, int, Callable[[], None]], Iterator[int]]:
    """Do something once, before the given one of a device's files is opened; counts the files opened."""

    real_open = Path.open

    def arrange(device: str, number: int, action: Callable[[], None]) -> Iterator[int]:
        opened = count()

        def opening(self: Path, *args: Any, **kwargs: Any) -> IO[Any]:
            if f"/{device}/" in str(self) and next(opened) == number:
                action()
            file: IO[Any] = real_open(self, *args, **kwargs)
            return file

        monkeypatch.setattr(Path, "open", opening)
        return opened

    return arrange


@pytest.mark.parametrize("part", range(4))
@pytest.mark.parametrize("settled", [frozenset[DeviceId](), EVERY_DEVICE], ids=["new", "settled"])
def test_p25_a_device_that_goes_at_any_moment_of_a_look_is_gone_and_no_other(
    make_node: MakeNode,
    at_open: Callable[[str, int, Callable[[], None]], Iterator[int]],
    part: int,
    settled: frozenset[DeviceId],
) -> None:
    node = make_node("inf2.24xlarge")
    for number in range(part, 1000, 4):
        opened = at_open("neuron2", number, lambda: node.remove_device(2))
        inventory = read_inventory(node.paths, settled=settled)
        if next(opened) <= number:
            assert number > 5
            return
        assert inventory.device_ids == (0, 1, 3, 4, 5), number
        assert (inventory.skipped, inventory.problems) == ((), ())
        assert {(device.cores, device.device_name, device.problems) for device in inventory.devices} == {
            (2, "Inferentia2", ())
        }
        node.restore_device(2)


@pytest.mark.parametrize("attribute", ["core_count", "connected_devices", "info/architecture/device_name"])
def test_p23_an_attribute_that_comes_in_the_middle_of_a_look_is_there_at_the_next(
    make_node: MakeNode, at_open: Callable[[str, int, Callable[[], None]], Iterator[int]], attribute: str
) -> None:
    node = make_node("inf2.24xlarge")
    whole = read_inventory(node.paths)
    for number in range(6):
        node.set_attribute(2, attribute, None)
        at_open("neuron2", number, lambda: node.restore_attribute(2, attribute))
        found = read_inventory(node.paths)
        assert found.devices in (whole.devices, tuple(device for device in whole.devices if device.id != 2))
        assert found.incomplete == (frozenset() if len(found.devices) == 6 else {2})
        node.restore_attribute(2, attribute)
        assert read_inventory(node.paths) == whole
