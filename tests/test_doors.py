"""What a room hands out: the names at its door, and those that other rooms import from one of its modules."""

from __future__ import annotations

import ast
import importlib
from collections import Counter, defaultdict
from pathlib import Path

import pytest

import neuron_plugin

PACKAGE = Path(neuron_plugin.__file__).parent
MOST_NAMES = 25
MOST_OF_ROOM = {"allocation": 205, "cluster": 102, "hardware": 42, "kubelet": 49, "monitor": 46, "placement": 32}
MOST_OF_ROOM |= {"planning": 29, "plugin": 32, "inspection": 31, "topology": 26}
"""Rooms that hand out more. A name that is added here asks for one that goes, or for another cut."""
TABLES = {"neuron_plugin.allocation.keys"}
"""Modules of names alone: the annotations and labels that the parts read from each other."""


def imports(path: Path) -> set[tuple[str, str]]:
    """Module and name of every import from our own package."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    statements = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    return {
        (node.module, alias.name)
        for node in statements
        if node.module and node.module.startswith(f"{PACKAGE.name}.")
        for alias in node.names
    }


ROOMS = sorted(path.parent.name for path in PACKAGE.glob("*/__init__.py"))


@pytest.fixture(scope="module")
def doors() -> dict[str, set[str]]:
    """By room, the names at its door."""
    return {room: {name for _, name in imports(PACKAGE / room / "__init__.py")} for room in ROOMS}


@pytest.fixture(scope="module")
def used() -> dict[str, set[str]]:
    """By module, what other rooms import from it."""
    found = defaultdict[str, set[str]](set)
    for file in PACKAGE.rglob("*.py"):
        own_room = f"{PACKAGE.name}.{file.relative_to(PACKAGE).parts[0]}"
        for module, name in imports(file):
            if not f"{module}.".startswith(f"{own_room}.") and "_proto" not in module:
                found[module].add(name)
    return found


def test_a_door_and_a_module_hand_out_few_names(doors: dict[str, set[str]], used: dict[str, set[str]]) -> None:
    many = {module: names for module, names in used.items() if len(names) > MOST_NAMES}
    assert many.keys() <= TABLES
    assert {room: names for room, names in doors.items() if len(names) > MOST_NAMES} == {}


def test_a_whole_room_hands_out_no_more_names_than_it_may(used: dict[str, set[str]]) -> None:
    by_room = Counter[str]()
    for module, names in used.items():
        by_room[module.split(".")[1]] += len(names)
    assert {room: by_room[room] for room in ROOMS if by_room[room] > MOST_OF_ROOM.get(room, MOST_NAMES)} == {}


def test_what_the_door_has_is_imported_from_the_door(doors: dict[str, set[str]], used: dict[str, set[str]]) -> None:
    past = {
        (module, name)
        for module, names in used.items()
        for name in names
        if module.count(".") > 1 and name in doors[module.split(".")[1]]
    }
    assert past == set()


def test_a_door_names_only_what_another_room_uses(doors: dict[str, set[str]], used: dict[str, set[str]]) -> None:
    tests_too = {"simulation"}  # its doubles are there for the tests
    unused = {room: doors[room] - used[f"{PACKAGE.name}.{room}"] for room in ROOMS if room not in tests_too}
    assert {room: names for room, names in unused.items() if names} == {}


@pytest.mark.parametrize("room", ROOMS)
def test_every_name_at_a_door_can_be_had(doors: dict[str, set[str]], room: str) -> None:
    door = importlib.import_module(f"{PACKAGE.name}.{room}")
    for name in doors[room]:
        assert hasattr(door, name), name
    with pytest.raises(AttributeError, match="no_such_name"):
        _ = door.no_such_name


def test_no_two_types_share_a_name() -> None:
    """Classes and aliases of types; what protoc made is named by the kubelet's texts."""
    homes = defaultdict[str, list[str]](list)
    for file in PACKAGE.rglob("*.py"):
        for node in ast.parse(file.read_text(encoding="utf-8")).body if "_proto" not in file.parts else ():
            targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
            names = (
                [node.name]
                if isinstance(node, ast.ClassDef)
                else [each.id for each in targets if isinstance(each, ast.Name)]
            )
            for name in names:
                if name[0].isupper() and not name.isupper():
                    homes[name].append(str(file.relative_to(PACKAGE)))
    assert {name: files for name, files in homes.items() if len(files) > 1} == {}
