"""A whole machine, read once: what is there, what is left out and why, and that nothing found there is an error."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from neuron_plugin.hardware.device import Device, NodeState, SkippedDevice
from neuron_plugin.hardware.inventory import (
    EVERY_DEVICE,
    Inventory,
    LogicalCoreSize,
    MachinePaths,
    choose_logical_core_size,
    read_inventory,
    read_ultraserver,
)
from neuron_plugin.hardware.sysfs import Sysfs
from neuron_plugin.simulation import SimulatedNode, write_node
from neuron_plugin.topology import DeviceId, InstanceType, Topology, catalogue, links_of

MakeNode = Callable[..., SimulatedNode]


@pytest.mark.parametrize("instance", catalogue().values(), ids=lambda instance: instance.name)
def test_a_simulated_node_of_every_type_reads_back_as_described(make_node: MakeNode, instance: InstanceType) -> None:
    inventory = read_inventory(make_node(instance.name).paths)
    assert inventory.instance_type == instance.name
    assert inventory.device_ids == tuple(range(instance.devices))
    assert inventory.device_name == instance.device_name
    assert inventory.physical_cores_per_device == instance.cores_per_device
    assert inventory.cores_per_device == instance.cores_per_device // instance.logical_core_size
    assert inventory.links == links_of(instance.topology, instance.devices)
    assert {device.node for device in inventory.devices} == {NodeState.PRESENT}
    serials = {device.serial_number for device in inventory.devices}
    assert len(serials) == (1 if instance.device_name == "Inferentia" else instance.devices)
    assert (inventory.skipped, inventory.problems, inventory.absence) == ((), (), "")
    assert all(not device.problems for device in inventory.devices)


ONE_OF_EACH_SHAPE = {
    (instance.device_name, instance.devices): instance for instance in catalogue().values() if instance.devices > 1
}


@pytest.mark.parametrize("instance", ONE_OF_EACH_SHAPE.values(), ids=lambda instance: instance.name)
def test_p24_a_missing_chip_moves_no_id_and_may_blank_all_links(make_node: MakeNode, instance: InstanceType) -> None:
    inventory = read_inventory(make_node(instance.name, missing=(1,)).paths)
    assert inventory.device_ids == (0, *range(2, instance.devices))
    if instance.device_name == "Inferentia":  # read from firmware, neighbour by neighbour
        whole = links_of(instance.topology, instance.devices)
        assert inventory.links == {device: whole[device] - {1} for device in inventory.device_ids}
    else:
        assert set(inventory.links.values()) == {frozenset()}


def test_the_same_machine_reads_as_an_equal_value(make_node: MakeNode) -> None:
    node = make_node()
    assert read_inventory(node.paths) == read_inventory(node.paths)


def test_p22_without_sysfs_there_is_no_device_and_a_reason(tmp_path: Path) -> None:
    inventory = read_inventory(MachinePaths.under(tmp_path / "nowhere"))
    assert inventory.devices == ()
    assert inventory.absence.endswith(
        "class/neuron_device does not exist: the Neuron driver is not loaded, or sysfs is not mounted here"
    )
    assert inventory.problems == ()


def test_p22_an_empty_class_directory_is_a_driver_without_hardware(tmp_path: Path) -> None:
    (tmp_path / "sys/class/neuron_device").mkdir(parents=True)
    inventory = read_inventory(MachinePaths.under(tmp_path))
    assert inventory.absence.endswith("lists no device: the driver found no Neuron hardware")


def test_p22_a_file_in_the_class_directorys_place_is_no_driver(tmp_path: Path) -> None:
    (tmp_path / "sys/class").mkdir(parents=True)
    (tmp_path / "sys/class/neuron_device").write_text("")
    assert read_inventory(MachinePaths.under(tmp_path)).absence


def test_p22_a_class_directory_that_may_not_be_listed_is_named_as_such(
    make_node: MakeNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = make_node()

    def refuse(_self: Path) -> Iterator[Path]:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(Path, "iterdir", refuse)
    assert "may not be read (Permission denied)" in read_inventory(node.paths).absence


def test_p25_a_driver_reload_brings_everything_back(make_node: MakeNode) -> None:
    node = make_node()
    before = read_inventory(node.paths)
    node.unload_driver()
    unloaded = read_inventory(node.paths)
    assert unloaded.devices == ()
    assert unloaded.driver_version is None
    assert "not loaded" in unloaded.absence
    assert unloaded.instance_type == before.instance_type
    node.load_driver()
    assert read_inventory(node.paths) == before


def test_p24_a_device_that_leaves_takes_only_its_own_id_with_it(make_node: MakeNode) -> None:
    node = make_node("inf2.48xlarge")
    node.remove_device(3)
    inventory = read_inventory(node.paths)
    assert inventory.device_ids == (0, 1, 2, 4, 5, 6, 7, 8, 9, 10, 11)
    node.restore_device(3)
    assert 3 in read_inventory(node.paths).device_ids


def test_p23_an_incomplete_device_is_not_among_the_devices(make_node: MakeNode) -> None:
    node = make_node()
    node.set_attribute(2, "core_count", None)
    inventory = read_inventory(node.paths)
    assert inventory.device_ids == (0, 1, 3, 4, 5)
    assert inventory.incomplete == {2}


def test_p23_a_settled_device_is_taken_with_what_its_type_says(make_node: MakeNode) -> None:
    node = make_node()
    node.set_attribute(2, "core_count", None)
    inventory = read_inventory(node.paths, settled=EVERY_DEVICE)
    assert inventory.device_ids == (0, 1, 2, 3, 4, 5)
    assert inventory.incomplete == frozenset()


def test_p27_one_garbage_device_is_left_out_and_the_others_stay(make_node: MakeNode) -> None:
    node = make_node()
    node.set_attribute(2, "core_count", "x")
    inventory = read_inventory(node.paths)
    assert inventory.device_ids == (0, 1, 3, 4, 5)
    (skipped,) = inventory.skipped
    assert (skipped.id, skipped.incomplete) == (2, False)
    assert skipped.reason.endswith("neuron2/core_count reads 'x', expected a decimal number of cores")


def test_when_no_device_can_be_used_the_first_reason_is_given(make_node: MakeNode) -> None:
    node = make_node("inf2.xlarge")
    node.set_attribute(0, "core_count", "x")
    inventory = read_inventory(node.paths)
    assert inventory.absence.startswith("none of 1 devices can be used; neuron0: ")
    assert "reads 'x'" in inventory.absence


def test_when_every_device_vanishes_meanwhile_that_is_reported(
    make_node: MakeNode, on_open: Callable[[str, Callable[[], None]], None]
) -> None:
    node = make_node("inf2.xlarge")
    on_open("neuron0/core_count", node.unload_driver)
    inventory = read_inventory(node.paths)
    assert inventory.devices == ()
    assert inventory.absence == "every device vanished while it was read"


def test_p24_a_device_with_another_number_of_cores_would_move_all_ids_and_is_left_out(make_node: MakeNode) -> None:
    node = make_node()
    node.set_attribute(0, "core_count", "4")
    inventory = read_inventory(node.paths)
    assert inventory.device_ids == (1, 2, 3, 4, 5)
    assert inventory.physical_cores_per_device == 2
    assert inventory.skipped[0].reason == (
        "neuron0 is Inferentia2 with core_count 4, most devices here are Inferentia2 with core_count 2"
    )


@pytest.mark.parametrize("text", ["16", "64", "128"])
def test_p27_more_cores_than_any_geometry_has_take_the_device_out(make_node: MakeNode, text: str) -> None:
    """Passed on, the geometry would refuse them, and the daemon would end each time that it looks."""
    node = make_node("inf2.xlarge")
    node.set_attribute(0, "core_count", text)
    inventory = read_inventory(node.paths, settled=EVERY_DEVICE)
    assert inventory.devices == ()
    assert inventory.skipped[0].reason.endswith(f"reads '{text}', expected 1 to 8 cores")


@pytest.mark.parametrize("beyond", [64, 128, 1000])
def test_p24_a_device_beyond_those_that_the_runtime_looks_for_is_left_out_by_name(
    make_node: MakeNode, beyond: int
) -> None:
    node = make_node("inf2.xlarge")
    devices = node.paths.sysfs / "class/neuron_device"
    (devices / f"neuron{beyond}").symlink_to((devices / "neuron0").resolve())
    inventory = read_inventory(node.paths)
    assert inventory.device_ids == (0,)
    (skipped,) = inventory.skipped
    assert (skipped.id, skipped.incomplete) == (beyond, False)
    assert skipped.reason.endswith(f"neuron{beyond} is beyond the 64 devices that the runtime looks for")


@pytest.mark.parametrize("numbers", [(0, 3, 63), (5,), (1, 2)])
def test_p24_devices_have_the_numbers_that_the_driver_gave_them(make_node: MakeNode, numbers: tuple[int, ...]) -> None:
    node = make_node("inf2.xlarge")
    devices = node.paths.sysfs / "class/neuron_device"
    (devices / "neuron0").rename(devices / "kept")
    for number in numbers:
        (devices / f"neuron{number}").symlink_to((devices / "kept").resolve())
    inventory = read_inventory(node.paths)
    assert inventory.device_ids == numbers
    assert {device.node for device in inventory.devices} == {
        NodeState.PRESENT if number == 0 else NodeState.ABSENT for number in numbers
    }


def test_p26_links_to_absent_devices_and_links_of_one_side_are_kept_as_printed(make_node: MakeNode) -> None:
    node = make_node("inf2.24xlarge")
    for device, text in {0: "1, 9, 0\n", 1: "\n"}.items():
        node.set_attribute(device, "connected_devices", text)
    inventory = read_inventory(node.paths)
    assert inventory.device_ids == (0, 1, 2, 3, 4, 5)
    assert [sorted(inventory.links[DeviceId(device)]) for device in (0, 1)] == [[1, 9], []]


def test_p26_an_unknown_instance_type_is_read_from_sysfs(make_node: MakeNode) -> None:
    strange = InstanceType("inf9.huge", "Inferentia2", 3, 2, 32, Topology.UNLINKED)
    inventory = read_inventory(make_node("inf9.huge", types={strange.name: strange}).paths)
    assert inventory.instance_type == "inf9.huge"
    assert inventory.device_ids == (0, 1, 2)
    assert inventory.problems == ()


@pytest.mark.parametrize(
    ("product_name", "instance_type"), [("ml.inf2.24xlarge\n", "inf2.24xlarge"), ("HVM domU\n", ""), (None, "")]
)
def test_a_machine_is_used_whatever_dmi_says(make_node: MakeNode, product_name: str | None, instance_type: str) -> None:
    node = make_node()
    path = node.paths.sysfs / "class/dmi/id/product_name"
    path.unlink()
    if product_name is not None:
        path.write_text(product_name)
    inventory = read_inventory(node.paths)
    assert (inventory.instance_type, inventory.problems) == (instance_type, ())
    assert len(inventory.devices) == 6


def test_a_driver_version_that_is_none_is_a_problem_and_no_more(make_node: MakeNode) -> None:
    node = make_node()
    path = node.paths.sysfs / "module/neuron/version"
    path.unlink()
    path.write_text("unreleased\n")
    inventory = read_inventory(node.paths)
    assert inventory.driver_version is None
    assert "reads 'unreleased\\n', expected a version such as 2.26.5.0" in inventory.problems[0]
    assert len(inventory.devices) == 6


def test_an_unreadable_product_name_is_a_problem_and_no_more(
    make_node: MakeNode, fail_open: Callable[[str, int], None]
) -> None:
    fail_open("product_name", errno.EACCES)
    inventory = read_inventory(make_node().paths)
    assert inventory.instance_type == ""
    assert "product_name may not be read" in inventory.problems[0]


def test_p28_logical_cores_follow_the_hosts_file(make_node: MakeNode) -> None:
    node = make_node("trn2.3xlarge")
    assert read_inventory(node.paths).cores_per_device == 4
    node.set_logical_core_size(1)
    inventory = read_inventory(node.paths)
    assert (inventory.logical_core_size.size, inventory.cores_per_device) == (1, 8)
    node.set_logical_core_size(None)
    assert read_inventory(node.paths).cores_per_device == 4


def test_p28_logical_cores_follow_the_environment(make_node: MakeNode) -> None:
    node = make_node("trn2.3xlarge", logical_core_size=2)
    assert read_inventory(node.paths, environ={"NEURON_RT_VIRTUAL_CORE_SIZE": "1"}).cores_per_device == 8


def test_p28_an_illegal_lnc_is_a_problem_and_the_default_holds(make_node: MakeNode) -> None:
    inventory = read_inventory(make_node("trn1.2xlarge", logical_core_size=2).paths)
    assert inventory.cores_per_device == 2
    assert "at most 1, that divides 2 cores" in inventory.problems[0]


@pytest.mark.parametrize("config", [None, 2])
def test_p28_an_odd_number_of_cores_cannot_be_paired(make_node: MakeNode, config: int | None) -> None:
    """As many logical cores as physical ones: a core without its half would be one too few for the runtime."""
    node = make_node("trn2.3xlarge", logical_core_size=config)
    node.set_attribute(0, "core_count", "7")
    inventory = read_inventory(node.paths)
    assert (inventory.logical_core_size.size, inventory.cores_per_device) == (1, 7)
    assert len(inventory.problems) == (1 if config else 0)


def test_an_unreadable_lnc_file_is_a_problem_and_the_default_holds(
    make_node: MakeNode, fail_open: Callable[[str, int], None]
) -> None:
    fail_open("logical_nc_config", errno.EACCES)
    inventory = read_inventory(make_node("trn2.3xlarge").paths)
    assert inventory.cores_per_device == 4
    assert "logical_nc_config may not be read" in inventory.problems[0]


def test_without_a_device_lnc_is_known_for_a_known_type_only(make_node: MakeNode) -> None:
    node = make_node("trn2.3xlarge", logical_core_size=1)
    node.unload_driver()
    assert read_inventory(node.paths).logical_core_size.size == 1
    unknown = read_inventory(node.paths, types={})
    assert (unknown.logical_core_size.source, unknown.problems) == ("no device present", ())


def test_a_product_newer_than_this_package_has_the_lnc_of_the_users_type(make_node: MakeNode) -> None:
    node = make_node("trn2.3xlarge")
    node.set_attribute(0, "info/architecture/device_name", "Trainium9\n")
    ours = {"trn2.3xlarge": InstanceType("trn2.3xlarge", "Trainium9", 1, 8, 1, Topology.SINGLE, 4)}
    assert read_inventory(node.paths, types=ours).cores_per_device == 2
    assert read_inventory(node.paths, types={}).cores_per_device == 8
    nonsense = {"trn2.3xlarge": InstanceType("trn2.3xlarge", "Trainium9", 1, 8, 1, Topology.SINGLE, 3)}
    assert read_inventory(node.paths, types=nonsense).cores_per_device == 8


def test_root_readable_attributes_of_old_drivers_read_as_those_of_new_ones(make_node: MakeNode, tmp_path: Path) -> None:
    old = read_inventory(make_node(driver_version="2.26.5.0").paths)
    new = read_inventory(
        write_node(tmp_path / "new", "inf2.24xlarge", driver_version="2.28.0.0", usage_counters=False).paths
    )
    firmware = [device.health.status_counts for device in new.devices]
    assert firmware == [(("hw_error_events", 0),)] * 6
    health = [replace(device.health, status_counts=()) for device in new.devices]
    assert old.devices == tuple(
        replace(device, health=known) for device, known in zip(new.devices, health, strict=True)
    )


def test_default_paths_are_the_hosts() -> None:
    assert MachinePaths() == MachinePaths.under(Path("/"))
    assert MachinePaths().logical_nc_config == Path("/opt/aws/neuron/logical_nc_config")


def device(number: int, *neighbours: int) -> Device:
    connected = frozenset(DeviceId(neighbour) for neighbour in neighbours)
    return Device(DeviceId(number), 8, "Trainium2", "NDv3", connected, NodeState.PRESENT)


def test_an_inventory_of_nothing_answers_everything() -> None:
    nothing = Inventory(absence="no driver")
    assert (nothing.device_ids, nothing.links, nothing.incomplete) == ((), {}, frozenset())
    assert (nothing.device_name, nothing.physical_cores_per_device, nothing.cores_per_device) == ("", 0, 0)


def test_cores_are_counted_physically_and_logically() -> None:
    inventory = Inventory(devices=(device(0),), logical_core_size=LogicalCoreSize(2, "hardware default"))
    assert (inventory.physical_cores_per_device, inventory.cores_per_device) == (8, 4)


def test_links_are_by_id_also_with_gaps() -> None:
    inventory = Inventory(devices=(device(0, 3), device(3, 0)))
    assert inventory.links == {0: {3}, 3: {0}}


def test_only_devices_that_the_driver_still_makes_are_incomplete() -> None:
    skipped = (SkippedDevice(DeviceId(1), "garbage"), SkippedDevice(DeviceId(2), "not yet", incomplete=True))
    assert Inventory(skipped=skipped).incomplete == {2}


def test_inventories_are_compared_by_value() -> None:
    assert Inventory(devices=(device(0, 1),)) == Inventory(devices=(device(0, 1),))
    assert Inventory(devices=(device(0, 1),)) != Inventory(devices=(device(0),))


def chosen(
    *, environ: Mapping[str, str] | None = None, host_file: str = "", product: str = "Trainium2", cores: int = 8
) -> LogicalCoreSize:
    """On a Trn2, unless said otherwise."""
    return choose_logical_core_size(product, cores, 1, environ or {}, host_file)


def test_without_a_setting_the_hardware_decides() -> None:
    assert chosen() == LogicalCoreSize(2, "hardware default")


def test_the_hosts_file_overrides_the_hardware() -> None:
    assert chosen(host_file="NEURON_LOGICAL_NC_CONFIG=1\n") == LogicalCoreSize(1, "logical_nc_config")


def test_the_environment_overrides_the_hosts_file() -> None:
    found = chosen(environ={"NEURON_LOGICAL_NC_CONFIG": "2"}, host_file="NEURON_LOGICAL_NC_CONFIG=1")
    assert found == LogicalCoreSize(2, "NEURON_LOGICAL_NC_CONFIG")


def test_the_newer_name_overrides_the_older_one() -> None:
    older = {"NEURON_RT_VIRTUAL_CORE_SIZE": "1"}
    assert chosen(environ=older) == LogicalCoreSize(1, "NEURON_RT_VIRTUAL_CORE_SIZE")
    assert chosen(environ=older | {"NEURON_LOGICAL_NC_CONFIG": "2"}).size == 2


def test_an_empty_variable_says_nothing() -> None:
    assert chosen(environ={"NEURON_LOGICAL_NC_CONFIG": ""}) == LogicalCoreSize(2, "hardware default")


@pytest.mark.parametrize(
    "text",
    [
        "NEURON_LOGICAL_NC_CONFIG=1",
        "  NEURON_LOGICAL_NC_CONFIG = 1  \n",
        "export NEURON_LOGICAL_NC_CONFIG=1\n",
        'NEURON_LOGICAL_NC_CONFIG="1"\n',
        "# set by cloud-init\nNEURON_LOGICAL_NC_CONFIG=1\n",
        "NEURON_LOGICAL_NC_CONFIG=1  # as the trainers want it\r\n",
        "NEURON_LOGICAL_NC_CONFIG=2\nNEURON_LOGICAL_NC_CONFIG=1\n",
        "1\n",
    ],
)
def test_the_hosts_file_is_read_as_a_shell_would(text: str) -> None:
    assert chosen(host_file=text) == LogicalCoreSize(1, "logical_nc_config")


@pytest.mark.parametrize("text", ["\n", "# NEURON_LOGICAL_NC_CONFIG=1\n", "  # nothing here\n\n"])
def test_a_hosts_file_without_a_setting_says_nothing(text: str) -> None:
    assert chosen(host_file=text) == LogicalCoreSize(2, "hardware default")


@pytest.mark.parametrize("text", ["0", "3", "4", "16", "-1", "x", "1.0", "²", "9" * 50])
def test_an_illegal_value_is_passed_over_and_reported(text: str) -> None:
    found = chosen(host_file=f"NEURON_LOGICAL_NC_CONFIG={text}\n")
    assert (found.size, found.source) == (2, "hardware default")
    assert len(found.problems) == 1
    assert "logical_nc_config says" in found.problems[0]
    assert "at most 2, that divides 8 cores" in found.problems[0]


def test_after_an_illegal_variable_the_next_source_is_asked() -> None:
    found = chosen(environ={"NEURON_LOGICAL_NC_CONFIG": "7"}, host_file="NEURON_LOGICAL_NC_CONFIG=1")
    assert (found.size, found.source) == (1, "logical_nc_config")
    assert "NEURON_LOGICAL_NC_CONFIG says '7'" in found.problems[0]


def test_products_before_trn2_know_only_one() -> None:
    found = chosen(host_file="NEURON_LOGICAL_NC_CONFIG=2", product="Trainium1", cores=2)
    assert found.size == 1
    assert found.problems


def test_a_larger_size_is_legal_where_the_product_allows_it() -> None:
    assert chosen(host_file="NEURON_LOGICAL_NC_CONFIG=4", product="Trainium3").size == 4


def with_class_files(node: SimulatedNode, **texts: str) -> Sysfs:
    for name, text in texts.items():
        path = node.paths.sysfs / "class/neuron_device" / name
        path.unlink(missing_ok=True)
        path.write_text(text)
    return Sysfs(node.paths.sysfs)


def test_a_machine_alone_is_in_none(make_node: MakeNode) -> None:
    assert read_ultraserver(Sysfs(make_node("trn2.3xlarge").paths.sysfs)) == {}


def test_a_member_of_four_knows_its_ids(make_node: MakeNode) -> None:
    sysfs = with_class_files(
        make_node("trn2.3xlarge"),
        ultraserver_mode="1,3,4\n",
        server_id_4="0a1b2c3d4e5f6071\n",
        node_id_4="2\n",
        server_id_2="00000000000000aa\n",
        node_id_2="0\n",
    )
    assert read_ultraserver(sysfs) == {
        "mode": "1,3,4",
        "serverId2": "00000000000000aa",
        "nodeId2": "0",
        "serverId4": "0a1b2c3d4e5f6071",
        "nodeId4": "2",
    }


def test_a_pair_has_no_ids_of_four(make_node: MakeNode) -> None:
    sysfs = with_class_files(
        make_node("trn2.3xlarge"), ultraserver_mode="2,4\n", server_id_2="00000000000000aa\n", node_id_2="1\n"
    )
    assert read_ultraserver(sysfs) == {"mode": "2,4", "serverId2": "00000000000000aa", "nodeId2": "1"}


def test_during_the_election_nothing_is_said(make_node: MakeNode) -> None:
    busy = {"ultraserver_mode": "busy\n", "node_id_2": "busy\n", "node_id_4": "busy\n"}
    assert read_ultraserver(with_class_files(make_node("trn2.3xlarge"), **busy)) == {}


def test_what_no_election_prints_is_not_published(make_node: MakeNode) -> None:
    """Published to the cluster, a page of text would make the extender refuse the whole inventory."""
    sysfs = with_class_files(make_node("trn2.3xlarge"), server_id_4="a" * 4096, server_id_2="00000000000000aa\n")
    assert read_ultraserver(sysfs) == {"serverId2": "00000000000000aa"}


def reserved(node: SimulatedNode, node_id: str, modes: str) -> dict[str, str]:
    """What a node behind a switch is told, of which the driver names one server and one node."""
    texts = {"reservation_id": "0000004005590728\n", "node_id": f"{node_id}\n", "ultraserver_mode": f"{modes}\n"}
    return read_ultraserver(with_class_files(node, **texts))


@pytest.mark.parametrize(
    ("node_id", "pair", "in_pair"), [("0", "0", "0"), ("1", "0", "1"), ("2", "1", "0"), ("3", "1", "1")]
)
def test_a_node_of_a_reservation_of_four_has_the_ids_of_four_and_of_its_pair(
    make_node: MakeNode, node_id: str, pair: str, in_pair: str
) -> None:
    assert reserved(make_node("trn3s.48xlarge"), node_id, "1,3,4") == {
        "mode": "1,3,4",
        "serverId2": f"0000004005590728-{pair}",
        "nodeId2": in_pair,
        "serverId4": "0000004005590728",
        "nodeId4": node_id,
    }


@pytest.mark.parametrize("node_id", ["0", "1"])
def test_a_node_of_a_reservation_of_two_has_no_ids_of_four(make_node: MakeNode, node_id: str) -> None:
    ids = {"mode": "3,4", "serverId2": "0000004005590728", "nodeId2": node_id}
    assert reserved(make_node("trn3s.48xlarge"), node_id, "3,4") == ids


def test_four_that_cannot_work_as_pairs_have_no_pair(make_node: MakeNode) -> None:
    assert "serverId2" not in reserved(make_node("trn3s.48xlarge"), "0", "1,4")


@pytest.mark.parametrize(
    ("node_id", "modes"), [("busy", "busy"), ("-1", "1,3,4"), ("x", "1,3,4"), ("0", "4"), ("0", "")]
)
def test_a_node_behind_a_switch_without_its_place_or_size_is_in_none(
    make_node: MakeNode, node_id: str, modes: str
) -> None:
    assert reserved(make_node("trn3s.48xlarge"), node_id, modes) == {}


def test_a_switched_type_has_other_files_and_is_in_none(make_node: MakeNode) -> None:
    assert read_ultraserver(Sysfs(make_node("trn3s.48xlarge").paths.sysfs)) == {}
