"""Libraries are loaded beside the event loop."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import pytest

from neuron_plugin.loading import load

SLOW = """
import sys, time
steps = sys.modules["{package}"].steps
steps.append("begin")
time.sleep(0.05)
steps.append("end")
"""


async def test_two_parts_of_a_package_are_loaded_one_after_the_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = "a_package_of_test_loading"
    directory = tmp_path / package
    directory.mkdir()
    (directory / "__init__.py").write_text("steps = []")
    for name in ("one", "other"):
        (directory / f"{name}.py").write_text(SLOW.format(package=package))
    monkeypatch.syspath_prepend(tmp_path)
    await asyncio.gather(load(f"{package}.one"), load(f"{package}.other"))
    assert sys.modules[package].steps == ["begin", "end"] * 2


async def test_a_library_that_is_missing_is_an_error_of_the_caller() -> None:
    with pytest.raises(ModuleNotFoundError):
        await load("no_such_library_anywhere")
