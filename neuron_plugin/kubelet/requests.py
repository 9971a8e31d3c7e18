"""What the kubelet asks of one resource, checked and answered in the daemon's own values.

Stands between the wire and the daemon's handler: nothing reaches the handler's memory that was not advertised, and no
mistake in choosing a preference becomes an error, because either would cost a pod its life.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from neuron_plugin.kubelet.advertisement import Edition
from neuron_plugin.kubelet.devices import (
    DeviceHandler,
    MalformedRequestError,
    UnhealthyDeviceError,
    UnknownDeviceError,
    in_numeric_order,
)


@dataclass(frozen=True, slots=True)
class PreferenceRequest:
    """One container's demand, as GetPreferredAllocation states it."""

    available: tuple[str, ...]
    must_include: tuple[str, ...]
    size: int

    def fallback(self) -> list[str]:
        """A valid answer that needs no thought: what must be in it, then the lowest available ids.

        Shorter than ``size`` only if there is not enough; the kubelet then fills up by itself.
        """
        kept = in_numeric_order(dict.fromkeys(self.must_include))
        others = [each for each in in_numeric_order(set(self.available)) if each not in kept]
        return in_numeric_order((kept + others)[: self.size])

    def fault_of(self, answer: Sequence[str]) -> str | None:
        """What is wrong with ``answer``, or None if the kubelet would take exactly it."""
        if len(set(answer)) != len(answer):
            return "names an id twice"
        if len(answer) != self.size:
            return f"names {len(answer)} ids, expected {self.size}"
        if unavailable := set(answer) - set(self.available):  # what the kubelet has taken is among them
            return f"names {', '.join(in_numeric_order(unavailable))}, which the kubelet does not offer"
        if missing := set(self.must_include) - set(answer):
            return f"leaves out {', '.join(in_numeric_order(missing))}, which the kubelet has already taken"
        return None


@dataclass(frozen=True, slots=True)
class PreferenceAnswer:
    """The ids to answer with, and why they are not the handler's own choice, if they are not."""

    ids: tuple[str, ...]
    fault: str | None = None


async def preferred_ids(
    handler: DeviceHandler, resource: str, request: PreferenceRequest, deadline_seconds: float
) -> PreferenceAnswer:
    """Ask the handler under a deadline; whatever goes wrong there, the answer is one the kubelet can use."""
    try:
        async with asyncio.timeout(deadline_seconds):
            answer = await handler.preferred(resource, request.available, request.must_include, request.size)
            fault = request.fault_of(answer)
    except TimeoutError:
        fault = f"took longer than {deadline_seconds:g} s"
    except Exception as error:  # noqa: BLE001 - any error here would fail the pod for good
        fault = f"failed: {type(error).__name__}: {error}"
    if fault is None:
        return PreferenceAnswer(tuple(in_numeric_order(answer)))
    return PreferenceAnswer(tuple(request.fallback()), fault)


def checked_ids(resource: str, edition: Edition, containers: Sequence[Sequence[str]]) -> list[list[str]]:
    """The ids of each container request in numeric order, all of them known, healthy and asked for once.

    Raises:
        MalformedRequestError: no request, a request without ids, or an id twice.
        UnknownDeviceError: an id that is not advertised.
        UnhealthyDeviceError: an id that is advertised as unhealthy.
    """
    if not containers or not all(containers):
        raise MalformedRequestError(f"a request for {resource} names no device ids, expected at least one")
    everything = [each for ids in containers for each in ids]
    if twice := [each for each, count in Counter(everything).items() if count > 1]:
        raise MalformedRequestError(f"a request for {resource} names {_listed(twice)} twice, expected each id once")
    healthy = {device.id: device.healthy for device in edition.devices}
    if unknown := [each for each in everything if each not in healthy]:
        raise UnknownDeviceError(f"{resource} has no device {_listed(unknown)}: it was never advertised, or is gone")
    if broken := [each for each in everything if not healthy[each]]:
        reasons = {device.id: device.reason or "unhealthy" for device in edition.devices}
        told = "; ".join(f"device {each}: {reasons[each]}" for each in in_numeric_order(broken))
        raise UnhealthyDeviceError(f"{resource} cannot be given out: {told}")
    return [in_numeric_order(ids) for ids in containers]


def _listed(ids: Sequence[str]) -> str:
    return ", ".join(in_numeric_order(ids))
