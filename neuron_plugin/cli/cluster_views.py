"""The views of ``nodes`` and ``pods``: computed from the API server's objects, or read from an extender.

Both ways give the objects of the monitor API. A watch follows the API server as the extender does. An extender is
followed like an API server, because its monitor API has the same form.
"""

from __future__ import annotations

import asyncio
from argparse import ArgumentParser, Namespace
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from neuron_plugin.cli.cluster import (
    LIST,
    LOOK,
    add_cluster_flags,
    failure,
    lease_namespace_of,
    list_labelled,
    request_timeout,
    source_from,
    types_from,
)
from neuron_plugin.cli.command import (
    TABLE,
    Form,
    Line,
    UsageError,
    add_output_flag,
    plain,
    server_url,
    show,
    show_again,
)
from neuron_plugin.cluster import ApiRequest, ApiResource, ApiServer, ClusterError, Reflector
from neuron_plugin.cluster.api import PAGE_SECONDS, send
from neuron_plugin.cluster.client import Source, connect
from neuron_plugin.cluster.pods import PODS
from neuron_plugin.monitor.look import look
from neuron_plugin.monitor.plan import PlanOptions, PlanReport, plan
from neuron_plugin.monitor.views import NEURON_NODES, NEURON_PODS, NodeView, PodView, node_view, pod_view
from neuron_plugin.placement.informers import Informers, read_leader
from neuron_plugin.placement.state import ClusterState
from neuron_plugin.topology import Catalogue, product_names

LEADER_SECONDS = 2.0
"""Between two reads of the leader's reservations while nothing else changes."""
SETTLE_SECONDS = 0.5
"""The wait after a change for changes that belong to it: one binding changes a pod and a node."""


class Views(NamedTuple):
    """All nodes by name, and all live pods that ask for Neuron by namespace and name.

    ``reasons`` says why pods wait, by NAMESPACE/NAME, where pods are asked for.
    """

    nodes: Sequence[NodeView]
    pods: Sequence[PodView]
    reasons: Mapping[str, str] = {}


def add_view_flags(parser: ArgumentParser) -> None:
    """Flags for the output, for watching, and for the cluster."""
    add_output_flag(parser, (*TABLE[:2], Form.NAME, *TABLE[2:]))
    add_cluster_flags(parser, *LIST, *LOOK)


def cluster_views(arguments: Namespace, kind: ApiResource[Any]) -> Iterator[Views]:
    """The cluster once, or with ``--watch`` again after each change, until the caller stops.

    ``--selector`` leaves out objects of ``kind``, NODES or PODS, with other labels.

    Raises:
        CommandError: the API server or the extender does not answer, refuses, or its answer cannot be read.
    """
    url = arguments.extender and server_url("--extender", arguments.extender)
    if url and arguments.selector:
        raise UsageError("-l asks the API server for labels, which an extender does not have: give one of the two")
    source: Source = url or source_from(arguments)

    async def updates() -> AsyncIterator[Views]:
        async with await connect(source) as api:
            if url:
                found = _from_extender(api, pods=kind is PODS)
            else:
                types, namespace = types_from(arguments), await lease_namespace_of(api, arguments)
                found = _from_api_server(api, types, namespace, pods=kind is PODS, watch=arguments.watch)
            async for views in found:
                yield await _selected(api, kind, arguments.selector, views) if arguments.selector else views

    async def following(stream: AsyncIterator[Views]) -> Views:
        if last is not None:
            return await anext(stream)
        async with request_timeout(arguments):
            return await anext(stream)

    last = None
    with asyncio.Runner() as runner:
        stream = updates()
        while last is None or arguments.watch:
            try:
                views = runner.run(following(stream))
            except ClusterError as error:
                raise failure(error, url) from None
            if views != last:
                yield views
            last = views


async def _from_extender(extender: ApiServer, *, pods: bool) -> AsyncIterator[Views]:
    """The views of the monitor API, at once and after each change."""

    async def views() -> Views:
        found = _sorted(nodes.values.values(), asking.values.values())
        if not pods or all(pod.place for pod in found.pods):
            return found
        request = ApiRequest("GET", "/plan", {"mostVictims": "0"})
        answer = await send(extender, request, timeout_seconds=PAGE_SECONDS)
        return found._replace(reasons=msgspec.json.decode(answer, type=PlanReport).why_waiting)

    nodes: Reflector[NodeView, NodeView] = Reflector(extender, NEURON_NODES, lambda node: node)
    asking: Reflector[PodView, PodView] = Reflector(extender, NEURON_PODS, lambda pod: pod)
    news = asyncio.Event()
    for followed in (nodes, asking):
        await followed.list_consistently(PAGE_SECONDS)
        followed.subscribe(lambda *_: news.set())
    yield await views()
    tasks = [asyncio.create_task(followed.run(), name="follow the extender") for followed in (nodes, asking)]
    try:
        while True:
            await news.wait()  # no deadline: until Ctrl-C
            await asyncio.sleep(SETTLE_SECONDS)
            news.clear()
            yield await views()
    finally:
        for task in tasks:
            task.cancel()


async def _from_api_server(
    api: ApiServer, types: Catalogue, lease_namespace: str, *, pods: bool, watch: bool
) -> AsyncIterator[Views]:
    """The views that an extender would list, at once and after each change.

    A watch begins like an extender: a plugin is silent once its Lease has been seen to expire.
    """

    async def views(state: ClusterState) -> Views:
        reasons = (await plan(state, PlanOptions(most_victims=0))).why_waiting if pods else {}
        return views_of(state)._replace(reasons=reasons)

    if not watch:
        yield await views(await look(api, types, lease_namespace=lease_namespace))
        return
    state = ClusterState(products=product_names(types))
    informers = Informers(api, state, types, lease_namespace=lease_namespace)
    await informers.list_once()
    running = asyncio.create_task(informers.run(), name="follow the API server")
    try:
        seen = -1
        while True:
            if lease_namespace:
                await read_leader(api, state, lease_namespace)
            if state.changes.version != seen:
                seen = state.changes.version
                yield await views(state)
            await state.changes.wait(seen, within_seconds=LEADER_SECONDS)
            await asyncio.sleep(SETTLE_SECONDS)
    finally:
        running.cancel()


async def _selected(api: ApiServer, kind: ApiResource[Any], selector: str, views: Views) -> Views:
    """The views, of ``kind`` only those that the API server finds by the selector."""
    uids = {record.uid for record in await list_labelled(api, kind, selector)}
    if kind is PODS:
        return views._replace(pods=[pod for pod in views.pods if pod.uid in uids])
    return views._replace(nodes=[node for node in views.nodes if node.uid in uids])


def views_of(state: ClusterState) -> Views:
    """The views of all nodes and pods of a state."""
    nodes = (node_view(state, info) for info in state.nodes.values())
    return _sorted(nodes, (pod_view(state, pod) for pod in state.pods.values()))


def _sorted(nodes: Iterable[NodeView], pods: Iterable[PodView]) -> Views:
    by_name = sorted(pods, key=lambda pod: (pod.metadata.namespace, pod.name, pod.uid))
    return Views(sorted(nodes, key=lambda node: node.name), by_name)


def show_views(
    arguments: Namespace, report: object, names: Sequence[str], lines: Sequence[Line], *, first: bool, nothing: str
) -> None:
    """Print a report, or with ``-o name`` the ``names``; repeatedly with ``--watch``. ``nothing``: see ``show``."""
    shown = plain(*names) if arguments.output == Form.NAME else lines
    if arguments.watch:
        show_again(arguments.output, report, shown or plain(nothing), first=first)
    else:
        show(arguments.output, report, shown, nothing=nothing)
