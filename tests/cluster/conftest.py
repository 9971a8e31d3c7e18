"""A simulated API server, the real client to it, and a reflector that can be waited for."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from neuron_plugin.cluster import Pod
from neuron_plugin.cluster.api import ApiServer
from neuron_plugin.cluster.client import KubernetesApi, connect
from neuron_plugin.cluster.pods import PODS
from neuron_plugin.cluster.reflector import Pace, Reflector
from tests.support.api_server import StandInApiServer

QUICK = Pace(backoff_first=0.002, backoff_limit=0.02)
PATIENCE_SECONDS = 10.0
LOOK_AGAIN_SECONDS = 0.01

Change = tuple[str, str | None, str | None]


@dataclass
class Recorder:
    """An observer that remembers."""

    lists: list[int] = field(default_factory=list)
    interruptions: list[tuple[str, float]] = field(default_factory=list)
    stirred: asyncio.Event = field(default_factory=asyncio.Event)

    def listed(self, kind: str, records: int, seconds: float) -> None:
        assert kind
        assert seconds >= 0
        self.lists.append(records)
        self.stirred.set()

    def interrupted(self, kind: str, cause: str, wait_seconds: float) -> None:
        assert kind
        self.interruptions.append((cause, wait_seconds))
        self.stirred.set()

    @property
    def causes(self) -> list[str]:
        return [cause for cause, _ in self.interruptions]


class Followed:
    """A running reflector of pods that keeps pods whole, and its changes."""

    def __init__(self, reflector: Reflector[Pod, Pod], recorder: Recorder) -> None:
        self.reflector = reflector
        self.recorder = recorder
        self.changes: list[Change] = []
        reflector.subscribe(self._on_change)

    def _on_change(self, uid: str, old: Pod | None, new: Pod | None) -> None:
        self.changes.append((uid, old.resource_version if old else None, new.resource_version if new else None))
        self.recorder.stirred.set()

    @property
    def names(self) -> list[str]:
        return sorted(pod.name for pod in self.reflector.values.values())

    def pod(self, name: str) -> Pod:
        (found,) = (pod for pod in self.reflector.values.values() if pod.name == name)
        return found

    async def until_watching(self) -> None:
        """Wait until the first list is in and a watch is open."""
        await self.until(lambda: self.reflector.synced.is_set() and self.reflector.followed_seconds() > 0)

    async def until(self, happened: Callable[[], bool]) -> None:
        """Wait until it happened; changes and interruptions wake it, for bookmarks and requests it looks again."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            while not happened():
                self.recorder.stirred.clear()
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self.recorder.stirred.wait(), LOOK_AGAIN_SECONDS)


Follow = Callable[..., AbstractAsyncContextManager[Followed]]


@pytest.fixture
async def server() -> AsyncIterator[StandInApiServer]:
    async with StandInApiServer() as server:
        yield server


@pytest.fixture
async def api(server: StandInApiServer, tmp_path: Path) -> AsyncIterator[KubernetesApi]:
    async with await connect(server.write_kubeconfig(tmp_path / "kubeconfig")) as api:
        yield api


@pytest.fixture
def follow(api: KubernetesApi) -> Follow:
    """Run a reflector of pods against the simulated server; options go to it."""

    @asynccontextmanager
    async def following(through: ApiServer = api, **options: Any) -> AsyncIterator[Followed]:
        recorder = Recorder()
        options.setdefault("pace", QUICK)
        reflector: Reflector[Pod, Pod] = Reflector(through, PODS, lambda pod: pod, observer=recorder, **options)
        followed = Followed(reflector, recorder)
        running = asyncio.create_task(reflector.run(), name="reflector under test")
        try:
            yield followed
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)

    return following


@pytest.fixture
def pod() -> Callable[..., dict[str, Any]]:
    """Return a maker of pod manifests."""

    def make(name: str, *, uid: str = "", node: str = "") -> dict[str, Any]:
        metadata: dict[str, Any] = {"name": name}
        if uid:
            metadata["uid"] = uid
        spec: dict[str, Any] = {"containers": [{"name": "main"}]}
        if node:
            spec["nodeName"] = node
        return {"metadata": metadata, "spec": spec}

    return make
