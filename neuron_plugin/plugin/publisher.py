"""Everything that the node daemon writes to the API server: one queue, filled from snapshots.

No call of the kubelet waits for it. A snapshot says what pods and node should say. A difference from the last queued
request goes into the queue, and replaces an unsent older request on its subject. A request without an answer is tried
again. A refusal is final, except "not permitted": rights may come after the daemon, so such a request is set aside and
tried again now and then.
"""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from http import HTTPStatus
from types import MappingProxyType

from neuron_plugin.allocation import Assignment, NodeInventory, PodReference, PodUid, Rejection
from neuron_plugin.allocation.event_reasons import EventReason
from neuron_plugin.allocation.inventory import write_inventory
from neuron_plugin.allocation.keys import ALLOC_TIME_KEY, INVENTORY_KEY, UNHEALTHY_LABEL
from neuron_plugin.backoff import CLOCK, NEVER, Backoff, Clock, every
from neuron_plugin.cluster import ApiError, ApiRequest, ApiServer, ClusterError, Node, ObjectReference
from neuron_plugin.cluster.api import send
from neuron_plugin.cluster.writes import create_event, describe_node, describe_pod, report_node_condition, utc_now
from neuron_plugin.hardware import GENERATIONS
from neuron_plugin.plugin.snapshot import Snapshot
from neuron_plugin.plugin.writes import PodEvent, PodWrite, pod_events, pod_writes, wrongly_labelled
from neuron_plugin.wording import named

logger = logging.getLogger(__name__)

REPORTER = "neuron-plugin.io/plugin"
"""The reporting controller of all events."""

MOST_NOT_PERMITTED = 256
"""Where events are not wanted they would gather for ever; the oldest are dropped."""
MOST_AT_ONCE = 8
"""Requests that are under way together. Corrections of pods that swapped their sets should land at one moment: between
them two pods seem to have the same devices, and the extender closes the node."""
MOST_EVENTS = 4096
"""Events remembered, so that each is written once."""

_NOT_PERMITTED = frozenset({401, 403})


@dataclass(frozen=True, slots=True)
class WriteTimes:
    """Seconds. ``timeout`` ends a request. Pauses after one without an answer grow from the first to the longest.

    Pauses between two rounds of requests that were not permitted grow likewise.
    """

    timeout: float = 10.0
    first_pause: float = 0.2
    longest_pause: float = 30.0
    first_permission: float = 5.0
    longest_permission: float = 300.0


TIMES = WriteTimes()


class WriteQueue:
    """Requests by subject, oldest subject first."""

    def __init__(self, clock: Clock = CLOCK, times: WriteTimes = TIMES) -> None:
        self._times = times
        self._unsent: dict[str, ApiRequest] = {}
        self._not_permitted: dict[str, ApiRequest] = {}
        self._reported: dict[str, None] = {}
        self._again_at = 0.0
        self._permission_backoff = Backoff(
            clock.chance, first_seconds=times.first_permission, longest_seconds=times.longest_permission
        )
        self._filled = asyncio.Event()
        self._backoff = Backoff(clock.chance, first_seconds=times.first_pause, longest_seconds=times.longest_pause)

    def put(self, subject: str, request: ApiRequest) -> None:
        """Have ``request`` sent; an unsent one on the same subject is out of date now."""
        self._not_permitted.pop(subject, None)
        self._unsent[subject] = request
        self._filled.set()

    def __len__(self) -> int:
        return len(self._unsent) + len(self._not_permitted)

    async def run(self, api: ApiServer) -> None:
        """Send what there is and what comes, until cancelled."""
        clock = asyncio.get_running_loop().time

        async def look() -> None:
            if self._not_permitted and clock() >= self._again_at:
                self._unsent, self._not_permitted = {**self._not_permitted, **self._unsent}, {}
            while self._unsent:
                first = list(self._unsent.items())[:MOST_AT_ONCE]
                if all(await asyncio.gather(*(self._send(api, *write) for write in first))):
                    self._backoff.reset()
                else:
                    await asyncio.sleep(self._backoff.next_seconds())

        await every(lambda: self._again_at - clock() if self._not_permitted else NEVER, look, self._filled)

    async def _send(self, api: ApiServer, subject: str, request: ApiRequest) -> bool:
        """Send a request; False when it has to be tried again, which it is after the others."""
        try:
            await send(api, request, timeout_seconds=self._times.timeout)
        except ClusterError as error:
            status = error.status if isinstance(error, ApiError) else HTTPStatus.INTERNAL_SERVER_ERROR
            if status >= HTTPStatus.INTERNAL_SERVER_ERROR or status == HTTPStatus.TOO_MANY_REQUESTS:
                logger.debug("not written yet", extra={"subject": subject, "error": str(error)})
                self._unsent[subject] = self._unsent.pop(subject)
                return False
            if status in _NOT_PERMITTED:
                if subject not in self._reported:
                    self._reported[subject] = None
                    fields = {"subject": subject, "error": str(error)}
                    logger.warning("write not permitted, tried again later", extra=fields)
                if not self._not_permitted:
                    self._again_at = asyncio.get_running_loop().time() + self._permission_backoff.next_seconds()
                self._not_permitted[subject] = self._unsent.pop(subject)
                if len(self._not_permitted) > MOST_NOT_PERMITTED:
                    del self._not_permitted[next(iter(self._not_permitted))]
                if len(self._reported) > MOST_NOT_PERMITTED:
                    del self._reported[next(iter(self._reported))]
                return True
            gone = isinstance(error, ApiError) and (error.missing or error.other_object)
            level = logging.DEBUG if gone else logging.WARNING
            logger.log(level, "the API server refused a write", extra={"subject": subject, "error": str(error)})
        else:
            if subject in self._reported:
                del self._reported[subject]
                self._permission_backoff.reset()
                logger.info("write permitted now", extra={"subject": subject})
        if self._unsent.get(subject) is request:
            del self._unsent[subject]
        return True


@dataclass(frozen=True, slots=True)
class _Correction:
    """A pod's assignment before its first correction, the latest correction in words, and whether it was reported."""

    first_assignment: Assignment | Rejection | None
    text: str = ""
    reported: bool = False


class Publisher:
    """Brings the API server's objects to what a snapshot says. ``queue`` may be run only while there is a client."""

    def __init__(
        self,
        node_name: str,
        now_ns: Callable[[], int] = time.time_ns,
        *,
        label_unhealthy: bool = False,
        label_present: bool = False,
    ) -> None:
        """``label_unhealthy``: pods that have an unhealthy device get a label; ``label_present``: so does the node."""
        self.queue = WriteQueue()
        self._more_labels = {PRESENT_LABEL: "true"} if label_present else {}
        self._label_unhealthy = label_unhealthy
        self._node_name = node_name
        self._now_ns = now_ns
        self._inventory: NodeInventory | None = None
        self._on_node: dict[str, ApiRequest] = {}
        self._conditions: dict[str, tuple[bool | None, str, datetime]] = {}
        self._on_pods: dict[PodUid, Mapping[str, str | None]] = {}
        self._corrections: dict[PodUid, _Correction] = {}
        self._events: OrderedDict[PodEvent, None] = OrderedDict()
        self._unhealthy: Mapping[PodReference, Mapping[int, str]] = {}
        self._labels: dict[PodUid, str | None] = {}

    def publish(self, snapshot: Snapshot) -> list[PodEvent]:
        """Queue what the API server does not know yet; which pods have now got another set than they came with."""
        inventory = snapshot.published_inventory
        if inventory != self._inventory:
            self._inventory = inventory
            self.write_on_node("inventory", publication(self._node_name, inventory, self._more_labels))
        writes = pod_writes(snapshot)
        wanted: dict[PodUid, Mapping[str, str | None]] = {}
        for write in writes:
            wanted[write.pod.uid] = write.annotations
            if self._on_pods.get(write.pod.uid) != write.annotations:
                annotations = dict(write.annotations)
                if annotations.get(ALLOC_TIME_KEY) == "0":
                    annotations[ALLOC_TIME_KEY] = str(self._now_ns())
                pod = write.pod
                request = describe_pod(namespace=pod.namespace, name=pod.name, uid=pod.uid, annotations=annotations)
                self.queue.put(_subject("assignment", pod), request)
        self._on_pods = wanted
        self.report(pod_events(snapshot))
        corrections = self._kept_corrections(snapshot, writes)
        for event in corrections:
            self._write_event(event, warning=False)
        self._report_unhealthy(snapshot)
        if self._label_unhealthy:
            before, self._labels = self._labels, {}
            for neuron_pod in wrongly_labelled(snapshot):
                pod, value = neuron_pod.reference, None if neuron_pod.life.labelled_unhealthy else "true"
                self._labels[pod.uid] = value
                if before.get(pod.uid, "unset") != value:
                    labels = {UNHEALTHY_LABEL: value}
                    request = describe_pod(namespace=pod.namespace, name=pod.name, uid=pod.uid, labels=labels)
                    self.queue.put(_subject("label", pod), request)
        return corrections

    def _kept_corrections(self, snapshot: Snapshot, writes: Iterable[PodWrite]) -> list[PodEvent]:
        """Each pod once that keeps another set than it came with: a set may change hands before a pod is served."""
        pods, events = snapshot.inputs.pods.pods, []
        for write in writes:
            if write.correction:
                uid, assigned = write.pod.uid, pods[write.pod.uid].assignment
                before = self._corrections.get(uid, _Correction(assigned))
                self._corrections[uid] = replace(before, text=write.correction)
        self._corrections = {uid: correction for uid, correction in self._corrections.items() if uid in pods}
        for uid, correction in self._corrections.items():
            pod, first = pods[uid], correction.first_assignment
            if correction.reported or not (isinstance(pod.assignment, Assignment) and pod.assignment.allocated):
                continue
            self._corrections[uid] = replace(correction, reported=True)
            if not isinstance(first, Assignment) or first.containers != pod.assignment.containers:
                events.append(PodEvent(pod.reference, EventReason.CORRECTED, correction.text))
        return events

    def _report_unhealthy(self, snapshot: Snapshot) -> None:
        """Write an event on each pod, once, when devices of it become unhealthy or healthy again.

        The reason may change all the time, as the count of an error does: that is no news for the pod.
        """
        before, self._unhealthy = self._unhealthy, snapshot.unhealthy_devices
        for pod, reasons in self._unhealthy.items():
            if became := reasons.keys() - before.get(pod, {}).keys():
                text = "; ".join(
                    f"neuron device {device} of this pod is unhealthy: {reasons[device]}" for device in sorted(became)
                )
                self._write_event(
                    PodEvent(pod, EventReason.DEVICE_UNHEALTHY, f"{text}. The pod keeps it"), warning=True
                )
        for pod, reasons in before.items():
            again = reasons.keys() - snapshot.inventory.unhealthy.keys()
            if again and pod.uid in snapshot.inputs.pods.pods:
                verb = "is" if len(again) == 1 else "are"
                text = f"neuron {named('device', again)} of this pod {verb} healthy again"
                self._write_event(PodEvent(pod, EventReason.DEVICE_HEALTHY, text), warning=False)

    def report(self, events: Iterable[PodEvent]) -> None:
        """Log each event and write it on its pod, once."""
        for event in events:
            if event in self._events:
                continue
            self._events[event] = None
            if len(self._events) > MOST_EVENTS:
                self._events.popitem(last=False)
            self._write_event(event, warning=True)

    def _write_event(self, event: PodEvent, *, warning: bool) -> None:
        level = logging.WARNING if warning else logging.INFO
        logger.log(level, event.text, extra={"reason": event.reason, "pod": str(event.pod)})
        self.write_pod_event(event, action="Allocating", warning=warning)

    def write_pod_event(self, event: PodEvent, *, action: str, warning: bool = False) -> None:
        """Have an event written on a pod."""
        pod = event.pod
        about = ObjectReference("Pod", pod.name, pod.uid, "v1", pod.namespace)
        subject = f"{_subject(f'event {event.reason}', pod)}: {event.text}"
        self._write_event_about(about, subject, event.reason, event.text, action, warning=warning)

    def write_node_event(self, reason: str, text: str, *, action: str, warning: bool, subject: str = "") -> None:
        """Have an event written on the node. It is found under the node's name as UID, as the kubelet writes its own.

        ``subject``: of unsent events on the same subject only the last one is written.
        """
        about = ObjectReference("Node", self._node_name, self._node_name, "v1")
        self._write_event_about(about, subject or f"event {reason}: {text}", reason, text, action, warning=warning)

    def _write_event_about(
        self, about: ObjectReference, subject: str, reason: str, note: str, action: str, *, warning: bool
    ) -> None:
        request = create_event(
            about,
            reason=reason,
            note=note,
            action=action,
            reporter=REPORTER,
            instance=self._node_name,
            now=utc_now(),
            warning=warning,
        )
        self.write(subject, request)

    def write(self, subject: str, request: ApiRequest) -> None:
        """Have a request sent; an unsent one on the same subject is out of date."""
        self.queue.put(subject, request)

    def write_on_node(self, subject: str, request: ApiRequest) -> None:
        """Have something written on the Node object, and again when the object was created again."""
        self._on_node[subject] = request
        self.queue.put(subject, request)

    def write_condition(self, condition: str, *, status: bool | None, reason: str, message: str) -> None:
        """Have a condition written on the Node object if its status or message has changed; None is Unknown."""
        last_status, last_message, since = self._conditions.get(condition, (None, "", None))
        if since and (last_status, last_message) == (status, message):
            return
        now = utc_now()
        since = since if since and last_status == status else now
        self._conditions[condition] = status, message, since
        request = report_node_condition(
            self._node_name,
            condition=condition,
            status=status,
            reason=reason,
            message=message,
            since=since,
            now=now,
        )
        self.write_on_node(f"condition {condition}", request)

    def write_on_node_again(self) -> None:
        """Write everything on the Node object once more: it was created again, or may have been."""
        for subject, request in self._on_node.items():
            self.queue.put(subject, request)


def _subject(what: str, pod: PodReference) -> str:
    """The subject of a write, in the log and as its key. Names are used again, so the UID is part of it."""
    return f"{what} of pod {pod} with UID {pod.uid}"


# What the Node object says.

LABEL_PREFIX = "neuron-plugin.io"
VENDOR_LABEL_PREFIX = "neuron.amazonaws.com"
"""The vendor's plugin (from 2.30) sets the UltraServer's ids under this prefix; jobs have affinities on them."""

PRESENT_LABEL = f"{VENDOR_LABEL_PREFIX}/present"
"""On a node that has Neuron devices: "true". Neuron Observer (SDK 2.33) runs where it is, and expects it of the device
plugin; others select by it, too, so it is never removed."""

_ULTRASERVER_LABELS = {
    "ultraserver-mode": "mode",
    "ultraserver-server-id-2": "serverId2",
    "ultraserver-node-id-2": "nodeId2",
    "ultraserver-server-id-4": "serverId4",
    "ultraserver-node-id-4": "nodeId4",
}
_HARDWARE_LABELS = ("family", "device-name", "driver-version", "logical-core-size", "physical-core-count")
PUBLISHED_LABELS = frozenset(
    [f"{LABEL_PREFIX}/{name}" for name in (*_HARDWARE_LABELS, *_ULTRASERVER_LABELS)]
    + [f"{VENDOR_LABEL_PREFIX}/{name}" for name in _ULTRASERVER_LABELS]
)
"""The labels that this plugin sets on a node, and removes with its inventory."""

_NOT_IN_LABELS = re.compile(r"[^A-Za-z0-9._-]")
_LONGEST_LABEL = 63
"""Of a label's value (apimachinery/pkg/util/validation)."""


def node_labels(inventory: NodeInventory) -> dict[str, str | None]:
    """Labels of a node's hardware; one whose value is not known is removed."""
    generation = GENERATIONS.get(inventory.device_name)
    physical_cores = inventory.physical_cores_per_device * len(inventory.listed)
    hardware = {
        "family": generation.family.lower() if generation else "",
        "device-name": inventory.device_name,
        "driver-version": inventory.driver_version,
        "logical-core-size": str(inventory.logical_core_size),
        "physical-core-count": str(physical_cores or ""),
    }
    # The vendor joins modes by ``_``: a comma may not stand in a label.
    server = {label: inventory.ultraserver.get(key, "").replace(",", "_") for label, key in _ULTRASERVER_LABELS.items()}
    texts = {f"{LABEL_PREFIX}/{name}": text for name, text in {**hardware, **server}.items()}
    texts |= {f"{VENDOR_LABEL_PREFIX}/{name}": text for name, text in server.items()}
    return {name: _NOT_IN_LABELS.sub("-", text)[:_LONGEST_LABEL].strip("._-") or None for name, text in texts.items()}


def publication(
    node_name: str, inventory: NodeInventory, more_labels: Mapping[str, str] = MappingProxyType({})
) -> ApiRequest:
    """The patch that makes the Node object say what the node has."""
    annotations: dict[str, str | None] = {INVENTORY_KEY: write_inventory(inventory)}
    return describe_node(node_name, annotations=annotations, labels={**node_labels(inventory), **more_labels})


def withdrawal(node: Node) -> ApiRequest | None:
    """The patch that removes everything ``publication`` writes; None where nothing of it is left."""
    labels = [name for name in node.labels if name in PUBLISHED_LABELS]
    if INVENTORY_KEY not in node.annotations and not labels:
        return None
    return describe_node(node.name, annotations={INVENTORY_KEY: None}, labels=dict.fromkeys(labels))
