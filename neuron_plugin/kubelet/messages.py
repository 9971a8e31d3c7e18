"""The daemon's values as protobuf messages of the device plugin API, and nothing else.

Field meanings and numbers: ``protos/neuron_plugin/kubelet/_proto/deviceplugin/v1beta1/api.proto``.
"""

from __future__ import annotations

import grpc

from neuron_plugin.kubelet._proto.deviceplugin.v1beta1 import api_pb2 as pb
from neuron_plugin.kubelet.advertisement import Edition
from neuron_plugin.kubelet.devices import (
    AdvertisedDevice,
    AllocationRefusedError,
    ContainerAllocation,
    MalformedRequestError,
    NotYetError,
    RefusalError,
    UnhealthyDeviceError,
    UnknownDeviceError,
)

API_VERSION = "v1beta1"
HEALTHY = "Healthy"
UNHEALTHY = "Unhealthy"

STATUS: dict[type[RefusalError], grpc.StatusCode] = {
    MalformedRequestError: grpc.StatusCode.INVALID_ARGUMENT,
    UnknownDeviceError: grpc.StatusCode.NOT_FOUND,
    UnhealthyDeviceError: grpc.StatusCode.FAILED_PRECONDITION,
    AllocationRefusedError: grpc.StatusCode.FAILED_PRECONDITION,
    NotYetError: grpc.StatusCode.UNAVAILABLE,
}


def status_of(error: Exception) -> grpc.StatusCode:
    """The gRPC status that carries an error; INTERNAL for one nobody foresaw."""
    return next((STATUS[kind] for kind in type(error).__mro__ if kind in STATUS), grpc.StatusCode.INTERNAL)


def device_list(edition: Edition) -> pb.ListAndWatchResponse:
    """An edition as the message ListAndWatch sends."""
    return pb.ListAndWatchResponse(devices=[_device(device) for device in edition.devices])


def _device(device: AdvertisedDevice) -> pb.Device:
    message = pb.Device(ID=device.id, health=HEALTHY if device.healthy else UNHEALTHY)
    if device.numa_nodes:
        message.topology.nodes.extend(pb.NUMANode(ID=node) for node in device.numa_nodes)
    return message


def container_response(allocation: ContainerAllocation) -> pb.ContainerAllocateResponse:
    """What one container receives, as Allocate answers it."""
    return pb.ContainerAllocateResponse(
        envs=allocation.envs,
        devices=[
            pb.DeviceSpec(container_path=node.container_path, host_path=node.host_path, permissions=node.permissions)
            for node in allocation.devices
        ],
        cdi_devices=[pb.CDIDevice(name=name) for name in allocation.cdi_devices],
    )
