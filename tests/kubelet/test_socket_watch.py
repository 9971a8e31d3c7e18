from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import socket
import struct
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import grpc
import pytest
from asyncinotify import Inotify, Mask, Watch
from hypothesis import given
from hypothesis import strategies as st

from neuron_plugin.kubelet._proto.deviceplugin.v1beta1 import api_pb2 as pb
from neuron_plugin.kubelet._proto.deviceplugin.v1beta1 import api_pb2_grpc as pb_grpc
from neuron_plugin.kubelet.socket_watch import (
    LONGEST_PATH_BYTES,
    DirectoryWatch,
    EndpointError,
    channel_to,
    clear_strays,
    endpoint_path,
    endpoint_prefix,
    identity_of,
    is_served,
    server_pid,
)
from tests.kubelet.fakes import CORE, DEVICE, eventually

KUBELET = Path("/var/lib/kubelet/device-plugins")


@contextmanager
def listening(path: Path, backlog: int = 1) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as server:
        server.bind(str(path))
        server.listen(backlog)
        yield server


def dead_socket(path: Path) -> Path:
    with listening(path):
        pass
    return path


def test_a_socket_has_an_identity_and_nothing_else_has(directory: Path) -> None:
    (directory / "file").touch()
    assert identity_of(directory / "file") is None
    assert identity_of(directory / "absent") is None
    assert identity_of(directory) is None
    assert identity_of(dead_socket(directory / "s")) is not None


def test_a_socket_made_again_is_another_one_even_with_the_same_inode(directory: Path) -> None:
    first = identity_of(dead_socket(directory / "s"))
    (directory / "s").unlink()
    second = identity_of(dead_socket(directory / "s"))
    assert first != second


def test_a_symbolic_link_to_a_socket_is_not_a_socket(directory: Path) -> None:
    (directory / "link").symlink_to(dead_socket(directory / "s"))
    assert identity_of(directory / "link") is None


def test_only_a_listening_socket_is_served(directory: Path) -> None:
    assert not is_served(dead_socket(directory / "dead"))
    assert not is_served(directory / "absent")
    with listening(directory / "live"):
        assert is_served(directory / "live")


def test_a_path_that_cannot_be_looked_at_for_want_of_descriptors_is_no_dead_socket(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stray = dead_socket(endpoint_path(directory, CORE, "old"))

    def none_left(*_: object) -> None:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr("neuron_plugin.kubelet.socket_watch._probe", none_left)
    with pytest.raises(OSError, match="Too many open files"):
        clear_strays(directory, CORE)
    assert stray.exists()


def test_the_process_behind_a_socket_is_known(directory: Path) -> None:
    with listening(directory / "live"):
        assert server_pid(directory / "live") == os.getpid()
    assert server_pid(directory / "live") is None
    assert server_pid(directory / "absent") is None


def test_a_process_outside_of_our_pid_namespace_is_not_known(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class FromOutside(socket.socket):
        def getsockopt(self, *_: object) -> bytes:  # type: ignore[override]  # the one form that is used
            return struct.pack("3i", 0, 0, 0)

    monkeypatch.setattr("neuron_plugin.kubelet.socket_watch._probe", lambda: FromOutside(socket.AF_UNIX))
    with listening(directory / "live"):
        assert server_pid(directory / "live") is None


def test_a_server_too_busy_to_accept_is_still_a_server(directory: Path) -> None:
    with listening(directory / "busy", backlog=0):
        clients = [socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) for _ in range(4)]
        for client in clients:
            client.setblocking(False)  # noqa: FBT003 - the socket's own signature
            client.connect_ex(str(directory / "busy"))
        assert is_served(directory / "busy")
        for client in clients:
            client.close()


def test_p3_a_socket_that_we_may_not_connect_to_counts_as_served(directory: Path) -> None:
    """Root without the capability to override modes, as in the chart, sees this of another user's plugin."""
    directory.chmod(0o755)
    with listening(endpoint_path(directory, CORE, "other")) as server:
        path = Path(server.getsockname())
        path.chmod(0)
        with no_capabilities():
            assert is_served(path)
            with pytest.raises(EndpointError, match="served by another process"):
                clear_strays(directory, CORE)


@contextmanager
def no_capabilities() -> Iterator[None]:
    before = os.geteuid()
    os.seteuid(65534 if before == 0 else before)
    try:
        yield
    finally:
        os.seteuid(before)


def test_p4_the_longest_resource_name_fits_the_kubelets_directory() -> None:
    resource = f"{'d' * 245}.example/{'n' * 63}"
    assert len(os.fsencode(endpoint_path(KUBELET, resource, "89abcdef"))) <= LONGEST_PATH_BYTES


@given(st.sets(st.text(min_size=1), min_size=2, max_size=2))
def test_p4_distinct_names_never_share_a_path(names: set[str]) -> None:
    one, other = names
    assert endpoint_path(KUBELET, one, "t") != endpoint_path(KUBELET, other, "t")


@given(st.text())
def test_p1_the_endpoint_is_a_bare_file_name_whatever_the_resource(resource: str) -> None:
    assert endpoint_path(KUBELET, resource, "t").parent == KUBELET


def test_equal_names_in_two_domains_have_different_prefixes() -> None:
    assert endpoint_prefix("aws.amazon.com/neuron") != endpoint_prefix("example.com/neuron")


def test_p4_one_byte_more_than_the_longest_path_is_refused() -> None:
    spare = LONGEST_PATH_BYTES - len(os.fsencode(endpoint_path(Path("/d"), CORE, "t")))
    assert len(os.fsencode(endpoint_path(Path("/d" + "d" * spare), CORE, "t"))) == LONGEST_PATH_BYTES
    with pytest.raises(EndpointError, match="has 108 bytes, expected at most 107"):
        endpoint_path(Path("/d" + "d" * spare + "d"), CORE, "t")


def test_p3_a_live_server_of_another_process_is_never_removed(directory: Path) -> None:
    path = endpoint_path(directory, CORE, "other")
    dead = dead_socket(endpoint_path(directory, CORE, "dead"))
    with listening(path), pytest.raises(EndpointError, match=f"{path} is served by another process"):
        clear_strays(directory, CORE)
    assert dead.exists()


def test_p3_files_of_others_are_left_alone(directory: Path) -> None:
    others = [
        dead_socket(directory / "kubelet.sock"),
        dead_socket(endpoint_path(directory, DEVICE, "old")),
        endpoint_path(directory, CORE, "file"),
    ]
    others[-1].touch()
    clear_strays(directory, CORE)
    assert all(path.exists() for path in others)


# Channels


SETTINGS = b"\0\0\0\4\0\0\0\0\0"  # an empty frame, with which an HTTP/2 server begins (RFC 9113, 6.5)


async def test_the_authority_is_localhost_and_not_the_path_which_some_servers_refuse(directory: Path) -> None:
    heads: asyncio.Queue[bytes] = asyncio.Queue()

    async def listen(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(SETTINGS)
        await heads.put(await reader.readuntil(b"user-agent"))
        writer.close()

    server = await asyncio.start_unix_server(listen, directory / "s")
    async with server, channel_to(directory / "s") as channel:
        with pytest.raises(grpc.aio.AioRpcError):
            await pb_grpc.RegistrationStub(channel).Register(pb.RegisterRequest(), timeout=5)
    assert b":authority\x09localhost" in await asyncio.wait_for(heads.get(), 5)


# The directory


NEVER = 30.0


@asynccontextmanager
async def watched(directory: Path, period: float) -> AsyncIterator[asyncio.Event]:
    hint = asyncio.Event()
    watch = DirectoryWatch(directory, period_seconds=period)
    with watch.listening(hint):
        task = asyncio.create_task(watch.run())
        await hinted(hint)  # each beginning gives one
        yield hint
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def hinted(hint: asyncio.Event) -> None:
    async with asyncio.timeout(5):
        await hint.wait()
    hint.clear()


async def until_quiet(hint: asyncio.Event) -> None:
    """Take every hint that is still to come of what has happened."""
    with contextlib.suppress(TimeoutError):
        while True:
            await asyncio.wait_for(hint.wait(), 0.3)
            hint.clear()


CHANGES: dict[str, Callable[[Path], object]] = {
    "a new file": lambda directory: (directory / "kubelet.sock").touch(),
    "a removed file": lambda directory: (directory / "own.sock").unlink(),
    "a file moved into place": lambda directory: (directory / "sub/new").rename(directory / "kubelet.sock"),
    "a file moved away": lambda directory: (directory / "own.sock").rename(directory / "sub/own.sock"),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
async def test_a_change_is_hinted_at_by_an_event(directory: Path, change: Callable[[Path], object]) -> None:
    (directory / "sub").mkdir()
    for name in ("own.sock", "sub/new"):
        (directory / name).touch()
    async with watched(directory, NEVER) as hint:
        change(directory)
        await hinted(hint)


async def test_a_checkpoint_write_is_one_hint_when_the_file_is_complete(directory: Path) -> None:
    async with watched(directory, NEVER) as hint:
        aside = directory / ".123456789"
        aside.write_bytes(b"{}")
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(hint.wait(), 0.2)
        aside.replace(directory / "kubelet_internal_checkpoint")
        await hinted(hint)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(hint.wait(), 0.2)


async def test_every_listener_gets_the_hint(directory: Path) -> None:
    watch = DirectoryWatch(directory, period_seconds=NEVER)
    hints = [asyncio.Event(), asyncio.Event()]
    with watch.listening(hints[0]), watch.listening(hints[1]):
        task = asyncio.create_task(watch.run())
        for hint in hints:
            await hinted(hint)
        task.cancel()


async def test_a_listener_that_left_gets_none(directory: Path) -> None:
    gone = asyncio.Event()
    watch = DirectoryWatch(directory, period_seconds=NEVER)
    with watch.listening(gone):
        pass
    stays = asyncio.Event()
    with watch.listening(stays):
        task = asyncio.create_task(watch.run())
        await hinted(stays)
        task.cancel()
    assert not gone.is_set()


async def test_hints_come_without_events_too(directory: Path) -> None:
    async with watched(directory, 0.01) as hint:
        await hinted(hint)
        await hinted(hint)


@pytest.fixture
def watched_inodes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The inode number of each directory that a watch was put on."""
    inodes: list[int] = []

    class CountingInotify(Inotify):
        def add_watch(self, path: os.PathLike[str] | bytes | str, mask: Mask) -> Watch:
            inodes.append(Path(os.fsdecode(path)).stat().st_ino)
            return super().add_watch(path, mask)

    monkeypatch.setattr("neuron_plugin.kubelet.socket_watch.Inotify", CountingInotify)
    return inodes


async def test_p11_a_directory_made_again_is_watched_again(directory: Path, watched_inodes: list[int]) -> None:
    plugins = directory / "device-plugins"
    plugins.mkdir()
    async with watched(plugins, NEVER) as hint:
        plugins.rmdir()
        plugins.mkdir()
        await eventually(lambda: len(watched_inodes) == 2)
        hint.clear()
        (plugins / "kubelet.sock").touch()
        await hinted(hint)


async def test_more_events_than_the_kernel_keeps_are_a_hint_too(directory: Path) -> None:
    kept = int(Path("/proc/sys/fs/inotify/max_queued_events").read_text())
    if kept > 50_000:  # pragma: no cover - a machine with another setting
        pytest.skip(f"fs.inotify.max_queued_events is {kept}, which takes long to fill")
    async with watched(directory, NEVER) as hint:
        for _ in range(kept // 2 + 10):  # two events each
            (directory / "s").touch()
            (directory / "s").unlink()
        await until_quiet(hint)
        (directory / "kubelet.sock").touch()
        await hinted(hint)


async def test_a_node_without_inotify_instances_is_watched_by_the_clock_and_said_once(
    directory: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A node has 128 of them by default (``fs.inotify.max_user_instances``)."""

    def none_left() -> Inotify:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr("neuron_plugin.kubelet.socket_watch.Inotify", none_left)
    async with watched(directory, 0.01) as hint:
        for _ in range(3):
            await hinted(hint)
    assert caplog.messages == ["a restarted kubelet is noticed late: no inotify"]
    assert "max_user_instances" in caplog.records[0].__dict__["remedy"]


async def test_cancelling_leaves_no_descriptor_behind(directory: Path) -> None:
    def descriptors() -> int:
        return len(list(Path("/proc/self/fd").iterdir()))

    before = descriptors()
    for _ in range(5):
        async with watched(directory, NEVER):
            pass
    assert descriptors() == before
