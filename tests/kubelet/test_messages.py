from __future__ import annotations

import grpc
import pytest

from neuron_plugin.kubelet.advertisement import Advertisement
from neuron_plugin.kubelet.devices import (
    AdvertisedDevice,
    AllocationRefusedError,
    ContainerAllocation,
    DeviceNode,
    MalformedRequestError,
    NotYetError,
    RefusalError,
    UnhealthyDeviceError,
    UnknownDeviceError,
)
from neuron_plugin.kubelet.messages import container_response, device_list, status_of


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (MalformedRequestError(), grpc.StatusCode.INVALID_ARGUMENT),
        (UnknownDeviceError(), grpc.StatusCode.NOT_FOUND),
        (UnhealthyDeviceError(), grpc.StatusCode.FAILED_PRECONDITION),
        (AllocationRefusedError(), grpc.StatusCode.FAILED_PRECONDITION),
        (NotYetError(), grpc.StatusCode.UNAVAILABLE),
        (RuntimeError(), grpc.StatusCode.INTERNAL),
    ],
)
def test_every_error_has_its_status_in_one_place(error: Exception, status: grpc.StatusCode) -> None:
    assert status_of(error) is status


def test_every_kind_of_refusal_has_a_status_of_its_own_choice() -> None:
    for kind in RefusalError.__subclasses__():
        assert status_of(kind()) is not grpc.StatusCode.INTERNAL, kind


def test_a_daemons_own_kind_of_refusal_has_its_parents_status() -> None:
    class HeldByAnotherPodError(AllocationRefusedError):
        pass

    assert status_of(HeldByAnotherPodError()) is grpc.StatusCode.FAILED_PRECONDITION


def test_p20_an_unhealthy_device_is_listed_as_such() -> None:
    message = device_list(Advertisement([AdvertisedDevice("0"), AdvertisedDevice("1", healthy=False)]).latest)
    assert [(device.ID, device.health) for device in message.devices] == [("0", "Healthy"), ("1", "Unhealthy")]


def test_p21_no_topology_is_sent_unless_a_numa_node_is_known() -> None:
    message = device_list(Advertisement([AdvertisedDevice("0"), AdvertisedDevice("1", numa_nodes=(0, 1))]).latest)
    without, with_nodes = message.devices
    assert not without.HasField("topology")
    assert [node.ID for node in with_nodes.topology.nodes] == [0, 1]


def test_p53_everything_a_container_receives_reaches_the_wire() -> None:
    message = container_response(
        ContainerAllocation(
            envs={"NEURON_RT_VISIBLE_CORES": "2,3"},
            devices=(DeviceNode("/dev/neuron5", "/dev/neuron0", "rwm"),),
            cdi_devices=("aws.amazon.com/neuron=5",),
        )
    )
    assert dict(message.envs) == {"NEURON_RT_VISIBLE_CORES": "2,3"}
    node = message.devices[0]
    assert (node.host_path, node.container_path, node.permissions) == ("/dev/neuron5", "/dev/neuron0", "rwm")
    assert [device.name for device in message.cdi_devices] == ["aws.amazon.com/neuron=5"]
