"""The place of each pod of a group in its UltraServers, if the group has whole UltraServers."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

from neuron_plugin.allocation import NeuronPod, NodeInfo, PodUid
from neuron_plugin.allocation.ultraserver import SIZES, NodeIds, UltraServerPlace, node_ids


def ultraserver_places(
    pods: Sequence[NeuronPod], nodes: Mapping[PodUid, NodeInfo]
) -> Mapping[PodUid, UltraServerPlace]:
    """The place of each of a group's pods, which are in the order of their ranks; ``nodes`` are where they run.

    There is none unless each UltraServer, or each pair, has one of the group's pods on each of its nodes. The first of
    the pods needs a host name, and no pod may set the variables itself.

    UltraServers are ordered by their lowest rank, so a pod's place changes only with its own UltraServer, or when an
    earlier one comes or goes.
    """
    if any(pod.member and pod.member.sets_ultraserver for pod in pods):
        return {}
    for size in SIZES:
        servers = defaultdict[str, list[tuple[int, NeuronPod]]](list)
        for pod in pods:
            if ids := _ids(nodes.get(pod.uid), size):
                servers[ids.server].append((ids.node, pod))
        order = [pod for server in servers.values() for _, pod in sorted(server, key=lambda one: one[0])]
        is_whole = all({node for node, _ in server} == set(range(size)) for server in servers.values())
        if order and is_whole and len(order) == len(pods) == size * len(servers):
            first = order[0].member
            host = first.host if first else ""
            return {pod.uid: UltraServerPlace(size, index, host) for index, pod in enumerate(order) if host}
    return {}


def _ids(info: NodeInfo | None, size: int) -> NodeIds | None:
    return node_ids(info.inventory.ultraserver, size) if info and info.inventory else None
