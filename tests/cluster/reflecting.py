"""What the tests of the reflector share: which requests are meant, and what the server saw."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AsyncExitStack
from typing import Any

from neuron_plugin.cluster.api import ApiRequest
from neuron_plugin.cluster.objects import Scope
from tests.cluster.conftest import Followed
from tests.support.api_server import Fault, Match, StandInApiServer
from tests.support.stories import Scene

# What conftest.py hands over.
Manifest = Callable[..., dict[str, Any]]
Follow = Callable[..., Any]

WATCHES = Match(method="GET", watch=True)
LISTS = Match(method="GET", path="/pods$", watch=False)


def watches(server: StandInApiServer) -> list[dict[str, str]]:
    return [dict(seen.query) for seen in server.requests if seen.query.get("watch") == "true"]


def lists(server: StandInApiServer) -> list[dict[str, str]]:
    return [dict(seen.query) for seen in server.requests if seen.query.get("watch") != "true"]


BOOKMARK = b'{"type":"BOOKMARK","object":{"metadata":{"resourceVersion":"9"}}}'


class Following(Scene):
    """A reflector of pods, and what happens to the pods, to their server and to the connection."""

    followed: Followed

    def __init__(self, server: StandInApiServer, follow: Follow, pod: Manifest, stack: AsyncExitStack) -> None:
        self.server, self._follow, self._manifest, self._stack = server, follow, pod, stack
        self._scope = Scope()
        self._gate = asyncio.Event()

    # Pods.

    def make(self, pods: str) -> None:
        """``make a b@n1 other/c a=uid``: with a node, in another namespace, with another UID than its name."""
        for text in pods.split():
            who, _, uid = text.partition("=")
            path, _, node = who.partition("@")
            namespace, _, name = path.rpartition("/")
            manifest = self._manifest(name, uid=uid or name, node=node)
            manifest["metadata"] |= {"namespace": namespace} if namespace else {}
            self.server.create_pod(manifest)

    def many(self, count: str) -> None:
        self.make(" ".join(f"p{number}" for number in range(int(count))))

    def bind(self, text: str) -> None:
        name, node = text.split()
        self.server.bind("default", name, node=node, annotations={"NEURON_DEVS": "0,1"})

    def delete(self, name: str) -> None:
        self.server.delete_pod("default", name, grace_seconds=0)

    def end(self, name: str) -> None:
        """Its deletion begins."""
        self.server.delete_pod("default", name)

    # The server and the connection. ``list`` and ``watch`` are the next request of that kind.

    def hold(self, kind: str) -> None:
        self._gate.clear()
        self.server.fail(Fault(LISTS if kind == "list" else WATCHES, gate=self._gate))

    async def hold_stale(self) -> None:
        """The next list is answered late, with what there is now."""
        stale = (await self.server.request(ApiRequest("GET", "/api/v1/pods"), timeout_seconds=5)).body
        self.server.fail(Fault(LISTS, body=stale, gate=self._gate))

    def let(self) -> None:
        """Answer what was held."""
        self._gate.set()

    def pass_list(self) -> None:
        """The next list is answered; the fault that follows is for the one after it."""
        self.server.fail(Fault(LISTS, delay_seconds=0.0))

    def expire_next_watch(self) -> None:
        self.server.fail(Fault(WATCHES, status=410))

    def garble_next_watch(self) -> None:
        self.server.fail(Fault(WATCHES, body=b'{"type":"ADDED","object":{"metadata":[]}}\n'))

    def watches(self, what: str) -> None:
        """``watches end``, or cut, expire, mute."""
        getattr(self.server, f"{what}_watches")()

    def compact(self) -> None:
        self.server.compact()

    def bookmark(self) -> None:
        """Something else happens, and a bookmark says up to where the watch has come."""
        self.server.create_node({"metadata": {"name": "n"}})
        self.server.send_bookmarks()

    async def down(self) -> None:
        await self.server.stop()

    async def up(self) -> None:
        await self.server.start()

    # The reflector.

    def scope(self, text: str) -> None:
        """``scope default spec.nodeName=n1``, of which the namespace may be left out."""
        namespace, _, selector = text.rpartition(" ")
        self._scope = Scope(namespace=namespace, field_selector=selector)

    async def begin(self) -> None:
        self.followed = await self._stack.enter_async_context(self._follow(scope=self._scope))

    async def follow(self) -> None:
        """It begins, and has listed and watches."""
        await self.begin()
        await self.watching()

    async def watching(self) -> None:
        await self.followed.until_watching()

    async def relist(self) -> None:
        await self.followed.reflector.list_consistently(5)

    def relist_meanwhile(self) -> None:
        self._listing = asyncio.create_task(self.relist(), name="list")

    async def relisted(self) -> None:
        await self._listing

    # What it has, and what became of it: each waits until there is as much as is expected.

    async def sees(self, names: str = "") -> None:
        await self.followed.until(lambda: self.followed.names == names.split())

    def has(self, names: str = "") -> None:
        """At once."""
        assert self.followed.names == names.split()

    async def counts(self, pods: str) -> None:
        await self.followed.until(lambda: len(self.followed.reflector.values) == int(pods))

    async def uids(self, uids: str) -> None:
        await self.followed.until(lambda: list(self.followed.reflector.values) == uids.split())

    def changes(self, text: str) -> None:
        """``+a -a``: which came and went, by UID."""
        assert " ".join(f"{'+' if new else '-'}{uid}" for uid, _, new in self.followed.changes) == text

    def decided(self, name: str) -> None:
        assert self.followed.pod(name).annotations == {"NEURON_DEVS": "0,1"}

    async def terminating(self, name: str) -> None:
        await self.followed.until(lambda: self.followed.pod(name).terminating)

    def unsynced(self) -> None:
        assert not self.followed.reflector.synced.is_set()

    async def causes(self, text: str) -> None:
        """Of the ends of lists and watches so far."""
        await self.followed.until(lambda: len(self.followed.recorder.causes) >= len(text.split()))
        assert self.followed.recorder.causes == text.split()

    async def failures(self, least: str) -> None:
        await self.followed.until(lambda: len(self.followed.recorder.interruptions) >= int(least))

    async def lists(self, count: str, sizes: str = "") -> None:
        """How many lists have come to their end, and how many pods each had."""
        await self.followed.until(lambda: len(self.followed.recorder.lists) == int(count))
        assert not sizes or self.followed.recorder.lists == [int(size) for size in sizes.split()]

    async def asked(self, pages: str) -> None:
        """How many pages of lists were asked for."""
        await self.followed.until(lambda: len(lists(self.server)) == int(pages))

    def pages(self, limits: str) -> None:
        """The limit of each page, with a ``+`` where it continues another."""
        assert " ".join(f"{query['limit']}{'+' * ('continue' in query)}" for query in lists(self.server)) == limits

    async def newest(self) -> None:
        """It has come up to the server's newest version."""
        newest = self.server._objects.versions.current
        await self.followed.until(lambda: self.followed.reflector._store.version == newest)

    async def watched_from_newest(self) -> None:
        """The second watch begins there."""
        await self.followed.until(lambda: len(watches(self.server)) == 2)
        assert watches(self.server)[1]["resourceVersion"] == str(self.server._objects.versions.current)
