"""The cluster as ``nodes`` and ``pods`` show it: worked out from the API server, or asked of an extender.

Either way the same objects come out: those of the monitor API. A watch follows the API server as the extender does; an
extender is followed as an API server is, because its monitor API is one in form.
"""

from __future__ import annotations

import asyncio
from argparse import ArgumentParser, Namespace
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from typing import NamedTuple

from neuron_plugin.allocation.resources import ranges
from neuron_plugin.cli.command import CommandError, Form, add_output_flag, server_url
from neuron_plugin.cli.target import add_cluster_flags, kubeconfig_of, settings_here
from neuron_plugin.cluster import ApiServer, ClusterError, Reflector, UnreachableError
from neuron_plugin.cluster.api import PAGE_SECONDS
from neuron_plugin.cluster.client import connect
from neuron_plugin.instance_file import load_catalogue
from neuron_plugin.monitor.views import NEURON_NODES, NEURON_PODS, NodeView, PodView, node_view, pod_view
from neuron_plugin.placement.informers import Informers, survey
from neuron_plugin.placement.state import ClusterState
from neuron_plugin.topology import Catalogue

LEASES_SECONDS = 2.0
"""How long the first view waits for the Leases."""
SETTLE_SECONDS = 0.5
"""After a change, for what comes with it: one binding changes a pod and a node."""


class Views(NamedTuple):
    """All nodes by name, and all live pods that ask for Neuron by namespace and name."""

    nodes: Sequence[NodeView]
    pods: Sequence[PodView]


def add_view_flags(parser: ArgumentParser) -> None:
    """The form of the output, whether to watch, and where to look."""
    add_output_flag(parser, list(Form))
    again = "print again whenever something changes, until Ctrl-C; JSON then comes one document a line"
    parser.add_argument("-w", "--watch", action="store_true", help=again)
    add_cluster_flags(parser)


def cluster_views(arguments: Namespace, *, leases: bool) -> Iterator[Views]:
    """The cluster once, or with ``--watch`` again after each change, until the caller stops.

    Without ``leases`` no plugin is judged by its Lease. Of an API server that takes some seconds: a look at a Lease
    does not show whether it is still renewed. What the Leases say of containers is shown either way, to whom may read
    them.

    Raises:
        CommandError: the API server or the extender does not answer, refuses, or answers something else.
    """
    url, namespace = arguments.extender and server_url("--extender", arguments.extender), ""
    if not url:
        here = settings_here()
        types = load_catalogue(arguments.instance_types or here.instance_types)
        kubeconfig = kubeconfig_of(arguments.kubeconfig or here.kubeconfig)
        namespace = here.lease_namespace if arguments.lease_namespace is None else arguments.lease_namespace

    async def updates() -> AsyncIterator[Views]:
        async with await connect(url or kubeconfig) as api:
            worked_out = None if url else _worked_out(api, types, namespace, judge=leases, watch=arguments.watch)
            async for views in worked_out or _asked(api):
                yield views

    async def following(stream: AsyncIterator[Views]) -> Views:
        return await anext(stream)

    last = None
    with asyncio.Runner() as runner:
        stream = updates()
        while last is None or arguments.watch:
            try:
                views = runner.run(following(stream))
            except UnreachableError as error:
                raise CommandError(
                    f"{url} does not answer: {error.cause}; is the extender there?" if url else str(error)
                ) from None
            except ClusterError as error:
                raise CommandError(f"{url}: {error}; is it an extender?" if url else str(error)) from None
            if views != last:
                yield views
            last = views


async def _asked(extender: ApiServer) -> AsyncIterator[Views]:
    """What the monitor API lists, and then again after each change."""
    nodes: Reflector[NodeView, NodeView] = Reflector(extender, NEURON_NODES, lambda node: node)
    pods: Reflector[PodView, PodView] = Reflector(extender, NEURON_PODS, lambda pod: pod)
    news = asyncio.Event()
    for followed in (nodes, pods):
        await followed.list_consistently(PAGE_SECONDS)
        followed.subscribe(lambda *_: news.set())
    yield _sorted(nodes.values.values(), pods.values.values())
    tasks = [asyncio.create_task(followed.run(), name="follow the extender") for followed in (nodes, pods)]
    try:
        while True:
            await news.wait()  # no deadline: until Ctrl-C
            await asyncio.sleep(SETTLE_SECONDS)
            news.clear()
            yield _sorted(nodes.values.values(), pods.values.values())
    finally:
        for task in tasks:
            task.cancel()


async def _worked_out(
    api: ApiServer, types: Catalogue, lease_namespace: str, *, judge: bool, watch: bool
) -> AsyncIterator[Views]:
    """What an extender would list, and then again after each change.

    A watch begins as an extender does: that a plugin is silent shows when its Lease was seen to run out.
    """

    def views(state: ClusterState) -> Views:
        nodes = (node_view(state, info) for info in state.nodes.values())
        return _sorted(nodes, (pod_view(state, pod) for pod in state.pods.values()))

    surveyed = await survey(api, types, lease_namespace="" if watch else lease_namespace, judge=judge)
    if not watch:
        yield views(surveyed)
        return
    state = ClusterState()
    informers = Informers(api, state, types, lease_namespace=lease_namespace)
    running = asyncio.create_task(informers.run(), name="follow the API server")
    try:
        await informers.synced()
        await informers.leases_listed(LEASES_SECONDS)  # without them the first view would have no renewals
        while True:
            seen = state.changes.version
            yield views(state)
            while state.changes.version == seen:
                await state.changes.wait(seen, within_seconds=PAGE_SECONDS)
            await asyncio.sleep(SETTLE_SECONDS)
    finally:
        running.cancel()


def _sorted(nodes: Iterable[NodeView], pods: Iterable[PodView]) -> Views:
    by_name = sorted(pods, key=lambda pod: (pod.metadata.namespace, pod.name, pod.uid))
    return Views(sorted(nodes, key=lambda node: node.name), by_name)


def counted(lists: Iterable[str]) -> int:
    """How many ids there are in lists of disjoint ids, such as ``0,1`` and an empty one."""
    return sum(len(ids.split(",")) for ids in lists if ids)


def in_ranges(ids: str) -> str:
    """A list of ids as people read it: ``0-3,8``; ``-`` for none."""
    return ranges(map(int, ids.split(","))) if ids else "-"
