"""The life of one resource's registration with the kubelet.

The kubelet forgets: when it restarts, when a stream ends, when somebody takes a socket away. It never asks again and it
tells nobody. So this is a loop without an end: wait for kubelet.sock, serve on a fresh socket, register, and watch for
any cue that the registration is no longer worth anything; then stop that server *fully* and begin again. Nothing here
ends the process, and nothing here touches another resource.

A cue is always read from the present state of the world, never from an event: events only say when to look.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from random import Random

from neuron_plugin.backoff import Backoff
from neuron_plugin.kubelet.advertisement import Advertisement
from neuron_plugin.kubelet.announcement import KUBELET_SOCKET, RegistrationError, announce
from neuron_plugin.kubelet.devices import DeviceHandler
from neuron_plugin.kubelet.observer import Observer, RegistrationState
from neuron_plugin.kubelet.server import ServerInstance
from neuron_plugin.kubelet.service import DevicePluginService, ServiceOptions
from neuron_plugin.kubelet.sockets import EndpointError, SocketIdentity, clear_strays, endpoint_path, identity_of
from neuron_plugin.kubelet.watch import DirectoryWatch

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class RegistrationTimes:
    """The clock of a registration, in seconds.

    ``stream_deadline`` is how long after a Register that succeeded the kubelet may take to open ListAndWatch.
    The back-off between attempts begins anew only after a registration that held for ``settled``: two plugins that
    push each other out must not do it as fast as they can.
    """

    stream_deadline: float = 5.0
    settled: float = 10.0
    first_delay: float = 0.1
    longest_delay: float = 15.0


class DevicePluginServer:
    """Keeps one resource registered for as long as `run` runs.

    ``watch`` is shared by all resources of the daemon, which also runs it. ``state`` may be read at any time on the
    event loop; ``registered`` is set while the kubelet has accepted the resource and follows its devices.
    """

    def __init__(  # noqa: PLR0913 - what it is joined from; all but five have a usual value
        self,
        resource: str,
        handler: DeviceHandler,
        advertisement: Advertisement,
        watch: DirectoryWatch,
        *,
        observer: Observer,
        options: ServiceOptions | None = None,
        times: RegistrationTimes | None = None,
        random: Random | None = None,
        other_route: Path | None = None,
    ) -> None:
        """``other_route`` is where a server of this resource that registers the other way would have its socket."""
        self.resource = resource
        self.state = RegistrationState.STOPPED
        self.registered = asyncio.Event()
        self._handler = handler
        self._advertisement = advertisement
        self._watch = watch
        self._options = options or ServiceOptions()
        self._observer = observer
        self._times = times or RegistrationTimes()
        self._random = random or Random()  # noqa: S311 - spreads retries and names sockets, guards nothing
        self._backoff = Backoff(
            self._random.random,
            first_seconds=self._times.first_delay,
            longest_seconds=self._times.longest_delay,
        )
        self._news = asyncio.Event()
        self._stopping = False
        self._running = False
        self._stopped = asyncio.Event()
        self._other_route = other_route
        self._instance: ServerInstance | None = None
        self._tried: SocketIdentity | None = None
        self._last_trouble: str | None = None

    @property
    def socket_path(self) -> Path | None:
        """Where this resource is served at present, for probes that dial it."""
        return self._instance.path if self._instance else None

    async def run(self) -> None:
        """Keep the resource registered until `stop` or cancellation; whatever happens, it tries again."""
        self._running = True
        with self._watch.listening(self._news.set):
            try:
                while not self._stopping:
                    await self._wait_for_kubelet()
                    await self._live_once()
                    await self._wait_out()
            finally:
                self._enter(RegistrationState.STOPPED)
                self._stopped.set()

    async def stop(self) -> None:
        """End the streams, remove the socket, and return when `run` has ended (under 2 s). May be called again."""
        self._stopping = True
        self._news.set()
        if self._running:
            await self._stopped.wait()

    # One life, from bind to the cue that ends it.

    async def _live_once(self) -> None:
        if self._stopping:
            return
        try:
            async with self._serving() as instance:
                await self._register(instance)
                cue = await self._until_cue(instance)
        except (EndpointError, RegistrationError, OSError) as error:  # an OSError: no descriptor, no space, no right
            self._trouble(str(error))
        except Exception:  # noqa: BLE001 - one resource's accident must not end the others, or the process
            _log.exception("registration failed", extra={"resource": self.resource})
        else:
            _log.info("registration ended", extra={"resource": self.resource, "cue": cue})

    @asynccontextmanager
    async def _serving(self) -> AsyncIterator[ServerInstance]:
        self._tried = self._kubelet_identity()
        self._enter(RegistrationState.REGISTERING)
        for directory in (self._watch.directory, self._other_route):
            if directory:
                clear_strays(directory, self.resource)
        service = DevicePluginService(
            self.resource,
            self._handler,
            self._advertisement,
            options=self._options,
            observer=self._observer,
            on_stream_change=self._news.set,
        )
        self._instance = instance = await self._bind(service)
        try:
            yield instance
        finally:
            self.registered.clear()
            self._enter(RegistrationState.ENDING)
            self._instance = None
            await instance.stop()

    async def _bind(self, service: DevicePluginService) -> ServerInstance:
        token = f"{self._random.getrandbits(32):08x}"  # not the process id: it repeats between containers
        return await ServerInstance.start(service, endpoint_path(self._watch.directory, self.resource, token))

    async def _register(self, instance: ServerInstance) -> None:
        try:
            await self._announce(instance)
        except RegistrationError as error:
            self._observer.registration_ended(self.resource, str(error))
            raise
        self._observer.registration_ended(self.resource, None)
        self._enter(RegistrationState.REGISTERED)

    async def _announce(self, instance: ServerInstance) -> None:
        """Register, unless a cue comes first. The kubelet calls us back on this loop while the call waits."""
        call = asyncio.create_task(
            announce(instance.path, self.resource, self._options.message()), name=f"register {self.resource}"
        )
        call.add_done_callback(lambda _: self._news.set())
        try:
            while not call.done():
                self._require_no_cue(instance)
                await self._next_news()
            call.result()
        finally:
            call.cancel()
            await asyncio.gather(call, return_exceptions=True)  # its end is no news, a cancellation of ours is

    async def _until_cue(self, instance: ServerInstance) -> str:
        """Wait for what makes this registration worthless, and say what it was."""
        loop = asyncio.get_running_loop()
        registered_at = loop.time()
        overdue_at = registered_at + self._times.stream_deadline
        while (cue := self._cue(instance)) is None:
            if instance.service.streams_open:
                self._advertised()
            elif instance.service.streams_begun:
                cue = "the kubelet ended the ListAndWatch stream"
                break
            elif loop.time() >= overdue_at:
                cue = f"no ListAndWatch within {self._times.stream_deadline:g} s of Register"
                break
            await self._next_news(None if instance.service.streams_open else overdue_at)
        if loop.time() - registered_at >= self._times.settled:
            self._backoff.reset()
        return cue

    def _cue(self, instance: ServerInstance) -> str | None:
        """Why the instance has to be replaced, as far as the files tell."""
        if self._stopping:
            return "asked to stop"
        if self._kubelet_identity() != self._tried:
            return f"{KUBELET_SOCKET} was made anew or removed"
        if not instance.is_reachable():
            return f"our socket {instance.path.name} was removed or replaced"
        return None

    def _require_no_cue(self, instance: ServerInstance) -> None:
        if cue := self._cue(instance):
            raise RegistrationError(f"gave up registering {self.resource}: {cue}")

    # Waiting between lives.

    async def _wait_for_kubelet(self) -> None:
        while not self._stopping and self._kubelet_identity() is None:
            self._enter(RegistrationState.WAITING)
            await self._next_news()

    async def _wait_out(self) -> None:
        """Let the back-off pass, unless there is a new kubelet.sock, which deserves an attempt at once."""
        loop = asyncio.get_running_loop()
        until = loop.time() + self._backoff.next_seconds()
        while not self._stopping and loop.time() < until:
            if self._kubelet_identity() != self._tried:
                self._backoff.reset()
                return
            self._enter(RegistrationState.BACKING_OFF)
            await self._next_news(until)

    async def _next_news(self, until: float | None = None) -> None:
        """Wait for a reason to look again: the directory, a stream, a call, `stop`, or the loop's time ``until``.

        Without ``until`` there is still the directory watch's own rhythm, every few seconds.
        """
        with suppress(TimeoutError):
            async with asyncio.timeout_at(until):
                await self._news.wait()
        self._news.clear()

    def _kubelet_identity(self) -> SocketIdentity | None:
        return identity_of(self._watch.directory / KUBELET_SOCKET)

    # Saying so.

    def _advertised(self) -> None:
        self._enter(RegistrationState.ADVERTISED)
        self._last_trouble = None
        self.registered.set()

    def _enter(self, state: RegistrationState) -> None:
        if state is self.state:
            return
        self.state = state
        _log.debug("registration state", extra={"resource": self.resource, "state": state.value})
        self._observer.state_changed(self.resource, state)

    def _trouble(self, text: str) -> None:
        """Log a trouble once, not at every attempt it lasts."""
        if text != self._last_trouble:
            _log.warning("not registered", extra={"resource": self.resource, "reason": text})
        self._last_trouble = text
