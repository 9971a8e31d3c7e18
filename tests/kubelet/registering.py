"""What the tests of registration share: a plugin and a kubelet for stories, and scripted answers to Register."""

from __future__ import annotations

import asyncio
import shutil
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

import grpc

from neuron_plugin.kubelet._proto.deviceplugin.v1beta1 import api_pb2 as pb
from neuron_plugin.kubelet._proto.deviceplugin.v1beta1 import api_pb2_grpc as pb_grpc
from neuron_plugin.kubelet.registration import DevicePluginServer, RegistrationState, WatchedPluginServer
from neuron_plugin.kubelet.socket_watch import endpoint_path, endpoint_prefix, identity_of
from neuron_plugin.kubelet_files import KUBELET_SOCKET
from tests.kubelet.fakes import CORE, QUICK, RunningPlugin, devices, eventually, running_plugin
from tests.support.kubelet import KubeletOptions, StandInKubelet
from tests.support.stories import Scene


def sockets_of(directory: Path, resource: str = CORE) -> list[Path]:
    return [path for path in directory.iterdir() if path.name.startswith(endpoint_prefix(resource))]


async def advertised_again(kubelet: StandInKubelet, plugin: RunningPlugin, registrations: int) -> None:
    await eventually(lambda: kubelet.registration_count(CORE) >= registrations)
    await kubelet.wait_for_capacity(CORE, 4)
    # The kubelet hears the devices a moment before the server hears that its Register call has ended.
    await plugin.observer.until(plugin.server.registered.is_set)
    assert not plugin.task.done()


@dataclass
class ScriptedRegistration(pb_grpc.RegistrationServicer):
    """A Registration service that answers as a test says, and keeps the requests."""

    requests: list[pb.RegisterRequest] = field(default_factory=list)
    refusal: str | None = None
    during: Callable[[pb.RegisterRequest], object] | None = None

    async def Register(  # noqa: N802 - the API's name
        self, request: pb.RegisterRequest, context: grpc.aio.ServicerContext[pb.RegisterRequest, pb.Empty]
    ) -> pb.Empty:
        self.requests.append(request)
        if self.during is not None:
            outcome = self.during(request)
            if asyncio.iscoroutine(outcome):
                await outcome
        if self.refusal is not None:
            await context.abort(grpc.StatusCode.UNKNOWN, self.refusal)
        return pb.Empty()


@asynccontextmanager
async def scripted_kubelet(directory: Path, registration: ScriptedRegistration) -> AsyncIterator[None]:
    server = grpc.aio.server()
    pb_grpc.add_RegistrationServicer_to_server(registration, server)
    server.add_insecure_port(f"unix:{directory / KUBELET_SOCKET}")
    await server.start()
    yield
    await server.stop(None)


class Story(Scene):
    """A plugin with one resource, and a kubelet, which come and go in a directory; ``route`` is how it registers."""

    def __init__(self, root: Path, route: type[DevicePluginServer], stack: AsyncExitStack) -> None:
        self._root, self._route, self._stack = root, route, stack
        self.directory = root / "plugins"
        self.directory.mkdir()
        self._registration = ScriptedRegistration()
        self._asked = asyncio.Event()
        self._scripted = AsyncExitStack()
        self.kubelet_: StandInKubelet | None = None
        self._paths: list[tuple[Path | None, object]] = []

    # Who comes and goes.

    async def plugin(self, rhythm: str = "quick") -> None:
        """It looks by events alone, unless it looks at the ``clock``, too; ``slow``: it backs off for a minute."""
        slow = replace(QUICK, first_delay=60.0, longest_delay=60.0)
        self.it = await self._stack.enter_async_context(
            running_plugin(
                self.directory,
                kind=self._route,
                times=slow if rhythm == "slow" else QUICK,
                watch_seconds=0.05 if rhythm == "clock" else 60.0,
            )
        )

    async def kubelet(self) -> None:
        if self.kubelet_ is None:
            sockets = self.directory
            if watcher := self._route is WatchedPluginServer:
                (sockets := self._root / "sockets").mkdir(exist_ok=True)
            options = KubeletOptions(sync_delay=0.0, watcher_seconds=0.05)
            self.kubelet_ = StandInKubelet(
                sockets, plugins_registry=self.directory if watcher else None, options=options
            )
            self._stack.push_async_callback(self.kubelet_.stop)
        await self.kubelet_.start()

    @property
    def there(self) -> StandInKubelet:
        assert self.kubelet_ is not None
        return self.kubelet_

    async def leaves(self) -> None:
        await (self.there.stop() if self.kubelet_ else self._scripted.aclose())

    async def restarts(self) -> None:
        await self.there.restart()

    async def disconnects(self) -> None:
        self._note()
        await self.there.disconnect(CORE)

    async def answers(self, how: str) -> None:
        """Register calls are taken: the kubelet ``hangs`` then, is ``deaf`` afterwards, or refuses with a text."""

        async def hang(_request: pb.RegisterRequest) -> None:
            self._asked.set()
            await asyncio.Event().wait()

        self._registration.during = hang if how == "hangs" else None
        self._registration.refusal = None if how in {"hangs", "deaf"} else how
        await self._scripted.enter_async_context(scripted_kubelet(self.directory, self._registration))
        self._stack.push_async_callback(self._scripted.aclose)

    async def asked(self) -> None:
        await asyncio.wait_for(self._asked.wait(), 5)

    async def stop(self) -> None:
        await self.it.server.stop()

    # Files.

    def dead(self) -> None:
        """A kubelet.sock that nobody serves."""
        with socket.socket(socket.AF_UNIX) as dead:
            dead.bind(str(self.directory / KUBELET_SOCKET))

    def stray(self) -> None:
        """What a killed predecessor has left."""
        with socket.socket(socket.AF_UNIX) as dead:
            dead.bind(str(endpoint_path(self.directory, CORE, "killed")))

    def file(self) -> None:
        (self.directory / KUBELET_SOCKET).touch()

    def unlink(self, name: str = "own") -> None:
        self._note()
        assert self.it.server.socket_path
        (self.it.server.socket_path if name == "own" else self.directory / name).unlink()

    def replace(self) -> None:
        """Another program's file takes the place of our socket."""
        self.unlink()
        path, _ = self._paths[-1]
        assert path
        path.write_text("of another program")

    def remove(self) -> None:
        """The directory with all that is in it; a kubelet that was there is none any more."""
        with suppress(FileNotFoundError):
            shutil.rmtree(self.directory)
        self.kubelet_ = None

    def make(self) -> None:
        self.directory.mkdir()

    def link(self, name: str) -> None:
        """The directory is a symbolic link from now on, to another one."""
        if not self.directory.is_symlink():
            self.directory.rmdir()
        else:
            self.directory.unlink()
            self.kubelet_ = None
        (self._root / name).mkdir()
        self.directory.symlink_to(self._root / name)

    def _note(self) -> None:
        path = self.it.server.socket_path
        self._paths.append((path, path and identity_of(path)))

    # What the kubelet has, and what the server says.

    async def offered(self, count: str) -> None:
        await self.there.wait_for_capacity(CORE, int(count), timeout_seconds=5)

    async def again(self, registrations: str) -> None:
        await advertised_again(self.there, self.it, int(registrations))

    def breaks(self, device: str) -> None:
        self.it.advertisement.publish(devices(4, int(device)))

    async def rewrite(self) -> None:
        checkpoint = self.directory / "kubelet_internal_checkpoint"
        before = checkpoint.stat().st_ino
        self.it.advertisement.rewrite()
        await eventually(lambda: checkpoint.stat().st_ino != before)

    async def until(self, state: str) -> None:
        await self.it.observer.until(lambda: self.it.server.state.name == state)
        assert self.it.server.registered.is_set() is (state == "ADVERTISED")

    def passed(self, states: str) -> None:
        """The states so far."""
        assert self.it.observer.states == [RegistrationState[name] for name in states.split()]

    async def unready(self) -> None:
        await eventually(lambda: not self.it.server.registered.is_set())

    async def failed(self, times: str) -> None:
        await self.it.observer.until(lambda: self.it.observer.counters.registrations[CORE, "failed"] >= int(times))
        assert not self.it.task.done()

    async def accepted(self, times: str) -> None:
        await self.it.observer.until(lambda: self.it.observer.counters.registrations[CORE, "accepted"] >= int(times))

    def says(self, text: str = "") -> None:
        """Why the last attempt failed."""
        assert text in (self.it.server.failure or "")
        assert bool(text) == bool(self.it.server.failure)

    # Sockets.

    def sockets(self, count: str) -> None:
        assert len(sockets_of(self.directory)) == int(count)

    def moved(self) -> None:
        """The socket has another path than before, and nothing is left of that one."""
        (before, _), path = self._paths[-1], self.it.server.socket_path
        assert path not in {None, before}
        assert sockets_of(self.directory) == [path]

    async def renewed(self) -> None:
        """There is another socket at the same path."""
        path, before = self._paths[-1]
        assert path
        await eventually(lambda: identity_of(path) not in {before, None})

    def kept(self) -> None:
        """What another program has put there is left alone."""
        path, _ = self._paths[-1]
        assert path
        assert path.read_text() == "of another program"
        path.unlink()

    def remember(self) -> None:
        self._note()

    def same(self) -> None:
        """It is the socket that was remembered."""
        path, before = self._paths[-1]
        assert path
        assert identity_of(path) == before
