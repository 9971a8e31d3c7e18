"""The scheduler's side of a simulated node's life: the real extender's verbs, or kube-scheduler's counting alone."""

from __future__ import annotations

from collections.abc import Callable

from neuron_plugin.allocation import Dialect, PodUid
from neuron_plugin.extender.attempts import Ending
from neuron_plugin.extender.binding import Binder
from neuron_plugin.extender.claims import PodRecord
from neuron_plugin.extender.feeds import keep_pod
from neuron_plugin.extender.hardware import NodeFacts
from neuron_plugin.extender.memo import VerdictMemo
from neuron_plugin.extender.state import ClusterState
from neuron_plugin.extender.verbs import filter_nodes
from neuron_plugin.topology import catalogue
from tests.plugin.life_cluster import Cluster, Watch
from tests.plugin.life_pods import NODE, LivePod


class LifeExtender:
    """From a start to its kill."""

    def __init__(self, cluster: Cluster, clock: Callable[[], float], unix_ns: Callable[[], int]) -> None:
        self.state = ClusterState(catalogue())
        self.memo = VerdictMemo(self.state)
        self.cluster = cluster
        self.watch: Watch[PodRecord] = Watch(cluster, keep_pod, of_node=False)
        self.watch.store.subscribe(self._pod_changed)
        dialects = (Dialect.NEURON_PLUGIN,)
        self.binder = Binder(self.state, cluster, fence=lambda: "", dialects=dialects, clock=clock, unix_ns=unix_ns)
        self.see_node()
        self.watch.relist()

    def end(self) -> None:
        """Killed, after its writes have landed."""
        self.cluster.watches.remove(self.watch)

    def see_node(self) -> None:
        """The node as the API server has it now."""
        self.state.put_node(NodeFacts(NODE, "uid-node", self.cluster.inventory or None))

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
        return {uid: holder.mask for uid, holder in record.ledger.holders.items()}

    def _pod_changed(self, uid: str, _: PodRecord | None, record: PodRecord | None) -> None:
        if record is None:
            self.state.remove_pod(PodUid(uid))
        else:
            self.state.put_pod(record)
