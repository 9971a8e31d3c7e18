"""The node daemon's line to the API server: this node's pods in; assignments, inventory and events out.

Nothing that serves a container waits for it. While the API server is away the node goes on with what it knows, and
what it wants to say waits in the outbox.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Collection

from neuron_plugin.allocation import ASSIGNMENT_KEYS, Holding, PodReference
from neuron_plugin.cluster import (
    ApiRequest,
    ApiServer,
    ClusterError,
    ConnectionSettingsError,
    KubernetesApi,
    ObjectReference,
    annotate_pod,
    connect,
    create_event,
    utc_now,
)
from neuron_plugin.plugin.annotate import Annotations, confirmed_annotations, inherited_annotations
from neuron_plugin.plugin.machine import Machine
from neuron_plugin.plugin.node import NodeState
from neuron_plugin.plugin.node_lease import LeaseTimes, NodeLease
from neuron_plugin.plugin.outbox import Outbox
from neuron_plugin.plugin.pod_watch import PodReflector, follow_pods, pod_uids, take_stock
from neuron_plugin.plugin.pods import NodePod
from neuron_plugin.plugin.publish import publication
from neuron_plugin.plugin.report import REPORTER, Reporter
from neuron_plugin.plugin.settings import PluginSettings
from neuron_plugin.plugin.witness import Witness

logger = logging.getLogger(__name__)

CONNECT_SECONDS = 10.0
"""For loading the client and its settings, once; 0.3 s on an idle machine, 3 s seen on a busy one."""
RETRY_SECONDS = 10.0
"""Between two looks for usable API server settings: a service account's files may come late."""
REPEAT_SECONDS = 600.0
"""Between two times the node is told again what it is where no Lease tells that it was made anew."""


class ClusterLink:
    """Connects when ``run``; everything else may be called before and meanwhile, and never waits but ``look_again``."""

    def __init__(
        self,
        settings: PluginSettings,
        state: NodeState,
        on_pod: Callable[[], None],
        *,
        witness: Witness,
        serving: Callable[[], bool],
    ) -> None:
        """``on_pod`` is called when a pod of this node came or changed; the Lease is renewed while ``serving``."""
        self._settings = settings
        self._state = state
        self._on_pod = on_pod
        self._outbox = Outbox()
        self._api: KubernetesApi | None = None
        self._pods: PodReflector | None = None
        self._tried = asyncio.Event()
        self._witness = witness
        self._described: Machine | None = None
        self._of_node: dict[str, ApiRequest] = {}
        self._lease = NodeLease(
            settings.lease_namespace,
            settings.node_name,
            LeaseTimes(settings.lease_duration_seconds, settings.lease_renew_seconds),
            serving=serving,
            on_new_node=self._tell_of_node_again,
        )
        self.report = Reporter(self.send_event)

    @property
    def unsent(self) -> int:
        """How many requests wait for the API server."""
        return self._outbox.unsent

    @property
    def age_seconds(self) -> float | None:
        """How long ago the API server was last heard of; None before the first connection."""
        return self._pods.age_seconds() if self._pods else None

    def serving_began(self) -> None:
        """The kubelet has begun to follow a resource: the cluster may know at once."""
        self._lease.notify()

    async def serving_ends(self) -> bool:
        """The plugin is about to stop: no more pods for this node. Whether the cluster knows.

        Takes as long as ``node_lease`` allows, at most.
        """
        if self._api is None or not self._settings.node_lease:
            return False
        return await self._lease.give_up(self._api)

    async def run(self) -> None:
        """Connect, then keep this node's pods and the outbox going until cancelled."""
        try:
            async with await self._connect() as api:
                self._api = api
                name, counts = self._settings.node_name, self._witness.counts
                self._pods = follow_pods(api, name, self._state, self.report, self._on_pod, counts)
                self._tried.set()
                await self._run_with(api, self._pods)
        finally:
            self._api = self._pods = None
            self._tried.set()

    async def _run_with(self, api: ApiServer, pods: PodReflector) -> None:
        async with asyncio.TaskGroup() as tasks:
            if self._settings.node_lease:
                tasks.create_task(self._lease.run(api), name="lease")
            else:
                tasks.create_task(self._repeat(), name="what the node says")
            tasks.create_task(pods.run(), name="pods")
            tasks.create_task(take_stock(pods, self._state), name="all pods")
            tasks.create_task(self._outbox.run(api), name="outbox")

    async def look_again(self) -> None:
        """Take in this node's pods as the API server knows them now; give up quietly at the decision deadline.

        A daemon offers devices before its client is loaded, and the kubelet may ask in between. Decisions would be
        missed then, and what only the pods' own annotations tell (the kubelet lost its record, or lists no init
        containers) would be given twice: so the first of these calls waits longer.
        """
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                await self._tried.wait()
            if self._pods:
                await self._pods.list_consistently(self._settings.decision_deadline_seconds)
        except (ClusterError, TimeoutError) as error:
            why = str(error) or "not connected yet"
            logger.warning("choosing without a look at the API server", extra={"why": why})

    async def live_pods(self) -> Collection[str] | None:
        """The UIDs of all pods of this node, once those that ask for Neuron are known; None without an answer."""
        if self._api is None or self._pods is None or not self._pods.synced.is_set():
            return None
        try:
            return await pod_uids(self._api, self._settings.node_name, self._settings.decision_deadline_seconds)
        except ClusterError as error:
            logger.debug("asking again which pods live", extra={"why": str(error)})
            return None

    def publish(self, machine: Machine) -> None:
        """Have the node say what the machine is, if that is news."""
        if machine is self._described:
            return  # this is asked at every change of who holds what
        self._described = machine
        request = publication(self._settings.node_name, machine)
        if request != self._of_node.get("inventory"):
            self.tell_of_node("inventory", request)

    def tell(self, subject: str, request: ApiRequest) -> None:
        """Have a request sent; an unsent one on the same subject is out of date."""
        self._outbox.put(subject, request)

    def tell_of_node(self, subject: str, request: ApiRequest) -> None:
        """Have something written on the Node object, and again when that was made anew."""
        self._of_node[subject] = request
        self.tell(subject, request)

    def _tell_of_node_again(self) -> None:
        for subject, request in self._of_node.items():
            self.tell(subject, request)

    async def _repeat(self) -> None:
        """Without a Lease nothing tells that the node was made anew; a patch that changes nothing costs next to it."""
        while True:
            await asyncio.sleep(REPEAT_SECONDS)
            self._tell_of_node_again()

    def write_assignment(self, pod: NodePod, holdings: tuple[Holding, ...]) -> None:
        """Have the pod say what it holds, if it does not."""
        machine = self._state.machine
        if machine is None:
            return
        heir = self._state.heir_of(pod)
        if heir:  # first, so that no two pods claim one set
            self._annotate(heir, inherited_annotations(machine.geometry, heir, pod), ())
        self._annotate(pod, confirmed_annotations(machine.geometry, pod, holdings, time.time_ns()), holdings)

    def _annotate(self, pod: NodePod, annotations: Annotations, holdings: tuple[Holding, ...]) -> None:
        """Write them, and tell of it where they are not what was decided: the same words however it is found out."""
        if not annotations:
            return
        where = pod.pod
        request = annotate_pod(namespace=where.namespace, name=where.name, uid=where.uid, annotations=annotations)
        self._outbox.put(f"assignment of {where.uid}", request)
        ids = [f"{key}={annotations[key]}" for key in ASSIGNMENT_KEYS if annotations.get(key)]
        if pod.decision and ids:
            text = f"pod {where} has another set than was decided for it: {', '.join(ids)}"
            self._witness.corrected(where, holdings, text)
            self.report.report("AssignmentCorrected", text, where)

    def send_event(self, pod: PodReference, reason: str, text: str) -> None:
        """Have an event recorded about a pod."""
        event = create_event(
            ObjectReference("Pod", pod.name, pod.uid, "v1", pod.namespace),
            reason=reason,
            note=text,
            action="Allocating",
            reporter=REPORTER,
            instance=self._settings.node_name,
            now=utc_now(),
            warning=True,
        )
        self._outbox.put(f"event {reason} of {pod.uid}", event)

    async def _connect(self) -> KubernetesApi:
        """A client, as soon as there are settings for one."""
        told = ""
        while True:
            try:
                return await connect(self._settings.kubeconfig)
            except ConnectionSettingsError as error:
                if str(error) != told:
                    logger.warning("not connected to the API server", extra={"why": str(error)})
                told = str(error)
            self._tried.set()
            await asyncio.sleep(RETRY_SECONDS)
