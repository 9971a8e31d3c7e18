from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

from neuron_plugin.kubelet._proto.deviceplugin.v1beta1 import api_pb2 as deviceplugin
from neuron_plugin.kubelet._proto.pluginregistration.v1 import api_pb2 as pluginregistration
from neuron_plugin.kubelet._proto.podresources.v1 import api_pb2 as podresources

ROOT = Path(__file__).resolve().parents[2]
GENERATE = ROOT / "protos" / "generate.py"
STUB = Path("neuron_plugin/kubelet/_proto/deviceplugin/v1beta1/api_pb2.pyi")


def check(root: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(GENERATE), "--check", "--root", str(root)]
    return subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603 - our own script


def test_p82_committed_stubs_are_what_the_protos_give() -> None:
    result = check(ROOT)
    assert result.returncode == 0, result.stderr


def test_a_changed_and_a_missing_stub_are_named(tmp_path: Path) -> None:
    shutil.copytree(ROOT / STUB.parents[2], tmp_path / STUB.parents[2])
    (tmp_path / STUB).write_text("# edited by hand\n")
    (tmp_path / STUB.with_suffix(".py")).unlink()
    result = check(tmp_path)
    assert result.returncode == 1
    assert f"{STUB} differs" in result.stderr
    assert f"{STUB.with_suffix('.py')} is missing" in result.stderr


def test_field_numbers_are_the_kubelets() -> None:
    """Bytes written by hand from the kubelet's field numbers parse into the fields of that meaning."""
    allocated = deviceplugin.ContainerAllocateResponse.FromString(
        b"\x0a\x06\x0a\x01K\x12\x01V"  # 1: envs
        b"\x12\x08\x0a\x02/c\x12\x02/h"  # 2: mounts
        b"\x1a\x0d\x0a\x02/c\x12\x02/d\x1a\x03rwm"  # 3: devices
        b"\x22\x06\x0a\x01a\x12\x01b"  # 4: annotations
        b"\x2a\x07\x0a\x05v/c=n"  # 5: CDI devices
    )
    assert dict(allocated.envs) == {"K": "V"}
    assert (allocated.mounts[0].container_path, allocated.mounts[0].host_path) == ("/c", "/h")
    assert (allocated.devices[0].host_path, allocated.devices[0].permissions) == ("/d", "rwm")
    assert dict(allocated.annotations) == {"a": "b"}
    assert allocated.cdi_devices[0].name == "v/c=n"


def test_a_device_without_topology_is_two_fields_on_the_wire() -> None:
    device = deviceplugin.Device(ID="7", health="Healthy")
    assert device.SerializeToString() == b"\x0a\x017\x12\x07Healthy"


def test_a_register_request_has_the_kubelets_bytes() -> None:
    options = deviceplugin.DevicePluginOptions(get_preferred_allocation_available=True)
    request = deviceplugin.RegisterRequest(version="v1beta1", endpoint="e", resource_name="r/n", options=options)
    assert request.SerializeToString() == b"\x0a\x07v1beta1\x12\x01e\x1a\x03r/n\x22\x02\x10\x01"


def test_services_have_the_kubelets_full_names() -> None:
    services = {
        service.full_name: sorted(service.methods_by_name)
        for module in (deviceplugin, podresources, pluginregistration)
        for service in module.DESCRIPTOR.services_by_name.values()
    }
    assert services == {
        "v1beta1.Registration": ["Register"],
        "v1beta1.DevicePlugin": [
            *("Allocate", "GetDevicePluginOptions", "GetPreferredAllocation", "ListAndWatch", "PreStartContainer")
        ],
        "v1.PodResourcesLister": ["Get", "GetAllocatableResources", "List"],
        "pluginregistration.Registration": ["GetInfo", "NotifyRegistrationStatus"],
    }


def test_numa_node_zero_is_an_empty_message() -> None:
    topology = podresources.TopologyInfo.FromString(b"\x0a\x00\x0a\x02\x08\x01")
    assert [node.ID for node in topology.nodes] == [0, 1]
