"""The pods of an API server, as binding sees them, with every answer in the test's hands."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import msgspec

from neuron_plugin.allocation import PodReference
from neuron_plugin.cluster import PODS, ApiError, UnreachableError
from neuron_plugin.extender.attempts import SeenPod
from neuron_plugin.extender.observation import pod_record

Manifest = dict[str, Any]


def refused(status: int, message: str = "refused") -> ApiError:
    return ApiError(status=status, reason="Test", message=message, method="POST", path="/binding")


def lost() -> UnreachableError:
    return UnreachableError("POST", "/binding", "no answer", may_have_arrived=True)


def never_sent() -> UnreachableError:
    return UnreachableError("POST", "/binding", "connection refused", may_have_arrived=False)


class PodServer:
    """``PodWrites`` on manifests. ``before``, ``after``: errors of the next binds, not done or done and untold."""

    def __init__(self) -> None:
        self.pods: dict[str, Manifest] = {}
        self.before: list[Exception] = []
        self.after: list[Exception] = []
        self.reading: list[Exception] = []
        self.calls: list[str] = []
        self.keeps_annotations = True
        self.gate: asyncio.Event | None = None

    def add(self, manifest: Manifest) -> Manifest:
        self.pods[manifest["metadata"]["name"]] = manifest
        return manifest

    async def bind(
        self, pod: PodReference, node: str, annotations: Mapping[str, str], *, timeout_seconds: float
    ) -> None:
        self.calls.append("bind")
        assert timeout_seconds > 0
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
        if self.keeps_annotations:
            found["metadata"]["annotations"] = {**found["metadata"]["annotations"], **annotations}

    async def annotate(self, pod: PodReference, annotations: Mapping[str, str], *, timeout_seconds: float) -> None:
        self.calls.append("annotate")
        assert timeout_seconds > 0
        found = self.pods[pod.name]
        if found["metadata"]["uid"] != pod.uid:
            raise refused(422, "metadata.uid")
        found["metadata"]["annotations"] = {**found["metadata"]["annotations"], **annotations}

    async def read(self, pod: PodReference, *, timeout_seconds: float) -> SeenPod | None:
        self.calls.append("read")
        assert timeout_seconds > 0
        if self.reading:
            raise self.reading.pop(0)
        found = self.pods.get(pod.name)
        if found is None or found["metadata"]["uid"] != pod.uid:
            return None
        seen = PODS.decode(msgspec.json.encode(found))
        return SeenPod(pod_record(seen), seen.terminal)
