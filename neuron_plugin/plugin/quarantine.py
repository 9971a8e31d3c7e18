"""Silicon of pods that vanished without having been seen to end.

A pod that ends in order is terminal before it is gone, and its containers are dead by then. One that is just gone was
probably deleted by force: the kubelet forgets it at once and gives its ids away while its processes run on for seconds
(kubernetes/kubernetes#104824). So its silicon is not offered until no process has the devices open. Where that cannot
be seen, or a process cannot be told to be the pod's, time has to do.

Nobody sees a pod vanish while the daemon is away. So at its start what pods have open that nobody knows is suspect,
too: such a pod is a stranger until the API server tells whether it lives (a monitor, say) or is gone.
"""

from __future__ import annotations

import enum
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import reduce
from itertools import takewhile
from operator import or_

from neuron_plugin.allocation import PodReference, PodUid
from neuron_plugin.hardware import Process
from neuron_plugin.plugin.standins import is_known
from neuron_plugin.topology import CoreMask, Geometry

_LONGEST_PROGRAM = 60


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

    ``seen`` is empty before the first look. ``stranger``: whether the pod has vanished at all is not known yet, so its
    processes are no evidence.
    """

    pod: PodReference
    mask: CoreMask
    since: float
    until: float
    seen: str = ""
    evidence: Evidence = Evidence.NONE_YET
    stranger: bool = False

    @property
    def whose(self) -> str:
        """The pod, for people."""
        if self.pod.name:
            return f"pod {self.pod}"
        return f"a pod with the UID {self.pod.uid}" if is_known(self.pod) else "a pod"

    @property
    def reason(self) -> str:
        """Why it is not offered, in words for people."""
        fate = "of which nothing is known yet" if self.stranger else "which vanished"
        return f"left by {self.whose}, {fate}: {self.seen or 'not looked yet whether its processes run on'}"

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
        if own and not self.stranger:
            return replace(self, seen=described(own), evidence=Evidence.OWN_PROCESS)
        if users.moment >= self.until or (users.complete and not doubtful):
            return None
        if doubtful:
            return replace(self, seen=described(doubtful), evidence=Evidence.DOUBTFUL_PROCESS)
        return replace(self, seen="whether its processes run on cannot be seen here", evidence=Evidence.HIDDEN)

    def after_roll_call(self, live: Collection[str], unsettled: Collection[str]) -> Suspect | None:
        """What the UIDs of all live pods make of a stranger; None when it has nothing to do with ours.

        ``unsettled`` pods ask for Neuron, and it is not known yet what they hold. A static pod's UID is a bare hash,
        under which the API server may not have it: it stays a stranger.
        """
        uid = self.pod.uid
        if not self.stranger or uid in unsettled:
            return self
        if uid in live:
            return None
        return replace(self, stranger=False, evidence=Evidence.OWN_PROCESS) if "-" in uid else self


@dataclass(frozen=True, slots=True)
class Quarantine:
    """All suspects of a node. ``seconds`` is how long one without evidence is kept."""

    seconds: float = 0.0
    suspects: tuple[Suspect, ...] = ()

    @property
    def mask(self) -> CoreMask:
        """Every core that is not to be offered."""
        return CoreMask(_union(suspect.mask for suspect in self.suspects))

    def with_suspect(
        self, pod: PodReference, mask: CoreMask, now: float, *, seconds: float | None = None, stranger: bool = False
    ) -> Quarantine:
        """Do not offer what a vanished pod held; ``seconds`` in place of the usual time without evidence.

        What of the same pod is suspect already stays so: its containers' sets may come one by one.
        """
        if not mask:
            return self
        until = now + (self.seconds if seconds is None else seconds)
        others = tuple(suspect for suspect in self.suspects if suspect.pod.uid != pod.uid)
        whole = mask | _union(suspect.mask for suspect in self.suspects if suspect.pod.uid == pod.uid)
        return replace(self, suspects=(*others, Suspect(pod, CoreMask(whole), now, until, stranger=stranger)))

    def with_strangers(self, geometry: Geometry, users: Users, used: int, known: Collection[str]) -> Quarantine:
        """Do not offer what pods other than ``known`` ones have open, as far as no known pod holds it (``used``).

        What runs outside of pods is the host's own business: a monitor, a person.
        """
        quarantine = self
        for uid, mask in _opened_by_pods(geometry, users).items():
            if uid not in known:
                left = CoreMask(mask & ~used)
                quarantine = quarantine.with_suspect(
                    PodReference(PodUid(uid), "", ""), left, users.moment, stranger=True
                )
        return quarantine.after_look(geometry, users)

    def after_roll_call(self, live: Collection[str], unsettled: Collection[str]) -> Quarantine:
        """Who is still suspect once the UIDs of all live pods are known."""
        called = (suspect.after_roll_call(live, unsettled) for suspect in self.suspects)
        return replace(self, suspects=tuple(suspect for suspect in called if suspect))

    def after_look(self, geometry: Geometry, users: Users) -> Quarantine:
        """Who is still suspect after a look; suspects of after the look's moment stay as they are."""
        looked = (suspect.after_look(geometry, users) for suspect in self.suspects)
        return replace(self, suspects=tuple(suspect for suspect in looked if suspect))

    def proves(self, geometry: Geometry, users: Users, mask: int) -> bool:
        """Whether a vanished pod's process has one of these whole devices open, so that they were that pod's."""
        vanished = {suspect.pod.uid for suspect in self.suspects if suspect.evidence is Evidence.OWN_PROCESS}
        return any(
            process.uses and process.pod_uid in vanished
            for device in geometry.whole_devices(mask)
            for process in users.processes.get(device, ())
        )

    def reason_for(self, mask: int) -> str:
        """Why cores of ``mask`` are not offered; empty when none of them is suspect."""
        return next((suspect.reason for suspect in self.suspects if suspect.mask & mask), "")

    def devices(self, geometry: Geometry) -> dict[int, str]:
        """The devices with suspect cores and why, as far as that is confirmed: what passes at once is no news."""
        seen = [suspect for suspect in self.suspects if suspect.seen and not suspect.stranger]
        return {device: suspect.reason for suspect in seen for device in geometry.devices_touched(suspect.mask)}


def is_of(process: Process, pod: PodReference) -> bool:
    """Whether a process is certainly the pod's."""
    return bool(process.pod_uid) and process.pod_uid == pod.uid


def may_be_of(process: Process, pod: PodReference) -> bool:
    """Whether a process may be the pod's: it names no pod, or nobody knows the UID of this one."""
    return not process.pod_uid or not is_known(pod) or is_of(process, pod)


def _union(masks: Iterable[int]) -> int:
    return reduce(or_, masks, 0)


def _opened_by_pods(geometry: Geometry, users: Users) -> dict[str, int]:
    """The cores of the devices that each pod's processes use, by the UID that their cgroup names."""
    masks: dict[str, int] = {}
    for device, processes in users.processes.items():
        for process in processes:
            if process.uses and process.pod_uid:
                masks[process.pod_uid] = masks.get(process.pod_uid, 0) | geometry.devices_mask((device,))
    return masks


def described(opened: Iterable[tuple[int, Process]]) -> str:
    """Which process has which device open; empty for none."""
    by_process: dict[tuple[int, str], list[int]] = {}
    for device, process in opened:
        by_process.setdefault((process.pid, _program(process.command)), []).append(device)
    return "; ".join(
        f"process {pid} ({program or 'unknown'}) still has {', '.join(f'neuron{device}' for device in devices)} open"
        for (pid, program), devices in by_process.items()
    )


def _program(command: str) -> str:
    """What of a command line may stand in the node's annotation: options may be secret, and long."""
    return " ".join(takewhile(lambda word: not word.startswith("-"), command.split()))[:_LONGEST_PROGRAM]
