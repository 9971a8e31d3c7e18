"""One device: complete, skipped with a reason, or gone; and what stands at its node."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from neuron_plugin.hardware.device import (
    GENERATIONS,
    SIMULATED_MARKER,
    CoreErrors,
    Device,
    EccCounts,
    NodeState,
    SkippedDevice,
    joined_by_device,
    node_state,
    read_device,
)
from neuron_plugin.hardware.inventory import read_inventory
from neuron_plugin.hardware.sysfs import ResetState, Sysfs
from neuron_plugin.simulation import SimulatedNode, write_node
from neuron_plugin.topology import DeviceId, InstanceType, catalogue

MakeNode = Callable[..., SimulatedNode]
NEEDED = ["core_count", "connected_devices", "reset", "info/architecture/device_name", "info/architecture/arch_type"]


def read(node: SimulatedNode, device: int = 1, *, settled: bool = False, known: bool = True) -> object:
    instance = catalogue().get(node.description.instance_type) if known else None
    return read_device(Sysfs(node.paths.sysfs), node.paths.dev, DeviceId(device), settled=settled, known=instance)


def read_known(node: SimulatedNode, device: int = 1, *, settled: bool = False) -> Device:
    found = read(node, device, settled=settled)
    assert isinstance(found, Device)
    return found


def read_skipped(node: SimulatedNode, device: int = 1, *, settled: bool = False, known: bool = True) -> SkippedDevice:
    found = read(node, device, settled=settled, known=known)
    assert isinstance(found, SkippedDevice)
    return found


def test_a_complete_device_is_known_in_full(make_node: MakeNode) -> None:
    device = read_known(make_node("trn1.32xlarge"), 0)
    assert (device.id, device.cores, device.device_name, device.architecture) == (0, 2, "Trainium1", "NDv2")
    assert device.connected == {1, 3, 4, 12}
    assert device.node is NodeState.PRESENT
    assert device.health.reset is ResetState.READY
    assert device.health.ecc == EccCounts()
    assert device.problems == ()


GARBAGE = "no, such\nthing"
WHAT_IT_IS = ["core_count", "connected_devices", "info/architecture/device_name"]
SKIPPED = [
    *((name, None, False, True, "still making") for name in NEEDED),
    *((name, "", False, True, "") for name in ("core_count", "info/architecture/device_name")),
    ("core_count", None, True, False, "core_count does not exist"),  # of a type that is not known
    *((name, GARBAGE, settled, True, f"reads {GARBAGE!r}") for name in WHAT_IT_IS for settled in (False, True)),
]


@pytest.mark.parametrize(("attribute", "text", "settled", "known", "said"), SKIPPED)
def test_p23_p27_a_device_without_what_it_is_waits_for_its_time_and_one_with_garbage_is_left_out(
    make_node: MakeNode, attribute: str, text: str | None, said: str, *, settled: bool, known: bool
) -> None:
    node = make_node()
    node.set_attribute(1, attribute, text)
    skipped = read_skipped(node, settled=settled, known=known)
    assert skipped.incomplete is (not text and not settled)
    assert attribute in skipped.reason
    assert said in skipped.reason
    node.restore_attribute(1, attribute)
    assert read_known(node).problems == ()


def test_once_settled_a_missing_attribute_is_taken_from_the_instance_type(make_node: MakeNode) -> None:
    node = make_node()
    for attribute in NEEDED:
        node.set_attribute(1, attribute, None)
    device = read_known(node, settled=True)
    assert (device.cores, device.device_name, device.architecture) == (2, "Inferentia2", "NDv3")
    assert device.connected == frozenset()
    assert device.health.reset is None
    assert [problem.split("; ")[1] for problem in device.problems] == [
        "2 is assumed",
        "nothing is assumed",
        "Inferentia2 is assumed",
        "NDv3 is assumed",
    ]


def test_links_are_waited_for_where_the_driver_prints_them_or_does_not_tell_its_version(make_node: MakeNode) -> None:
    node = make_node(driver_version="2.13.4.0")
    node.set_attribute(1, "connected_devices", None)
    assert read_inventory(node.paths).incomplete == {1}
    (node.paths.sysfs / "module/neuron/version").unlink()
    assert read_inventory(node.paths).incomplete == {1}
    device = read_known(node, settled=True)
    assert device.connected == frozenset()
    assert "connected_devices" in device.problems[0]


@pytest.mark.parametrize("number", [errno.EACCES, errno.EIO])
def test_p27_an_unreadable_core_count_takes_the_device_out(
    make_node: MakeNode, fail_open: Callable[[str, int], None], number: int
) -> None:
    fail_open("neuron1/core_count", number)
    node = make_node()
    assert "neuron1/core_count" in read_skipped(node, settled=True).reason
    assert read_known(node, 2).cores == 2


@pytest.mark.parametrize(
    "attribute",
    [
        "reset",
        "info/serial_number",
        "stats/hardware/mem_ecc_uncorrected",
        "stats/hardware/health_status/unhealthy_components",
    ],
)
def test_garbage_in_a_health_attribute_is_reported_and_the_device_stays(make_node: MakeNode, attribute: str) -> None:
    node = make_node()
    node.set_attribute(1, attribute, "?!\n")
    device = read_known(node)
    assert len(device.problems) == 1
    assert attribute in device.problems[0]
    assert "'?!\\n'" in device.problems[0]


def test_without_root_the_reset_state_is_unknown_and_the_device_stays(
    make_node: MakeNode, fail_open: Callable[[str, int], None]
) -> None:
    fail_open("neuron1/reset", errno.EACCES)
    device = read_known(make_node())
    assert device.health.reset is None
    assert "root can" in device.problems[0]


def test_a_plain_file_with_a_devices_name_is_no_device(make_node: MakeNode) -> None:
    node = make_node()
    (node.paths.sysfs / "class/neuron_device/neuron9").write_text("")
    assert read(node, 9) is None


def test_a_product_without_counters_has_none_rather_than_zero(make_node: MakeNode) -> None:
    assert read_known(make_node("inf1.6xlarge")).health.ecc is None


def test_errors_of_every_core_reach_the_record(tmp_path: Path) -> None:
    node = write_node(tmp_path / "full", "inf2.xlarge")
    node.set_core_errors(0, 1, hw_error=1, hw_nc_ue_error=2, hw_hbm_ue_error=3, hw_dma_abort_error=4)
    assert read_known(node, 0).health.core_errors == (CoreErrors(0), CoreErrors(1, 1, 2, 3, 4))


def test_a_counter_that_this_driver_does_not_have_counts_nothing(tmp_path: Path) -> None:
    node = write_node(tmp_path / "full", "inf2.xlarge")
    node.set_core_errors(0, 0, hw_error=1)
    node.set_attribute(0, "neuron_core0/stats/status/hw_dma_abort_error/total", None)
    assert read_known(node, 0).health.core_errors[0] == CoreErrors(0, hw_error=1)


@pytest.mark.parametrize("attribute", ["stats/hardware/mem_ecc_uncorrected", "stats/hardware/sram_ecc_uncorrected"])
def test_counters_that_fail_just_now_are_unknown_and_not_zero(
    make_node: MakeNode, fail_open: Callable[[str, int], None], attribute: str
) -> None:
    fail_open(f"neuron1/{attribute}", errno.EIO)
    node = make_node()
    node.set_ecc(1, sram=1, memory=1)
    assert read_known(node).health.ecc is None


def test_firmwares_counters_are_read_under_whatever_name_they_have(make_node: MakeNode) -> None:
    node = make_node("trn2.3xlarge")
    directory = "stats/hardware/health_status"
    for name, text in {
        "hbm_ecc_uncorrected": "4\n",
        "hbm_ecc_corrected": "99\n",
        "state": "degraded\n",
        "healthcheck_heartbeat": "123\n",
        "unhealthy_components": "7\n",
    }.items():
        node.set_attribute(0, f"{directory}/{name}", text)
    device = read_known(node, 0)
    assert device.health.status_counts == (("hbm_ecc_uncorrected", 4), ("hw_error_events", 0))
    assert device.problems == ()


def test_a_masked_core_is_reported(make_node: MakeNode) -> None:
    node = make_node()
    node.set_attribute(1, "neuron_core1/info/architecture/arch_type", None)
    for directory in ("neuron_core1/info/architecture", "neuron_core1/info", "neuron_core1"):
        (node.paths.sysfs / "class/neuron_device/neuron1" / directory).rmdir()
    assert "has no neuron_core1: masked by the module parameter dev_nc_map?" in read_known(node).problems[0]


def as_directory(node: SimulatedNode) -> None:
    (node.paths.dev / "neuron1").unlink()
    (node.paths.dev / "neuron1").mkdir()


NODES: dict[str, tuple[Callable[[SimulatedNode], object], tuple[int, int] | None, NodeState]] = {
    "p67 one that is not there": (lambda node: node.remove_node(1), None, NodeState.ABSENT),
    "a plain file of a simulated machine": (lambda _: None, None, NodeState.PRESENT),
    "p67 one elsewhere": (lambda node: (node.paths.dev / SIMULATED_MARKER).unlink(), None, NodeState.NOT_A_DEVICE),
    "a directory": (as_directory, None, NodeState.NOT_A_DEVICE),
    "a character device with the driver's numbers": (lambda _: None, (243, 1), NodeState.PRESENT),
    "one of before a driver reload, by its major number": (lambda _: None, (248, 1), NodeState.STALE),
    "by its minor number": (lambda _: None, (243, 2), NodeState.STALE),
    "without the driver's numbers it is believed": (
        lambda node: node.set_attribute(1, "dev", "?\n"),
        (9, 9),
        NodeState.PRESENT,
    ),
}
"""What is done to a machine; the numbers of its character devices, if they are such; what stands at the node."""


@pytest.mark.parametrize(("change", "numbers", "state"), NODES.values(), ids=NODES)
def test_what_stands_at_a_devices_node(
    make_node: MakeNode,
    monkeypatch: pytest.MonkeyPatch,
    change: Callable[[SimulatedNode], object],
    numbers: tuple[int, int] | None,
    state: NodeState,
) -> None:
    node = make_node()
    change(node)
    if numbers:  # making a character device takes root
        real_stat = Path.stat

        def looked_at(self: Path, *, follow_symlinks: bool = True) -> os.stat_result:
            if self.parent.name != "dev":
                return real_stat(self, follow_symlinks=follow_symlinks)
            fields: dict[str, int] = {"st_rdev": os.makedev(*numbers)}
            return os.stat_result((stat.S_IFCHR | 0o666, 0, 0, 1, 0, 0, 0, 0, 0, 0), fields)

        monkeypatch.setattr(Path, "stat", looked_at)
    assert node_state(Sysfs(node.paths.sysfs), node.paths.dev, DeviceId(1)) is state
    assert read_known(node).node is state


def test_p67_counters_of_a_core_that_fail_just_now_make_no_sum_fall(
    tmp_path: Path, fail_open: Callable[[str, int], None]
) -> None:
    """A sum that fell and rose again would be new errors."""
    node = write_node(tmp_path / "full", "inf2.xlarge")
    node.set_core_errors(0, 1, hw_error=3)
    fail_open("neuron_core1/stats/status/hw_error/total", errno.EIO)
    device = read_known(node, 0)
    assert device.health.core_errors == ()
    assert "neuron_core1/stats/status/hw_error/total cannot be read" in device.problems[0]


@pytest.mark.parametrize("instance", catalogue().values(), ids=lambda instance: instance.name)
def test_every_shipped_type_has_devices_of_a_known_product(instance: InstanceType) -> None:
    generation = GENERATIONS[instance.device_name]
    assert instance.cores_per_device == generation.cores_per_device
    assert instance.logical_core_size == generation.default_logical_core_size


def test_ndv3_is_two_products() -> None:
    found = {name for name, generation in GENERATIONS.items() if generation.device_arch == "NDv3"}
    assert found == {"Inferentia2", "Trainium2"}


@pytest.mark.parametrize(
    ("device_name", "default", "largest"),
    [("Inferentia", 1, 1), ("Inferentia2", 1, 1), ("Trainium1", 1, 1), ("Trainium2", 2, 2), ("Trainium3", 2, 8)],
)
def test_logical_cores_exist_from_trn2_on(device_name: str, default: int, largest: int) -> None:
    generation = GENERATIONS[device_name]
    assert (generation.default_logical_core_size, generation.largest_logical_core_size) == (default, largest)


def test_what_is_the_same_of_several_devices_is_said_once_with_their_ids() -> None:
    reads = "neuron{0} is skipped: /sys/class/neuron_device/neuron{0}/core_count reads 'x'"
    others = ["neuron5 is skipped: vanished", "neuron1 and neuron2 have one serial number", "no libudev"]

    joined = joined_by_device([*(reads.format(device) for device in (0, 1, 2, 9)), *others])

    assert joined == [reads.format("0-2,9"), *others]
