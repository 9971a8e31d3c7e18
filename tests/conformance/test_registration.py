"""What upstream's ``device_plugin_failures_test.go`` expects of a kubelet whose plugin fails, and of ours after it."""

from __future__ import annotations

import secrets

import grpc
import pytest

from tests.conformance.node import DEVICES, NEURON, Capacity, Node, until
from tests.conformance.sample_plugin import ENDPOINT, SamplePlugin
from tests.conformance.steps import asking, runs, shows, start_offering

SAMPLES = 2


async def test_p6_a_plugin_whose_options_fail_is_refused_and_its_resource_never_appears(node: Node) -> None:
    resource = f"example.com/np-conformance-{secrets.token_hex(3)}"
    async with SamplePlugin(node.kubelet_dir, options_error="no options today").serving() as sample:
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await sample.register(resource)
        await start_offering(node)
        assert (refused.value.code(), sample.streams) == (grpc.StatusCode.UNKNOWN, 0)
        assert "failed to get device plugin options" in (refused.value.details() or "")
        assert "no options today" in (refused.value.details() or "")
        assert await node.capacity(resource) == Capacity()
        assert resource not in await node.pod_resources.allocatable()


async def test_p10_a_stream_that_fails_at_once_is_not_opened_again_and_ours_comes_up_after_it(node: Node) -> None:
    async with SamplePlugin(node.kubelet_dir, devices=SAMPLES).serving() as sample:
        sample.fail()
        await sample.register(NEURON)
        await start_offering(node)
        assert sample.streams == 1
    await runs(node, asking("one"))


async def test_p76_a_stream_that_fails_later_leaves_capacity_and_ours_comes_up_after_it(node: Node) -> None:
    async with SamplePlugin(node.kubelet_dir, devices=SAMPLES).serving() as sample:
        await sample.register(NEURON)
        await shows(node, SAMPLES, SAMPLES)
        sample.fail()
        await shows(node, 0, SAMPLES)
        assert sample.streams == 1
        await start_offering(node)
    await runs(node, asking("one"))


async def test_p12_ours_takes_a_name_over_from_another_that_lives_and_keeps_it_when_that_ends(node: Node) -> None:
    """The kubelet keeps clients by name: the end of the older stream disconnects the newer client."""
    async with SamplePlugin(node.kubelet_dir, devices=SAMPLES).serving() as sample:
        await sample.register(NEURON)
        await shows(node, SAMPLES, SAMPLES)
        await start_offering(node)
        sockets = sockets_of(node)

    async def is_served_anew() -> bool:
        return sockets_of(node) != sockets

    await until(node, is_served_anew, "a server of its own for the registration that the kubelet dropped")
    await shows(node, DEVICES)
    await runs(node, asking("one"))


def sockets_of(node: Node) -> set[str]:
    """Each registration of ours has a socket of a new name."""
    return {path.name for path in node.kubelet_dir.iterdir() if path.is_socket() and path.name != ENDPOINT}
