"""A whole machine, read once: what is there, what is left out and why, and that nothing found there is an error."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from neuron_plugin.allocation.resources import ranges
from neuron_plugin.hardware.device import Device, NodeState
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
from neuron_plugin.simulation import SimulatedNode
from neuron_plugin.topology import DeviceId, InstanceType, Topology, catalogue, links_of
from tests.support.stories import rows

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


@pytest.mark.parametrize(
    ("place", "said"),
    [
        (None, "does not exist: the Neuron driver is not loaded, or sysfs is not mounted here"),
        ("directory", "lists no device: the driver found no Neuron hardware"),
        ("file", "neuron_device"),
    ],
)
def test_p22_without_a_class_directory_of_devices_there_is_no_device_and_a_reason(
    tmp_path: Path, place: str | None, said: str
) -> None:
    path = tmp_path / "sys/class/neuron_device"
    path.parent.mkdir(parents=True)
    if place:
        path.mkdir() if place == "directory" else path.write_text("")
    inventory = read_inventory(MachinePaths.under(tmp_path))
    assert (inventory.devices, inventory.problems) == ((), ())
    assert said in inventory.absence


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


LEFT_OUT = rows("""
    p23 a device that the driver still makes: inf2.24xlarge 2=- => 0-1,3-5 => still making
    p23 once that is over its type says what it has: inf2.24xlarge 2=- settled => 0-5 =>
    p27 one with garbage, and no other:
        inf2.24xlarge 2=x => 0-1,3-5 => neuron2/core_count reads 'x', expected a decimal number of cores
    p24 one with another number of cores, which would move all ids: inf2.24xlarge 0=4 => 1-5 =>
        neuron0 is Inferentia2 with core_count 4, most devices here are Inferentia2 with core_count 2
    the only one, and the reason is why there is none:
        inf2.xlarge 0=x => - => none of 1 devices can be used; neuron0:
    # Passed on, the geometry would refuse them, and the daemon would end each time that it looks.
    p27 one with 16 cores, which no geometry has: inf2.xlarge 0=16 settled => - => reads '16', expected 1 to 8 cores
    p27 one with 64: inf2.xlarge 0=64 settled => - => reads '64', expected 1 to 8 cores
    p27 one with 128: inf2.xlarge 0=128 settled => - => reads '128', expected 1 to 8 cores
""")
"""A machine, core counts of some devices, whether the driver is done; the devices that are used; and what is said."""


@pytest.mark.parametrize(("machine", "ids", "said"), LEFT_OUT)
def test_which_devices_are_left_out_and_why(make_node: MakeNode, machine: str, ids: str, said: str) -> None:
    kind, *words = machine.split()
    node, counts = make_node(kind), dict(word.split("=") for word in words if "=" in word)
    for device, text in counts.items():
        node.set_attribute(int(device), "core_count", None if text == "-" else text)
    inventory = read_inventory(node.paths, settled=EVERY_DEVICE if "settled" in words else frozenset())
    assert ranges(inventory.device_ids) == ids
    assert inventory.physical_cores_per_device == (0 if ids == "-" else 2)
    assert {one.id for one in inventory.skipped} == {*map(int, counts)} - {*inventory.device_ids}
    assert inventory.incomplete == ({*map(int, counts)} if said == "still making" else set())
    assert said in f"{inventory.absence} {[one.reason for one in inventory.skipped]}".replace('"', "")


def test_when_every_device_vanishes_meanwhile_that_is_reported(
    make_node: MakeNode, on_open: Callable[[str, Callable[[], None]], None]
) -> None:
    node = make_node("inf2.xlarge")
    on_open("neuron0/core_count", node.unload_driver)
    inventory = read_inventory(node.paths)
    assert inventory.devices == ()
    assert inventory.absence == "every device vanished while it was read"


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


PROBLEMS: dict[str, tuple[str, Callable[[SimulatedNode], object], str, str]] = {
    "a driver version that is none": (
        "inf2.24xlarge",
        lambda node: (node.paths.sysfs / "module/neuron/version").write_text("unreleased\n"),
        "",
        "reads 'unreleased\\n', expected a version such as 2.26.5.0",
    ),
    "an unreadable product name": ("inf2.24xlarge", lambda _: None, "product_name", "product_name may not be read"),
    "p28 an LNC that the product does not have": (
        "trn1.2xlarge",
        lambda node: node.set_logical_core_size(2),
        "",
        "at most 1, that divides 2 cores",
    ),
    "an unreadable LNC file": (
        "trn2.3xlarge",
        lambda _: None,
        "logical_nc_config",
        "logical_nc_config may not be read",
    ),
}
"""A machine, what is done to it, which file may not be opened, and what is said."""


@pytest.mark.parametrize(("kind", "change", "refused", "said"), PROBLEMS.values(), ids=PROBLEMS)
def test_p28_what_cannot_be_read_of_a_machine_is_a_problem_and_the_default_holds(
    make_node: MakeNode,
    fail_open: Callable[[str, int], None],
    kind: str,
    change: Callable[[SimulatedNode], object],
    refused: str,
    said: str,
) -> None:
    node = make_node(kind)
    whole = read_inventory(node.paths)
    for path in ("module/neuron/version", "class/dmi/id/product_name"):
        (node.paths.sysfs / path).chmod(0o644)
    change(node)
    if refused:
        fail_open(refused, errno.EACCES)
    inventory = read_inventory(node.paths)
    assert (inventory.devices, inventory.cores_per_device) == (whole.devices, whole.cores_per_device)
    assert inventory.driver_version == (None if "version" in said else whole.driver_version)
    assert inventory.instance_type == ("" if "product" in said else whole.instance_type)
    assert said in inventory.problems[0]


def test_p28_logical_cores_follow_the_hosts_file_and_the_environment(make_node: MakeNode) -> None:
    node = make_node("trn2.3xlarge")
    assert read_inventory(node.paths).cores_per_device == 4
    node.set_logical_core_size(1)
    inventory = read_inventory(node.paths)
    assert (inventory.logical_core_size.size, inventory.cores_per_device) == (1, 8)
    node.set_logical_core_size(None)
    assert read_inventory(node.paths).cores_per_device == 4
    assert read_inventory(node.paths, environ={"NEURON_RT_VIRTUAL_CORE_SIZE": "1"}).cores_per_device == 8


@pytest.mark.parametrize("config", [None, 2])
def test_p28_an_odd_number_of_cores_cannot_be_paired(make_node: MakeNode, config: int | None) -> None:
    """As many logical cores as physical ones: a core without its half would be one too few for the runtime."""
    node = make_node("trn2.3xlarge", logical_core_size=config)
    node.set_attribute(0, "core_count", "7")
    inventory = read_inventory(node.paths)
    assert (inventory.logical_core_size.size, inventory.cores_per_device) == (1, 7)
    assert len(inventory.problems) == (1 if config else 0)


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


def test_default_paths_are_the_hosts() -> None:
    assert MachinePaths() == MachinePaths.under(Path("/"))
    assert MachinePaths().logical_nc_config == Path("/opt/aws/neuron/logical_nc_config")


def device(number: int, *neighbours: int) -> Device:
    connected = frozenset(DeviceId(neighbour) for neighbour in neighbours)
    return Device(DeviceId(number), 8, "Trainium2", "NDv3", connected, NodeState.PRESENT)


def test_what_an_inventory_says_follows_from_its_devices() -> None:
    nothing = Inventory(absence="no driver")
    assert (nothing.device_ids, nothing.links, nothing.incomplete) == ((), {}, frozenset())
    assert (nothing.device_name, nothing.physical_cores_per_device, nothing.cores_per_device) == ("", 0, 0)
    made = Inventory(devices=(device(0, 3), device(3, 0)), logical_core_size=LogicalCoreSize(2, "hardware default"))
    assert (made.physical_cores_per_device, made.cores_per_device) == (8, 4)
    assert made.links == {0: {3}, 3: {0}}, "by id also with gaps"
    assert made == replace(made)
    assert made != replace(made, devices=made.devices[:1])


HOST = "NEURON_LOGICAL_NC_CONFIG"
DEFAULT, OF_HOST = "2 hardware default", "1 logical_nc_config"
NOT_LEGAL = "at most 2, that divides 8 cores"
SIZES: dict[str, tuple[dict[str, str], str, str]] = {
    "without a setting the hardware decides": ({}, "", DEFAULT),
    "the environment overrides the host's file": ({HOST: "2"}, f"{HOST}=1", f"2 {HOST}"),
    "an older name": ({"NEURON_RT_VIRTUAL_CORE_SIZE": "1"}, "", "1 NEURON_RT_VIRTUAL_CORE_SIZE"),
    "the newer name overrides the older one": ({"NEURON_RT_VIRTUAL_CORE_SIZE": "1", HOST: "2"}, "", f"2 {HOST}"),
    "an empty variable says nothing": ({HOST: ""}, "", DEFAULT),
    "after an illegal variable the next source is asked": (
        {HOST: "7"},
        f"{HOST}=1",
        f"{OF_HOST}, NEURON_LOGICAL_NC_CONFIG says '7'",
    ),
    **{
        f"the host's file is read as a shell would: {text!r}": ({}, text, OF_HOST)
        for text in (
            *(f"{HOST}=1", f"{HOST}=1\n", f"  {HOST} = 1  \n", f"export {HOST}=1\n", f'{HOST}="1"\n', "1\n"),
            *(f"# set by cloud-init\n{HOST}=1\n", f"{HOST}=1  # as the trainers want it\r\n", f"{HOST}=2\n{HOST}=1\n"),
        )
    },
    **{
        f"a file without a setting: {text!r}": ({}, text, DEFAULT)
        for text in ("\n", f"# {HOST}=1\n", "  # nothing here\n\n")
    },
    **{
        f"an illegal value is passed over and reported: {text[:3]}": (
            {},
            f"{HOST}={text}\n",
            f"{DEFAULT}, logical_nc_config says {NOT_LEGAL}",
        )
        for text in ("0", "3", "4", "16", "-1", "x", "1.0", "²", "9" * 50)
    },
}
"""Environment and file of the host on a Trn2; the logical core size with its source, and parts of what is reported."""


@pytest.mark.parametrize(("environ", "host_file", "expected"), SIZES.values(), ids=SIZES)
def test_which_logical_core_size_counts(environ: dict[str, str], host_file: str, expected: str) -> None:
    found = choose_logical_core_size("Trainium2", 8, 1, environ, host_file)
    size, _, said = expected.partition(", ")
    assert f"{found.size} {found.source}" == size
    assert len(found.problems) == bool(said)
    for part in said.replace(NOT_LEGAL, f"| {NOT_LEGAL}").split("| ") if said else ():
        assert part.strip() in found.problems[0]


@pytest.mark.parametrize(
    ("product", "cores", "asked", "size"), [("Trainium1", 2, 2, 1), ("Trainium3", 8, 4, 4), ("Trainium2", 8, 4, 2)]
)
def test_a_product_says_how_large_a_logical_core_may_be(product: str, cores: int, asked: int, size: int) -> None:
    found = choose_logical_core_size(product, cores, 1, {}, f"{HOST}={asked}")
    assert (found.size, bool(found.problems)) == (size, size != asked)


ID, PAIR, FOUR = "0000004005590728", "00000000000000aa", "0a1b2c3d4e5f6071"
BEHIND = f"trn3s.48xlarge => reservation_id={ID}"
"""Behind a switch the driver names one server and one node."""
ULTRASERVERS = [
    *rows(f"""
    a machine alone: trn2.3xlarge => =>
    a member of four, and of a pair in it:
        trn2.3xlarge => ultraserver_mode=1,3,4 server_id_4={FOUR} node_id_4=2 server_id_2={PAIR} node_id_2=0 =>
        mode=1,3,4 serverId2={PAIR} nodeId2=0 serverId4={FOUR} nodeId4=2
    a pair: trn2.3xlarge => ultraserver_mode=2,4 server_id_2={PAIR} node_id_2=1 => mode=2,4 serverId2={PAIR} nodeId2=1
    during the election: trn2.3xlarge => ultraserver_mode=busy node_id_2=busy node_id_4=busy =>
    # Published to the cluster, a page of text would make the extender refuse the whole inventory.
    what no election prints: trn2.3xlarge => server_id_4={"a" * 4096} server_id_2={PAIR} => serverId2={PAIR}
    four that cannot work as pairs: {BEHIND} node_id=0 ultraserver_mode=1,4 => mode=1,4 serverId4={ID} nodeId4=0
    a switched type without a reservation: trn3s.48xlarge => =>
    """),
    *rows(
        "\n".join(
            f"node {node} of a reservation of four: {BEHIND} node_id={node} ultraserver_mode=1,3,4 => "
            f"mode=1,3,4 serverId2={ID}-{node // 2} nodeId2={node % 2} serverId4={ID} nodeId4={node}"
            for node in range(4)
        )
    ),
    *rows(
        "\n".join(
            f"node {node} of a reservation of two: {BEHIND} node_id={node} ultraserver_mode=3,4 => "
            f"mode=3,4 serverId2={ID} nodeId2={node}"
            for node in range(2)
        )
    ),
    *rows(
        "\n".join(
            f"node {node} behind a switch of {mode or None}: {BEHIND} node_id={node} ultraserver_mode={mode} =>"
            for node, mode in (("busy", "busy"), ("-1", "1,3,4"), ("x", "1,3,4"), ("0", "4"), ("0", ""))
        )
    ),
]
"""A machine, files of its driver's class, and what is published of its UltraServer."""


@pytest.mark.parametrize(("kind", "files", "expected"), ULTRASERVERS)
def test_which_ultraserver_a_node_is_in(make_node: MakeNode, kind: str, files: str, expected: str) -> None:
    sysfs = make_node(kind).paths.sysfs
    for name, text in (word.split("=") for word in files.split()):
        path = sysfs / "class/neuron_device" / name
        path.unlink(missing_ok=True)
        path.write_text(f"{text}\n")
    assert read_ultraserver(Sysfs(sysfs)) == dict(word.split("=") for word in expected.split())
