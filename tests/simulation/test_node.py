"""A simulated machine has the driver's very bytes."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from neuron_plugin.hardware import read_inventory
from neuron_plugin.simulation.node import write_node
from tests.simulation.node_tree import MakeNode, device_dir, mode, text


# The published bytes, column by column: core_count, connected_devices, the three architecture files, cores.
@pytest.mark.parametrize(
    ("instance_type", "driver", "device", "core_count", "connected", "architecture", "core_arch"),
    [
        ("trn1.32xlarge", "2.24.7.0", 0, "2", "12, 3, 4, 1\n", ("NDv2\n", "Trn1\n", "Trainium1\n"), "NCv2\n"),
        ("trn2.48xlarge", "2.26.5.0", 13, "8", "12, 1, 9, 14\n", ("NDv3\n", "Trn2\n", "Trainium2\n"), "NCv3\n"),
        ("inf2.24xlarge", "2.26.5.0", 5, "2", "4\n", ("NDv3\n", "Inf2\n", "Inferentia2\n"), "NCv2\n"),
        ("inf1.6xlarge", "2.24.7.0", 1, "4", "2, 0\n", ("NDv1\n", "Inf1\n", "Inferentia\n"), "NCv1\n"),
        ("trn1.2xlarge", "2.26.5.0", 0, "2", "\n", ("NDv2\n", "Trn1\n", "Trainium1\n"), "NCv2\n"),
        ("trn3.48xlarge", "2.25.4.0", 0, "8", "12, 1, 3, 4\n", ("NDv4\n", "Trn3\n", "Trainium3\n"), "NCv4\n"),
    ],
)
def test_the_bytes_are_the_drivers(
    make_node: MakeNode,
    instance_type: str,
    driver: str,
    device: int,
    core_count: str,
    connected: str,
    architecture: tuple[str, str, str],
    core_arch: str,
) -> None:
    node = make_node(instance_type, driver_version=driver)
    assert text(node, device, "core_count") == core_count
    assert text(node, device, "connected_devices") == connected
    assert text(node, device, "reset") == "1\n"
    assert text(node, device, "dev") == f"243:{device}\n"
    assert text(node, device, "uevent") == f"MAJOR=243\nMINOR={device}\nDEVNAME=neuron{device}\n"
    assert text(node, device, "info/notify_delay") == "-1\n"
    names = ("arch_type", "instance_type", "device_name")
    assert tuple(text(node, device, f"info/architecture/{name}") for name in names) == architecture
    cores = sorted(path.name for path in device_dir(node, device).glob("neuron_core*"))
    assert cores == [f"neuron_core{core}" for core in range(int(core_count))]
    assert text(node, device, "neuron_core0/info/architecture/arch_type") == core_arch


def test_the_machine_says_which_it_is(make_node: MakeNode) -> None:
    node = make_node("trn1.2xlarge", driver_version="2.26.5.0", logical_core_size=1)
    assert (node.root / "sys/class/dmi/id/product_name").read_bytes() == b"trn1.2xlarge\n"
    assert (node.root / "sys/module/neuron/version").read_bytes() == b"2.26.5.0\n"
    assert (node.root / "opt/aws/neuron/logical_nc_config").read_bytes() == b"NEURON_LOGICAL_NC_CONFIG=1\n"


def test_without_lnc_there_is_no_file_for_it(make_node: MakeNode) -> None:
    assert not (make_node("trn2.3xlarge").root / "opt").exists()


def test_the_class_links_to_the_devices_and_holds_plain_files(make_node: MakeNode) -> None:
    class_dir = make_node("inf2.xlarge").root / "sys/class/neuron_device"
    assert str((class_dir / "neuron0").readlink()) == "../../devices/virtual/neuron_device/neuron0"
    assert (class_dir / "neuron0").resolve() == class_dir.parents[1] / "devices/virtual/neuron_device/neuron0"
    assert (class_dir / "neuron0/subsystem").resolve() == class_dir
    plain = {path.name: path.read_text() for path in class_dir.iterdir() if not path.is_symlink()}
    assert plain == {
        "node_id_2": "-1\n",
        "node_id_4": "-1\n",
        "server_id_2": "0000000000000000\n",
        "server_id_4": "0000000000000000\n",
        "ultraserver_mode": "\n",
    }
    assert {mode(class_dir / name) for name in plain} == {0o444}


@pytest.mark.parametrize(("driver", "expected"), [("2.26.5.0", 0o400), ("2.27.9.9", 0o400), ("2.28.0.0", 0o444)])
def test_p27_modes_follow_the_driver(make_node: MakeNode, driver: str, expected: int) -> None:
    directory = device_dir(make_node("inf2.xlarge", driver_version=driver), 0)
    assert mode(directory / "core_count") == expected
    assert mode(directory / "connected_devices") == expected
    assert mode(directory / "reset") == 0o600
    assert mode(directory / "stats/hardware/mem_ecc_uncorrected") == 0o644


def test_modes_do_not_depend_on_the_umask(make_node: MakeNode) -> None:
    previous = os.umask(0o077)
    try:
        node = make_node("inf2.xlarge", driver_version="2.28.0.0")
    finally:
        os.umask(previous)
    assert mode(device_dir(node, 0) / "core_count") == 0o444
    assert mode(node.root / "dev/neuron0") == 0o666


@pytest.mark.parametrize(
    ("driver", "attribute", "exists"),
    [
        ("2.13.3.0", "connected_devices", False),
        ("2.13.4.0", "connected_devices", True),
        ("2.14.4.0", "stats/hardware/mem_ecc_uncorrected", False),
        ("2.14.5.0", "stats/hardware/mem_ecc_uncorrected", True),
        ("2.21.36.0", "stats/power/utilization", False),
        ("2.21.37.0", "stats/power/utilization", True),
        ("2.28.0.0", "stats/hardware/health_status/unhealthy_components", False),
        ("2.30.2.0", "stats/hardware/health_status/unhealthy_components", True),
    ],
)
def test_attributes_come_with_the_driver_that_brought_them(
    make_node: MakeNode,
    driver: str,
    attribute: str,
    exists: bool,  # noqa: FBT001 - parametrized
) -> None:
    assert (device_dir(make_node("inf2.xlarge", driver_version=driver), 0) / attribute).exists() is exists


def test_inf1_has_neither_serial_number_nor_hardware_counters(make_node: MakeNode) -> None:
    directory = device_dir(make_node("inf1.xlarge"), 0)
    assert not (directory / "info/serial_number").exists()
    assert not (directory / "stats/hardware").exists()
    assert (directory / "stats/power/utilization").exists()


def test_serial_numbers_are_sixteen_digits_and_differ(make_node: MakeNode) -> None:
    node = make_node("trn1.32xlarge")
    serials = {text(node, device, "info/serial_number") for device in range(16)}
    assert len(serials) == 16
    assert {len(serial) for serial in serials} == {17}


def test_core_counters_are_written_for_every_core(make_node: MakeNode) -> None:
    node = make_node("inf2.xlarge", usage_counters=True)
    core = "neuron_core1/stats"
    assert text(node, 0, f"{core}/status/hw_nc_ue_error/total") == "0\n"
    assert text(node, 0, f"{core}/memory_usage/device_mem/collectives/peak") == "0\n"
    assert text(node, 0, f"{core}/memory_usage/host_mem/present") == "0\n"
    assert text(node, 0, f"{core}/other_info/nc_time_in_use/present") == "0\n"
    assert text(node, 0, f"{core}/tensor_engine/pe_cntrs") == "xrow_grp,mm_active,wl_active,idle\n"
    assert len(list((device_dir(node, 0) / "neuron_core1").rglob("total"))) == 24 + 6 + 1 + 1 + 11


def test_inf1_cores_have_no_tensor_engine_counters(make_node: MakeNode) -> None:
    node = make_node("inf1.xlarge", usage_counters=True)
    assert not (device_dir(node, 0) / "neuron_core0/stats/tensor_engine").exists()


def test_a_switched_type_has_other_class_files(make_node: MakeNode) -> None:
    class_dir = make_node("trn3s.48xlarge").root / "sys/class/neuron_device"
    assert {path.name for path in class_dir.iterdir() if not path.is_symlink()} == {"node_id", "reservation_id"}


def test_p24_missing_chips_leave_a_gap(make_node: MakeNode) -> None:
    node = make_node("trn1.32xlarge", missing=(3, 7, 3))
    assert read_inventory(node.paths).device_ids == (0, 1, 2, 4, 5, 6, *range(8, 16))
    assert not (node.root / "dev/neuron3").exists()
    assert text(node, 0, "connected_devices") == "\n"


@pytest.mark.skipif(os.geteuid() != 0, reason="making character devices takes root")
def test_character_devices_are_made_on_request(make_node: MakeNode) -> None:
    try:
        node = make_node("inf2.24xlarge", char_nodes=True)
    except PermissionError:
        pytest.skip("this container may not make device nodes")
    status = (node.root / "dev/neuron5").stat()
    assert stat.S_ISCHR(status.st_mode)
    assert (os.major(status.st_rdev), os.minor(status.st_rdev)) == (243, 5)
    assert stat.S_IMODE(status.st_mode) == 0o666
    node.remove_node(5)
    assert not (node.root / "dev/neuron5").exists()
    node.restore_node(5)
    assert (node.root / "dev/neuron5").is_char_device()


def test_the_default_driver_is_the_newest_that_has_the_product(tmp_path: Path) -> None:
    versions = {
        name: write_node(tmp_path / name, name, usage_counters=False).description.driver_version
        for name in ("inf1.xlarge", "inf2.xlarge", "trn3pd98.3xlarge")
    }
    assert versions == {"inf1.xlarge": "2.24.7.0", "inf2.xlarge": "2.30.2.0", "trn3pd98.3xlarge": "2.30.2.0"}
