"""An API server of pods alone, as binding sees it, with every answer in the test's hands."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, NoReturn

import msgspec

from neuron_plugin.allocation import PodReference, PodUid
from neuron_plugin.cluster import ApiError, ApiRequest, UnreachableError
from neuron_plugin.cluster.api import Response

Manifest = dict[str, Any]


def refused(status: int, message: str = "refused") -> ApiError:
    return ApiError(status=status, reason="Test", message=message, method="POST", path="/binding")


def lost() -> UnreachableError:
    return UnreachableError("POST", "/binding", "no answer", may_have_arrived=True)


def never_sent() -> UnreachableError:
    return UnreachableError("POST", "/binding", "connection refused", may_have_arrived=False)


class PodServer:
    """An ``ApiServer`` on manifests. ``before``, ``after``: errors of the next binds, not done or done and lost."""

    def __init__(self) -> None:
        self.pods: dict[str, Manifest] = {}
        self.before: list[Exception] = []
        self.after: list[Exception] = []
        self.reading: list[Exception] = []
        self.calls: list[str] = []
        self.gate: asyncio.Event | None = None

    def add(self, manifest: Manifest) -> Manifest:
        self.pods[manifest["metadata"]["name"]] = manifest
        return manifest

    async def request(self, request: ApiRequest, *, timeout_seconds: float) -> Response:
        assert timeout_seconds > 0
        if request.method == "GET":
            return await self.read(request.path.rpartition("/")[2])
        body: Any = request.body
        metadata = body["metadata"]
        pod = PodReference(PodUid(metadata["uid"]), metadata["namespace"], metadata["name"])
        await self.bind(pod, body["target"]["name"], metadata["annotations"])
        return Response(201, b"{}")

    def stream(self, request: ApiRequest, *, silence_seconds: float) -> NoReturn:
        raise NotImplementedError(request, silence_seconds)

    async def bind(self, pod: PodReference, node: str, annotations: Mapping[str, str]) -> None:
        self.calls.append("bind")
        if self.gate:
            await self.gate.wait()
        if self.before:
            raise self.before.pop(0)
        self.apply(pod, node, annotations)
        if self.after:
            raise self.after.pop(0)

    def apply(self, pod: PodReference, node: str, annotations: Mapping[str, str]) -> None:
        """What the binding subresource does."""
        found = self.pods.get(pod.name)
        if found is None:
            raise refused(404, "pod not found")
        if found["metadata"]["uid"] != pod.uid:
            raise refused(409, "precondition failed: UID")
        if found["spec"].get("nodeName"):
            raise refused(409, f"pod {pod.name} is already assigned to node {found['spec']['nodeName']}")
        found["spec"]["nodeName"] = node
        found["metadata"]["annotations"] = {**found["metadata"]["annotations"], **annotations}

    async def read(self, name: str) -> Response:
        self.calls.append("read")
        if self.reading:
            raise self.reading.pop(0)
        found = self.pods.get(name)
        return Response(404, b'{"reason": "NotFound"}') if found is None else Response(200, msgspec.json.encode(found))
