"""Silicon of pods that vanished without having been seen to end.

A pod that ends in order is terminal before it is gone, and its containers are dead by then. One that is just gone was
probably deleted by force: the kubelet forgets it at once and gives its ids away while its processes run on for seconds
(kubernetes/kubernetes#104824). So its silicon is not offered until no process has the devices open. Where that cannot
be seen, or a process cannot be told to be the pod's, time has to do.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from neuron_plugin.allocation.ledger import Pod
from neuron_plugin.hardware.processes import Process
from neuron_plugin.plugin.standins import is_known
from neuron_plugin.topology.geometry import CoreMask, Geometry


@dataclass(frozen=True, slots=True)
class Users:
    """Who has which device open at a moment of the daemon's clock; ``complete`` when nobody can have been missed."""

    processes: Mapping[int, tuple[Process, ...]]
    complete: bool
    moment: float


class Evidence(enum.StrEnum):
    """Why something is suspect still, as metrics say it."""

    NONE_YET = "not_looked"
    """Nobody has looked since."""
    OWN_PROCESS = "process"
    """A process of the vanished pod has it open."""
    DOUBTFUL_PROCESS = "doubtful_process"
    """A process that may be the pod's has it open."""
    HIDDEN = "hidden"
    """Who has it open cannot be seen here."""


@dataclass(frozen=True, slots=True)
class Suspect:
    """What a vanished pod held. ``until`` is how long it stays suspect without evidence; ``seen`` says what there is.

    ``seen`` is empty before the first look.
    """

    pod: Pod
    mask: CoreMask
    since: float
    until: float
    seen: str = ""
    evidence: Evidence = Evidence.NONE_YET

    @property
    def reason(self) -> str:
        """Why it is not offered, in words for people."""
        whose = f"pod {self.pod}" if self.pod.name else "a pod"
        return f"left by {whose}, which vanished: {self.seen or 'not looked yet whether its processes run on'}"

    def after_look(self, geometry: Geometry, users: Users) -> Suspect | None:
        """What a look makes of it; None when it can be offered again."""
        if users.moment < self.since:
            return self
        opened = [
            (device, process)
            for device in geometry.devices_touched(self.mask)
            for process in users.processes.get(device, ())
            if process.uses
        ]
        own = [each for each in opened if is_of(each[1], self.pod)]
        doubtful = [each for each in opened if may_be_of(each[1], self.pod)]
        if own:
            return replace(self, seen=described(own), evidence=Evidence.OWN_PROCESS)
        if users.moment >= self.until or (users.complete and not doubtful):
            return None
        if doubtful:
            return replace(self, seen=described(doubtful), evidence=Evidence.DOUBTFUL_PROCESS)
        return replace(self, seen="whether its processes run on cannot be seen here", evidence=Evidence.HIDDEN)


@dataclass(frozen=True, slots=True)
class Quarantine:
    """All suspects of a node. ``seconds`` is how long one without evidence is kept."""

    seconds: float = 0.0
    suspects: tuple[Suspect, ...] = ()

    @property
    def mask(self) -> CoreMask:
        """Every core that is not to be offered."""
        mask = 0
        for suspect in self.suspects:
            mask |= suspect.mask
        return CoreMask(mask)

    def with_suspect(self, pod: Pod, mask: CoreMask, now: float, *, seconds: float | None = None) -> Quarantine:
        """Do not offer what a vanished pod held; ``seconds`` in place of the usual time without evidence."""
        if not mask:
            return self
        until = now + (self.seconds if seconds is None else seconds)
        others = tuple(suspect for suspect in self.suspects if suspect.pod.uid != pod.uid)
        return replace(self, suspects=(*others, Suspect(pod, mask, now, until)))

    def after_look(self, geometry: Geometry, users: Users) -> Quarantine:
        """Who is still suspect after a look; suspects of after the look's moment stay as they are."""
        looked = (suspect.after_look(geometry, users) for suspect in self.suspects)
        return replace(self, suspects=tuple(suspect for suspect in looked if suspect))

    def reason_for(self, mask: int) -> str:
        """Why cores of ``mask`` are not offered; empty when none of them is suspect."""
        return next((suspect.reason for suspect in self.suspects if suspect.mask & mask), "")

    def devices(self, geometry: Geometry) -> dict[int, str]:
        """The devices with suspect cores and why, as far as a look has confirmed it: what passes at once is no news."""
        seen = [suspect for suspect in self.suspects if suspect.seen]
        return {device: suspect.reason for suspect in seen for device in geometry.devices_touched(suspect.mask)}


def is_of(process: Process, pod: Pod) -> bool:
    """Whether a process is certainly the pod's."""
    return bool(process.pod_uid) and process.pod_uid == pod.uid


def may_be_of(process: Process, pod: Pod) -> bool:
    """Whether a process may be the pod's: it names no pod, or nobody knows the UID of this one."""
    return not process.pod_uid or not is_known(pod) or is_of(process, pod)


def described(opened: Iterable[tuple[int, Process]]) -> str:
    """Which process has which device open; empty for none."""
    by_process: dict[tuple[int, str], list[int]] = {}
    for device, process in opened:
        by_process.setdefault((process.pid, process.command), []).append(device)
    return "; ".join(
        f"process {pid} ({command or 'unknown'}) still has {', '.join(f'neuron{device}' for device in devices)} open"
        for (pid, command), devices in by_process.items()
    )
