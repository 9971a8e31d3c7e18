from __future__ import annotations

import asyncio
import shutil
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from neuron_plugin.allocation import Resource
from neuron_plugin.inspection import holders
from neuron_plugin.inspection.gathering import kubelet as gathering
from neuron_plugin.inspection.gathering.kubelet import gather_kubelet
from neuron_plugin.inspection.unknown import Unknown
from neuron_plugin.kubelet.socket_watch import endpoint_path
from neuron_plugin.simulation import StandInKubelet


@pytest.fixture
def kubelet_root() -> Iterator[Path]:
    """/var/lib/kubelet, on a path that leaves room for the names of sockets."""
    root = Path(tempfile.mkdtemp())
    for name in ("device-plugins", "pod-resources", "plugins_registry", "plugins/neuron.aws.com"):
        (root / name).mkdir(parents=True)
    yield root
    shutil.rmtree(root)


def listening(path: Path) -> socket.socket:
    server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    server.bind(str(path))
    server.listen()
    return server


def dead(path: Path) -> None:
    listening(path).close()


async def test_a_kubelet_that_is_not_there_is_expected_or_not(tmp_path: Path) -> None:
    nowhere = tmp_path / "device-plugins"
    on_a_node = await gather_kubelet(nowhere, tmp_path / "k.sock", expected=True)
    assert (on_a_node.missing, on_a_node.trouble) == (True, None)
    simulated = await gather_kubelet(nowhere, tmp_path / "k.sock", expected=False)
    assert simulated.trouble == simulated.allocatable == simulated.pods
    assert isinstance(simulated.trouble, Unknown)
    assert "--kubelet-dir" in simulated.trouble.action


async def test_something_that_is_no_directory_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    found = await gather_kubelet(tmp_path / "file", tmp_path / "k.sock", expected=True)
    assert found.trouble is not None
    assert "cannot be listed" in found.trouble.why


async def test_sockets_are_told_with_whether_anybody_serves_them(kubelet_root: Path) -> None:
    directory = kubelet_root / "device-plugins"
    dead(directory / "kubelet.sock")
    dead(directory / "neuroncore-devplugin.sock")
    (directory / "kubelet_internal_checkpoint").touch()
    dead(kubelet_root / "plugins_registry/neuron.aws.com-reg.sock")
    dead(kubelet_root / "plugins_registry/ebs.csi.aws.com-reg.sock")
    with listening(directory / "neuron-devplugin.sock"), listening(kubelet_root / "plugins/neuron.aws.com/dra.sock"):
        found = await gather_kubelet(directory, kubelet_root / "nothing", expected=True)
    assert found.own_socket is not None
    assert not found.own_socket.served
    assert {each.name: each.served for each in found.plugins} == {
        "neuron-devplugin.sock": True,
        "neuroncore-devplugin.sock": False,
        "neuron.aws.com-reg.sock": False,
        "dra.sock": True,
    }
    assert found.drivers_seen
    assert isinstance(found.pods, Unknown)
    assert "--pod-resources-socket" in found.pods.action


async def test_volumes_that_drivers_have_mounted_are_not_searched(kubelet_root: Path) -> None:
    """A file system of millions of files, or one whose server is gone, would hold up the doctor for ever."""
    volume = kubelet_root / "plugins/kubernetes.io/csi/efs/globalmount/neuron.aws.com"
    volume.mkdir(parents=True)
    dead(volume / "x.sock")
    found = await gather_kubelet(kubelet_root / "device-plugins", kubelet_root / "nothing", expected=True)
    assert found.plugins == ()


async def test_a_directory_of_drivers_that_is_not_mounted_is_known_to_be_unseen(kubelet_root: Path) -> None:
    (kubelet_root / "plugins_registry").rmdir()
    found = await gather_kubelet(kubelet_root / "device-plugins", kubelet_root / "nothing", expected=True)
    assert not found.drivers_seen


async def test_a_plugin_of_ours_that_accepts_and_never_answers_is_given_up_in_time(
    kubelet_root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gathering, "DIAL_SECONDS", 0.2)
    directory = kubelet_root / "device-plugins"
    with listening(endpoint_path(directory, Resource.NEURONCORE.value, "0")):
        async with asyncio.timeout(5):
            found = await gather_kubelet(directory, kubelet_root / "nothing", expected=True)
    (plugin,) = found.plugins
    assert plugin.served
    assert "0.2 s" in plugin.fault


async def test_a_pod_resources_socket_that_hangs_is_given_up_in_time(
    kubelet_root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(holders, "_DEADLINE_SECONDS", 0.2)
    with listening(kubelet_root / "pod-resources/kubelet.sock"):
        async with asyncio.timeout(5):
            found = await gather_kubelet(
                kubelet_root / "device-plugins", kubelet_root / "pod-resources/kubelet.sock", expected=True
            )
    assert isinstance(found.pods, Unknown)
    assert "DEADLINE_EXCEEDED" in found.pods.why


async def test_a_kubelet_without_plugins_offers_nothing_and_nobody_holds_anything(kubelet_root: Path) -> None:
    async with StandInKubelet(kubelet_root / "device-plugins", kubelet_root / "pod-resources"):
        found = await gather_kubelet(
            kubelet_root / "device-plugins", kubelet_root / "pod-resources/kubelet.sock", expected=True
        )
    assert found.own_socket is not None
    assert found.own_socket.served
    assert (found.plugins, found.allocatable, found.pods) == ((), {}, ())
