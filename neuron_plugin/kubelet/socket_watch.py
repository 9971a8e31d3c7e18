"""Socket files: their identity, whether a process serves them, binding of a path, and changes of the directory.

A path does not identify a socket: a restarted kubelet recreates kubelet.sock under the same name, and ext4 gives the
new file the old inode number. A gRPC server silently binds over the socket of another server. So a socket is identified
by device, inode *and* time of change, and a path is checked before it is bound.
"""

from __future__ import annotations

import asyncio
import errno
import hashlib
import logging
import os
import socket
import stat
import struct
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import KW_ONLY, dataclass
from pathlib import Path

import grpc
from asyncinotify import Inotify, Mask

_log = logging.getLogger(__name__)

LONGEST_PATH_BYTES = 107  # sun_path holds 108 with the final NUL (unix(7))
_NOT_SERVED = frozenset({errno.ECONNREFUSED, errno.ENOENT, errno.ENOTDIR})
_CREDENTIALS = struct.Struct("3i")  # struct ucred (unix(7)); a socket's server has the credentials of its listen(2)
_EVENTS = Mask.CREATE | Mask.MOVED_TO | Mask.MOVED_FROM | Mask.DELETE | Mask.DELETE_SELF | Mask.MOVE_SELF | Mask.ONLYDIR
_CHANNEL_OPTIONS = (
    ("grpc.default_authority", "localhost"),  # the default is the percent-encoded path, which some servers refuse
    ("grpc.use_local_subchannel_pool", 1),  # else a new channel inherits the old one's back-off
    ("grpc.enable_retries", 0),
    ("grpc.max_receive_message_length", 16 << 20),  # the kubelet's own limit for PodResources
)


SocketIdentity = tuple[int, int, int]
"""Distinguishes a socket file from a later one of the same name: device, inode, nanoseconds of its change."""


class EndpointError(Exception):
    """A socket of ours cannot be made at the path; the text says why."""


def identity_of(path: Path) -> SocketIdentity | None:
    """The identity of the socket at ``path``; None if there is no file, or it is no socket."""
    try:
        status = path.lstat()
    except OSError:
        return None
    if not stat.S_ISSOCK(status.st_mode):
        return None
    return status.st_dev, status.st_ino, status.st_ctime_ns


def is_served(path: Path) -> bool:
    """Whether a process accepts connections at ``path``; never blocks for long.

    True in doubt: if a server is too busy to accept, or we may not connect.
    """
    with _probe() as probe:
        try:
            probe.connect(os.fspath(path))
        except OSError as error:
            return error.errno not in _NOT_SERVED
    return True


def server_pid(path: Path) -> int | None:
    """The process that listens at ``path``; None if there is none, or if it is outside of our PID namespace."""
    with _probe() as probe:
        try:
            probe.connect(os.fspath(path))
            credentials = probe.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        except OSError:
            return None
    pid: int = _CREDENTIALS.unpack(credentials)[0]
    return pid or None


class Endpoint:
    """A gRPC server of ours on one socket with mode 0600, from its start to its full stop.

    No two live servers share a path: grpc's ``stop`` unlinks its path even if a newer server has bound it.
    """

    grace_seconds = 0.5
    """For calls and streams in progress at the end."""

    async def listen(self, server: grpc.aio.Server, path: Path) -> None:
        """Bind ``path`` and serve the services of ``server``.

        Raises:
            EndpointError: a file is there that is no socket, or the directory cannot be written to.
        """
        self._server, self.path = server, path
        before = os.umask(0o177)  # process-wide, so only for the bind, which awaits nothing
        try:
            server.add_insecure_port(f"unix:{path}")
        except RuntimeError as error:  # gRPC gives no reason
            hint = "is it writable, and has this process file descriptors left?"
            raise EndpointError(f"no socket can be made in {path.parent}: {hint}") from error
        finally:
            os.umask(before)
        self._identity = identity_of(path)
        await server.start()

    def is_reachable(self) -> bool:
        """Whether our socket is still at our path: a server runs on without its file, but no client finds it."""
        return self._identity is not None and identity_of(self.path) == self._identity

    async def stop(self) -> None:
        """End the server, which removes its socket."""
        await self._server.stop(self.grace_seconds)


def _probe() -> socket.socket:
    probe = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    probe.setblocking(False)  # noqa: FBT003 - the socket's own signature
    return probe


def channel_to(path: Path) -> grpc.aio.Channel:
    """A gRPC channel to the Unix socket; it connects with the first call and is the caller's to close.

    Open one for each conversation: a kept channel would wait out gRPC's own reconnect back-off (a second and more) just
    when a restarted kubelet wants us back within 100 ms.
    """
    return grpc.aio.insecure_channel(f"unix:{path}", options=_CHANNEL_OPTIONS)


def connection_fault(error: grpc.aio.AioRpcError) -> str:
    """Why a socket could not be reached: the system's error without gRPC's text around it."""
    return (error.details() or error.code().name).rpartition("error: ")[2]


async def answer_fault(path: Path, ask: Callable[[grpc.aio.Channel], Awaitable[object]], seconds: float) -> str | None:
    """Why the server at ``path`` does not answer ``ask`` within ``seconds``; None if it does."""
    async with channel_to(path) as channel:
        try:
            await ask(channel)
        except grpc.aio.AioRpcError as error:
            if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
                return f"no answer within {seconds:g} s"
            return connection_fault(error)
    return None


def endpoint_prefix(resource: str) -> str:
    """The prefix of the names of a resource's sockets; no other resource's socket has it."""
    digest = hashlib.sha256(resource.encode()).hexdigest()[:8]
    readable = "".join(
        character if character.isalnum() and character.isascii() else "-" for character in resource.rpartition("/")[2]
    )
    return f"neuron-plugin.{readable[:24]}.{digest}."


def endpoint_path(directory: Path, resource: str, token: str) -> Path:
    """The socket path of one server instance of a resource; ``token`` is unique to the instance.

    Raises:
        EndpointError: the directory's name is too long for any socket in it.
    """
    path = directory / f"{endpoint_prefix(resource)}{token}.sock"
    if (length := len(os.fsencode(path))) > LONGEST_PATH_BYTES:
        raise EndpointError(
            f"socket path {path} has {length} bytes, expected at most {LONGEST_PATH_BYTES}: use a shorter directory"
        )
    return path


def clear_strays(directory: Path, resource: str) -> None:
    """Remove sockets that dead servers of ``resource`` have left in ``directory``.

    Raises:
        EndpointError: a server is alive. If one resource is registered twice, the kubelet finally drops both.
    """
    prefix = endpoint_prefix(resource)
    entries = directory.iterdir() if directory.is_dir() else ()  # glob hides errors from Python 3.13 on
    strays = [path for path in entries if path.match(f"{prefix}*.sock") and identity_of(path)]
    for path in strays:
        if is_served(path):
            raise EndpointError(
                f"{path} is served by another process: a second plugin offers {resource} on this node; stop one of them"
            )
    for path in strays:
        path.unlink(missing_ok=True)


@dataclass(eq=False)
class DirectoryWatch:
    """Gives hints, while `run` runs, that something in the kubelet's ``directory`` may have changed.

    inotify reports a change within a millisecond, but nothing in a directory whose parent was replaced. So an event is
    only a hint to look, and every ``period_seconds`` there is a hint without an event. Listeners check their files. One
    watch serves all resources of the daemon.
    """

    directory: Path
    _: KW_ONLY
    period_seconds: float = 3.0

    def __post_init__(self) -> None:
        self._listeners: set[asyncio.Event] = set()
        self._logged_errno: int | None = None

    @contextmanager
    def listening(self, listener: asyncio.Event) -> Iterator[None]:
        """Set ``listener`` on each hint during the block."""
        self._listeners.add(listener)
        try:
            yield
        finally:
            self._listeners.discard(listener)

    async def run(self) -> None:
        """Watch until cancelled. Without inotify, only the periodic hints are given."""
        while True:
            try:
                await self._follow()
            except OSError as error:
                # The users of the directory report that it is missing.
                if error.errno not in {errno.ENOENT, errno.ENOTDIR, self._logged_errno}:
                    self._logged_errno = error.errno
                    remedy = "raise the node's fs.inotify.max_user_instances or max_user_watches"
                    fields = {"directory": str(self.directory), "error": str(error), "remedy": remedy}
                    _log.warning("a restarted kubelet is noticed late: no inotify", extra=fields)
                await asyncio.sleep(self.period_seconds)
            self._hint()

    async def _follow(self) -> None:
        """Pass on events until the watched directory is removed or renamed."""
        with Inotify() as inotify:
            inotify.add_watch(self.directory, _EVENTS)
            self._logged_errno = None
            self._hint()
            while True:
                with suppress(TimeoutError):
                    async with asyncio.timeout(self.period_seconds):
                        event = await inotify.get()
                    if event.mask & (Mask.IGNORED | Mask.DELETE_SELF | Mask.MOVE_SELF):
                        return
                    # The kubelet writes its checkpoint as ``.<random>`` and renames it: only the new name matters.
                    if event.name and event.name.name.startswith("."):
                        continue
                self._hint()

    def _hint(self) -> None:
        for listener in self._listeners:
            listener.set()
