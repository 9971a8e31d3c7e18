"""The kubelet's sockets: device plugin service, registration, PodResources."""

from neuron_plugin.kubelet.advertisement import Advertisement
from neuron_plugin.kubelet.announcement import KUBELET_SOCKET
from neuron_plugin.kubelet.channels import channel_to
from neuron_plugin.kubelet.checkpoint import CHECKPOINT, RecordedDevices, read_checkpoint
from neuron_plugin.kubelet.devices import (
    AdvertisedDevice,
    AllocationRefusedError,
    ContainerAllocation,
    DeviceHandler,
    DeviceNode,
    NotYetError,
    in_numeric_order,
)
from neuron_plugin.kubelet.dialling import dial
from neuron_plugin.kubelet.observer import Observer, RegistrationState
from neuron_plugin.kubelet.plugin_watcher import WatchedPluginServer
from neuron_plugin.kubelet.pod_resources import (
    GetUnsupportedError,
    PodDevices,
    PodResourcesAbsentError,
    PodResourcesClient,
    PodResourcesError,
)
from neuron_plugin.kubelet.registration import DevicePluginServer
from neuron_plugin.kubelet.service import ServiceOptions
from neuron_plugin.kubelet.sockets import SocketIdentity, endpoint_prefix, identity_of, is_served, server_pid
from neuron_plugin.kubelet.watch import DirectoryWatch

__all__ = [
    "CHECKPOINT",
    "KUBELET_SOCKET",
    "AdvertisedDevice",
    "Advertisement",
    "AllocationRefusedError",
    "ContainerAllocation",
    "DeviceHandler",
    "DeviceNode",
    "DevicePluginServer",
    "DirectoryWatch",
    "GetUnsupportedError",
    "NotYetError",
    "Observer",
    "PodDevices",
    "PodResourcesAbsentError",
    "PodResourcesClient",
    "PodResourcesError",
    "RecordedDevices",
    "RegistrationState",
    "ServiceOptions",
    "SocketIdentity",
    "WatchedPluginServer",
    "channel_to",
    "dial",
    "endpoint_prefix",
    "identity_of",
    "in_numeric_order",
    "is_served",
    "read_checkpoint",
    "server_pid",
]
