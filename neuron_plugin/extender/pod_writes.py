"""What binding says to the API server, sent."""

from __future__ import annotations

from collections.abc import Mapping

from neuron_plugin.allocation import PodReference
from neuron_plugin.cluster import PODS, ApiError, ApiServer, annotate_pod, bind_pod, read_pod, send
from neuron_plugin.extender.attempts import SeenPod
from neuron_plugin.extender.observation import pod_record


class ApiPodWrites:
    """``PodWrites`` over an API server."""

    def __init__(self, api: ApiServer) -> None:
        self._api = api

    async def bind(
        self, pod: PodReference, node: str, annotations: Mapping[str, str], *, timeout_seconds: float
    ) -> None:
        """See ``PodWrites.bind``."""
        request = bind_pod(namespace=pod.namespace, name=pod.name, uid=pod.uid, node=node, annotations=annotations)
        await send(self._api, request, timeout_seconds=timeout_seconds)

    async def annotate(self, pod: PodReference, annotations: Mapping[str, str], *, timeout_seconds: float) -> None:
        """See ``PodWrites.annotate``."""
        request = annotate_pod(namespace=pod.namespace, name=pod.name, uid=pod.uid, annotations=annotations)
        await send(self._api, request, timeout_seconds=timeout_seconds)

    async def read(self, pod: PodReference, *, timeout_seconds: float) -> SeenPod | None:
        """See ``PodWrites.read``."""
        request = read_pod(namespace=pod.namespace, name=pod.name)
        try:
            found = PODS.decode(await send(self._api, request, timeout_seconds=timeout_seconds))
        except ApiError as error:
            if error.missing:
                return None
            raise
        return SeenPod(pod_record(found), found.terminal) if found.uid == pod.uid else None
