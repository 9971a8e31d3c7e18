"""The API server: list, watch, bind, patch, as small typed records."""

from neuron_plugin.backoff import CLOCK, Clock
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
    JsonObject,
    Response,
    UnreachableError,
    send,
)
from neuron_plugin.cluster.client import KubernetesApi, connect
from neuron_plugin.cluster.leases import LEASE_PREFIX, TERMS, Change, Election, ObservedLease, Terms
from neuron_plugin.cluster.nodes import NO_INVENTORY, NO_NEURON, UNKNOWN_HEALTH, UNREADABLE_INVENTORY, neuron_node
from neuron_plugin.cluster.objects import (
    LEASES,
    NODES,
    POD_GROUPS,
    ApiObject,
    ApiResource,
    Lease,
    Node,
    ObjectReference,
    PodGroup,
    Scope,
    pages,
)
from neuron_plugin.cluster.pods import PODS, Pod, PodUse, asks_for_neuron, neuron_pod, pod_use
from neuron_plugin.cluster.reflector import Observer, Reflector
from neuron_plugin.cluster.volumes import CLAIMS, PERSISTENT_VOLUMES
from neuron_plugin.cluster.writes import (
    LeaseName,
    annotate_lease,
    bind_pod,
    claim_lease,
    create_event,
    create_lease,
    delete_lease,
    describe_node,
    describe_pod,
    evict_pod,
    read_node,
    read_pod,
    remove_node_condition,
    renew_lease,
    report_node_condition,
    utc_now,
)
