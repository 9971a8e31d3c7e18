"""The simulated kubelet, checked against what kubelet 1.36 was seen to do: pods, its restarts, checkpoint and cgroups.

What the conformance suite shows on a real kubelet, too, is not repeated.
"""

# ruff: noqa: N802 - the names and signatures of gRPC methods are the API's

from __future__ import annotations

import asyncio
import json
import socket
import stat
from pathlib import Path
from typing import Any

import grpc
import pytest

from neuron_plugin.kubelet import PodResourcesClient, is_served
from neuron_plugin.kubelet._proto.deviceplugin.v1beta1 import api_pb2 as pb
from neuron_plugin.kubelet_files import CHECKPOINT, KUBELET_SOCKET
from neuron_plugin.simulation.kubelet_pods import (
    KubeletContainer,
    KubeletPod,
    PodGoneError,
    PodRejectedError,
    SimulatedCgroups,
)
from tests.kubelet.fakes import CORE, eventually
from tests.simulation.kubelet_node import INIT, RawPlugin, ids_of, node, pod, register, rejection, serving, wants
from tests.support.kubelet import KubeletOptions, StandInKubelet
from tests.support.manifests import static_pod

API_UID = "0f1c2d3e-4a5b-6c7d-8e9f-001122334455"

# Admission.


async def test_a_slow_allocate_delays_every_pod_and_a_stream_that_ends_under_it_rejects_its_own(
    directory: Path,
) -> None:
    async with node(directory) as (kubelet, plugin):
        plugin.gate = asyncio.Event()
        slow = asyncio.create_task(kubelet.admit(pod("slow", wants(1))))
        await eventually(lambda: bool(plugin.allocations))
        plain = asyncio.create_task(kubelet.admit(pod("plain", KubeletContainer("c"))))
        await asyncio.sleep(0.02)
        assert not plain.done()
        plugin.end_stream()
        with pytest.raises(PodRejectedError, match="code = Canceled"):
            await slow
        await plain
        plugin.gate.set()


@pytest.mark.parametrize(
    ("attribute", "said"),
    [
        ("preference_error", "device plugin GetPreferredAllocation rpc failed with err: rpc error: code = Internal"),
        ("allocate_error", "rpc error: code = FailedPrecondition"),
    ],
)
async def test_an_error_of_the_plugin_rejects_the_pod_in_the_kubelet_s_words_and_leaks_nothing(
    directory: Path, attribute: str, said: str
) -> None:
    async with node(directory) as (kubelet, plugin):
        setattr(plugin, attribute, "held by ns/b")
        text = await rejection(kubelet, pod("a", wants(2)))
        setattr(plugin, attribute, None)
        await kubelet.admit(pod("b", wants(4)))
    assert text == (
        f"Pod was rejected: Allocate failed due to {said} desc = held by ns/b, which is unexpected"
    )  # fmt: skip


async def test_a_device_of_any_other_health_is_not_given_and_a_plugin_may_have_no_preference(directory: Path) -> None:
    async with node(directory, RawPlugin(prefers=False)) as (kubelet, plugin):
        plugin.set_health("d1", "healthy")
        await kubelet.wait_for_capacity(CORE, 3)
        admitted = await kubelet.admit(pod("a", wants(3)))
        assert (ids_of(admitted.container("c")), plugin.preferences) == ({"d0", "d2", "d3"}, [])


# Its own restarts.


async def test_a_start_wipes_sockets_directly_in_the_directory_and_a_stop_leaves_a_dead_one(directory: Path) -> None:
    (directory / "sub").mkdir()
    (directory / "kubelet_internal_checkpoint").write_text("{}")
    for path in (directory / "stray.sock", directory / "sub" / "kept.sock", directory / KUBELET_SOCKET):
        with socket.socket(socket.AF_UNIX) as dead:
            dead.bind(str(path))
    async with StandInKubelet(directory):
        names = sorted(path.name for path in directory.iterdir())
    assert names == ["kubelet.sock", "kubelet_internal_checkpoint", "sub"]
    assert (directory / "sub" / "kept.sock").is_socket()
    assert (directory / KUBELET_SOCKET).is_socket()
    with pytest.raises(grpc.aio.AioRpcError, match="Connection refused"):
        await register(directory, "e")


async def test_a_pod_with_devices_in_init_and_app_dies_at_a_restart(directory: Path) -> None:
    async with node(directory, options=KubeletOptions(sync_delay=0)) as (kubelet, _):
        await kubelet.admit(pod("a", wants(1, "i", INIT), wants(1)))
        await kubelet.restart()
        assert list(kubelet.rejections) == ["uid-a"]


async def test_a_kubelet_that_ends_under_an_allocate_has_no_entry_rejects_nothing_and_allocates_again(
    directory: Path,
) -> None:
    async with node(directory, options=KubeletOptions(sync_delay=0.3)) as (kubelet, plugin):
        plugin.gate = asyncio.Event()
        admission = asyncio.create_task(kubelet.admit(pod("a", wants(2))))
        await eventually(lambda: bool(plugin.allocations))
        await kubelet.stop()
        with pytest.raises(PodGoneError, match="while it admitted a"):
            await admission
        plugin.gate.set()
        assert recorded(directory) == {}
        restart = asyncio.create_task(kubelet.start())
        async with serving(again := RawPlugin(), directory.parent / f"{directory.name}-again.sock"):
            await eventually(lambda: is_served(directory / KUBELET_SOCKET))
            await register(directory, f"../{directory.name}-again.sock")
            await restart
            assert (kubelet.rejections, len(again.allocations)) == ({}, 1)
            assert set(recorded(directory)) == {("uid-a", "c")}
            assert len(ids_of(await kubelet.start_container("uid-a", "c"))) == 2


# Its checkpoint.


def recorded(directory: Path) -> dict[tuple[str, str], set[str]]:
    """The ids of each pod's containers, by the checkpoint."""
    entries = json.loads((directory / CHECKPOINT).read_bytes())["Data"]["PodDeviceEntries"] or []
    return {
        (entry["PodUID"], entry["ContainerName"]): {each for ids in entry["DeviceIDs"].values() for each in ids}
        for entry in entries
    }


def list_again(plugin: RawPlugin) -> None:
    """Send the same list of devices once more."""
    plugin.news.set()


class ReadingPlugin(RawPlugin):
    """Reads the checkpoint in every call."""

    def __init__(self, directory: Path) -> None:
        super().__init__()
        self.directory = directory
        self.seen: list[tuple[str, dict[tuple[str, str], set[str]]]] = []
        self.thinking: asyncio.Event | None = None

    async def GetPreferredAllocation(self, request: Any, context: Any) -> pb.PreferredAllocationResponse:
        self.seen.append(("preferred", recorded(self.directory)))
        answer = await super().GetPreferredAllocation(request, context)
        if self.thinking:
            await self.thinking.wait()
        return answer

    async def Allocate(self, request: Any, context: Any) -> pb.AllocateResponse:
        self.seen.append(("allocate", recorded(self.directory)))
        return await super().Allocate(request, context)


async def test_each_containers_entry_is_in_the_file_before_the_kubelets_next_call(directory: Path) -> None:
    async with node(directory, ReadingPlugin(directory)) as (kubelet, plugin):
        assert isinstance(plugin, ReadingPlugin)
        await kubelet.admit(pod("a", wants(1, "i", INIT), wants(1, "x"), wants(2, "y")))
        await kubelet.admit(pod("b", wants(1)))
        calls = [(call, {container for _, container in seen}) for call, seen in plugin.seen]
    assert calls == [
        ("preferred", set()),
        ("allocate", set()),
        ("allocate", {"i"}),  # x takes the device of i without a preference
        ("preferred", {"i", "x"}),
        ("allocate", {"i", "x"}),
        ("preferred", {"i", "x", "y"}),
        ("allocate", {"i", "x", "y"}),
    ]


async def test_entries_of_an_ended_pod_stay_in_the_file_until_the_next_write_after_a_list(directory: Path) -> None:
    async with node(directory) as (kubelet, plugin):
        await kubelet.admit(pod("a", wants(2)))
        kubelet.finish("uid-a")
        list_again(plugin)
        await asyncio.sleep(0.05)
        assert ("uid-a", "c") in recorded(directory), "a write alone cleans nothing"
        await PodResourcesClient(directory / "pr/kubelet.sock").list()
        assert ("uid-a", "c") in recorded(directory), "List cleans the memory and writes nothing"
        list_again(plugin)
        await eventually(lambda: not recorded(directory))


async def test_an_identical_list_writes_the_whole_memory_also_during_a_preferred_allocation(directory: Path) -> None:
    async with node(directory, ReadingPlugin(directory)) as (kubelet, plugin):
        assert isinstance(plugin, ReadingPlugin)
        await kubelet.admit(pod("a", wants(1)))
        kubelet.checkpoint.write_text('{"Data":{"PodDeviceEntries":null}}')
        plugin.thinking = asyncio.Event()
        admission = asyncio.create_task(kubelet.admit(pod("b", wants(1))))
        await eventually(lambda: len(plugin.preferences) == 2)
        list_again(plugin)
        await eventually(lambda: set(recorded(directory)) == {("uid-a", "c")})
        plugin.thinking.set()
        await admission


async def test_a_static_pod_that_returns_has_its_entry_again_without_an_allocate(directory: Path) -> None:
    static = static_pod("default", "train", "worker", wants(2))
    async with node(directory) as (kubelet, plugin):
        first = await kubelet.admit(static)
        kubelet.finish(static.uid)
        again = await kubelet.admit(static)
        assert again == first, "the memory was not cleaned meanwhile"
        assert len(plugin.allocations) == 1


# The cgroups of its pods.


def populated(directory: Path, pod: KubeletPod) -> str:
    """The content of the pod's cgroup.events, empty without one."""
    uid = pod.uid.replace("-", "_")
    slices = directory / "cgroup/kubepods.slice/kubepods-besteffort.slice"
    path = slices / f"kubepods-besteffort-pod{uid}.slice" / "cgroup.events"
    return path.read_text() if path.exists() else ""


async def test_a_pods_slice_is_populated_from_its_first_start_to_its_end(directory: Path) -> None:
    a = pod("a", wants(1), uid=API_UID)
    async with node(directory, options=KubeletOptions(sync_delay=0.0)) as (kubelet, plugin):
        plugin.gate = asyncio.Event()
        admission = asyncio.create_task(kubelet.admit(a))
        await eventually(lambda: bool(plugin.allocations))
        assert populated(directory, a) == ""
        plugin.gate.set()
        await admission
        assert populated(directory, a) == "populated 1\nfrozen 0\n"
        kubelet.stop_container(a.uid, "c")
        assert populated(directory, a), "the sandbox keeps it"
        await kubelet.stop()
        assert populated(directory, a), "a kubelet's end ends no process"
        kubelet.finish(a.uid)
        assert populated(directory, a) == ""
        await kubelet.start()


async def test_a_removed_static_pod_runs_out_its_grace_and_may_come_back(directory: Path) -> None:
    static = static_pod("default", "train", "worker", wants(1))
    async with node(directory, options=KubeletOptions(termination_seconds=0.05)) as (kubelet, _):
        await kubelet.admit(static)
        kubelet.remove_while_running(static.uid)
        assert populated(directory, static)
        await kubelet.admit(static)
        await asyncio.sleep(0.1)
        assert populated(directory, static), "the earlier end does not end the same pod's new processes"


def test_a_user_who_is_not_root_can_write_a_cgroup_s_events_again(tmp_path: Path) -> None:
    """Root writes a file of mode 0444, too; the demo runs for every user."""
    cgroups, of = SimulatedCgroups(tmp_path), KubeletPod(API_UID, "ns", "a", ())
    cgroups.remove(of)  # it was never there
    cgroups.populate(of)
    assert (cgroups.path(of) / "cgroup.events").stat().st_mode & stat.S_IWUSR
