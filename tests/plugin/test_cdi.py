"""The CDI specification file."""

from __future__ import annotations

import asyncio
import json
import logging
import shutil
from pathlib import Path

import pytest

from neuron_plugin.plugin import cdi
from neuron_plugin.plugin.cdi import FILE_NAME, keep_written, write_specification


def test_p53_it_is_written_whole_once_and_again_when_it_says_something_else(tmp_path: Path) -> None:
    directory = tmp_path / "run" / "cdi"
    assert write_specification(directory, {"kind": "a"})
    assert not write_specification(directory, {"kind": "a"})
    assert write_specification(directory, {"kind": "b"})
    assert [path.name for path in directory.iterdir()] == [FILE_NAME]
    assert json.loads((directory / FILE_NAME).read_bytes()) == {"kind": "b"}


async def test_p53_it_is_kept_through_a_wiped_directory_and_a_directory_that_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    monkeypatch.setattr(cdi, "PERIOD_SECONDS", 0.005)
    directory, known = tmp_path / "cdi", False
    task = asyncio.create_task(keep_written(directory, lambda: {"kind": "a"} if known else None))

    async def until(path: Path) -> None:
        async with asyncio.timeout(5):
            while not path.exists():
                await asyncio.sleep(0.002)

    await asyncio.sleep(0.02)
    assert not directory.exists()
    known = True
    await until(directory / FILE_NAME)
    shutil.rmtree(directory)
    directory.write_text("in the way")
    async with asyncio.timeout(5):
        while not any("cannot write" in record.message for record in caplog.records):
            await asyncio.sleep(0.002)
    await asyncio.sleep(0.05)
    assert sum("cannot write" in record.message for record in caplog.records) == 1
    directory.unlink()
    await until(directory / FILE_NAME)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
