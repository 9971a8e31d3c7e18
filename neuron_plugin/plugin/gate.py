"""Whether a container may start now, asked by the kubelet before each start (PreStartContainer).

Here an error only holds the container: the kubelet shows the text as its state and asks again, where an error of
Allocate would end the pod for good. So this is the place for what passes by itself: a process of an earlier pod that
still has the device open, a reset under way. It has a price and is a choice: docs/decisions/0010-pre-start-gate.md.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from neuron_plugin.allocation import Resource, mask_of
from neuron_plugin.hardware import Process, ResetState, Sysfs, SysfsError
from neuron_plugin.kubelet import NotYetError
from neuron_plugin.plugin.counts import Counts
from neuron_plugin.plugin.device_users import DeviceUsers
from neuron_plugin.plugin.node import NodeState
from neuron_plugin.plugin.quarantine import described, may_be_of
from neuron_plugin.topology import DeviceId

logger = logging.getLogger(__name__)

PATIENCE_SECONDS = 10.0
"""How long a start is held within one call: the kubelet allows 30 s, and comes back only some 15 s after an error."""
PERIOD_SECONDS = 0.5
LOOK_SECONDS = 5.0
"""For one look; a machine whose files cannot be read in that time must not keep its containers from starting."""


class StartGate:
    """Holds containers back while their devices are not ready for them."""

    def __init__(
        self,
        state: NodeState,
        users: DeviceUsers,
        sysfs: Path,
        *,
        counts: Counts | None = None,
        patience_seconds: float | None = None,
    ) -> None:
        self._state = state
        self._users = users
        self._sysfs = Sysfs(sysfs)
        self._counts = counts or Counts()
        self._patience_seconds = PATIENCE_SECONDS if patience_seconds is None else patience_seconds

    async def pass_through(self, resource: Resource, ids: Iterable[int]) -> None:
        """Return when nothing stands in the way of a container that was given its devices for these ids.

        Raises:
            NotYetError: something still does; names the device and the process or the reset.
        """
        machine = self._state.machine
        if machine is None:
            return
        drawn = mask_of(machine.geometry, resource.unit, tuple(ids))
        given = self._state.ledger.given_for(resource, drawn) or drawn
        devices = machine.geometry.devices_touched(given)
        obstacle = await self._obstacle(devices)
        if obstacle:
            with self._counted(resource):
                await self._outwait(devices, obstacle)

    async def _outwait(self, devices: Iterable[int], obstacle: str) -> None:
        loop = asyncio.get_running_loop()
        until = loop.time() + self._patience_seconds
        while obstacle:
            if loop.time() >= until:
                raise NotYetError(f"the container has to wait: {obstacle}")
            await asyncio.sleep(PERIOD_SECONDS)
            obstacle = await self._obstacle(devices)

    @contextmanager
    def _counted(self, resource: Resource) -> Iterator[None]:
        """A start that is held while the block lasts."""
        self._counts.starts_held[resource] += 1
        self._counts.starts_held_now[resource] += 1
        try:
            yield
        finally:
            self._counts.starts_held_now[resource] -= 1

    async def _obstacle(self, devices: Iterable[int]) -> str:
        try:
            async with asyncio.timeout(LOOK_SECONDS):
                resetting = await asyncio.to_thread(self._resetting, devices)
                return resetting or await self._old_processes(devices)
        except TimeoutError:
            logger.warning("a container starts without a look at its devices", extra={"devices": list(devices)})
            return ""

    def _resetting(self, devices: Iterable[int]) -> str:
        """A reset sends no uevent and lasts seconds, so the file is read, not what the last look found."""
        return "; ".join(f"neuron{device} is being reset" for device in devices if self._is_resetting(device))

    def _is_resetting(self, device: int) -> bool:
        try:
            return self._sysfs.device(DeviceId(device)).reset() is ResetState.RESETTING
        except SysfsError:
            return False  # whether it is healthy is another question, which was asked before it was allocated

    async def _old_processes(self, devices: Iterable[int]) -> str:
        users = await self._users.users(devices)
        return described(
            (device, process)
            for device, processes in sorted(users.processes.items())
            for process in processes
            if self._is_old(process)
        )

    def _is_old(self, process: Process) -> bool:
        """Whether a process is left from before: of a vanished pod, or of no pod at all.

        The pod's own containers may share a device, as may pods with cores of it; what else runs in pods (a monitor)
        has its reasons.
        """
        if not process.uses or process.pod_uid in self._state.pods or process.pod_uid in self._state.ledger.holders:
            return False
        suspects = self._state.quarantine.suspects if self._state.quarantine else ()
        vanished = (suspect.pod for suspect in suspects if not suspect.stranger)
        return not process.pod_uid or any(may_be_of(process, pod) for pod in vanished)
