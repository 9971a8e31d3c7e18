"""The kubelet's sockets and files: device plugin service, registration, checkpoint, PodResources."""

from neuron_plugin.kubelet.advertisement import AdvertisedDevice, Advertisement, in_numeric_order
from neuron_plugin.kubelet.checkpoint import Checkpoint, CheckpointEntry, CheckpointError, CheckpointFile
from neuron_plugin.kubelet.device_plugin import AllocationRefusedError, ContainerAllocation, DeviceNode, KubeletCounters
from neuron_plugin.kubelet.pod_resources import (
    PodDevices,
    PodResourcesAbsentError,
    PodResourcesClient,
    PodResourcesError,
)
from neuron_plugin.kubelet.registration import DevicePluginServer, WatchedPluginServer, dial
from neuron_plugin.kubelet.socket_watch import DirectoryWatch, identity_of, is_served, server_pid
