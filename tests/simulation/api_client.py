"""A client of the simulated API server that knows nothing of this project."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import aiohttp

from tests.support.api_server import StandInApiServer

Json = dict[str, Any]
PODS_PATH = "/api/v1/namespaces/default/pods"
LEASES_PATH = "/apis/coordination.k8s.io/v1/namespaces/default/leases"
AS_TABLE = {"Accept": "application/json;as=Table;v=v1;g=meta.k8s.io,application/json"}
MERGE = {"Content-Type": "application/merge-patch+json"}


class Client:
    """A client that knows nothing of Kubernetes."""

    def __init__(self, session: aiohttp.ClientSession) -> None:
        self._session = session

    async def ask(self, method: str, path: str, body: Any = None, **options: Any) -> tuple[int, Json]:
        if "data" not in options:
            options["json"] = body
        async with self._session.request(method, path, **options) as answer:
            return answer.status, await answer.json()

    async def get(self, path: str, **query: str) -> Json:
        status, body = await self.ask("GET", path, params=query)
        assert status == 200, body
        return body

    async def watch(self, path: str, events: int, **query: str) -> list[Json]:
        """Read so many events of a watch, then leave."""
        return await self._watch(path, events, query, {})

    async def watch_as_table(self, path: str, events: int) -> list[Json]:
        return await self._watch(path, events, {}, AS_TABLE)

    async def _watch(self, path: str, events: int, query: Json, headers: Json) -> list[Json]:
        async with self._session.get(path, params={"watch": "true", **query}, headers=headers) as answer:
            assert answer.status == 200
            return [json.loads(await answer.content.readline()) for _ in range(events)]

    async def watch_to_the_end(self, path: str, **query: str) -> list[Json]:
        async with self._session.get(path, params={"watch": "true", **query}) as answer:
            return [json.loads(line) for line in (await answer.read()).splitlines()]


def pod(name: str, **spec: Any) -> Json:
    return {"metadata": {"name": name}, "spec": {"containers": [{"name": "main"}], **spec}}


def names(listed: Json) -> list[str]:
    return [item["metadata"]["name"] for item in listed["items"]]


async def until_watched(server: StandInApiServer) -> None:
    async with asyncio.timeout(5):
        while server.open_watches != 1:
            await asyncio.sleep(0.002)
