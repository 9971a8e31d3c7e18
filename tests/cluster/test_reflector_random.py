"""Anything may happen to server and connection, in any order: in the end the copy equals the original (T32, T46)."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Callable
from typing import Any

import pytest

from neuron_plugin.cluster.api import ClusterError
from neuron_plugin.cluster.reflector import Pace
from neuron_plugin.simulation.api_server_kinds import PODS, Refusal
from tests.support.api_server import Fault, Match, StandInApiServer

Manifest = Callable[..., dict[str, Any]]
Follow = Callable[..., Any]

STEPS = 150
NAMES = [f"web-{number}" for number in range(6)]


class Story:
    """Plays users, kubelets and bad luck."""

    def __init__(self, server: StandInApiServer, seed: int, manifest: Manifest) -> None:
        self._server = server
        self._manifest = manifest
        self._dice = random.Random(seed)  # noqa: S311 - a story that can be repeated
        self._lives = 0

    async def step(self, followed: Any) -> None:
        happenings: list[tuple[int, Callable[[], Any]]] = [
            (30, self._create),
            (20, self._change),
            (20, self._delete),
            (3, self._server.end_watches),
            (3, self._server.cut_watches),
            (3, self._server.expire_watches),
            (3, self._server.compact),
            (5, self._server.send_bookmarks),
            (5, self._fail),
        ]
        with contextlib.suppress(Refusal):
            self._dice.choices([act for _, act in happenings], [weight for weight, _ in happenings])[0]()
        if self._dice.random() < 0.1:
            with contextlib.suppress(ClusterError):
                await followed.reflector.list_consistently(1)
        if self._dice.random() < 0.02:
            await self._server.stop()
            self._create()
            await self._server.start()
        await asyncio.sleep(self._dice.choice([0, 0, 0, 0.002]))

    def _create(self) -> None:
        self._lives += 1
        with contextlib.suppress(Refusal):
            self._server.create_pod(self._manifest(self._dice.choice(NAMES), uid=f"life-{self._lives}"))

    def _change(self) -> None:
        change = {"metadata": {"labels": {"turn": str(self._dice.random())}}}
        self._server.patch_pod("default", self._dice.choice(NAMES), change)

    def _delete(self) -> None:
        self._server.delete_pod("default", self._dice.choice(NAMES), grace_seconds=0)

    def _fail(self) -> None:
        faults = [
            Fault(status=500),
            Fault(Match(watch=True), status=410),
            Fault(drop=True),
            Fault(lose_answer=True),
            Fault(Match(watch=True), ends=True),
            Fault(delay_seconds=0.005),
            Fault(body=b"<html>busy</html>"),
        ]
        self._server.fail(self._dice.choice(faults))


@pytest.mark.parametrize("seed", range(12))
async def test_t32_t46_whatever_happened_the_copy_equals_the_original(
    server: StandInApiServer, follow: Follow, pod: Manifest, seed: int
) -> None:
    story = Story(server, seed, pod)
    mirrored: dict[str, str] = {}

    def mirror(uid: str, old: Any, new: Any) -> None:
        assert mirrored.get(uid) == (old.resource_version if old else None)
        mirrored.pop(uid, None)
        if new:
            mirrored[uid] = new.resource_version

    quick = Pace(backoff_first=0.001, backoff_limit=0.005)
    async with follow(pace=quick) as followed:
        followed.reflector.subscribe(mirror)
        for _ in range(STEPS):
            await story.step(followed)
        server.forgive()

        def original() -> dict[str, str]:
            return {found["metadata"]["uid"]: found["metadata"]["resourceVersion"] for found in server.objects(PODS)}

        await followed.until(lambda: mirrored == original())
        assert {uid: found.resource_version for uid, found in followed.reflector.values.items()} == original()
