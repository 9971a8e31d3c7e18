"""Placeholder pods, which make an autoscaler add a node for pods that wait for linked devices.

An autoscaler adds nodes for pods that kube-scheduler calls unschedulable. It sees no gated pod, and as it counts, it
would take one that lacks only links for a pod that fits. So for each kind of such pods there is one placeholder. It
asks for the same, has the lowest priority, and keeps off every node with a pod that was placed: kube-scheduler finds
no node for it, and an autoscaler makes one. It goes once it is bound, or no pod of its kind waits for links any more.

A placeholder's name follows from what it asks for, so the next leader finds those of the last one. Their owner is the
PriorityClass, which is there for them alone: when it is deleted, as by an uninstallation, so are they.
"""

from __future__ import annotations

import hashlib
import logging
from dataclasses import dataclass
from typing import NoReturn

import msgspec

from neuron_plugin.allocation import NeuronPod
from neuron_plugin.allocation.keys import DEMAND_LABEL, NODE_KEY
from neuron_plugin.allocation.pod import PodKind
from neuron_plugin.backoff import CLOCK, Clock
from neuron_plugin.cluster import (
    ApiError,
    ApiRequest,
    ApiResource,
    ApiServer,
    ClusterError,
    ObjectReference,
    Pod,
    Scope,
)
from neuron_plugin.cluster.api import JsonObject, send
from neuron_plugin.cluster.objects import ApiObject, pages
from neuron_plugin.cluster.pods import PODS
from neuron_plugin.gates.upkeep import Upkeep
from neuron_plugin.scheduling.events import about_pod, write_event
from neuron_plugin.scheduling.leadership import Readiness

DEMAND = "NeuronDemand"
"""The reason of the event on a pod for which a placeholder was made."""
MOST_PLACEHOLDERS = 10
"""At a time: each may bring a node."""
_PRIORITY_CLASSES = ApiResource("/apis/scheduling.k8s.io/v1", "priorityclasses", ApiObject)
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class DemandPodTimes:
    """Seconds. ``patience`` is how long a kind has to lack links: moves and preemption may help before.

    A placeholder that was bound is not made again for ``again``: its node may still be on its way to take Neuron pods.
    """

    tick: float = 2.0
    patience: float = 30.0
    again: float = 300.0
    request: float = 5.0


TIMES = DemandPodTimes()


@dataclass(frozen=True, slots=True)
class PlaceholderForm:
    """What all placeholders have in common.

    ``image`` is one whose entry point ends at once with ``--version``. A kubelet may start it before it is deleted.
    """

    namespace: str
    image: str
    priority_class: str


class DemandPods:
    """The placeholders of a cluster, kept by the leader."""

    def __init__(
        self,
        api: ApiServer,
        readiness: Readiness,
        upkeep: Upkeep,
        form: PlaceholderForm,
        *,
        instance: str,
        times: DemandPodTimes = TIMES,
        clock: Clock = CLOCK,
    ) -> None:
        self._api = api
        self._readiness = readiness
        self._upkeep = upkeep
        self._form = form
        self._instance = instance
        self._times = times
        self._clock = clock
        self._may_be_some = True
        self._since: dict[PodKind, float] = {}
        self._bound: dict[str, float] = {}
        self._manifests: dict[tuple[str, str], JsonObject | None] = {}
        """By UID and version of a pod that waits, a placeholder like it."""
        self._failure = ""

    async def run(self) -> NoReturn:
        """Look until cancelled."""
        while True:
            if not self._readiness.why_not:
                failure = ""
                try:
                    await self.look()
                except ClusterError as error:
                    failure = str(error)
                if failure and failure != self._failure:
                    _log.warning("placeholders not kept", extra={"error": failure})
                self._failure = failure
            await self._clock.sleep(self._times.tick)

    async def look(self) -> None:
        """Make the placeholders that are missing, and delete those that have done their work.

        Raises:
            ClusterError: the API server did not answer, or refused a write. The next look goes on.
        """
        lacking = self._upkeep.lack_links()
        if lacking is None:
            return
        now = self._clock.now()
        self._since = {kind: self._since.get(kind, now) for kind in lacking}
        due = {kind for kind, since in self._since.items() if now - since >= self._times.patience}
        if not (due or self._may_be_some):
            return
        scope = Scope(namespace=self._form.namespace, label_selector=DEMAND_LABEL)
        there: dict[str, Pod] = {}
        async for page in pages(self._api, PODS, scope, page_timeout_seconds=self._times.request):
            there |= {pod.name: pod for pod in page.records}
        in_order = sorted(lacking.items(), key=lambda entry: (self._since[entry[0]], entry[1].created, entry[1].uid))
        waiting = in_order[:MOST_PLACEHOLDERS]  # those that have waited for longest, so that none comes and goes
        self._manifests = {(pod.uid, pod.version): await self._placeholder_for(pod) for _, pod in waiting}
        wanted = {_name_of(made): (made, kind, pod) for kind, pod in waiting if (made := self._manifest_of(pod))}
        self._may_be_some = bool(there or due)
        for name, placeholder in there.items():
            if placeholder.node_name:
                self._bound[name] = now
            if (placeholder.node_name or name not in wanted) and not placeholder.terminating:
                await self._delete(placeholder)
        self._bound = {name: at for name, at in self._bound.items() if now - at < self._times.again}
        for name, (manifest, kind, pod) in wanted.items():
            if kind in due and name not in there and name not in self._bound:
                await self._create(manifest, pod)

    def _manifest_of(self, pod: NeuronPod) -> JsonObject | None:
        return self._manifests.get((pod.uid, pod.version))

    async def _placeholder_for(self, pod: NeuronPod) -> JsonObject | None:
        """A placeholder like a pod, which is read once; None if the pod is gone."""
        if known := self._manifest_of(pod):
            return known
        path = PODS.item(pod.reference.name, pod.reference.namespace)
        try:
            answer = await send(self._api, ApiRequest("GET", path), timeout_seconds=self._times.request)
        except ApiError as error:
            if error.missing:
                return None
            raise
        return placeholder(msgspec.json.decode(answer), self._form)

    async def _create(self, manifest: JsonObject, waiting: NeuronPod) -> None:
        path, name = PODS.collection(self._form.namespace), _name_of(manifest)
        look = ApiRequest("GET", _PRIORITY_CLASSES.item(self._form.priority_class))
        priority_class = _PRIORITY_CLASSES.decode(await send(self._api, look, timeout_seconds=self._times.request))
        owner = ObjectReference("PriorityClass", priority_class.name, priority_class.uid, "scheduling.k8s.io/v1")
        owned = {**_part(manifest, "metadata"), "ownerReferences": [msgspec.to_builtins(owner)]}
        request = ApiRequest("POST", path, body={**manifest, "metadata": owned})
        try:
            await send(self._api, request, timeout_seconds=self._times.request)
        except ApiError as error:
            if error.conflict:
                return  # made by a leader before us
            raise
        _log.info("placeholder made", extra={"pod": str(waiting.reference), "placeholder": name})
        note = f"Enough devices are free but not linked: {self._form.namespace}/{name} asks an autoscaler for a node."
        await write_event(self._api, about_pod(waiting.reference), DEMAND, note, self._instance, warning=False)

    async def _delete(self, placeholder: Pod) -> None:
        options: JsonObject = {"gracePeriodSeconds": 0, "preconditions": {"uid": placeholder.uid}}
        request = ApiRequest("DELETE", PODS.item(placeholder.name, placeholder.namespace), body=options)
        try:
            await send(self._api, request, timeout_seconds=self._times.request)
        except ApiError as error:
            if not (error.missing or error.conflict):
                raise
        _log.info("placeholder deleted", extra={"placeholder": placeholder.name, "node": placeholder.node_name})


def placeholder(pod: JsonObject, form: PlaceholderForm) -> JsonObject:
    """A pod that asks for the same as ``pod`` and may go to the same nodes, but to none with a pod that was placed."""
    asks = _part(pod, "spec")
    required = _part(_part(asks, "affinity"), "nodeAffinity").get("requiredDuringSchedulingIgnoredDuringExecution")
    placed = {
        "labelSelector": {"matchExpressions": [{"key": NODE_KEY, "operator": "Exists"}]},
        "namespaceSelector": {},
        "topologyKey": "kubernetes.io/hostname",
    }
    affinity: JsonObject = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [placed]}}
    if required:
        affinity["nodeAffinity"] = {"requiredDuringSchedulingIgnoredDuringExecution": required}
    spec: JsonObject = {
        "affinity": affinity,
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "priorityClassName": form.priority_class,
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": 0,
    }
    for key in ("nodeSelector", "tolerations", "schedulerName"):
        if key in asks:
            spec[key] = asks[key]
    for key in ("initContainers", "containers"):
        listed = asks.get(key)
        if isinstance(listed, list) and listed:
            spec[key] = [_container(container, form.image) for container in listed]
    digest = hashlib.sha256(msgspec.json.encode(spec, order="deterministic")).hexdigest()[:10]
    metadata = {"name": f"neuron-demand-{digest}", "namespace": form.namespace, "labels": {DEMAND_LABEL: "true"}}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def _container(asks: JsonObject, image: str) -> JsonObject:
    """A container that asks for the same and ends at once. One that is a sidecar counts as one."""
    amounts = {key: value for key, value in _part(asks, "resources").items() if key != "claims"}
    kept = {key: asks[key] for key in ("name", "restartPolicy") if asks.get(key)}
    return {**kept, "image": image, "args": ["--version"], "resources": amounts}


def _part(of: JsonObject, key: str) -> JsonObject:
    value = of.get(key)
    return value if isinstance(value, dict) else {}


def _name_of(manifest: JsonObject) -> str:
    return str(_part(manifest, "metadata")["name"])
