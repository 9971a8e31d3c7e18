"""The node's own Node object, from the API server into what the daemon knows."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import pytest

from neuron_plugin.allocation.keys import DISABLE_KEY
from neuron_plugin.cluster import ApiRequest
from neuron_plugin.plugin.metrics import new_counts
from neuron_plugin.plugin.node_watch import NodeWatch, SeenNode
from neuron_plugin.plugin.publisher import Publisher
from neuron_plugin.simulation.api_server_kinds import EVENTS
from tests.plugin.desk import running
from tests.plugin.site import NODE, eventually
from tests.plugin.world import inventory
from tests.support.api_server import Fault, Match, StandInApiServer


class Watched:
    """The node's object at an API server, and who follows it."""

    def __init__(self, node_name: str) -> None:
        self.server, self.publisher, self.counts = StandInApiServer(), Publisher(NODE), new_counts()
        self.changed, self.counted = asyncio.Event(), asyncio.Event()
        self.watch = NodeWatch(node_name, self.changed, self.counted, self.publisher, self.counts)

    def annotate(self, text: str | None, name: str = NODE) -> None:
        self.server.patch_node(name, {"metadata": {"annotations": {DISABLE_KEY: text}}})

    async def disables(self, *ids: int) -> None:
        await eventually(lambda: self.watch.disabled == ids)

    def events(self) -> list[tuple[str, str]]:
        return [(event["reason"], event["note"]) for event in self.server.objects(EVENTS)]


@asynccontextmanager
async def a_watch(annotation: str | None = None, *, node_name: str = NODE) -> AsyncIterator[Watched]:
    """Follows a node that begins with this annotation, among others; from when it was read."""
    watched = Watched(node_name)
    for name in (NODE, "other"):
        watched.server.create_node({"metadata": {"name": name}})
    if annotation is not None:
        watched.annotate(annotation)
    async with running(watched.watch.run(watched.server), watched.publisher.queue.run(watched.server)):
        await watched.watch.read.wait()
        yield watched


async def test_what_the_annotation_disables_is_known_when_the_node_was_read_and_follows_it() -> None:
    async with a_watch("5,7") as watched:
        assert watched.watch.disabled == (5, 7)
        assert watched.changed.is_set()
        watched.annotate("0-2")
        await watched.disables(0, 1, 2)
        watched.annotate(None)
        await watched.disables()


async def test_the_annotation_of_another_node_is_nothing_to_this_one() -> None:
    async with a_watch() as watched:
        watched.annotate("5", "other")
        watched.annotate("7")
        await watched.disables(7)
        assert {query.get("fieldSelector") for query in _node_queries(watched.server)} == {f"metadata.name={NODE}"}


def _node_queries(server: StandInApiServer) -> list[dict[str, str]]:
    return [dict(seen.query) for seen in server.requests if seen.method == "GET" and seen.path.endswith("/nodes")]


async def test_a_value_that_cannot_be_read_changes_nothing_and_is_said_on_the_node(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with a_watch("5") as watched:
        watched.annotate("five")
        await eventually(lambda: bool(watched.watch.unreadable))
        assert watched.watch.disabled == (5,)
        assert "disable-devices reads 'five': 'five' is no id" in watched.watch.unreadable
        await eventually(lambda: "InvalidDisabledDevices" in dict(watched.events()))
        assert dict(watched.events())["InvalidDisabledDevices"].endswith("The last value that could be read holds")
        watched.annotate("5,6")
        await watched.disables(5, 6)
        assert not watched.watch.unreadable
        (said,) = [record for record in caplog.records if record.levelno == logging.WARNING]
        assert "five" in vars(said)["note"]


async def test_an_unreadable_value_at_the_start_disables_nothing() -> None:
    async with a_watch("all") as watched:
        assert watched.watch.disabled == ()
        assert watched.watch.unreadable


async def test_ends_of_the_watch_lose_nothing() -> None:
    async with a_watch("5") as watched:
        watched.server.expire_watches()
        watched.annotate("6")
        await watched.disables(6)
        watched.server.cut_watches()
        watched.server.fail(Fault(Match("GET", "/nodes"), times=2))
        watched.annotate("7")
        await watched.disables(7)
        assert watched.counts["watch_restarts_total"]


async def test_a_node_that_was_created_again_says_what_is_disabled_now() -> None:
    async with a_watch("5") as watched:
        watched.server.delete_node(NODE)
        await eventually(lambda: watched.watch.missing)
        assert watched.watch.disabled == (5,), "there is no node that says otherwise"
        watched.server.create_node({"metadata": {"name": NODE}})
        await watched.disables()
        assert not watched.watch.missing


async def test_a_name_that_no_node_has_is_a_problem_and_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    async with a_watch(node_name="wroker-1") as watched:
        assert watched.watch.problem.startswith("the API server has no node 'wroker-1': expected --node-name")
        watched.watch.listed("nodes", records=0, seconds=0.1)
        (said,) = [record for record in caplog.records if record.message == "the Node object is not there"]
        assert vars(said)["why"] == watched.watch.problem
    async with a_watch() as watched:
        assert not watched.watch.problem


async def test_what_is_disabled_enabled_and_no_device_is_said_once() -> None:
    async with a_watch("5,57") as watched:
        for _ in range(2):
            watched.watch.report(inventory(disabled=(5,)))
        await eventually(lambda: len(watched.events()) == 2)
        assert dict(watched.events()) == {
            "InvalidDisabledDevices": f"{DISABLE_KEY} names devices 57; this node has devices 0 to 15",
            "NeuronDeviceDisabled": "neuron devices 5 are not given to new pods",
        }
        types = {event["reason"]: event["type"] for event in watched.server.objects(EVENTS)}
        assert types == {"InvalidDisabledDevices": "Warning", "NeuronDeviceDisabled": "Normal"}
        uids = {event["regarding"]["uid"] for event in watched.server.objects(EVENTS)}
        assert uids == {NODE}, "kubectl describe node looks for events by the node's name in place of its UID"
        watched.annotate("7")
        await watched.disables(7)
        watched.watch.report(inventory(disabled=(7,)))
        await eventually(lambda: len(watched.events()) == 4)
        assert ("NeuronDeviceEnabled", "neuron devices 5 are given to new pods again") in watched.events()


# Each change by itself.


@dataclass
class Following:
    """A watch that is shown its node by a test; what it writes waits in the queue."""

    publisher: Publisher = field(default_factory=lambda: Publisher(NODE))
    node: SeenNode | None = None

    def __post_init__(self) -> None:
        self.watch = NodeWatch(NODE, asyncio.Event(), asyncio.Event(), self.publisher, new_counts())
        self.publisher.write_on_node("inventory", ApiRequest("PATCH", "/n"))
        self.written()

    def written(self) -> list[str]:
        """The subjects of what was written since."""
        subjects = [subject.partition(":")[0] for subject in self.publisher.queue._unsent]
        self.publisher.queue._unsent.clear()
        return subjects

    def sees(self, annotation: str, inventory: str) -> list[str]:
        """What is written when the node has these annotations now."""
        old, self.node = self.node, SeenNode(annotation, inventory, {})
        self.watch._see("uid", old, self.node)
        return self.written()


async def test_what_the_node_says_can_be_allocated_is_followed_and_announced() -> None:
    async with a_watch() as watched:
        assert watched.watch.allocatable == {}
        for counts in ({"aws.amazon.com/neuron": "16", "cpu": "8"}, {"aws.amazon.com/neuron": "15", "cpu": "8"}):
            watched.counted.clear()
            watched.server.patch_node(NODE, {"status": {"allocatable": counts}}, status=True)
            await watched.counted.wait()
            assert watched.watch.allocatable == {"aws.amazon.com/neuron": int(counts["aws.amazon.com/neuron"])}
        watched.counted.clear()
        watched.annotate("5")
        await watched.disables(5)
        assert not watched.counted.is_set()


def test_a_node_without_our_inventory_is_written_to_once_and_not_at_each_of_its_changes() -> None:
    """Each try takes the write out of those that are set aside until the right to write has come."""
    following = Following()
    assert following.sees("", "") == ["inventory"]
    assert following.sees("5", "") == []
    assert following.sees("5", "{}") == []
    assert following.sees("5", "") == ["inventory"], "somebody removed it"


def test_a_value_that_cannot_be_read_is_said_once_though_the_node_changes_all_the_time() -> None:
    following = Following()
    assert following.sees("five", "{}") == ["event InvalidDisabledDevices"]
    assert following.sees("five", "{ }") == []
    following.watch._see("uid", None, SeenNode("six", "{}", {}))
    assert following.sees("seven", "{}") == ["event InvalidDisabledDevices"] * 2, "two values, while none can be sent"


def test_at_each_look_only_what_is_new_is_said() -> None:
    following = Following()
    following.watch.disabled = (5, 57)
    following.watch.report(inventory(disabled=(5,)))
    assert following.written() == ["event InvalidDisabledDevices", "event NeuronDeviceDisabled"]
    following.watch.report(inventory(disabled=(5,), unhealthy={3: "sick"}))
    assert following.written() == []
