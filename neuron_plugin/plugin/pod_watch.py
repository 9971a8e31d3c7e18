"""This node's pods, from the API server into the node's state."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from neuron_plugin.allocation import ContainerSpec, PodReference, PodUid
from neuron_plugin.cluster import MIRROR_ANNOTATION, PODS, ApiServer, Observer, Pod, Reflector, Scope, pages
from neuron_plugin.plugin.node import NodeState
from neuron_plugin.plugin.pods import NodePod, node_pod
from neuron_plugin.plugin.report import Report

PodReflector = Reflector[Pod, NodePod]


def follow_pods(
    api: ApiServer,
    node_name: str,
    state: NodeState,
    report: Report,
    on_pod: Callable[[], None],
    observer: Observer | None = None,
) -> PodReflector:
    """A reflector of this node's pods that keeps ``state`` up to date; ``on_pod`` is called when one came."""
    scope = Scope(field_selector=f"spec.nodeName={node_name}")
    reflector: PodReflector = Reflector(api, PODS, neuron_pod, scope=scope, observer=observer)
    reflector.subscribe(partial(_take_in, state, report, on_pod))
    return reflector


async def take_stock(reflector: PodReflector, state: NodeState) -> None:
    """Once all pods are known, forget those that ended while an earlier reflector was not there to hear of it."""
    await reflector.synced.wait()
    state.see_all_pods({uid for uid, pod in reflector.values.items() if not pod.ended})


async def pod_uids(api: ApiServer, node_name: str, timeout_seconds: float) -> frozenset[str]:
    """The UIDs of all pods of a node, asking for Neuron or not, as their processes' cgroups name them.

    That of a static pod is its hash, which its mirror pod carries as an annotation (pkg/kubelet/pod/mirror_client.go).

    Raises:
        ClusterError: the API server refused or did not answer in time.
    """
    scope, uids = Scope(field_selector=f"spec.nodeName={node_name}"), set()
    async for page in pages(api, PODS, scope, page_timeout_seconds=timeout_seconds):
        for pod in page.records:
            uids |= {pod.uid, pod.annotations.get(MIRROR_ANNOTATION, pod.uid)}
    return frozenset(uids)


def neuron_pod(record: Pod) -> NodePod | None:
    """A pod that asks for Neuron. One being deleted may still hold some, one that has ended does not."""
    specs = (ContainerSpec(one.name, kind, one.limits, one.requests) for one, kind in record.containers)
    pod = node_pod(PodReference(PodUid(record.uid), record.namespace, record.name), specs, record.annotations)
    return replace(pod, ended=True) if pod and record.terminal else pod


def _take_in(
    state: NodeState, report: Report, on_pod: Callable[[], None], uid: str, _old: NodePod | None, new: NodePod | None
) -> None:
    if new is None:
        state.lose_pod(PodUid(uid))
        return
    if new.ended:
        state.forget_pod(PodUid(uid))
        return
    state.see_pod(new)
    if new.problem:
        report.report("InvalidNeuronRequest", new.problem, new.pod)
    on_pod()
