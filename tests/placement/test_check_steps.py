"""What is due of a node that is checked before it takes pods, and what closes it meanwhile."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from neuron_plugin.allocation import NeuronNode, NodeInventory, Rejection
from neuron_plugin.allocation.preflight import (
    CheckScope,
    Preflight,
    PreflightState,
    preflight_seen,
    read_preflight,
    write_preflight,
)
from neuron_plugin.placement.check_steps import CheckEnd, CheckPod, CheckStep, PreflightRules, group_verdict, next_step
from neuron_plugin.topology import catalogue

NOW, RULES = 10_000.0, PreflightRules()
GEOMETRY = catalogue()["trn1.32xlarge"].geometry
WHOLE = NodeInventory(GEOMETRY, tuple(range(16)))
SICK, OFF = replace(WHOLE, unhealthy={3: "ecc"}), replace(WHOLE, disabled=(5,))
HELD = replace(WHOLE, unhealthy={3: "open"}, held_down=(3,))
MISSING, CLAIMED = replace(WHOLE, present=tuple(range(15))), replace(WHOLE, claim_driver="neuron.aws.com")
NO_PLUGIN = Rejection("no-inventory", "The node has no inventory")
NEVER = ""


def record(state: str, ago: float = 0.0, boot: str = "b1", **said: Any) -> Preflight | None:
    return Preflight(PreflightState(state), boot, NOW - ago, **said) if state else None


def check(end: CheckEnd = CheckEnd.RUNS, ago: float = 20.0, boot: str = "b1", **more: Any) -> CheckPod:
    return CheckPod("check", "uid", "node", boot, NOW - ago, end, **more)


def shown(step: CheckStep) -> str:
    """A step in words: what is written, then what is done."""
    words = [step.record.state.value] if step.record else []
    return " ".join([*words, *["begin"] * step.begin, *["delete"] * step.delete])


DUE, OPEN, FAILED, UNABLE = "preflight-due", "", "preflight-failed", "preflight-unable"


@pytest.mark.parametrize(
    ("before", "inventory", "busy", "closed", "step"),
    [
        pytest.param(record(NEVER), WHOLE, False, DUE, "pending", id="a new node"),
        pytest.param(record(NEVER), SICK, False, DUE, "pending", id="a new node with a sick device"),
        pytest.param(record(NEVER), WHOLE, True, OPEN, "", id="a node with pods that was never checked"),
        pytest.param(record(NEVER), NO_PLUGIN, False, OPEN, "", id="a node without a plugin"),
        pytest.param(record("pending"), WHOLE, False, DUE, "begin", id="due"),
        pytest.param(record("pending"), HELD, False, DUE, "", id="due, and an ended pod still has a device"),
        pytest.param(record("pending"), SICK, False, DUE, "", id="due, and a device is sick"),
        pytest.param(record("pending", 600), SICK, False, DUE, "unable", id="due for long, and a device is sick"),
        pytest.param(record("pending", 600), MISSING, False, DUE, "unable", id="due for long, and one is missing"),
        pytest.param(record("pending", 600), OFF, False, DUE, "unable", id="due for long, and one is disabled"),
        pytest.param(record("pending"), WHOLE, True, DUE, "", id="due, with pods"),
        pytest.param(record("pending", 600), WHOLE, True, DUE, "unable", id="due for long, with pods"),
        pytest.param(record("pending", 9999), WHOLE, False, DUE, "begin", id="due for long, behind others"),
        pytest.param(record("pending", -9999), SICK, False, DUE, "pending", id="due, by a clock that was wrong"),
        pytest.param(record("passed"), WHOLE, True, OPEN, "", id="good"),
        pytest.param(record("passed"), HELD, False, OPEN, "", id="good, and an ended pod still has a device"),
        pytest.param(record("passed", boot="b0"), WHOLE, True, DUE, "pending", id="rebooted"),
        pytest.param(record("failed", boot="b0"), WHOLE, False, DUE, "pending", id="rebooted after a failure"),
        pytest.param(record("passed"), SICK, True, OPEN, "unhealthy", id="a device became sick"),
        pytest.param(record("passed"), MISSING, False, OPEN, "unhealthy", id="a device was lost"),
        pytest.param(record("passed"), OFF, False, OPEN, "", id="a device was disabled"),
        pytest.param(record("unhealthy", 9999), SICK, False, OPEN, "", id="a device is sick still"),
        pytest.param(record("unhealthy"), WHOLE, True, DUE, "pending", id="all devices are healthy again"),
        pytest.param(record("failed"), WHOLE, False, FAILED, "", id="failed"),
        pytest.param(record("failed", 3600), WHOLE, False, FAILED, "pending", id="failed an hour ago"),
        pytest.param(record("unable"), WHOLE, False, OPEN, "", id="could not run"),
        pytest.param(record("unable", 3600), WHOLE, True, OPEN, "", id="could not run an hour ago, with pods"),
        pytest.param(record("unable", 3600), WHOLE, False, OPEN, "pending", id="could not run an hour ago"),
        pytest.param(record("unable", closes=True), WHOLE, False, UNABLE, "unable", id="the setting was changed"),
    ],
)
def test_what_closes_a_node_and_what_is_due(
    *, before: Preflight | None, inventory: NodeInventory | Rejection, busy: bool, closed: str, step: str
) -> None:
    if not isinstance(inventory, Rejection):
        before = preflight_seen(before, None, inventory)
    node = NeuronNode("node", "uid", inventory, preflight=before, boot_id="b1")
    assert shown(next_step(node, None, RULES, NOW, busy=busy, ready=True)) == step
    assert "begin" not in shown(next_step(node, None, RULES, NOW, busy=busy, ready=False))
    if not isinstance(inventory, Rejection):
        closure = CheckScope("ns").closure(before, "b1", inventory, busy=busy)
        assert (closure.code if closure else "") == closed


@pytest.mark.parametrize(
    ("scope", "text", "closed"),
    [
        (CheckScope(), "", (OPEN, OPEN)),
        (CheckScope("", groups=True, claims=True), "", (OPEN, OPEN)),
        (CheckScope("ns"), "ns", (DUE, OPEN)),
        (CheckScope("ns", groups=True), "ns groups", (DUE, OPEN)),
        (CheckScope("ns", groups=True, claims=True), "ns groups claims", (DUE, DUE)),
    ],
)
def test_what_is_checked_stands_on_the_leader_s_lease_and_closes_no_other_node(
    scope: CheckScope, text: str, closed: tuple[str, str]
) -> None:
    assert scope.text == text
    assert not scope.namespace or CheckScope.read(text) == scope
    assert CheckScope.read("") == CheckScope()
    for inventory, code in zip((WHOLE, CLAIMED), closed, strict=True):
        closure = scope.closure(None, "b1", inventory, busy=False)
        assert (closure.code if closure else "") == code
        assert scope.covers(inventory) is (code == DUE)


@pytest.mark.parametrize(
    ("found", "since", "step"),
    [
        pytest.param(check(), 20, "", id="it runs"),
        pytest.param(check(CheckEnd.PASSED), 20, "passed delete", id="passed"),
        pytest.param(check(CheckEnd.FAILED), 20, "failed delete", id="failed"),
        pytest.param(check(CheckEnd.NOT_RUN, ago=5), 5, "", id="refused by the kubelet just now"),
        pytest.param(check(CheckEnd.NOT_RUN), 20, "delete", id="refused by the kubelet, and tried again"),
        pytest.param(check(CheckEnd.NOT_RUN), 600, "unable delete", id="refused by the kubelet for long"),
        pytest.param(check(ago=660, ran=True), 660, "failed delete", id="nobody ended it"),
        pytest.param(check(ago=660), 660, "unable delete", id="nobody started it"),
        pytest.param(check(CheckEnd.PASSED, boot="b0"), 20, "delete", id="of the boot before"),
        pytest.param(check(CheckEnd.PASSED, terminating=True), 20, "", id="it is being deleted"),
    ],
)
def test_what_follows_from_the_pod_of_a_check(found: CheckPod, since: float, step: str) -> None:
    node = NeuronNode("node", "uid", WHOLE, preflight=record("pending", since), boot_id="b1")
    assert shown(next_step(node, found, RULES, NOW, busy=False, ready=True)) == step


def test_a_check_is_not_good_where_a_device_has_become_unhealthy_meanwhile() -> None:
    node = NeuronNode("node", "uid", SICK, preflight=record("pending"), boot_id="b1")
    assert shown(next_step(node, check(CheckEnd.PASSED), RULES, NOW, busy=False, ready=True)) == "delete"


def test_a_check_that_has_failed_is_not_made_again_where_that_is_for_people_to_say() -> None:
    node = NeuronNode("node", "uid", WHOLE, preflight=record("failed", 9e9), boot_id="b1")
    assert next_step(node, None, PreflightRules(retry=0), NOW, busy=False, ready=True) == CheckStep()


def test_the_devices_are_those_that_the_last_lines_name() -> None:
    said = "\n".join(["device=1 looks good", *["..."] * 20, "allreduce: 3 GB/s, device=3", "device=12", "xdevice=7"])
    node = NeuronNode("node", "uid", WHOLE, preflight=record("pending"), boot_id="b1")
    failed = next_step(node, check(CheckEnd.FAILED, said=said), RULES, NOW, busy=False, ready=True).record
    assert failed
    assert failed.devices == (3, 12)
    assert failed.text.startswith("devices 3,12: ")
    assert failed.text.endswith("xdevice=7")


def test_a_record_reads_back_as_it_was_and_nothing_else_is_one() -> None:
    full = Preflight(PreflightState.UNABLE, "b1", NOW, (3,), "no such image", closes=True)
    text = write_preflight(full)
    assert '"at":"1970-01-01T02:46:40Z"' in text
    assert read_preflight(text) == full
    for rubbish in (
        "",
        "passed",
        "{}",
        '{"state":"passed"}',
        '{"state":"fine","at":"2026-01-01T00:00:00Z"}',
        "[" * 9999,
    ):
        assert read_preflight(rubbish) is None


BEGINS, RUNS = check(), check(ran=True)
PASSED = check(CheckEnd.PASSED, ran=True)
HANGS, NAMES = check(CheckEnd.FAILED, ran=True, said="timeout"), check(CheckEnd.FAILED, ran=True, said="device=3")
REFUSED = check(CheckEnd.NOT_RUN, said="no devices")


@pytest.mark.parametrize(
    ("pods", "ago", "verdict"),
    [
        pytest.param([None, None], 0, "runs", id="not made yet"),
        pytest.param([RUNS, PASSED], 20, "runs", id="one has passed"),
        pytest.param([PASSED, PASSED], 20, "passed", id="all have passed"),
        pytest.param([PASSED, None], 20, "runs", id="one was deleted by somebody"),
        pytest.param([HANGS, RUNS], 20, "failed: timeout", id="one has failed"),
        pytest.param([HANGS, NAMES], 20, "failed: device=3", id="of two the one that names a device is to blame"),
        pytest.param([HANGS, HANGS], 20, "failed: timeout, timeout", id="both have failed and none names a device"),
        pytest.param([HANGS, BEGINS], 20, "runs", id="one waited in vain for one that has not started"),
        pytest.param([NAMES, BEGINS], 20, "failed: device=3", id="one names a device before the other has started"),
        pytest.param([RUNS, REFUSED], 20, "runs again", id="one was refused by its kubelet"),
        pytest.param([RUNS, check(CheckEnd.NOT_RUN, ago=5)], 20, "runs", id="one was refused just now"),
        pytest.param([HANGS, REFUSED], 600, "not run: node: no devices", id="one was refused for long"),
        pytest.param([RUNS, BEGINS], 659, "runs", id="one may start yet"),
        pytest.param([HANGS, BEGINS], 660, "not run: node: its kubelet has not started it", id="one never started"),
        pytest.param([None, None], 600, "not run: its pods could not be made", id="none could be made"),
        pytest.param([PASSED, RUNS], 660, "failed: it did not end within 600 s", id="nobody ended it"),
    ],
)
def test_what_becomes_of_the_check_of_a_group(pods: list[CheckPod | None], ago: float, verdict: str) -> None:
    found = group_verdict(pods, NOW - ago, RULES, NOW)
    said = ", ".join(pod.said for pod in found.blamed) or found.why
    word = found.end.name.lower().replace("_", " ") + " again" * bool(found.again)
    assert (f"{word}: {said}" if said else word) == verdict
