"""The simulated plugin watcher."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from neuron_plugin.kubelet._proto.pluginregistration.v1 import api_pb2 as pb
from neuron_plugin.simulation.kubelet_plugin_watcher import PluginWatcher
from tests.kubelet.fakes import CORE, eventually
from tests.simulation.kubelet_node import RawPlugin, serving
from tests.support.kubelet import KubeletOptions, StandInKubelet


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


async def test_a_dead_socket_is_counted_and_disturbs_nobody(directory: Path) -> None:
    (directory / "registry").mkdir()
    watcher = PluginWatcher(directory / "registry", {})
    async with serving(RawPlugin(), directory / "registry/a.sock"):
        (directory / "registry/a.sock").rename(directory / "registry/b.sock")
    await watcher.reconcile()
    assert list(watcher.errors) == [
        f"failed to get plugin info using RPC GetInfo at socket {directory}/registry/b.sock"
    ]
