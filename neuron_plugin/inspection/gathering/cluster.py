"""What ``doctor`` asks the API server: this node and its pods, once, with a deadline."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import TYPE_CHECKING

from neuron_plugin.allocation import PodReference, PodUid
from neuron_plugin.inspection.facts import ApiPod, Cluster
from neuron_plugin.inspection.unknown import Unknown

if TYPE_CHECKING:
    from neuron_plugin.cluster import ApiServer
    from neuron_plugin.cluster import Pod as PodRecord

CALL_SECONDS = 5.0
WHOLE_SECONDS = 15.0
"""All of it, the client library's import of a second and an identity provider's log-in included."""


async def gather_cluster(kubeconfig: Path | None, node_name: str) -> Cluster | Unknown:
    """The node ``node_name``; without ``kubeconfig`` by the pod's own service account."""
    if kubeconfig and not os.path.exists(kubeconfig):  # noqa: ASYNC240, PTH110 - one stat; Path.exists raises on EACCES
        return Unknown(f"there is no kubeconfig at {kubeconfig}", "give --kubeconfig, and run this as root")
    from neuron_plugin.cluster import (
        ApiError,
        ClusterError,
        connect,
    )

    try:
        async with asyncio.timeout(WHOLE_SECONDS), await connect(kubeconfig) as api:
            return await _read(api, node_name)
    except ApiError as error:
        if error.missing:
            return Unknown(
                f"the API server has no node {node_name}", "give --node-name, this node's name in Kubernetes"
            )
        return Unknown(str(error), "give a --kubeconfig whose user may get nodes and list pods")
    except ClusterError as error:
        return Unknown(str(error), "see that --kubeconfig is right and the API server can be reached from here")
    except TimeoutError:
        return Unknown(f"the API server did not answer within {WHOLE_SECONDS:g} s", "run this again when it does")


async def _read(api: ApiServer, node_name: str) -> Cluster:
    from neuron_plugin.cluster import NODES, PODS, ApiRequest, Scope, pages, send

    request = ApiRequest("GET", NODES.item(node_name))
    node = NODES.decode(await send(api, request, timeout_seconds=CALL_SECONDS))
    scope = Scope(field_selector=f"spec.nodeName={node_name}")
    found = [
        record async for page in pages(api, PODS, scope, page_timeout_seconds=CALL_SECONDS) for record in page.records
    ]
    return Cluster(node_name, node.annotations, node.allocatable, tuple(_pod(record) for record in found))


def _pod(record: PodRecord) -> ApiPod:
    from neuron_plugin.cluster import MIRROR_ANNOTATION
    from neuron_plugin.plugin.pod_watch import neuron_pod

    static = record.annotations.get(MIRROR_ANNOTATION)
    return ApiPod(
        PodReference(PodUid(record.uid), record.namespace, record.name),
        record.phase,
        None if record.terminal else neuron_pod(record),
        frozenset({static} if static else ()) if not record.terminal else frozenset(),
    )
