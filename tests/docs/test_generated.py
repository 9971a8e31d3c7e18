"""Pages made from the code are what the code says now (P82)."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from neuron_plugin.hardware.health_signals import Signal

ROOT = Path(__file__).resolve().parents[2]


def generate(*flags: str, script: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(  # noqa: S603 - our own script
        [sys.executable, str(script), *flags],
        capture_output=True,
        text=True,
        check=False,
        env={"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin"},
    )


def test_p82_generated_pages_are_up_to_date() -> None:
    result = generate("--check", script=ROOT / "docs" / "generate.py")
    assert result.returncode == 0, result.stderr


def test_p82_every_signal_of_health_is_explained_with_its_defaults() -> None:
    page = (ROOT / "docs/configuration.md").read_text()
    settable = {signal.value for signal in Signal} - {Signal.MISSING.value}
    assert set(re.findall(r"^\| `([a-z-]+)` \| (?:warn|unhealthy|ignore) \| ", page, re.MULTILINE)) == settable


def test_a_page_that_is_out_of_date_is_named_and_mended(tmp_path: Path) -> None:
    script = tmp_path / "generate.py"
    for file in (ROOT / "docs").glob("*.py"):
        (tmp_path / file.name).write_text(file.read_text())
    (tmp_path / "metrics.md").write_text("# Edited by hand\n")
    checked = generate("--check", script=script)
    assert checked.returncode == 1
    assert "metrics.md is out of date" in checked.stderr
    assert generate(script=script).returncode == 0
    assert (tmp_path / "metrics.md").read_text() == (ROOT / "docs" / "metrics.md").read_text()
