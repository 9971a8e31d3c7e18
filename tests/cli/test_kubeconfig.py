from __future__ import annotations

from pathlib import Path

import pytest

from neuron_plugin.cli.command import UsageError
from neuron_plugin.cli.kubeconfig import kubeconfig_of


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user with a home and nothing in it, outside of pods."""
    for name in ("KUBECONFIG", "KUBERNETES_SERVICE_HOST"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


def made(path: Path) -> Path:
    path.parent.mkdir(exist_ok=True)
    path.touch()
    return path


def test_the_flag_wins_over_the_variable_and_that_over_the_home(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usual = made(home / ".kube/config")
    assert kubeconfig_of(None) == usual
    named = made(home / "named")
    monkeypatch.setenv("KUBECONFIG", f"{home}/none:{named}")
    assert kubeconfig_of(None) == named
    given = made(home / "given")
    assert kubeconfig_of(given) == given


def test_what_is_named_has_to_be_there(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made(home / ".kube/config")
    with pytest.raises(UsageError, match="--kubeconfig is /nowhere, which is not there"):
        kubeconfig_of(Path("/nowhere"))
    monkeypatch.setenv("KUBECONFIG", "/nowhere:/elsewhere")
    with pytest.raises(UsageError, match="KUBECONFIG is /nowhere:/elsewhere, which is not there"):
        kubeconfig_of(None)


def test_a_pod_without_any_has_its_service_account(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
    assert kubeconfig_of(None) is None


def test_without_any_the_ways_to_give_one_are_told() -> None:
    with pytest.raises(UsageError, match="give --kubeconfig or set KUBECONFIG"):
        kubeconfig_of(None)
