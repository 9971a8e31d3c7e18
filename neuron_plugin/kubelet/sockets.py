"""Socket files: which one is it, is anyone behind it, and may we have this path.

A path says little: a restarted kubelet makes kubelet.sock anew under the same name, ext4 gives the new file the old
inode number, and a gRPC server binds over another's socket without a word. So a socket is known by device, inode *and*
time of change, and a path is taken only after a look at what is there.
"""

from __future__ import annotations

import errno
import hashlib
import os
import socket
import stat
import struct
from dataclasses import dataclass
from pathlib import Path

_NOBODY = frozenset({errno.ECONNREFUSED, errno.ENOENT, errno.ENOTDIR})
_CREDENTIALS = struct.Struct("3i")  # struct ucred (unix(7)); of a socket's server they are those of its listen(2)

LONGEST_PATH_BYTES = 107  # sun_path holds 108 with the final NUL (unix(7))


class EndpointError(Exception):
    """A socket of ours cannot be had at the path; says what is there."""


@dataclass(frozen=True, slots=True)
class SocketIdentity:
    """What tells one socket file from the next one under the same name."""

    device: int
    inode: int
    changed_ns: int


def identity_of(path: Path) -> SocketIdentity | None:
    """The identity of the socket at ``path``, or None if there is none, or something that is no socket."""
    try:
        found = path.lstat()
    except OSError:
        return None
    if not stat.S_ISSOCK(found.st_mode):
        return None
    return SocketIdentity(found.st_dev, found.st_ino, found.st_ctime_ns)


def is_served(path: Path) -> bool:
    """Whether a process accepts connections at ``path``; never blocks for long.

    In doubt it is: a server too busy to accept, or a socket that we may not connect to.
    """
    with _probe() as probe:
        try:
            probe.connect(os.fspath(path))
        except OSError as error:
            return error.errno not in _NOBODY
    return True


def server_pid(path: Path) -> int | None:
    """The process that listens at ``path``, None when nobody does or when it is outside of our PID namespace."""
    with _probe() as probe:
        try:
            probe.connect(os.fspath(path))
            credentials = probe.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        except OSError:
            return None
    pid: int = _CREDENTIALS.unpack(credentials)[0]
    return pid or None


def _probe() -> socket.socket:
    probe = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    probe.setblocking(False)  # noqa: FBT003 - the socket's own signature
    return probe


def endpoint_prefix(resource: str) -> str:
    """What the names of all sockets of a resource begin with, and no other resource's do."""
    digest = hashlib.sha256(resource.encode()).hexdigest()[:8]
    readable = "".join(each if each.isalnum() and each.isascii() else "-" for each in resource.rpartition("/")[2])
    return f"neuron-plugin.{readable[:24]}.{digest}."


def endpoint_path(directory: Path, resource: str, token: str) -> Path:
    """Where one server instance of a resource listens; ``token`` is that instance's own.

    Raises:
        EndpointError: the directory's name is too long for any socket in it.
    """
    path = directory / f"{endpoint_prefix(resource)}{token}.sock"
    if (length := len(os.fsencode(path))) > LONGEST_PATH_BYTES:
        raise EndpointError(
            f"socket path {path} has {length} bytes, expected at most {LONGEST_PATH_BYTES}: use a shorter directory"
        )
    return path


def standing_path(directory: Path, resource: str) -> Path:
    """The one path of a resource where each instance follows the last one.

    Raises:
        EndpointError: the directory's name is too long for any socket in it.
    """
    return endpoint_path(directory, resource, "standing")


def clear_strays(directory: Path, resource: str) -> None:
    """Remove sockets that dead servers of ``resource`` have left in ``directory``.

    Raises:
        EndpointError: one of them is alive. Two registrations of a resource make the kubelet drop both in the end.
    """
    prefix = endpoint_prefix(resource)
    strays = [path for path in directory.glob("*.sock") if path.name.startswith(prefix) and identity_of(path)]
    for path in strays:
        if is_served(path):
            raise EndpointError(
                f"{path} is served by another process: a second plugin offers {resource} on this node; stop one of them"
            )
    for path in strays:
        path.unlink(missing_ok=True)


def require_vacant(path: Path) -> None:
    """Make sure that binding ``path`` takes nothing from anybody; a dead socket is removed.

    Raises:
        EndpointError: a live server or something that is no socket is there.
    """
    if not os.path.lexists(path):
        return
    if identity_of(path) is None:
        raise EndpointError(f"{path} exists and is not a socket; remove it, it is not ours")
    if is_served(path):
        raise EndpointError(f"{path} is served by another process; stop that one first")
    path.unlink(missing_ok=True)
