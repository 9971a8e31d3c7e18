"""The client of the API server: list, watch, bind and patch, with small typed records."""

from neuron_plugin.cluster.api import ApiError, ApiRequest, ApiServer, ClusterError, DecodeError, UnreachableError
from neuron_plugin.cluster.client import KubernetesApi
from neuron_plugin.cluster.leases import Election
from neuron_plugin.cluster.objects import ApiResource, Lease, Node, ObjectReference, Scope
from neuron_plugin.cluster.pod_wire import Pod
from neuron_plugin.cluster.reflector import Reflector
from neuron_plugin.cluster.writes import LeaseName
