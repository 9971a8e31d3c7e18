"""Troubles are told once, in the log and on the pod."""

from __future__ import annotations

import logging

import pytest

from neuron_plugin.allocation import PodReference
from neuron_plugin.plugin import report as module
from neuron_plugin.plugin.report import Reporter
from neuron_plugin.plugin.standins import nameless_stand_in
from tests.plugin.world import ref


@pytest.fixture
def sent(caplog: pytest.LogCaptureFixture) -> list[tuple[str, str, str]]:
    caplog.set_level(logging.WARNING)
    return []


@pytest.fixture
def reporter(sent: list[tuple[str, str, str]]) -> Reporter:
    def send(pod: PodReference, reason: str, text: str) -> None:
        sent.append((str(pod), reason, text))

    return Reporter(send)


def test_p69_the_same_of_the_same_pod_is_told_once(
    reporter: Reporter, sent: list[tuple[str, str, str]], caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("a", "a", "b"):
        reporter.report("Reason", "text", ref(name))
    assert sent == [("default/a", "Reason", "text"), ("default/b", "Reason", "text")]
    assert len(caplog.records) == 2


def test_another_text_or_reason_or_a_new_pod_of_that_name_is_news(
    reporter: Reporter, sent: list[tuple[str, str, str]]
) -> None:
    reporter.report("Reason", "text", ref("a"))
    reporter.report("Reason", "other", ref("a"))
    reporter.report("Other", "text", ref("a"))
    reporter.report("Reason", "text", ref("a", uid="second"))
    assert len(sent) == 4


@pytest.mark.parametrize("pod", [None, nameless_stand_in(3)])
def test_what_concerns_no_known_pod_is_only_logged(
    reporter: Reporter, sent: list[tuple[str, str, str]], caplog: pytest.LogCaptureFixture, pod: PodReference | None
) -> None:
    reporter.report("Reason", "text", pod)
    assert sent == []
    assert vars(caplog.records[0])["pod"] == "not known yet"


def test_without_a_cluster_the_log_is_all(caplog: pytest.LogCaptureFixture) -> None:
    Reporter().report("Reason", "text", ref("a"))
    assert [record.message for record in caplog.records] == ["text"]


def test_its_memory_is_bounded(
    reporter: Reporter, sent: list[tuple[str, str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_REMEMBERED", 2)
    for name in ("a", "b", "c", "a"):
        reporter.report("Reason", "text", ref(name))
    assert len(sent) == 4
    assert len(reporter._told) == 2
