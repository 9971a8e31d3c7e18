"""A server that says exactly the bytes a test gives it, for what no well-made API server can be asked to do."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

from neuron_plugin.cluster.client import TIMES, ClientTimes, KubernetesApi, connect

KUBECONFIG = """
current-context: raw
clusters: [{{name: raw, cluster: {{server: "{scheme}://127.0.0.1:{port}"}}}}]
users: [{{name: raw, user: {{}}}}]
contexts: [{{name: raw, context: {{cluster: raw, user: raw}}}}]
"""

CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


@asynccontextmanager
async def api_of(
    answer: Callable[[asyncio.StreamWriter], Awaitable[None]],
    directory: Path,
    *,
    scheme: str = "http",
    heads: list[str] | None = None,
    times: ClientTimes = TIMES,
) -> AsyncIterator[KubernetesApi]:
    """The transport to a server that answers each connection's first request with ``answer``; over TLS with none.

    ``heads`` is given the head of each request.
    """

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            if heads is not None:
                heads.append(head.decode())
            await answer(writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1")
    port = server.sockets[0].getsockname()[1]
    (directory / "raw").write_text(KUBECONFIG.format(scheme=scheme, port=port))
    async with server, await connect(directory / "raw", times=times) as api:
        yield api


def saying(
    data: bytes, directory: Path, *, heads: list[str] | None = None
) -> AbstractAsyncContextManager[KubernetesApi]:
    """The transport to a server that answers with these bytes."""

    async def say(writer: asyncio.StreamWriter) -> None:
        writer.write(data)
        await writer.drain()

    return api_of(say, directory, heads=heads)
