"""Devices on which one pod after another fails: a core that never came back from its last pod.

After a teardown a core can stay unusable while every counter of the driver is well (aws-neuron-sdk#1338): each new
container there ends with an error within seconds, and the next pod is sent to the same place. Only the pods themselves
show it. A device is suspected if several pods in a row ended so on one of its cores, while containers of other pods run
on other devices of the node. An end that was requested, such as by a
deletion, is no failure.

A broken image fails in the same way, wherever it is put. So failures of one controller's pods alone do not count,
unless another pod of that controller runs well here.

Everything follows from the pods as they are; nothing is remembered here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from neuron_plugin.allocation import NeuronPod, Rejection
from neuron_plugin.allocation.pod import assigned_allocations
from neuron_plugin.hardware.health_signals import Observation, Signal
from neuron_plugin.plugin.snapshot import Snapshot
from neuron_plugin.topology import CoreMask, cores_in

QUICK_SECONDS = 30.0
"""A container that ends with an error within this time of its start did not start. Any other did."""
WINDOW_SECONDS = 600.0
"""What is older says nothing any more."""
MOST_NAMES = 3
"""Pods in one reason."""


@dataclass(frozen=True, slots=True)
class _Start:
    """A container's latest start: on which cores, whether it failed, and since when that is known.

    ``runs``: the container runs now, ``lasted`` for longer than a failed one does.
    """

    at: float
    pod: NeuronPod
    mask: CoreMask
    failed: bool
    runs: bool
    lasted: bool


def failed_starts(snapshot: Snapshot, now: float) -> Mapping[int, Observation]:
    """For each device of the node how many different pods in a row have failed to start on it; ``now`` in unix seconds.

    A device on which a container has started just now is left out: nothing is known of it until that container has
    failed or lasted. Pods whose devices are not known are left out.
    """
    starts = sorted(_starts(snapshot, now), key=lambda start: start.at)
    geometry, observations = snapshot.inventory.geometry, {}
    for device in snapshot.inventory.present:
        device_mask = geometry.devices_mask((device,))
        rows = [_row(core, starts) for core in cores_in(device_mask)]
        row = max(rows, key=len)
        if not any(start.runs for start in row):
            elsewhere = [start.pod for start in starts if start.runs and start.lasted and not start.mask & device_mask]
            observations[device] = _observed([start.pod for start in row], elsewhere)
    return observations


def _starts(snapshot: Snapshot, now: float) -> Iterable[_Start]:
    pods, geometry = snapshot.inputs.pods, snapshot.inventory.geometry
    for pod in (*pods.past, *pods.pods.values()):
        assigned = assigned_allocations(pod, geometry) if pod.life.runs else ()
        if isinstance(assigned, Rejection):
            continue
        for allocation in assigned:
            for run in pod.life.runs:
                if run.container != allocation.container:
                    continue
                lasted = (run.ended or now) - run.started > QUICK_SECONDS
                failed = run.failed and not lasted
                if not failed or now - run.ended <= WINDOW_SECONDS:
                    runs = not run.ended and pod.uid in pods.pods
                    yield _Start(run.ended if failed else run.started, pod, allocation.mask, failed, runs, lasted)


def _row(core: int, starts: Iterable[_Start]) -> list[_Start]:
    """The failed starts in a row on one core, one of each pod; and after them one that is not decided yet."""
    here = [start for start in starts if start.mask >> core & 1]
    failed = {start.pod.uid for start in here if start.failed}
    row: dict[str, _Start] = {}
    for start in here:
        if start.failed or (start.runs and not start.lasted and row):
            row = {**row, start.pod.uid: start}
        elif start.pod.uid not in failed:  # else it is an init container's, and another container has failed
            row = {}
    return list(row.values())


def _observed(row: Sequence[NeuronPod], elsewhere: Sequence[NeuronPod]) -> Observation:
    """Failures in a row on one device, if they say something about it, given the pods that run on others."""
    makers = {pod.controller or pod.uid for pod in row}
    same_runs = any(pod.controller and pod.controller in makers for pod in elsewhere)
    counted = row if elsewhere and (len(makers) > 1 or same_runs) else ()
    named = ", ".join(str(pod.reference) for pod in counted[-MOST_NAMES:])
    where = f" of different pods in a row ({named}) while other pods run" if counted else ""
    return Observation(Signal.FAILED_STARTS, "failed start", count=len(counted), where=where)
