"""The Kubernetes project's own client, which nobody here wrote, in the place of ours."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import aiohttp
from kubernetes.aio import client, config

from neuron_plugin.cluster.api import ApiRequest, Response, UnreachableError


class OfficialApi:
    """An ``ApiServer`` that sends as the official client does: its kubeconfig, its session, its headers."""

    def __init__(self, sender: client.ApiClient) -> None:
        self._sender = sender

    async def request(self, request: ApiRequest, *, timeout_seconds: float) -> Response:
        """See ``ApiServer``."""
        method, url, headers, body, _ = await self._sender.param_serialize(
            request.method,
            request.path,
            query_params=list(request.query.items()),
            header_params={"Accept": "application/json", "Content-Type": request.content_type},
            body=request.body,
            auth_settings=["BearerToken"],
        )
        try:
            answer = await self._sender.call_api(method, url, headers, body, _request_timeout=timeout_seconds)
            return Response(answer.status, await answer.read())  # type: ignore[no-untyped-call]
        except (aiohttp.ClientError, TimeoutError) as error:
            raise UnreachableError(request.method, request.path, repr(error), may_have_arrived=True) from error

    def stream(
        self, request: ApiRequest, *, silence_seconds: float
    ) -> AbstractAsyncContextManager[AsyncIterator[bytes]]:
        """Refuse: the suite watches nothing."""
        raise NotImplementedError


@asynccontextmanager
async def official_client(kubeconfig: Path) -> AsyncIterator[OfficialApi]:
    """The client as its kubeconfig says."""
    loaded = config.new_client_from_config(str(kubeconfig))  # type: ignore[no-untyped-call]
    async with await loaded as sender:
        yield OfficialApi(sender)
