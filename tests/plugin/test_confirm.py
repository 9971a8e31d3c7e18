"""When the kubelet is asked who holds what, and how."""

from __future__ import annotations

import asyncio

import pytest

from neuron_plugin.kubelet import GetUnsupportedError, PodResourcesAbsentError, RecordedDevices
from neuron_plugin.kubelet.pod_resources import PodResourcesThrottledError
from neuron_plugin.plugin import confirm
from neuron_plugin.plugin.answers import QUIET_SECONDS
from neuron_plugin.plugin.confirm import Confirmation
from neuron_plugin.plugin.node import NodeState
from tests.kubelet.fakes import eventually
from tests.plugin.desk import ROW0, Desk
from tests.plugin.world import (
    CORE,
    NEURON,
    TRN1,
    FakeClock,
    FakePodResources,
    app,
    at_once,
    decided,
    devices,
    init,
    pod,
    recorded,
)


def test_p55_after_an_allocate_get_names_the_pod_and_list_is_not_called(desk: Desk) -> None:
    desk.state.see_pod(decided("a", app(4), sets=[ROW0]))
    desk.give(*ROW0, name="a")
    desk.kubelet.say("a", app=(NEURON, ROW0))
    desk.ask(after=0.05)
    assert desk.kubelet.calls == ["get a"]
    assert desk.told == [("a", [devices(*ROW0)])]
    assert desk.state.confirmed == {"uid-a"}


def test_a_confirmed_pod_is_asked_about_and_told_of_once(desk: Desk) -> None:
    desk.state.see_pod(decided("a", app(4), sets=[ROW0]))
    desk.kubelet.say("a", app=(NEURON, ROW0))
    desk.ask()
    desk.ask()
    assert desk.kubelet.calls == ["get a"]
    assert len(desk.told) == 1


def test_a_rebuild_that_failed_is_made_up_for_as_soon_as_the_kubelet_is_there() -> None:
    desk = Desk()
    desk.kubelet.trouble = PodResourcesAbsentError("nobody answers")
    at_once(desk.confirmation.rebuild())
    assert desk.confirmation._pause_seconds() == QUIET_SECONDS
    desk.kubelet.trouble = None
    desk.kubelet.say("a", app=(NEURON, ROW0))
    desk.state.pods_known = False
    desk.ask()
    assert desk.held == {"default/a": devices(*ROW0)}


@pytest.mark.usefixtures("hasty")
async def test_nothing_is_offered_while_a_kubelet_that_is_there_does_not_say_who_holds_what(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Fresh as we are, what a pod holds under one name would be offered under the others."""
    desk = Desk()
    desk.kubelet.trouble = PodResourcesThrottledError("limit")
    desk.kubelet.say("a", app=(NEURON, ROW0))
    desk.state.pods_known = False
    rebuilding = asyncio.create_task(desk.confirmation.rebuild())
    await eventually(lambda: desk.kubelet.calls.count("list") > 2)
    assert not rebuilding.done()
    assert caplog.text.count("until the kubelet says who holds what") == 1
    desk.kubelet.trouble = None
    await rebuilding
    assert desk.held == {"default/a": devices(*ROW0)}


def test_p55_list_is_never_called_within_a_second_of_a_call_from_the_kubelet(desk: Desk) -> None:
    desk.give(*ROW0)
    desk.ask(after=QUIET_SECONDS - 0.01)
    assert "list" not in desk.kubelet.calls
    assert desk.confirmation._pause_seconds() == QUIET_SECONDS
    desk.ask(after=0.01)
    assert desk.kubelet.calls == ["list"]


def test_p55_list_is_not_called_when_the_kubelet_has_asked_for_something_while_its_file_was_read(desk: Desk) -> None:
    def read_meanwhile() -> tuple[RecordedDevices, ...]:
        desk.state.called()
        return ()

    confirmation = Confirmation(desk.state, desk.kubelet, desk.note, cluster=True, read_records=read_meanwhile)
    desk.give(*ROW0)
    desk.clock.now += QUIET_SECONDS
    at_once(confirmation._ask())
    assert desk.kubelet.calls == []


def test_a_preference_call_counts_as_a_call_too(desk: Desk) -> None:
    desk.give(*ROW0)
    desk.clock.now += QUIET_SECONDS
    desk.state.called()
    at_once(desk.confirmation._ask())
    assert "list" not in desk.kubelet.calls


def test_p62_without_get_the_list_is_used_in_a_quiet_moment() -> None:
    desk = Desk()
    at_once(desk.confirmation.rebuild())
    desk.kubelet.get_trouble = GetUnsupportedError("no Get here")
    desk.state.see_pod(pod("a", app(4)))
    desk.kubelet.say("a", app=(NEURON, ROW0))
    desk.ask()
    assert desk.held == {"default/a": devices(*ROW0)}
    desk.kubelet.calls.clear()
    desk.ask()
    assert desk.kubelet.calls == []


@pytest.mark.parametrize("trouble", [PodResourcesThrottledError("limit"), PodResourcesAbsentError("away")])
def test_p62_a_kubelet_that_does_not_answer_is_asked_again(desk: Desk, trouble: Exception) -> None:
    desk.state.see_pod(pod("a", app(4)))
    desk.kubelet.say("a", app=(NEURON, ROW0))
    desk.kubelet.trouble = trouble  # type: ignore[assignment]  # both are PodResourcesErrors
    desk.ask()
    assert not desk.told
    desk.kubelet.trouble = None
    desk.ask()
    assert desk.told


def test_without_hardware_the_kubelet_is_left_alone() -> None:
    kubelet = FakePodResources()
    confirmation = Confirmation(NodeState(clock=FakeClock()), kubelet, lambda _pod, _holdings: None, cluster=False)
    at_once(confirmation._ask())
    assert kubelet.calls == []


async def test_a_look_again_that_gets_no_answer_lets_go_of_nobody(desk: Desk) -> None:
    desk.state.see_pod(decided("a", app(4), sets=[ROW0], allocated=True))
    desk.kubelet.trouble = PodResourcesAbsentError("away")
    await desk.confirmation.look_again(tuple(desk.state.ledger))
    assert desk.held == {"default/a": devices(*ROW0)}


async def test_news_are_asked_about_at_once_and_the_rest_by_the_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(confirm, "SETTLE_SECONDS", 0.0)
    monkeypatch.setattr(confirm, "PERIOD_SECONDS", 0.01)
    desk = Desk()
    await desk.confirmation.rebuild()
    running = asyncio.create_task(desk.confirmation.run())
    desk.state.see_pod(pod("a", app(4)))
    desk.confirmation.notify()
    async with asyncio.timeout(5):
        while desk.kubelet.calls.count("get a") < 2:
            await asyncio.sleep(0.001)
        desk.kubelet.say("a", app=(NEURON, ROW0))
        while not desk.told:
            await asyncio.sleep(0.001)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running


async def test_a_look_again_is_over_in_time_though_a_look_at_processes_is_slow(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The preference has a deadline, and its replacement knows nothing of waiting decisions."""
    monkeypatch.setattr(confirm, "LOOK_SECONDS", 0.05)

    async def for_ever() -> None:
        await asyncio.Event().wait()

    desk.state.see_pod(decided("gone", app(4), sets=[ROW0], allocated=True))
    slow = Confirmation(desk.state, desk.kubelet, desk.note, cluster=True, look_at_users=for_ever)
    async with asyncio.timeout(10):
        await slow.look_again(tuple(desk.state.ledger))
    assert desk.held == {}


async def test_p61_a_look_in_a_preference_reads_the_kubelets_file_anew(desk: Desk) -> None:
    desk.state.see_pod(pod("a", init(2, CORE), app(4)))
    desk.kubelet.say("a", app=(NEURON, ROW0))
    desk.records = [recorded("uid-a", "init", CORE, 30, 31)]
    await desk.confirmation.look_again(())
    assert desk.told == [("a", [TRN1.cores_mask((30, 31)), devices(*ROW0)])]


def test_p60_strangers_are_looked_for_once_after_the_first_list_when_the_kubelet_is_settled() -> None:
    desk = Desk(settled=False)
    desk.kubelet.trouble = PodResourcesAbsentError("nobody answers")
    at_once(desk.confirmation.rebuild())
    desk.ask()
    assert desk.looks == 0
    desk.kubelet.trouble = None
    desk.ask()
    desk.ask()
    assert desk.looks == 2
    desk.settled = True
    desk.ask()
    desk.ask()
    assert desk.looks == 3
