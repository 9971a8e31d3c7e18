from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from neuron_plugin.allocation import PodUid
from neuron_plugin.cli.devices import title_of
from neuron_plugin.hardware import ResetState
from neuron_plugin.inspection.holders import Holders, PodRecords, holders_of
from neuron_plugin.inspection.reports import Health, MachineReport, machine_report, shown_machine, topology_report
from neuron_plugin.kubelet import CheckpointEntry
from neuron_plugin.simulation import SimulatedNode
from tests.inspection.cases import looked
from tests.inspection.doubles import Container, MakeNode, Pod


def reported(node: SimulatedNode, *pods: Pod) -> MachineReport:
    found = looked(node)
    listed: Any = pods
    return machine_report(found, holders_of(found.node_inventory, PodRecords(pods=listed)))


def test_a_machine_as_new(make_node: MakeNode) -> None:
    report = reported(make_node("trn2.48xlarge"))
    assert (report.version, report.instance_type, report.topology, report.device_count) == (
        1,
        "trn2.48xlarge",
        "torus",
        16,
    )
    assert (report.cores_per_device, report.logical_core_size, report.links_from) == (4, 2, "driver")
    assert (report.holders_known, report.absence, report.notes) == (True, "", ())
    assert [device.id for device in report.devices] == list(range(16))


def test_a_device_as_new(make_node: MakeNode) -> None:
    node = make_node("trn2.48xlarge")
    device = reported(node).devices[13]
    assert device.node == str(node.root / "dev/neuron13")
    assert (device.health, device.reasons, device.reset, device.holders) == (Health.HEALTHY, (), "ready", ())
    assert (device.cores, device.physical_cores) == ((52, 53, 54, 55), 8), "logical ids, physical count"
    assert (device.product, device.architecture) == ("Trainium2", "NDv3")
    assert (device.connected, device.numa_node, device.memory_bytes) == ((1, 9, 12, 14), 1, 103079215104)
    assert device.serial_number.startswith("00000b1c2d3e")


@pytest.mark.parametrize(
    ("change", "health", "reason"),
    [
        (lambda node: node.set_ecc(2, sram=4), Health.UNHEALTHY, "4 uncorrected SRAM errors"),
        (lambda node: node.set_ecc(2, repairable=1), Health.WARNING, "1 repairable memory error"),
        (lambda node: node.set_reset(2, ResetState.RESETTING), Health.RESETTING, "a reset is under way"),
        (lambda node: node.set_reset(2, ResetState.FAILED), Health.UNHEALTHY, "its last reset failed"),
        (lambda node: node.set_unhealthy_components(2, ["hbm"]), Health.UNHEALTHY, "hbm"),
        (lambda node: node.remove_node(2), Health.UNHEALTHY, "/dev/neuron2 is absent"),
        (lambda node: node.remove_device(2), Health.MISSING, "inf2.24xlarge has it"),
        (lambda node: node.set_attribute(2, "core_count", "x"), Health.SKIPPED, "core_count reads 'x'"),
    ],
)
def test_every_kind_of_fault_has_its_word_and_its_reason(
    make_node: MakeNode, change: object, health: Health, reason: str
) -> None:
    node = make_node("inf2.24xlarge")
    assert callable(change)
    change(node)
    devices = reported(node).devices
    assert [device.id for device in devices] == [0, 1, 2, 3, 4, 5]
    assert devices[2].health is health
    assert reason in "; ".join(devices[2].reasons)
    assert {device.health for device in devices if device.id != 2} == {Health.HEALTHY}


def test_an_attribute_that_cannot_be_read_is_reported_though_the_device_is_healthy(make_node: MakeNode) -> None:
    node = make_node("inf2.24xlarge")
    node.set_attribute(2, "info/serial_number", "not hex\n")
    device = reported(node).devices[2]
    assert device.health is Health.HEALTHY
    assert "not hex" in device.reasons[0]


def test_holders_are_reported_by_device_with_the_cores_they_have_there(make_node: MakeNode) -> None:
    cores = Pod("ml", "a", (Container("x", "aws.amazon.com/neuroncore", ("1", "2")),))
    devices = Pod("ml", "b", (Container("y", "aws.amazon.com/neuron", ("4",)),))
    report = reported(make_node("inf2.24xlarge"), cores, devices)
    said = [
        [(each.pod, each.container, each.resource, each.cores) for each in device.holders or ()]
        for device in report.devices
    ]
    assert said == [
        [("a", "x", "aws.amazon.com/neuroncore", (1,))],
        [("a", "x", "aws.amazon.com/neuroncore", (2,))],
        [],
        [],
        [("b", "y", "aws.amazon.com/neuron", (8, 9))],
        [],
    ]


def test_unknown_holders_are_null_and_not_empty(make_node: MakeNode) -> None:
    report = machine_report(looked(make_node("inf2.xlarge")), Holders(None, "the kubelet is away"))
    assert (report.holders_known, report.notes) == (False, ("the kubelet is away",))
    assert report.devices[0].holders is None


def test_cores_on_which_a_process_of_an_ended_pod_lives_are_not_free_and_it_is_said_why(make_node: MakeNode) -> None:
    uid = "1b4e28ba-2fa1-41d2-883f-0016d3cca427"
    entry = CheckpointEntry(uid, "x", "aws.amazon.com/neuroncore", frozenset({"2"}), {}, ())
    machine = looked(make_node("inf2.24xlarge"))
    holders = holders_of(machine.node_inventory, PodRecords(recorded=(entry,), populated={PodUid(uid): True}), [])
    report = machine_report(machine, holders)
    device = report.devices[1]
    assert (device.held_down_cores, device.holders) == ((2,), ())
    assert device.reasons == (f"processes of the pod with UID {uid}, which has ended, may still use it",)
    assert {one.reasons for one in report.devices if one.id != 1} == {()}
    assert title_of(report).endswith("; 5 devices and 11 cores free")
    assert machine.geometry is not None
    shown = shown_machine(machine, holders)
    assert shown is not None
    topology = topology_report(shown, report)
    assert (topology.version, topology.devices[1].free_cores) == (1, (3,))
    assert topology.device_sets[0].free_sets == ((0,), (2,), (3,), (4,), (5,))


def test_assumed_links_are_said_to_be_so(make_node: MakeNode) -> None:
    report = reported(make_node("trn1.32xlarge", missing=[7]))
    assert report.links_from == "instance-type"
    assert report.devices[6].connected == (2, 5, 10)
    assert any("prints no links" in note for note in report.notes)


def test_what_an_old_driver_does_not_tell_is_null(make_node: MakeNode) -> None:
    device = reported(make_node("inf1.6xlarge")).devices[0]
    assert (device.ecc, device.numa_node, device.serial_number) == (None, None, "")


def test_without_a_driver_the_report_says_why(make_node: MakeNode) -> None:
    node = make_node("inf2.24xlarge")
    node.unload_driver()
    report = reported(node)
    assert (report.devices, report.device_count, report.driver_version) == ((), 0, None)
    assert "the Neuron driver is not loaded" in report.absence


def test_the_keys_are_a_promise_to_scripts(make_node: MakeNode) -> None:
    written = json.loads(msgspec.json.encode(reported(make_node("inf2.xlarge"))))
    assert written["version"] == 1
    assert list(written) == [
        *("version", "instanceType", "topology", "deviceCount", "coresPerDevice", "logicalCoreSize", "driverVersion"),
        *("linksFrom", "devices", "holdersKnown", "absence", "notes"),
    ]
    assert list(written["devices"][0]) == [
        *("id", "node", "health", "reasons", "cores", "physicalCores", "product", "architecture", "connected"),
        *("numaNode", "memoryBytes", "serialNumber", "reset", "ecc", "holders", "disabled", "processes"),
        *("busyPercent", "usedMemoryBytes", "heldDownCores"),
    ]


def test_two_looks_at_the_same_machine_are_equal_so_that_a_watch_is_silent(make_node: MakeNode) -> None:
    node = make_node("inf2.24xlarge")
    before = reported(node)
    assert reported(node) == before
    node.set_ecc(0, memory=1)
    assert reported(node) != before
