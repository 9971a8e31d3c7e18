from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

from neuron_plugin.cluster.api import ApiError, DecodeError, UnreachableError
from neuron_plugin.cluster.kinds import NODES, PODS
from neuron_plugin.cluster.lists import Scope, pages
from neuron_plugin.simulation import Fault, StandInApiServer

if TYPE_CHECKING:
    from neuron_plugin.cluster.transport import KubernetesApi

Manifest = Callable[..., dict[str, Any]]


async def test_t50_a_collection_is_read_in_pages_of_five_hundred(server: StandInApiServer, api: KubernetesApi) -> None:
    for number in range(1001):
        server.create_node({"metadata": {"name": f"n{number:04}"}})
    found = [page async for page in pages(api, NODES, page_timeout_seconds=5)]
    assert [len(page.records) for page in found] == [500, 500, 1]
    assert [node.name for page in found for node in page.records] == [f"n{number:04}" for number in range(1001)]
    assert len({page.version for page in found}) == 1
    assert len(server.requests) == 3


async def test_the_scope_narrows_every_page(server: StandInApiServer, api: KubernetesApi, pod: Manifest) -> None:
    for number in range(1200):
        server.create_pod(pod(f"p{number:04}", node="n1" if number % 2 else "n2"))
    scope = Scope(namespace="default", field_selector="spec.nodeName=n1")
    found = [page async for page in pages(api, PODS, scope, page_timeout_seconds=5)]
    assert [len(page.records) for page in found] == [500, 100]
    assert {record.node_name for page in found for record in page.records} == {"n1"}
    assert server.requests[-1].path == "/api/v1/namespaces/default/pods"


async def test_a_list_that_took_too_long_says_so(server: StandInApiServer, api: KubernetesApi) -> None:
    for number in range(501):
        server.create_node({"metadata": {"name": f"n{number}"}})
    reading = pages(api, NODES, page_timeout_seconds=5)
    await anext(reading)
    server.compact()
    with pytest.raises(ApiError) as raised:
        await anext(reading)
    assert raised.value.expired


async def test_every_page_has_the_deadline(server: StandInApiServer, api: KubernetesApi) -> None:
    server.fail(Fault(delay_seconds=0.2))
    with pytest.raises(UnreachableError, match=r"within 0\.02 s"):
        await anext(pages(api, NODES, page_timeout_seconds=0.02))


async def test_an_unreadable_page_is_told(server: StandInApiServer, api: KubernetesApi) -> None:
    server.fail(Fault(body=b'{"items": 7}'))
    with pytest.raises(DecodeError, match="a list of nodes"):
        await anext(pages(api, NODES, page_timeout_seconds=5))


def test_an_empty_scope_selects_by_nothing() -> None:
    assert Scope().query() == {}
    assert Scope("ns", "a=b").query() == {"fieldSelector": "a=b"}
