"""What the simulated kubelet makes of CDI devices, and its PodResources in what only the wire shows."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from neuron_plugin.kubelet import DeviceNode
from neuron_plugin.kubelet._proto.deviceplugin.v1beta1 import api_pb2 as plugin_pb
from neuron_plugin.kubelet._proto.podresources.v1 import api_pb2 as pb
from neuron_plugin.kubelet._proto.podresources.v1 import api_pb2_grpc as pb_grpc
from neuron_plugin.kubelet.socket_watch import channel_to
from neuron_plugin.simulation.kubelet_pods import KubeletContainer, KubeletPod, RateLimit, UnresolvableError, resolve
from tests.kubelet.fakes import CORE
from tests.simulation.kubelet_node import INIT, SIDECAR, RawPlugin, node, pod, wants


def write(directory: Path, *devices: tuple[str, dict[str, object]], name: str = "a.json") -> None:
    entries = [{"name": device, "containerEdits": edits} for device, edits in devices]
    (directory / name).write_bytes(msgspec.json.encode({"kind": "example.com/d", "devices": entries}))


def edits(path: str, host: str = "") -> dict[str, object]:
    return {"deviceNodes": [{"path": path} | ({"hostPath": host, "permissions": "rw"} if host else {})]}


def test_nodes_and_variables_of_all_names_are_joined_and_the_last_one_holds(tmp_path: Path) -> None:
    write(tmp_path, ("0", edits("/dev/a", "/host/a")), ("1", edits("/dev/a")), ("x", {"env": ["A=1", "B=x=y"]}))
    write(tmp_path, ("y", {"env": ["A=2"]}), name="b.json")
    found = resolve(tmp_path, [f"example.com/d={name}" for name in ("0", "1", "x", "y")])
    assert found == ((DeviceNode("/dev/a", "/dev/a", "rwm"),), {"A": "2", "B": "x=y"})
    assert resolve(tmp_path, ["example.com/d=0"])[0] == (DeviceNode("/host/a", "/dev/a", "rw"),)


def test_a_file_with_one_name_twice_describes_nothing(tmp_path: Path) -> None:
    write(tmp_path, ("0", {}), ("0", {}), ("1", {}))
    (tmp_path / "b.json").write_text("{")
    with pytest.raises(UnresolvableError):
        resolve(tmp_path, ["example.com/d=1"])


async def test_each_id_is_an_entry_with_its_numa_nodes_and_a_plain_init_container_is_none(directory: Path) -> None:
    plugin = RawPlugin()
    plugin.devices[0].topology.nodes.extend([plugin_pb.NUMANode(ID=0), plugin_pb.NUMANode(ID=1)])
    plugin.preference = ["d0", "d1"]
    async with node(directory, plugin) as (kubelet, _), channel_to(directory / "pr/kubelet.sock") as channel:
        stub: pb_grpc.PodResourcesListerAsyncStub = pb_grpc.PodResourcesListerStub(channel)
        devices = (await stub.GetAllocatableResources(pb.AllocatableResourcesRequest())).devices
        nodes = {entry.device_ids[0]: [each.ID for each in entry.topology.nodes] for entry in devices}
        assert nodes == {"d0": [0, 1], "d1": [], "d2": [], "d3": []}
        await kubelet.admit(pod("a", wants(1, "i", INIT), wants(1, "s", SIDECAR), wants(2)))
        claims = (KubeletContainer("c", claims=(("dev", ""),)),)
        await kubelet.admit(KubeletPod("uid-b", "ns", "b", claims, {"dev": "b-dev-1f"}))
        listed, claimed = (await stub.List(pb.ListPodResourcesRequest())).pod_resources
        assert [each.name for each in listed.containers] == ["s", "c"]
        assert [(each.resource_name, len(each.device_ids)) for each in listed.containers[1].devices] == [(CORE, 1)] * 2
        assert [each.claim_name for each in claimed.containers[0].dynamic_resources] == ["b-dev-1f"]


def test_the_rate_limit_fills_up_again_with_time() -> None:
    limit = RateLimit(100, 2)
    assert [limit.allows(0.0) for _ in range(3)] == [True, True, False]
    assert [limit.allows(0.01) for _ in range(2)] == [True, False]
    assert [limit.allows(10.0) for _ in range(3)] == [True, True, False]
