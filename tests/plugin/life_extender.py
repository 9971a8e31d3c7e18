"""The scheduler's side of a simulated node's life: the real extender's verbs, or kube-scheduler's counting alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

import msgspec

from neuron_plugin.allocation import INVENTORY_KEY, Dialect, NeuronPod, PodUid
from neuron_plugin.cluster import NODES, ApiRequest, Clock, Response
from neuron_plugin.extender.binding import Binder, Ending
from neuron_plugin.extender.filter import VerdictMemo, filter_nodes
from neuron_plugin.extender.informers import keep_pod
from neuron_plugin.extender.leadership import Readiness
from neuron_plugin.extender.state import ClusterState, neuron_node
from neuron_plugin.topology import catalogue
from tests.plugin.life_cluster import Cluster, Watch
from tests.plugin.life_pods import NODE, LivePod


class BindsApi:
    """What the extender's binds are sent to."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster

    async def request(self, request: ApiRequest, *, timeout_seconds: float) -> Response:
        assert timeout_seconds > 0
        if request.method == "GET":
            return self.cluster.read(request.path.rpartition("/")[2])
        metadata: Any = (request.body or {})["metadata"]
        self.cluster.bind(metadata["name"], metadata["uid"], metadata["annotations"])
        return Response(201, b"{}")

    def stream(self, request: ApiRequest, *, silence_seconds: float) -> NoReturn:
        raise NotImplementedError(request, silence_seconds)


class LifeExtender:
    """From a start to its kill."""

    def __init__(self, cluster: Cluster, clock: Callable[[], float], unix_ns: Callable[[], int]) -> None:
        self.state = ClusterState()
        self.memo = VerdictMemo(self.state)
        self.cluster = cluster
        self.watch: Watch[NeuronPod] = Watch(cluster, keep_pod, of_node=False)
        self.watch.store.subscribe(self._pod_changed)
        dialects = (Dialect.NEURON_PLUGIN,)
        api, time = BindsApi(cluster), Clock(now=clock)
        self.binder = Binder(self.state, api, Readiness({}), dialects=dialects, clock=time, unix_ns=unix_ns)
        self.see_node()
        self.watch.relist()

    def end(self) -> None:
        """Killed, after its writes have landed."""
        self.cluster.watches.remove(self.watch)

    def see_node(self) -> None:
        """The node as the API server has it now."""
        annotations = {INVENTORY_KEY: self.cluster.inventory} if self.cluster.inventory else {}
        metadata = {"name": NODE, "uid": "uid-node", "annotations": annotations}
        node = NODES.decode(msgspec.json.encode({"metadata": metadata}))
        self.state.put_node(neuron_node(node, catalogue()))

    async def schedule(self, pod: LivePod) -> Ending | None:
        """One attempt of kube-scheduler: filter, and bind where that passes."""
        if not filter_nodes(self.state, self.memo, pod.uid, pod.shape.request, [NODE]).passed:
            return None
        outcome = await self.binder.bind(pod.pod, NODE)
        assert outcome.ending is not Ending.FAILED, outcome.error
        return outcome.ending

    def held(self) -> dict[PodUid, int]:
        """Who holds what in its eyes."""
        record = self.state.nodes[NODE]
        assert not record.unclear, record.unclear
        return {uid: record.ledger.mask_of(uid) for uid in record.ledger.by_pod}

    def _pod_changed(self, uid: str, _: NeuronPod | None, record: NeuronPod | None) -> None:
        if record is None:
            self.state.remove_pod(PodUid(uid))
        else:
            self.state.put_pod(record)
