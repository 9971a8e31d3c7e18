"""What a room hands out: the names at its door, and those that other rooms import from one of its modules."""

from __future__ import annotations

import ast
from collections import defaultdict
from pathlib import Path

import neuron_plugin

PACKAGE = Path(neuron_plugin.__file__).parent
MOST_NAMES = 25


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
DOORS = {room: {name for _, name in imports(PACKAGE / room / "__init__.py")} for room in ROOMS}
USED = defaultdict[str, set[str]](set)
"""By module, what other rooms import from it."""
for file in PACKAGE.rglob("*.py"):
    own_room = f"{PACKAGE.name}.{file.relative_to(PACKAGE).parts[0]}"
    for module, name in imports(file):
        if not f"{module}.".startswith(f"{own_room}.") and "_proto" not in module:
            USED[module].add(name)


def test_a_door_and_a_module_hand_out_few_names() -> None:
    assert {module: names for module, names in USED.items() if len(names) > MOST_NAMES} == {}
    assert {room: names for room, names in DOORS.items() if len(names) > MOST_NAMES} == {}


def test_what_the_door_has_is_imported_from_the_door() -> None:
    past = {
        (module, name)
        for module, names in USED.items()
        for name in names
        if module.count(".") > 1 and name in DOORS[module.split(".")[1]]
    }
    assert past == set()


def test_a_door_names_only_what_another_room_uses() -> None:
    tests_too = {"simulation"}  # its doubles are there for the tests
    unused = {room: DOORS[room] - USED[f"{PACKAGE.name}.{room}"] for room in ROOMS if room not in tests_too}
    assert {room: names for room, names in unused.items() if names} == {}
