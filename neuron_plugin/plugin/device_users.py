"""Looking who has the devices open while somebody has to know.

A pass over /proc costs milliseconds and reads what other processes do, so it is made in a thread, and only while
silicon is suspect or a container is about to start.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Collection, Iterable
from contextlib import suppress
from pathlib import Path

from neuron_plugin.hardware import Look, has_kernel_threads, look_at_processes
from neuron_plugin.kubelet import SocketIdentity, identity_of, server_pid
from neuron_plugin.plugin.node import NodeState
from neuron_plugin.plugin.quarantine import Suspect, Users

logger = logging.getLogger(__name__)

PERIOD_SECONDS = 1.0
"""Between two looks while something is suspect."""
START_SECONDS = 5.0
"""For the look before the first device is offered: a machine with very many open files must not keep us from that."""

SETTLED_SECONDS = 15.0
"""After its start a kubelet admits the first pods of before within some 5 s, and then knows them all."""

LivePods = Callable[[], Awaitable[Collection[str] | None]]
"""The UIDs of all live pods of the node, as cgroups have them; None while that is not to be had. Under a deadline."""


class DeviceUsers:
    """Sees who uses the devices of ``dev``, as ``proc`` shows it."""

    def __init__(
        self, state: NodeState, dev: Path, proc: Path, kubelet_socket: Path, live_pods: LivePods | None = None
    ) -> None:
        """Whether ``proc`` shows containers' processes is told by the kubelet's own, which listens on its socket.

        No ``live_pods``: there is no API server.
        """
        self._state = state
        self._dev = dev
        self._proc = proc
        self._kubelet_socket = kubelet_socket
        self._live_pods = live_pods
        self._kubelet: SocketIdentity | None = None
        self._met_at = 0.0
        self._news = asyncio.Event()

    def notify(self) -> None:
        """The node's state has changed."""
        if self._suspects(unseen_only=True):
            self._news.set()

    async def run(self) -> None:
        """Look at once when something becomes suspect, and every second while it is, until cancelled."""
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(PERIOD_SECONDS if self._suspects() else None):
                    await self._news.wait()
            self._news.clear()
            await self.look()
            await self._call_the_roll()

    async def look_at_start(self, known: Collection[str]) -> bool:
        """Find what pods have open that are not ``known`` to live: they may have vanished while nobody watched.

        False when it is too early for that: a kubelet that has just started does not know all of its pods yet, and an
        Unhealthy device would cost a live one its re-admission.
        """
        if self._state.machine is None or not self._kubelet_is_settled():
            return False
        try:
            async with asyncio.timeout(START_SECONDS):
                users = await self.users(self._state.machine.listed)
        except TimeoutError:
            logger.warning("offering devices without a look at who has them open", extra={"seconds": START_SECONDS})
            return True
        self._state.see_strangers(users, known)
        for suspect in self._suspects():
            logger.info("not offered until it is known whose processes have it open", extra=_fields(suspect))
        self._news.set()
        return True

    async def look(self) -> None:
        """Judge what is suspect by who has it open now; nothing is read when nothing is."""
        before, machine = self._suspects(), self._state.machine
        if not before or machine is None:
            return
        devices = {device for suspect in before for device in machine.geometry.devices_touched(suspect.mask)}
        self._state.see_users(await self.users(devices))
        _tell(before, self._suspects())

    def _kubelet_is_settled(self) -> bool:
        """By its socket's age; it is as old as we have known it where the clock was set meanwhile.

        That shows in a socket of the future, or in one from before the machine was started.
        """
        kubelet, now = identity_of(self._kubelet_socket), self._state.clock()
        if kubelet != self._kubelet:
            self._kubelet, self._met_at = kubelet, now
        if kubelet is None:
            return False
        age = time.time() - kubelet.changed_ns / 1e9
        running = time.clock_gettime(time.CLOCK_BOOTTIME)
        return max(now - self._met_at, age if age <= running else 0.0) >= SETTLED_SECONDS

    async def _call_the_roll(self) -> None:
        """Learn of strangers whether they live."""
        before = self._suspects()
        live = await self._live_pods() if self._live_pods and any(one.stranger for one in before) else None
        if live is not None:
            self._state.see_live_pods(live)
            _tell(before, self._suspects())

    async def users(self, devices: Iterable[int]) -> Users:
        """Who has each of ``devices`` open now."""
        moment = self._state.clock()
        nodes = {self._dev / f"neuron{device}": device for device in sorted(devices)}
        look = await asyncio.to_thread(self._look, list(nodes))
        return Users({nodes[node]: found for node, found in look.processes.items()}, look.complete, moment)

    def _look(self, nodes: list[Path]) -> Look:
        return look_at_processes(nodes, self._proc, whole_machine=shows_containers(self._kubelet_socket, self._proc))

    def _suspects(self, *, unseen_only: bool = False) -> tuple[Suspect, ...]:
        suspects = self._state.quarantine.suspects if self._state.quarantine else ()
        return tuple(suspect for suspect in suspects if not (unseen_only and suspect.seen))


def shows_containers(kubelet_socket: Path, proc: Path) -> bool:
    """Whether ``proc`` is where containers' processes are: where the kubelet's is.

    That is on the machine, or on the "machine" that a kubelet in a container (kind) has.
    """
    if has_kernel_threads(proc):
        return True
    kubelet = server_pid(kubelet_socket)
    return kubelet is not None and (proc / str(kubelet)).is_dir()


def _tell(before: tuple[Suspect, ...], after: tuple[Suspect, ...]) -> None:
    """One line when suspicion is confirmed or changes, one when it is over; none for what ends at the first look."""
    known, left = {suspect.pod.uid: suspect for suspect in before}, {suspect.pod.uid for suspect in after}
    for suspect in after:
        old = known.get(suspect.pod.uid)
        if old and not suspect.stranger and (old.seen, old.stranger) != (suspect.seen, suspect.stranger):
            logger.warning("not offered until a vanished pod has let go", extra=_fields(suspect))
    for suspect in before:
        if suspect.seen and suspect.pod.uid not in left:
            logger.info("offered again", extra=_fields(suspect))


def _fields(suspect: Suspect) -> dict[str, object]:
    return {"pod": suspect.whose, "why": suspect.seen}
