"""Registration with the simulated kubelet, its faults of book-keeping by name, and the plugin watcher."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from neuron_plugin.kubelet._proto.pluginregistration.v1 import api_pb2 as pb
from neuron_plugin.simulation.kubelet_plugins import ResourceCapacity, is_extended_resource_name
from tests.kubelet.fakes import CORE, eventually
from tests.simulation.kubelet_node import RawPlugin, node, refusal, serving
from tests.support.kubelet import KubeletOptions, StandInKubelet


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (
            ("e", CORE, "v1alpha"),
            'requested API version "v1alpha" is not supported by kubelet. Supported version is ["v1beta1"]',
        ),
        (("e", "dummy"), 'the ResourceName "dummy" is invalid'),
        (("absent.sock",), "failed to dial device plugin: context deadline exceeded"),
        (("/absolute/path.sock",), "failed to dial device plugin: context deadline exceeded"),
    ],
)
async def test_a_registration_is_refused_in_the_kubelets_words(
    directory: Path, arguments: tuple[str, ...], said: str
) -> None:
    async with StandInKubelet(directory, options=KubeletOptions(dial_seconds=0.05)):
        assert await refusal(directory, *arguments) == said


def test_names_that_the_kubelet_takes_and_refuses() -> None:
    taken = (CORE, "example.com/Dummy_1.x", "a/b")
    refused = (
        *("dummy", "Example.com/x", "example.com/a/b", f"example.com/{'n' * 64}", "hugepages-2Mi", "example.com/-x"),
        *("kubernetes.io/x", "sub.kubernetes.io/x", "requests.example.com/x", "example.com/", "/x"),
        f"{'d' * 250}.com/x",
    )
    assert [name for name in (*taken, *refused) if is_extended_resource_name(name)] == list(taken)


# The book-keeping by name


async def test_a_failed_register_beside_a_live_one_makes_its_end_unnoticed(directory: Path) -> None:
    async with node(directory, options=KubeletOptions(dial_seconds=0.05)) as (kubelet, plugin):
        await refusal(directory, "absent.sock")
        plugin.end_stream()
        await asyncio.sleep(0.05)
        assert kubelet.capacity(CORE) == ResourceCapacity(4, 4)


@pytest.fixture
async def kubelet(directory: Path) -> AsyncIterator[StandInKubelet]:
    for name in ("sockets", "registry"):
        (directory / name).mkdir()
    options, registry = KubeletOptions(watcher_seconds=0.02), directory / "registry"
    async with StandInKubelet(directory / "sockets", plugins_registry=registry, options=options) as kubelet:
        yield kubelet


@pytest.mark.parametrize(
    ("info", "error"),
    [
        ({"type": "CSIPlugin"}, "no handler registered for plugin type: CSIPlugin"),
        ({"name": "dummy"}, "is invalid"),
        ({"supported_versions": ["v1"]}, "does not support"),
    ],
)
async def test_an_unfit_plugin_learns_why_and_is_asked_again_after_a_pause(
    kubelet: StandInKubelet, directory: Path, info: dict[str, object], error: str
) -> None:
    plugin = RawPlugin()
    fit, given = plugin.info, {"type": "DevicePlugin", "name": CORE, "supported_versions": ["v1beta1"], **info}
    plugin.info = pb.PluginInfo(**given)  # type: ignore[arg-type]  # a table's values
    async with serving(plugin, directory / "registry/dummy.sock"):
        await eventually(lambda: bool(plugin.statuses))
        assert not plugin.statuses[0].plugin_registered
        assert error in plugin.statuses[0].error
        assert plugin.calls == []
        plugin.info = fit
        await asyncio.sleep(0.1)
        assert len(plugin.statuses) == 1
        await kubelet.wait_for_capacity(CORE, 4)


async def test_a_dead_socket_disturbs_nobody(kubelet: StandInKubelet, directory: Path) -> None:
    async with serving(RawPlugin(), directory / "registry/a.sock"):
        (directory / "registry/a.sock").rename(directory / "registry/.b.sock")
    (directory / "registry/.b.sock").rename(directory / "registry/a.sock")
    async with serving(RawPlugin(), directory / "registry/b.sock"):
        await kubelet.wait_for_capacity(CORE, 4)
