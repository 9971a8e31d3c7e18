"""What is written to the API server: what a snapshot says, once, in spite of everything that the server does."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Mapping
from contextlib import AsyncExitStack
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from typing import Any

import msgspec
import pytest

from neuron_plugin.allocation.inventory import read_inventory
from neuron_plugin.allocation.keys import INVENTORY_KEY, UNHEALTHY_LABEL
from neuron_plugin.backoff import Clock
from neuron_plugin.cluster import ApiRequest, Node, UnreachableError
from neuron_plugin.cluster.api import Response
from neuron_plugin.cluster.objects import NODES
from neuron_plugin.hardware.health_signals import MISSING
from neuron_plugin.plugin import publisher
from neuron_plugin.plugin.publisher import (
    PRESENT_LABEL,
    PUBLISHED_LABELS,
    TIMES,
    Publisher,
    WriteQueue,
    WriteTimes,
    node_labels,
    publication,
    withdrawal,
)
from neuron_plugin.plugin.snapshot import Snapshot, derive
from neuron_plugin.plugin.writes import PodEvent
from tests.plugin.desk import running
from tests.plugin.world import INF2, TRN2, app, inputs, inventory, moment, pod, ref, uid_of
from tests.support.scripted_server import ScriptedServer
from tests.support.stories import Scene, rows

A, B = uid_of("a"), uid_of("b")
POD_A = f"pod default/a with UID {A}"

# The queue.


class FakeApi(ScriptedServer):
    """Answers each path from its list of statuses, then 200; 0 is silence."""

    def __init__(self, answers: Mapping[str, list[int]] | None = None) -> None:
        super().__init__(self._next)
        self.answers = answers or {}
        self.gate = asyncio.Event()
        self.gate.set()

    @property
    def seen(self) -> list[str]:
        return [f"{request.path}?{request.query.get('v', '')}".rstrip("?") for request in self.requests]

    async def _next(self, request: ApiRequest) -> Response:
        assert self.timeout_seconds == TIMES.timeout
        await self.gate.wait()
        status = answers.pop(0) if (answers := self.answers.get(request.path)) else 200
        if not status:
            raise UnreachableError("PATCH", request.path, "no answer", may_have_arrived=True)
        return Response(status, msgspec.json.encode({"reason": "R", "message": "m"}))


def asked(path: str, version: str = "") -> ApiRequest:
    return ApiRequest("PATCH", path, {"v": version} if version else {})


async def until(api: FakeApi, *seen: str) -> None:
    async with asyncio.timeout(5):
        while api.seen != list(seen):
            await asyncio.sleep(0.001)
    await asyncio.sleep(0)


@pytest.fixture
def queue() -> WriteQueue:
    times = WriteTimes(first_pause=0.002, longest_pause=0.002, first_permission=0.002, longest_permission=0.002)
    return WriteQueue(Clock(chance=lambda: 0.0), times)


def patient_queue() -> WriteQueue:
    """One that does not try again what was not permitted."""
    return WriteQueue(times=WriteTimes(first_permission=600.0))


MANY = [f"{number}" for number in range(publisher.MOST_AT_ONCE + 1)]
SENDING = rows(f"""
    what was put before there was a client is sent in order: => put a; put b; run; sees a b; put c; sees a b c
    # Two pods that swapped their sets: between their corrections both seem to have the same devices.
    what waits together is under way together, and no more than a few:
        => hold; {"; ".join(f"put {one}" for one in MANY)}; run; sees {" ".join(MANY[:-1])}; go; sees {" ".join(MANY)}
    a newer request replaces one that was not sent: => put a?1; put a?2; run; sees a?2
    one that comes while the older is sent: => hold; put a?1; run; sees a?1; put a?2; go; sees a?1 a?2
    silence is tried again: a=0,0 => put a; run; sees a a a
    a busy server is tried again: a=429,500,503 => put a; run; sees a a a a
    a subject that fails keeps no other waiting: a=500,500,500 => put a; put b; run; sees a b a a a
    what is not permitted keeps no other waiting and counts as pending:
        patient a=403 b=403 c=403 => put a; put b; put c; put d; run; sees a b c d; left 3; put e; sees a b c d e
    a newer request takes the place of one that was not permitted:
        patient a=403 => put a?1; run; sees a?1; put a?2; sees a?1 a?2; left 0
""")
"""Statuses that the API server answers first, by subject; what is put into the queue, and what was sent by then."""


@pytest.mark.parametrize(("answers", "steps"), SENDING)
async def test_what_is_sent_when(queue: WriteQueue, answers: str, steps: str) -> None:
    queue = patient_queue() if answers.startswith("patient") else queue
    statuses = (text.split("=") for text in answers.removeprefix("patient").split())
    api = FakeApi({f"/{subject}": [int(status) for status in found.split(",")] for subject, found in statuses})
    async with AsyncExitStack() as stack:
        for step in steps.split("; "):
            verb, _, text = step.partition(" ")
            if verb == "put":
                subject, _, version = text.partition("?")
                queue.put(subject, asked(f"/{subject}", version))
            elif verb == "run":
                await stack.enter_async_context(running(queue.run(api)))
            elif verb == "sees":
                await until(api, *(f"/{one}" for one in text.split()))
            elif verb == "left":
                await asyncio.sleep(0)
                assert len(queue) == int(text)
            else:
                (api.gate.clear if verb == "hold" else api.gate.set)()


@pytest.mark.parametrize(("status", "level"), [(422, logging.WARNING), (404, logging.DEBUG), (409, logging.DEBUG)])
async def test_a_refusal_is_final_and_loud_unless_the_pod_is_only_gone(
    queue: WriteQueue, caplog: pytest.LogCaptureFixture, status: int, level: int
) -> None:
    caplog.set_level(logging.DEBUG, logger="neuron_plugin.plugin.publisher")
    api = FakeApi({"/a": [status]})
    queue.put("a", asked("/a"))
    queue.put("b", asked("/b"))
    async with running(queue.run(api)):
        await until(api, "/a", "/b")
    (logged,) = [each for each in caplog.records if each.message == "the API server refused a write"]
    assert logged.levelno == level


async def test_what_comes_at_the_very_moment_of_another_try_is_not_lost() -> None:
    queue, api = WriteQueue(Clock(chance=lambda: 1.0), WriteTimes(first_permission=0.1)), FakeApi({"/a": [403]})
    queue.put("a", asked("/a"))
    async with running(queue.run(api)):
        await until(api, "/a")
        loop = asyncio.get_running_loop()
        loop.call_at(queue._again_at + 0.001, queue.put, "b", asked("/b"))
        while loop.time() < queue._again_at + 0.01:
            pass  # both timers are due when the loop looks again
        await until(api, "/a", "/a", "/b")


async def test_of_what_is_never_permitted_only_the_newest_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(publisher, "MOST_NOT_PERMITTED", 2)
    queue, api = patient_queue(), FakeApi({f"/{number}": [403] for number in range(4)})
    for number in range(4):
        queue.put(f"event {number}", asked(f"/{number}"))
    async with running(queue.run(api)):
        await until(api, *(f"/{number}" for number in range(4)))
        assert list(queue._not_permitted) == list(queue._reported) == ["event 2", "event 3"]


@pytest.mark.looptime
async def test_one_failure_among_successes_is_tried_again_soon() -> None:
    """After an outage the pauses are short again."""
    queue, api = WriteQueue(), FakeApi({"/a": [500] * 10, "/b": [500]})
    queue.put("a", asked("/a"))
    async with running(queue.run(api)):
        await asyncio.sleep(600)
        queue.put("b", asked("/b"))
        await asyncio.sleep(2 * TIMES.first_pause)
        assert api.seen[-2:] == ["/b", "/b"]


@pytest.mark.parametrize("status", [401, 403])
@pytest.mark.looptime
async def test_what_is_not_permitted_is_sent_when_the_rights_have_come_and_logged_once_each_time_they_are_lost(
    caplog: pytest.LogCaptureFixture, status: int
) -> None:
    caplog.set_level(logging.INFO, logger="neuron_plugin.plugin.publisher")
    queue, api = WriteQueue(), FakeApi({"/a": [status] * 10 + [200, status]})
    queue.put("a", asked("/a"))
    async with running(queue.run(api)):
        await asyncio.sleep(3600)
        assert (len(api.seen), len(queue)) == (11, 0)
        queue.put("a", asked("/a"))
        await asyncio.sleep(2 * TIMES.first_permission)
        assert len(api.seen) == 13
    said = [record.message for record in caplog.records]
    assert said == ["write not permitted, tried again later", "write permitted now"] * 2


@pytest.mark.looptime
async def test_what_is_not_permitted_is_tried_again_though_more_of_it_comes_all_the_time() -> None:
    queue, api = WriteQueue(), FakeApi({f"/{number}": [403] * 99 for number in range(60)})
    async with running(queue.run(api)):
        for number in range(60):
            queue.put(str(number), asked(f"/{number}"))
            await asyncio.sleep(0.5)
        assert api.seen.count("/0") > 1


# What a snapshot says.


def unsent(made: Publisher) -> dict[str, Any]:
    """The bodies of the requests that wait, by subject, in order; they are then taken for sent."""
    found = {subject: request.body for subject, request in made.queue._unsent.items()}
    made.queue._unsent.clear()
    return found


def a_publisher() -> Publisher:
    return Publisher("worker-1", now_ns=lambda: 77)


def test_t33_what_is_on_the_node_is_written_again_for_a_node_object_that_was_created_again() -> None:
    made = a_publisher()
    made.publish(derive(inputs()))
    made.write_on_node("condition", ApiRequest("PATCH", "/c"))
    made.write("event", ApiRequest("POST", "/e"))
    assert list(unsent(made)) == ["inventory", "condition", "event"]
    made.write_on_node_again()
    assert list(unsent(made)) == ["inventory", "condition"]


def events_of(bodies: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    found = [body for subject, body in bodies.items() if subject.startswith("event")]
    return [(body["reason"], body["type"], body["note"]) for body in found]


class Story(Scene):
    """A publisher and what it has written since the last look."""

    def __init__(self) -> None:
        self.made = a_publisher()
        self._corrections: list[PodEvent] = []

    def publish(self, text: str) -> None:
        """A snapshot of this moment."""
        self._corrections = self.made.publish(derive(moment(text)))

    def corrects(self, names: str = "") -> None:
        """Pods that have got another set than they came with."""
        assert [one.pod.name for one in self._corrections] == names.split()

    def remembers(self, corrections: str) -> None:
        assert len(self.made._corrections) == int(corrections)

    def writes(self, expected: str = "") -> None:
        """``inventory, a ALLOCATED=true, NeuronDeviceHealthy``: subjects, annotations of pods, reasons of events."""
        said = []
        for subject, body in unsent(self.made).items():
            if subject.startswith("event"):
                said.append(body["reason"])
            elif subject.startswith("assignment"):
                texts = body["metadata"]["annotations"].items()
                name = {A: "a", B: "b"}[body["metadata"]["uid"]]
                said.append(" ".join([name, *(f"{key.removeprefix('NEURON_')}={text}" for key, text in sorted(texts))]))
            else:
                said.append(subject)
        assert ", ".join(said) == expected


SERVED, UNSERVED = "a app:1=3 allocated | has a=3", "a app:1=3 | has a=3"
TWO = "inf2 | a app:2 | has a=0,1"
GOT_5, GOT_6 = "a app:1=5 | b app:1=6 @2 | has b=5", "a app:1=6 | b app:1=7 @2 | has b=6"
"""``b`` got the set of ``a``, which takes over that of ``b``; then the next pod got that."""
STORIES = rows(f"""
    the inventory is written when it is another and only then:
        publish trn1; writes inventory; publish a app:1; writes; publish broken 3; writes inventory
    p55 an assignment that came true is marked once without an event:
        publish {UNSERVED}; corrects; writes inventory, a ALLOCATED=true; publish {UNSERVED}; writes
    a write that was undone by somebody else is written again:
        publish {UNSERVED}; publish {SERVED}; writes inventory, a ALLOCATED=true; publish {UNSERVED};
        writes a ALLOCATED=true
    a pod without an assignment is annotated with the time of the write:
        publish a app:1 | has a=3; writes inventory, a ALLOCATED=true ALLOC_TIME=77 DEVS=3
    p56 p63 a swap is written on the unserved pod first, with the times at which the extender chose:
        publish {GOT_5}; corrects;
        writes inventory, a ALLOCATED=false ALLOC_TIME=1 DEVS=6, b ALLOCATED=true ALLOC_TIME=2 DEVS=5
    p63 a correction is reported once, when the pod has what it keeps:
        publish {GOT_5}; publish {GOT_6}; corrects; publish a app:1=7 allocated | has a=7; corrects a;
        publish a app:1=7 allocated | has a=8; corrects; publish a app:1=8 allocated | has a=8; corrects
    p63 a pod that has its own set in the end was not corrected:
        publish {GOT_5}; publish {GOT_6}; publish a app:1=5 allocated | has a=5; corrects
    p83 a correction is forgotten with its pod: publish {GOT_5}; remembers 2; publish trn1; remembers 0
    a pod whose device fails a second time hears of it again:
        publish {TWO}; writes inventory, a ALLOCATED=true ALLOC_TIME=77 DEVS=0,1; publish {TWO} | broken 1;
        writes inventory, NeuronDeviceUnhealthy; publish {TWO}; writes inventory, NeuronDeviceHealthy; publish {TWO} |
        broken 1; writes inventory, NeuronDeviceUnhealthy
    a pod whose record is lost is not said to have healthy devices:
        publish {TWO} | broken 1; writes inventory, a ALLOCATED=true ALLOC_TIME=77 DEVS=0,1, NeuronDeviceUnhealthy;
        publish inf2 | a app:2 | broken 1; writes
    a pod that has ended is not written to:
        publish {TWO} | broken 1; writes inventory, a ALLOCATED=true ALLOC_TIME=77 DEVS=0,1, NeuronDeviceUnhealthy;
        publish inf2; writes inventory
""")


@pytest.mark.parametrize("steps", STORIES)
async def test_what_is_written_when_a_snapshot_is_published(steps: str) -> None:
    await Story().play(steps)


def test_p63_a_correction_is_a_normal_event_that_names_the_set() -> None:
    made = a_publisher()
    for text in (GOT_5, "a app:1=7 allocated | has a=7"):
        told = made.publish(derive(moment(text)))
    text = "pod default/a got another set than it was assigned: NEURON_DEVS=6"
    assert [one.text for one in told] == [text]
    assert ("AssignmentCorrected", "Normal", text) in events_of(unsent(made))


def test_p69_the_same_event_on_the_same_pod_is_written_once(caplog: pytest.LogCaptureFixture) -> None:
    made, one = a_publisher(), PodEvent(ref("a"), "UnlinkedDevices", "text")
    for _ in range(3):
        made.report([one])
    assert len(unsent(made)) == len(caplog.records) == 1
    made.report([one, replace(one, text="other"), replace(one, reason="Other"), replace(one, pod=ref("a", "uid-2"))])
    assert len(unsent(made)) == 3, "another text, another reason and another pod are other events"


def test_p83_the_memory_of_events_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(publisher, "MOST_EVENTS", 2)
    made = a_publisher()
    made.report(PodEvent(ref(name), "UnlinkedDevices", "text") for name in "abcd")
    assert [event.pod.name for event in made._events] == ["c", "d"]


def on_sick(*sick: int, **fields: Any) -> Snapshot:
    """Pod a has devices 0 and 1; these are unhealthy."""
    reason = fields.pop("reason", "sick")
    node = inventory(INF2, unhealthy=dict.fromkeys(sick, reason))
    return derive(inputs(pod("a", app(2), **fields), node=node, recorded="a=0,1"))


def test_a_pod_learns_once_which_of_its_devices_became_unhealthy_and_healthy_again() -> None:
    made = a_publisher()
    more = on_sick(1, reason="sick, and more so")
    for snapshot in (on_sick(7), on_sick(1), more, on_sick(0, 1), on_sick(0), on_sick()):
        made.publish(snapshot)
    assert events_of(unsent(made)) == [
        ("NeuronDeviceUnhealthy", "Warning", "neuron device 1 of this pod is unhealthy: sick. The pod keeps it"),
        ("NeuronDeviceUnhealthy", "Warning", "neuron device 0 of this pod is unhealthy: sick. The pod keeps it"),
        ("NeuronDeviceHealthy", "Normal", "neuron device 1 of this pod is healthy again"),
        ("NeuronDeviceHealthy", "Normal", "neuron device 0 of this pod is healthy again"),
    ]


def test_the_label_of_an_unhealthy_device_is_set_and_removed_where_it_is_asked_for() -> None:
    made = Publisher("worker-1", label_unhealthy=True)
    made.publish(on_sick(1))
    body = unsent(made)[f"label of {POD_A}"]
    assert body == {"metadata": {"uid": A, "labels": {UNHEALTHY_LABEL: "true"}}}
    made.queue._unsent.clear()
    made.publish(on_sick(1))
    assert f"label of {POD_A}" not in unsent(made), "the watch has not shown it yet"
    made.publish(on_sick(1, labels={UNHEALTHY_LABEL: "true"}))
    assert f"label of {POD_A}" not in unsent(made)
    made.publish(on_sick(labels={UNHEALTHY_LABEL: "true"}))
    assert unsent(made)[f"label of {POD_A}"] == {"metadata": {"uid": A, "labels": {UNHEALTHY_LABEL: None}}}
    silent = a_publisher()
    for snapshot in (on_sick(1), on_sick(labels={UNHEALTHY_LABEL: "true"})):
        silent.publish(snapshot)
        assert f"label of {POD_A}" not in unsent(silent)


# The Node object.


def conditions(made: Publisher) -> list[dict[str, str]]:
    """The conditions that wait to be written."""
    return [one for body in unsent(made).values() for one in body["status"]["conditions"]]


def test_a_condition_is_written_when_its_status_or_message_changes_and_only_then() -> None:
    made = a_publisher()
    seen = []
    for status, message in ((True, "16 devices"), (True, "16 devices"), (True, "15 devices"), (False, "15 devices")):
        made.write_condition("Ready", status=status, reason="R", message=message)
        seen.append([(one["status"], one["message"]) for one in conditions(made)])
    assert seen == [[("True", "16 devices")], [], [("True", "15 devices")], [("False", "15 devices")]]
    made.write_on_node_again()
    assert [one["status"] for one in conditions(made)] == ["False"], "the Node was created again"


def test_a_conditions_transition_is_the_change_of_its_status(monkeypatch: pytest.MonkeyPatch) -> None:
    made, since = a_publisher(), []
    for hour, (status, message) in enumerate(((True, "a"), (True, "b"), (False, "b"), (None, "b"), (None, "c"))):
        monkeypatch.setattr(publisher, "utc_now", partial(datetime, 2026, 1, 1, hour, tzinfo=UTC))
        made.write_condition("Ready", status=status, reason="R", message=message)
        since += [datetime.fromisoformat(one["lastTransitionTime"]).hour for one in conditions(made)]
    assert since == [0, 0, 2, 3, 3]


SERVER = {
    "mode": "1,2,4",
    "serverId2": "00000000000000a2",
    "nodeId2": "1",
    "serverId4": "00000000000000a4",
    "nodeId4": "3",
}
TRAINIUM = inventory(
    TRN2, device_name="Trainium2", driver_version="2.26.5.0", logical_core_size=2, physical_cores_per_device=8
)
LEGAL = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?")


def metadata(request: object) -> dict[str, dict[str, str | None]]:
    body = getattr(request, "body", {})
    return body["metadata"]  # type: ignore[no-any-return]  # what the patch is made of


def node(**metadata: object) -> Node:
    return NODES.decode(msgspec.json.encode({"metadata": {"name": "n1", "uid": "u", **metadata}}))


def test_labels_say_what_the_hardware_is_and_what_is_not_known_is_removed() -> None:
    labels = node_labels(TRAINIUM)
    own = {name.removeprefix("neuron-plugin.io/"): value for name, value in labels.items() if value}
    assert own == {
        "family": "trn2",
        "device-name": "Trainium2",
        "driver-version": "2.26.5.0",
        "logical-core-size": "2",
        "physical-core-count": "128",
    }
    assert node_labels(replace(TRAINIUM, present=tuple(range(15)), unhealthy={15: MISSING})) == labels
    unknown = node_labels(inventory(TRN2))
    assert unknown["neuron-plugin.io/device-name"] is unknown["neuron-plugin.io/physical-core-count"] is None
    assert labels.keys() == PUBLISHED_LABELS, "uninstalling takes all of them back"


@pytest.mark.parametrize("prefix", ["neuron-plugin.io", "neuron.amazonaws.com"])
def test_an_ultraserver_is_published_under_the_vendors_names_and_ours(prefix: str) -> None:
    ids = {"mode": "1_2_4", "server-id-2": "00000000000000a2", "node-id-2": "1"}
    ids |= {"server-id-4": "00000000000000a4", "node-id-4": "3"}
    labels = node_labels(replace(TRAINIUM, ultraserver=SERVER))
    assert {name: labels[f"{prefix}/ultraserver-{name}"] for name in ids} == ids


@pytest.mark.parametrize("name", ["Trainium 2!", "-x-", "é" * 9, "a" * 90, f"{'a' * 62}.b"])
def test_every_value_is_a_legal_label(name: str) -> None:
    labels = node_labels(replace(TRAINIUM, device_name=name, ultraserver=SERVER))
    assert all(value is None or LEGAL.fullmatch(value) for value in labels.values())


def test_a_withdrawal_takes_back_ours_and_leaves_the_rest() -> None:
    ours = {"neuron-plugin.io/family": "trn2", "neuron.amazonaws.com/ultraserver-mode": "4"}
    for others in ({INVENTORY_KEY: "{}", "other": "x"}, {}):  # somebody may have removed it by hand
        request = withdrawal(node(labels={**ours, "zone": "a"}, annotations=others))
        assert metadata(request) == {"annotations": {INVENTORY_KEY: None}, "labels": dict.fromkeys(ours)}
    assert withdrawal(node(labels={"zone": "a", PRESENT_LABEL: "true"})) is None, "nothing is ours alone"


def test_the_annotation_is_the_inventory_with_all_that_is_known_of_it() -> None:
    present = tuple(number for number in range(16) if number != 3)
    made = replace(TRAINIUM, ultraserver=SERVER, present=present, unhealthy={3: MISSING, 5: "sick"})
    assert read_inventory(metadata(publication("n1", made))["annotations"][INVENTORY_KEY] or "") == made


def test_a_node_with_devices_is_labelled_as_one_if_that_is_wanted() -> None:
    wanted, not_wanted = (Publisher("worker-1", label_present=label) for label in (True, False))
    for made in (wanted, not_wanted):
        made.publish(derive(inputs()))
    labels = [metadata(dict(made.queue._unsent)["inventory"])["labels"] for made in (wanted, not_wanted)]
    assert labels[0][PRESENT_LABEL] == "true"
    assert PRESENT_LABEL not in labels[1], "it may be there already"
