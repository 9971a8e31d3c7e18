from __future__ import annotations

import msgspec
import pytest

from neuron_plugin.cli.device_columns import columns_of, title_of
from neuron_plugin.inspection.devices import DeviceReport, EccReport, Health, HolderReport, MachineReport

DEVICE = DeviceReport(id=1, node="/dev/neuron1", health=Health.HEALTHY, cores=(2, 3), holders=())


def machine(*devices: DeviceReport, **changes: object) -> MachineReport:
    report = MachineReport(
        instance_type="inf2.24xlarge",
        topology="line",
        device_count=6,
        cores_per_device=2,
        logical_core_size=1,
        driver_version="2.26.5.0",
        links_from="driver",
        devices=devices,
        holders_known=True,
    )
    return msgspec.structs.replace(report, **changes)


def cell(heading: str, device: DeviceReport) -> str:
    columns = {column.heading: column for column in columns_of(machine(device), wide=True)}
    return columns[heading].cell(device)


def holder(container: str, *cores: int) -> HolderReport:
    return HolderReport("ml", "train", container, "aws.amazon.com/neuroncore", cores)


def test_the_table_has_what_one_asks_first_and_wide_the_rest() -> None:
    narrow = [column.heading for column in columns_of(machine(DEVICE), wide=False)]
    wide = [column.heading for column in columns_of(machine(DEVICE), wide=True)]
    assert narrow == ["DEVICE", "CORES", "PRODUCT", "ARCH", "LINKS", "NUMA", "HEALTH", "HOLDERS"]
    assert wide == [*narrow, "MEMORY", "NODE", "SERIAL", "RESET", "ECC(SRAM/MEM/REPAIRABLE)", "DRIVER"]


def test_the_reasons_come_last_and_only_where_there_are_any() -> None:
    broken = msgspec.structs.replace(DEVICE, reasons=("a", "b"))
    assert columns_of(machine(DEVICE, broken), wide=False)[-1].heading == "REASON"
    assert cell("REASON", broken) == "a; b"


@pytest.mark.parametrize(
    ("holders", "text"),
    [
        ((), ""),
        ((holder("main", 2, 3),), "ml/train/main"),
        ((holder("main", 3),), "ml/train/main[3]"),
        ((holder("a", 2), holder("b", 3)), "ml/train/a[2],ml/train/b[3]"),
        (None, "?"),
    ],
)
def test_holders_name_their_cores_unless_they_have_the_whole_device(
    holders: tuple[HolderReport, ...] | None, text: str
) -> None:
    assert cell("HOLDERS", msgspec.structs.replace(DEVICE, holders=holders)) == text


def test_a_device_that_is_not_there_has_no_unknown_holders() -> None:
    assert cell("HOLDERS", DeviceReport(id=1, node="/dev/neuron1", health=Health.MISSING)) == ""


def test_details_are_written_short() -> None:
    device = msgspec.structs.replace(
        DEVICE, connected=(0, 2), numa_node=0, memory_bytes=32 * 2**30, ecc=EccReport(1, 2, 3), reset="ready"
    )
    headings = ("LINKS", "NUMA", "MEMORY", "ECC(SRAM/MEM/REPAIRABLE)", "RESET", "DRIVER", "CORES")
    assert [cell(heading, device) for heading in headings] == ["0,2", "0", "32Gi", "1/2/3", "ready", "2.26.5.0", "2-3"]


def test_what_is_not_known_is_an_empty_cell() -> None:
    headings = ("LINKS", "NUMA", "MEMORY", "ECC(SRAM/MEM/REPAIRABLE)", "RESET", "SERIAL")
    assert [cell(heading, DEVICE) for heading in headings] == [""] * 6


def test_every_state_of_health_has_a_colour() -> None:
    column = next(column for column in columns_of(machine(DEVICE), wide=False) if column.heading == "HEALTH")
    styles = {health: column.style(msgspec.structs.replace(DEVICE, health=health)) for health in Health}
    assert styles[Health.HEALTHY] == "green"
    assert all("red" in styles[health] for health in (Health.UNHEALTHY, Health.SKIPPED, Health.MISSING))


@pytest.mark.parametrize(
    ("report", "title"),
    [
        (machine(DEVICE), "inf2.24xlarge: 1 of 6 devices, 2 cores each (LNC 1), line, driver 2.26.5.0"),
        (machine(DEVICE, device_count=1), "inf2.24xlarge: 1 device, 2 cores each (LNC 1), line, driver 2.26.5.0"),
        (
            machine(DEVICE, instance_type="", driver_version=None, device_count=1, cores_per_device=1),
            "unknown type: 1 device, 1 core each (LNC 1), line, driver unknown",
        ),
    ],
)
def test_the_title_is_the_machine_in_one_line(report: MachineReport, title: str) -> None:
    assert title_of(report) == title
