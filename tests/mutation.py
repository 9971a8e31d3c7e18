"""Which faults the tests would not notice: small changes of the code, and the tests that cover it run on each.

    python -m tests.mutation --seed 1 --count 300
    python -m tests.mutation --seed 1 --count 25 allocation

A mutant is one comparison, operator, condition, constant or call that is changed or left out. The tests of its room,
and of those that stand on it, run once without a change, to see which of them come to which line. For each mutant, in a
copy of the repository, those that come to its line run until one fails, the test files of its module first. Printed is
each mutant that none of them noticed, and the share that was. A mutant may be no fault at all (an equal result by
another way); the share of one seed before and after a change of the tests says what it cost.
"""

from __future__ import annotations

import argparse
import ast
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from typing import Final

import coverage
import pytest

REPOSITORY: Final = Path(__file__).parents[1]
PACKAGE: Final = "neuron_plugin"

COVER: Final = {
    "plugin": ("plugin", "conformance"),
    "allocation": ("allocation", "cluster", "planning", "placement", "monitor", "plugin"),
    "planning": ("planning", "placement", "monitor"),
    "placement": ("placement", "monitor"),
}
"""The rooms that are mutated, and whose tests run on a mutant of each, in this order."""

MOST_SECONDS: Final = 900
"""For the tests of one mutant; what takes longer was noticed."""

_PYTEST: Final = ("pytest", "-x", "-q", "-p", "no:randomly", "-p", "no:cacheprovider")
_LONGEST_STATEMENT: Final = 12
"""Lines. Python tells of the first line of a statement, not of each."""

_COMPARISONS: Final = {
    ast.Lt: "<=", ast.LtE: "<", ast.Gt: ">=", ast.GtE: ">", ast.Eq: "!=", ast.NotEq: "==",
    ast.In: "not in", ast.NotIn: "in", ast.Is: "is not", ast.IsNot: "is",
}  # fmt: skip
_OPERATORS: Final = {
    ast.Add: "-", ast.Sub: "+", ast.Mult: "//", ast.FloorDiv: "*", ast.Div: "*",
    ast.BitAnd: "|", ast.BitOr: "&", ast.LShift: ">>", ast.RShift: "<<",
}  # fmt: skip


@dataclass(frozen=True)
class Mutant:
    """One change of one file: the text between two offsets is replaced."""

    path: Path
    """Relative to the repository."""
    before: str
    """The whole file without the change: the repository may be worked on while mutants run."""
    start: int
    end: int
    text: str

    def source(self) -> str:
        """The whole file with the change."""
        return self.before[: self.start] + self.text + self.before[self.end :]

    @property
    def line(self) -> int:
        """The number of the changed line, from 1."""
        return self.before.count("\n", 0, self.start) + 1

    def __str__(self) -> str:
        """Where, and both lines."""
        lines = (text.splitlines()[self.line - 1].strip() for text in (self.before, self.source()))
        return "\n  ".join((f"{self.path}:{self.line}", *map(" ".join, zip("-+", lines, strict=True))))


class _Positions:
    """From the line and column of a node to the offset in its source; columns count bytes."""

    def __init__(self, source: str) -> None:
        self._lines = source.splitlines(keepends=True)
        self._offsets = [0]
        for line in self._lines:
            self._offsets.append(self._offsets[-1] + len(line))

    def start(self, node: ast.expr | ast.stmt) -> int:
        return self._offset(node.lineno, node.col_offset)

    def end(self, node: ast.expr | ast.stmt) -> int:
        return self._offset(node.end_lineno or node.lineno, node.end_col_offset or node.col_offset)

    def _offset(self, line: int, column: int) -> int:
        return self._offsets[line - 1] + len(self._lines[line - 1].encode()[:column].decode())


def mutants(path: Path) -> list[Mutant]:
    """Every mutant of a file; types and docstrings have none."""
    source = (REPOSITORY / path).read_text(encoding="utf-8")
    at = _Positions(source)
    found = []
    for node in _running(ast.parse(source)):
        for start, end, text in _changes(node, at, source):
            if source[start:end] != text:
                found.append(Mutant(path, source, start, end, text))
    return found


def _running(node: ast.AST) -> Iterator[ast.AST]:
    """The nodes below one that say what happens when the module runs."""
    for name, value in ast.iter_fields(node):
        if name in ("annotation", "returns", "type_params", "decorator_list"):
            continue
        for below in value if isinstance(value, list) else [value]:
            if isinstance(below, ast.AST) and not isinstance(below, ast.Import | ast.ImportFrom):
                yield below
                yield from _running(below)


def _changes(node: ast.AST, at: _Positions, source: str) -> Iterator[tuple[int, int, str]]:
    """Spans of the source and what to put there."""
    if isinstance(node, ast.Compare) and len(node.ops) == 1 and type(node.ops[0]) in _COMPARISONS:
        yield from _operator(source, at.end(node.left), at.start(node.comparators[0]), _COMPARISONS[type(node.ops[0])])
    elif isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
        yield from _operator(source, at.end(node.left), at.start(node.right), _OPERATORS[type(node.op)])
    elif isinstance(node, ast.BoolOp):
        swapped = "or" if isinstance(node.op, ast.And) else "and"
        yield from _operator(source, at.end(node.values[0]), at.start(node.values[1]), swapped)
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        yield at.start(node), at.start(node) + len("not "), ""
    elif isinstance(node, ast.Constant) and isinstance(node.value, bool):
        yield at.start(node), at.end(node), str(not node.value)
    elif isinstance(node, ast.Constant) and isinstance(node.value, int):
        yield at.start(node), at.end(node), str(node.value + 1)
    elif isinstance(node, ast.If | ast.While | ast.IfExp):
        yield at.start(node.test), at.end(node.test), f"not ({source[at.start(node.test) : at.end(node.test)]})"
    elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call | ast.Await):
        yield at.start(node), at.end(node), "pass"
    elif isinstance(node, ast.Return) and node.value and not isinstance(node.value, ast.Constant):
        yield at.start(node), at.end(node), "return None"


def _operator(source: str, start: int, end: int, text: str) -> Iterator[tuple[int, int, str]]:
    """The operator between two operands, where no comment stands there; brackets stay."""
    found = re.search(r"not in|is not|\w+|[^\w\s()]+", source[start:end])
    if found and "#" not in source[start:end]:
        yield start + found.start(), start + found.end(), text


def sample(rooms: list[str], seed: int, count: int) -> list[Mutant]:
    """So many mutants of some rooms, the same ones for a seed as long as the code is the same."""
    files = [file for room in rooms for file in sorted((REPOSITORY / PACKAGE / room).rglob("*.py"))]
    every = [mutant for file in files for mutant in mutants(file.relative_to(REPOSITORY))]
    return random.Random(seed).sample(every, min(count, len(every)))  # noqa: S311 - a sample, no secret


class _Contexts:
    """What coverage sees while a test runs is seen by that test."""

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        if running := coverage.Coverage.current():
            running.switch_context(item.nodeid)
        yield


def pytest_configure(config: pytest.Config) -> None:
    """As a plugin of pytest, which this module is while the tests run without a change."""
    config.pluginmanager.register(_Contexts())


class Reach:
    """Which tests come to which line."""

    def __init__(self, copy: Path, rooms: list[str]) -> None:
        """Run the tests of some rooms; ends with a message if one fails, since no failure would say anything then."""
        self._copy = copy
        directories = dict.fromkeys(f"tests/{directory}" for room in rooms for directory in COVER[room])
        command = ["-m", "coverage", "run", "--branch", f"--source={PACKAGE}", "-m", *_PYTEST, "-p", "tests.mutation"]
        done = _run(copy, [*command, *directories], None)
        if done is None or done.returncode:
            sys.exit(f"tests fail without a change, make them pass first:\n{done.stdout[-2000:] if done else ''}")
        self._data = coverage.CoverageData(str(copy / ".coverage"))
        self._data.read()

    def tests(self, mutant: Mutant) -> list[str]:
        """The tests that come to a mutant's line, the likeliest to notice it first.

        What runs when the module is imported is no test's: then they are all tests of the rooms that cover it.
        """
        room, module = mutant.path.parts[1], mutant.path.stem
        by_line = self._data.contexts_by_lineno(str(self._copy / mutant.path))
        last = mutant.line
        first = next((number for number in range(last, max(0, last - _LONGEST_STATEMENT), -1) if number in by_line), 0)
        found = sorted(filter(None, by_line.get(first, ())))
        if not found:
            return [f"tests/{directory}" for directory in COVER[room]]
        return sorted(found, key=lambda test: (f"tests/{room}/test_{module}" not in test, f"tests/{room}/" not in test))


def _run(copy: Path, arguments: list[str], seconds: float | None) -> subprocess.CompletedProcess[str] | None:
    environment = {**os.environ, "PYTHONPATH": str(copy)}
    command = [sys.executable, *arguments]
    try:
        return subprocess.run(  # noqa: S603 - our own tests
            command, cwd=copy, env=environment, capture_output=True, text=True, check=False, timeout=seconds
        )
    except subprocess.TimeoutExpired:
        return None


def survives(copy: Path, mutant: Mutant, tests: list[str]) -> bool:
    """Whether all of some tests pass on a mutant; the copy is as before afterwards."""
    file, chosen = copy / mutant.path, copy / "chosen-tests"
    chosen.write_text("\n".join(tests), encoding="utf-8")
    try:
        file.write_text(mutant.source(), encoding="utf-8")
        done = _run(copy, ["-m", *_PYTEST, f"@{chosen}"], MOST_SECONDS)
        return done is not None and done.returncode == 0
    finally:
        file.write_text(mutant.before, encoding="utf-8")


def main() -> None:
    """Print what survived."""
    parser = argparse.ArgumentParser(description="Change the code and see whether a test notices.")
    parser.add_argument("rooms", nargs="*", choices=[[], *COVER], metavar="ROOM", help=f"of {', '.join(COVER)}: all")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=300)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="mutants at a time: one for each CPU")
    options = parser.parse_args()
    rooms = options.rooms or list(COVER)
    chosen = sample(rooms, options.seed, options.count)
    with tempfile.TemporaryDirectory(prefix="mutants-") as scratch, ThreadPoolExecutor(options.jobs) as pool:
        copies = SimpleQueue[Path]()
        for number in range(options.jobs):
            copies.put(copy := Path(scratch) / str(number))
            shutil.copytree(REPOSITORY, copy, ignore=shutil.ignore_patterns(".*", "__pycache__", "dist"))
        reach = Reach(copy, rooms)

        def survived(mutant: Mutant) -> bool:
            copy = copies.get()
            try:
                return survives(copy, mutant, reach.tests(mutant))
            finally:
                copies.put(copy)

        survivors = 0
        for number, (mutant, is_alive) in enumerate(zip(chosen, pool.map(survived, chosen), strict=True), 1):
            survivors += is_alive
            print(f"{number}/{len(chosen)} {'SURVIVED ' if is_alive else 'noticed  '}{mutant}", flush=True)  # noqa: T201
    noticed = len(chosen) - survivors
    print(f"seed {options.seed}: {noticed} of {len(chosen)} noticed, {noticed / len(chosen):.1%}")  # noqa: T201


if __name__ == "__main__":
    main()
