"""The simulated kubelet's checkpoint and cgroups. Sections are those of the project's facts about the kubelet."""

from __future__ import annotations

import asyncio
import json
import stat
from pathlib import Path
from typing import Any

import grpc
import pytest
from asyncinotify import Inotify, Mask

from neuron_plugin.kubelet import PodResourcesClient
from neuron_plugin.kubelet._proto.deviceplugin.v1beta1 import api_pb2 as pb
from neuron_plugin.kubelet_files import CHECKPOINT
from neuron_plugin.simulation import KubeletContainer, KubeletPod
from neuron_plugin.simulation.kubelet import is_static
from neuron_plugin.simulation.kubelet_device_manager import KubeletCheckpointFile, WriteFault
from neuron_plugin.simulation.kubelet_pods import SimulatedCgroups
from tests.kubelet.fakes import CORE, DEVICE, eventually
from tests.simulation.kubelet_node import (
    INIT,
    RawPlugin,
    ids_of,
    node,
    pod,
    register,
    rejection,
    serving,
    wants,
)
from tests.support.kubelet import KubeletOptions, KubeletStoppedError
from tests.support.manifests import static_pod

API_UID = "0f1c2d3e-4a5b-6c7d-8e9f-001122334455"


def entries(directory: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads((directory / CHECKPOINT).read_bytes())["Data"]["PodDeviceEntries"] or []
    return found


def recorded(directory: Path) -> dict[tuple[str, str], set[str]]:
    """The ids of each pod's containers, by the file."""
    return {
        (entry["PodUID"], entry["ContainerName"]): {each for ids in entry["DeviceIDs"].values() for each in ids}
        for entry in entries(directory)
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

    async def GetPreferredAllocation(  # noqa: N802 - the API's name
        self, request: pb.PreferredAllocationRequest, context: grpc.aio.ServicerContext[object, object]
    ) -> pb.PreferredAllocationResponse:
        self.seen.append(("preferred", recorded(self.directory)))
        answer = await super().GetPreferredAllocation(request, context)
        if self.thinking:
            await self.thinking.wait()
        return answer

    async def Allocate(  # noqa: N802 - the API's name
        self, request: pb.AllocateRequest, context: grpc.aio.ServicerContext[object, object]
    ) -> pb.AllocateResponse:
        self.seen.append(("allocate", recorded(self.directory)))
        return await super().Allocate(request, context)


# Sections 7 and 14: what is written, and when


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


async def test_two_resources_of_one_container_are_one_write(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writes: list[bytes] = []
    monkeypatch.setattr(KubeletCheckpointFile, "replace", lambda _, content: writes.append(content))
    other = RawPlugin(["e0"])
    async with node(directory) as (kubelet, _), serving(other, directory / "other.sock"):
        await register(directory, "other.sock", DEVICE)
        await kubelet.wait_for_capacity(DEVICE, 1)
        writes.clear()
        await kubelet.admit(pod("a", KubeletContainer("c", {CORE: 1, DEVICE: 1})))
        assert len(writes) == 1


async def test_the_file_is_replaced_by_a_rename_within_the_directory(directory: Path) -> None:
    async with node(directory) as (kubelet, _):
        before = (directory / CHECKPOINT).stat()
        with Inotify() as inotify:
            inotify.add_watch(directory, Mask.CREATE | Mask.MOVED_FROM | Mask.MOVED_TO)
            await kubelet.admit(pod("a", wants(1)))
            created, moved_from, moved_to = [await inotify.get() for _ in range(3)]
        after = (directory / CHECKPOINT).stat()
    assert str(created.name).startswith(".")
    assert moved_from.name == created.name
    assert str(moved_to.name) == CHECKPOINT
    assert moved_to.mask & Mask.MOVED_TO
    assert after.st_ino != before.st_ino
    assert after.st_mode & 0o777 == 0o600


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
        kubelet.spoil_checkpoint(b'{"Data":{"PodDeviceEntries":null}}')
        plugin.thinking = asyncio.Event()
        admission = asyncio.create_task(kubelet.admit(pod("b", wants(1))))
        await eventually(lambda: len(plugin.preferences) == 2)
        list_again(plugin)
        await eventually(lambda: set(recorded(directory)) == {("uid-a", "c")})
        plugin.thinking.set()
        await admission


async def test_nothing_is_cleaned_until_the_api_server_answered_after_a_start(directory: Path) -> None:
    client = PodResourcesClient(directory / "pr/kubelet.sock")
    async with node(directory, options=KubeletOptions(sync_delay=0.0)) as (kubelet, _):
        await kubelet.admit(pod("ended", wants(1)))
        await kubelet.admit(pod("live", wants(1)))
        await kubelet.stop()
        kubelet.finish("uid-ended")
        await kubelet.start(api_reachable=False)
        async with serving(again := RawPlugin(), directory / "again.sock"):
            await register(directory, "again.sock")
            await kubelet.wait_for_capacity(CORE, 4)
            static = static_pod("ns", "static", "node", wants(1))
            await kubelet.admit(static)
            assert [each.name for each in await client.list()] == ["static"]
            list_again(again)
            assert {uid for uid, _ in recorded(directory)} == {"uid-ended", "uid-live", static.uid}
            await kubelet.reach_api()
            assert {each.name for each in await client.list()} == {"live", "static"}
            list_again(again)
            await eventually(lambda: {uid for uid, _ in recorded(directory)} == {"uid-live", static.uid})
            assert len(again.allocations) == 1


# Section 14: writes that fail, are late or overtaken


async def test_a_failed_write_rejects_the_pod_and_memory_keeps_the_entry(directory: Path) -> None:
    async with node(directory) as (kubelet, plugin):
        kubelet.checkpoint.faults.append(WriteFault(fails=True))
        text = await rejection(kubelet, pod("a", wants(1)))
        assert 'failed to write checkpoint file "kubelet_internal_checkpoint"' in text
        assert "no space left on device" in text
        assert recorded(directory) == {}
        list_again(plugin)
        await eventually(lambda: set(recorded(directory)) == {("uid-a", "c")})
        await kubelet.admit(pod("b", wants(4)))
        assert set(recorded(directory)) == {("uid-b", "c")}


async def test_a_failed_write_at_a_containers_start_is_retried_without_a_write(directory: Path) -> None:
    async with node(directory, options=KubeletOptions(sync_delay=0.0)) as (kubelet, _):
        await kubelet.admit(pod("a", wants(1)))
        await kubelet.stop()
        kubelet.spoil_checkpoint(None)
        await kubelet.start()
        async with serving(RawPlugin(), directory / "again.sock"):
            await register(directory, "again.sock")
            await kubelet.wait_for_capacity(CORE, 4)
            kubelet.stop_container("uid-a", "c")
            kubelet.checkpoint.faults.append(WriteFault(fails=True))
            assert "failed to write checkpoint file" in ((await kubelet.start_container("uid-a", "c")).waiting or "")
            started = await kubelet.start_container("uid-a", "c")
            assert started.waiting is None
            assert len(ids_of(started)) == 1
            assert recorded(directory) == {}


async def test_a_late_write_leaves_the_older_file_after_our_answer(directory: Path) -> None:
    async with node(directory) as (kubelet, plugin):
        await kubelet.admit(pod("a", wants(1)))
        written = asyncio.Event()
        kubelet.checkpoint.faults.append(WriteFault(until=written))
        admission = asyncio.create_task(kubelet.admit(pod("b", wants(1, "x"), wants(1, "y"))))
        await eventually(lambda: len(plugin.allocations) == 2)
        await asyncio.sleep(0.02)
        assert set(recorded(directory)) == {("uid-a", "c")}
        assert len(plugin.preferences) == 2, "the kubelet makes no further call before it has written"
        written.set()
        await admission
        assert set(recorded(directory)) == {("uid-a", "c"), ("uid-b", "x"), ("uid-b", "y")}


async def test_an_older_snapshot_can_overwrite_a_newer_one_until_the_next_write(directory: Path) -> None:
    async with node(directory) as (kubelet, plugin):
        overtaken = asyncio.Event()
        kubelet.checkpoint.faults.append(WriteFault(until=overtaken, of_list=True))
        list_again(plugin)
        await eventually(lambda: not kubelet.checkpoint.faults)
        await kubelet.admit(pod("a", wants(1)))
        assert set(recorded(directory)) == {("uid-a", "c")}
        overtaken.set()
        await eventually(lambda: not recorded(directory))
        list_again(plugin)
        await eventually(lambda: set(recorded(directory)) == {("uid-a", "c")})


async def test_a_kubelet_killed_between_allocate_and_write_has_no_entry_and_allocates_again(directory: Path) -> None:
    async with node(directory, options=KubeletOptions(sync_delay=0.3)) as (kubelet, plugin):
        kubelet.checkpoint.faults.append(WriteFault(until=(late := asyncio.Event())))
        admission = asyncio.create_task(kubelet.admit(pod("a", wants(2))))
        await eventually(lambda: bool(plugin.allocations) and not kubelet.checkpoint.faults)
        await kubelet.stop()
        late.set()
        with pytest.raises(KubeletStoppedError):
            await admission
        assert recorded(directory) == {}
        restart = asyncio.create_task(kubelet.start())
        async with serving(again := RawPlugin(), directory.parent / f"{directory.name}-again.sock"):
            await eventually((directory / "kubelet.sock").exists)
            await asyncio.sleep(0.05)
            await register(directory, f"../{directory.name}-again.sock")
            await restart
            assert len(again.allocations) == 1
            assert set(recorded(directory)) == {("uid-a", "c")}


async def test_137534_the_file_names_the_holder_of_an_id_that_is_offered_again(directory: Path) -> None:
    async with node(directory) as (kubelet, plugin):
        plugin.preference = ["d0"]
        await kubelet.admit(pod("old", wants(1)))
        plugin.preference, plugin.gate = ["d1"], asyncio.Event()
        admission = asyncio.create_task(kubelet.admit(pod("a", wants(1))))
        await eventually(lambda: len(plugin.allocations) == 2)
        kubelet.finish("uid-old")
        await PodResourcesClient(directory / "pr/kubelet.sock").list()
        plugin.gate.set()
        await admission
        plugin.preference = ["d3"]
        await kubelet.admit(pod("b", wants(1)))
        available, _, _ = plugin.preferences[-1]
        assert recorded(directory) == {("uid-a", "c"): {"d1"}, ("uid-b", "c"): {"d3"}}
        assert "d1" in available


# Sections 6.3 and 14: static pods


async def test_a_static_pod_that_returns_has_its_entry_again_without_an_allocate(directory: Path) -> None:
    static = static_pod("default", "train", "worker", wants(2))
    assert is_static(static)
    assert not is_static(pod("a", uid=API_UID))
    async with node(directory) as (kubelet, plugin):
        first = await kubelet.admit(static)
        kubelet.finish(static.uid)
        again = await kubelet.admit(static)
        assert again == first, "the memory was not cleaned meanwhile"
        assert len(plugin.allocations) == 1


# Section 7: force deletion, and cgroups


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
