from __future__ import annotations

import logging
from typing import Any

import pytest

from neuron_plugin.allocation import PodReference, PodUid
from neuron_plugin.extender.attempts import SUCCESSES, Ending, Outcome
from neuron_plugin.extender.flowlog import log_bind, log_error, log_filter, log_preempt, log_prioritize, request_text
from neuron_plugin.extender.verbs import Filtered
from neuron_plugin.extender.verdicts import Misfit
from neuron_plugin.simulation import container, pod_manifest
from tests.extender.world import CORE, DEVICE, World, record_of, request_of

POD = PodReference(PodUid("u"), "default", "pod")
REQUEST = request_of(record_of(pod_manifest("pod", CORE, 9)))


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.INFO, "neuron_plugin.extender.flow")
    return caplog


def only(lines: pytest.LogCaptureFixture) -> dict[str, Any]:
    (record,) = lines.records
    return vars(record)


def test_a_request_is_told_container_by_container() -> None:
    several = request_of(record_of(pod_manifest("p", containers=[container("a", DEVICE, 1), container("b", CORE, 4)])))

    assert request_text(REQUEST) == "neuroncore:9"
    assert request_text(several) == "neuron:1|neuroncore:4"


def test_a_filters_line_counts_nodes_and_reasons(lines: pytest.LogCaptureFixture) -> None:
    full, none = Misfit("not-free", "full", may_pass=True), Misfit("no-neuron", "none", may_pass=False)

    log_filter(POD, REQUEST, Filtered(["a"], {full: ["b", "c"], none: ["d"]}), 42)

    expected = {"pod": "default/pod", "uid": "u", "nodes": 4, "passed": 1, "refused": {"full": 2, "none": 1}, "us": 42}
    assert only(lines) | expected == only(lines)


def test_a_filters_line_stays_short_however_many_reasons_there_are(lines: pytest.LogCaptureFixture) -> None:
    misfits = {Misfit("x", f"reason {number}", may_pass=True): ["node"] * number for number in range(1, 50)}

    log_filter(POD, REQUEST, Filtered([], misfits), 1)

    assert len(only(lines)["refused"]) == 8
    assert "reason 49" in only(lines)["refused"]


def test_the_lines_of_prioritize_and_preempt_say_how_much_was_left(lines: pytest.LogCaptureFixture) -> None:
    log_prioritize(POD, REQUEST, [10, 3, 10], 1)
    log_preempt(POD, REQUEST, 5, {"a": 2, "b": 1}, 1)

    first, second = (vars(record) for record in lines.records)
    assert (first["nodes"], first["best"]) == (3, 2)
    assert (second["nodes"], second["passed"], second["fewest_victims"]) == (5, 2, 1)


def test_a_binds_line_says_what_was_chosen_and_what_is_used_then(world: World, lines: pytest.LogCaptureFixture) -> None:
    world.node("node", "inf1.6xlarge")
    world.held("pod", "node", CORE, "0,1,2,3,4,5,6,7,8")
    outcome = Outcome(Ending.BOUND, annotations={"NEURON_CORES": "0,1,2,3,4,5,6,7,8"})

    log_bind(POD, "node", outcome, world.state.nodes["node"], 7)

    line = only(lines)
    assert (line["levelname"], line["result"], line["NEURON_CORES"]) == ("INFO", "bound", "0,1,2,3,4,5,6,7,8")
    assert (line["used_cores"], line["used_devices"]) == ("0,1,2,3,4,5,6,7,8", "0,1,2")


@pytest.mark.parametrize("ending", sorted(set(Ending) - SUCCESSES))
def test_a_bind_that_failed_is_a_warning_with_its_reason(lines: pytest.LogCaptureFixture, ending: Ending) -> None:
    log_bind(POD, "ghost", Outcome(ending, "why"), None, 7)

    assert (only(lines)["levelname"], only(lines)["result"], only(lines)["error"]) == ("WARNING", ending.value, "why")


def test_a_verb_that_was_not_decided_is_a_warning(lines: pytest.LogCaptureFixture) -> None:
    log_error("filter", "garbage", 3)

    assert (only(lines)["levelname"], only(lines)["message"], only(lines)["error"]) == ("WARNING", "filter", "garbage")
