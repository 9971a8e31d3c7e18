from __future__ import annotations

import platform
from pathlib import Path

import grpc
import pytest

from neuron_plugin import __version__
from neuron_plugin.build import REVISION_FILE, UNKNOWN, build


def test_a_build_names_itself_python_and_grpc() -> None:
    found = build()
    assert (found.version, found.python, found.grpc) == (__version__, platform.python_version(), grpc.__version__)


@pytest.mark.parametrize(("written", "revision"), [("0123abc\n", "0123abc"), ("", UNKNOWN), ("\n", UNKNOWN)])
def test_the_revision_is_what_the_image_s_build_has_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, written: str, revision: str
) -> None:
    (tmp_path / "REVISION").write_text(written)
    monkeypatch.setattr("neuron_plugin.build.REVISION_FILE", tmp_path / "REVISION")
    assert build.__wrapped__().revision == revision


def test_a_checkout_does_not_know_its_revision() -> None:
    assert build().revision == UNKNOWN
    assert not REVISION_FILE.exists()


def test_a_library_that_was_installed_in_another_way_is_no_reason_not_to_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.path", [])
    assert build.__wrapped__().grpc == UNKNOWN
