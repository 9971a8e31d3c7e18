"""Devices on which one pod after another fails: a core that never came back from its last pod.

After a teardown a core can stay unusable while every counter of the driver is well (aws-neuron-sdk#1338): each new
container there ends with an error within seconds, and the next pod is sent to the same place. What tells is the pods
themselves. A device is suspected where the last containers, of so many different pods in a row, ended so, while
containers of other pods run on other devices of the node.

A broken image fails in the same way, wherever it is put. So failures of one controller's pods alone do not count,
unless another pod of that controller runs well here.

Everything follows from the pods as they are; nothing is remembered here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from neuron_plugin.allocation import NeuronPod, Rejection
from neuron_plugin.allocation.pod import assigned_allocations
from neuron_plugin.hardware.health_signals import Observation, Signal
from neuron_plugin.plugin.snapshot import Snapshot

MOST_NAMES = 3
"""Pods in one reason."""


@dataclass(frozen=True, slots=True)
class StartRules:
    """A container that ends with an error within ``quick_seconds`` of its start did not start.

    One that ran longer did. What is older than ``window_seconds`` says nothing any more.
    """

    quick_seconds: float
    window_seconds: float


@dataclass(frozen=True, slots=True)
class _Start:
    """A start that is decided: when, of which pod, on which devices, and whether it failed."""

    at: float
    pod: NeuronPod
    devices: frozenset[int]
    failed: bool


def failed_starts(snapshot: Snapshot, rules: StartRules, now: float) -> Mapping[int, Observation]:
    """For each device of the node how many different pods in a row have failed to start on it; ``now`` in unix seconds.

    Pods whose devices are not known are left out.
    """
    starts = sorted(_starts(snapshot, rules, now), key=lambda start: start.at)
    starts = [start for start in starts if not start.failed or now - start.at <= rules.window_seconds]
    running = [start for start in starts if not start.failed and _runs(start.pod)]
    return {device: _observed(device, starts, running) for device in snapshot.inventory.present}


def _starts(snapshot: Snapshot, rules: StartRules, now: float) -> Iterable[_Start]:
    pods, geometry = snapshot.inputs.pods, snapshot.inventory.geometry
    for pod in (*pods.past, *pods.pods.values()):
        assigned = assigned_allocations(pod, geometry) if pod.runs else ()
        if isinstance(assigned, Rejection):
            continue
        for allocation in assigned:
            devices = frozenset(map(int, geometry.devices_touched(allocation.mask)))
            for run in pod.runs:
                if run.container != allocation.container:
                    continue
                lasted = (run.ended or now) - run.started
                if lasted > rules.quick_seconds:
                    yield _Start(run.started + rules.quick_seconds, pod, devices, failed=False)
                elif run.failed:
                    yield _Start(run.ended, pod, devices, failed=True)


def _runs(pod: NeuronPod) -> bool:
    return any(not run.ended for run in pod.runs)


def _observed(device: int, starts: Iterable[_Start], running: Iterable[_Start]) -> Observation:
    """The failures in a row on one device, if they say something about it."""
    row: dict[str, NeuronPod] = {}
    for start in starts:
        if device in start.devices:
            row = {**row, start.pod.uid: start.pod} if start.failed else {}
    elsewhere = [start.pod for start in running if device not in start.devices]
    makers = {pod.controller or pod.uid for pod in row.values()}
    same_runs = any(pod.controller and pod.controller in makers for pod in elsewhere)
    counted = row if elsewhere and (len(makers) > 1 or same_runs) else {}
    names = [str(pod.reference) for pod in counted.values()]
    named = ", ".join(names[-MOST_NAMES:])
    where = f" of different pods in a row ({named}) while other pods run" if counted else ""
    return Observation(Signal.FAILED_STARTS, "failed start", count=len(counted), where=where)
