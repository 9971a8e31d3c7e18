"""The API server: list, watch, bind, patch, as small typed records."""

from neuron_plugin.cluster.api import (
    JSON,
    MERGE_PATCH,
    STRATEGIC_MERGE_PATCH,
    ApiError,
    ApiRequest,
    ApiServer,
    ClusterError,
    ConnectionSettingsError,
    DecodeError,
    UnreachableError,
    send,
)
from neuron_plugin.cluster.election import TERMS, Change, Election, Terms
from neuron_plugin.cluster.kinds import LEASES, NODES, PODS
from neuron_plugin.cluster.leases import LeaseName, Sighting, claim_lease, create_lease, renew_lease, utc_now
from neuron_plugin.cluster.lists import Scope, pages
from neuron_plugin.cluster.observer import UNOBSERVED, Observer
from neuron_plugin.cluster.records import MIRROR_ANNOTATION, Container, Lease, Node, ObjectReference, Pod
from neuron_plugin.cluster.reflector import Reflector
from neuron_plugin.cluster.timing import CLOCK, Clock
from neuron_plugin.cluster.transport import KubernetesApi, connect
from neuron_plugin.cluster.writes import (
    annotate_pod,
    bind_pod,
    create_event,
    describe_node,
    read_node,
    read_pod,
    remove_node_condition,
    report_node_condition,
)

__all__ = [
    "CLOCK",
    "JSON",
    "LEASES",
    "MERGE_PATCH",
    "MIRROR_ANNOTATION",
    "NODES",
    "PODS",
    "STRATEGIC_MERGE_PATCH",
    "TERMS",
    "UNOBSERVED",
    "ApiError",
    "ApiRequest",
    "ApiServer",
    "Change",
    "Clock",
    "ClusterError",
    "ConnectionSettingsError",
    "Container",
    "DecodeError",
    "Election",
    "KubernetesApi",
    "Lease",
    "LeaseName",
    "Node",
    "ObjectReference",
    "Observer",
    "Pod",
    "Reflector",
    "Scope",
    "Sighting",
    "Terms",
    "UnreachableError",
    "annotate_pod",
    "bind_pod",
    "claim_lease",
    "connect",
    "create_event",
    "create_lease",
    "describe_node",
    "pages",
    "read_node",
    "read_pod",
    "remove_node_condition",
    "renew_lease",
    "report_node_condition",
    "send",
    "utc_now",
]
