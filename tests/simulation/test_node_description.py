"""The file that a simulated machine follows from."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from neuron_plugin.simulation.node_tree import NodeDescription, SimulatedDevice, SimulationError, check
from neuron_plugin.simulation.node_writer import DESCRIPTION_FILE, read_description

WHOLE = NodeDescription(
    instance_type="inf2.24xlarge", device_name="Inferentia2", device_count=6, driver_version="2.26.5.0"
)


def changed(**fields: object) -> NodeDescription:
    return msgspec.structs.replace(WHOLE, **fields)


def test_a_machine_as_new_has_all_its_devices() -> None:
    assert WHOLE.chips == WHOLE.loaded == (0, 1, 2, 3, 4, 5)
    assert WHOLE.device(3) == SimulatedDevice()


def test_missing_chips_and_removed_devices_are_not_listed_by_the_driver() -> None:
    description = changed(missing=(1,), devices={4: SimulatedDevice(loaded=False), 5: SimulatedDevice(node=False)})
    assert description.chips == (0, 2, 3, 4, 5)
    assert description.loaded == (0, 2, 3, 5)


def test_without_a_driver_nothing_is_listed_and_the_chips_stay() -> None:
    description = changed(driver_loaded=False)
    assert description.loaded == ()
    assert len(description.chips) == 6


def test_a_description_survives_its_file(tmp_path: Path) -> None:
    description = changed(
        logical_core_size=1, devices={4: SimulatedDevice(memory_ecc=3, overrides={"core_count": "x", "reset": None})}
    )
    (tmp_path / DESCRIPTION_FILE).write_bytes(msgspec.json.encode(description))
    assert read_description(tmp_path) == description


def test_only_what_is_not_as_new_is_written() -> None:
    assert msgspec.json.decode(msgspec.json.encode(WHOLE)) == {
        "instance_type": "inf2.24xlarge",
        "device_name": "Inferentia2",
        "device_count": 6,
        "driver_version": "2.26.5.0",
    }


@pytest.mark.parametrize(
    "text", ["", "{}", "[]", '{"instance_type": 1}', '{"instance_type": "a", "device_name": "b", "colour": "red"}']
)
def test_another_file_of_that_name_is_refused_by_name(tmp_path: Path, text: str) -> None:
    (tmp_path / DESCRIPTION_FILE).write_text(text)
    with pytest.raises(SimulationError, match=f"{DESCRIPTION_FILE} does not describe a simulated node"):
        read_description(tmp_path)


def test_two_descriptions_share_no_faults() -> None:
    first, second = SimulatedDevice(), SimulatedDevice()
    first.overrides["core_count"] = "x"
    assert second.overrides == {}


@pytest.mark.parametrize(
    ("device_name", "driver", "possible"),
    [
        ("Inferentia", "2.24.13.0", True),
        ("Inferentia", "2.25.0.0", False),
        ("Trainium3", "2.25.4.0", True),
        ("Trainium3", "2.25.3.9", False),
        ("Trainium1", "2.10.11.0", True),
    ],
)
def test_a_driver_has_the_products_it_was_made_for(device_name: str, driver: str, possible: bool) -> None:  # noqa: FBT001 - parametrized
    description = changed(device_name=device_name, driver_version=driver)
    if possible:
        check(description)
        return
    with pytest.raises(SimulationError, match=f"driver {driver}"):
        check(description)
