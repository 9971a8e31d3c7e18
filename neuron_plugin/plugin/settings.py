"""Settings of the node daemon, ``neuron-plugin run``."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

from neuron_plugin.allocation import Resource
from neuron_plugin.allocation.claims import DRA_DRIVER
from neuron_plugin.kubelet_files import DRA_STATE
from neuron_plugin.plugin.health import HealthRules
from neuron_plugin.settings import SettingsError
from neuron_plugin.telemetry import LogFormat, LogLevel

_KUBELET = "the kubelet"
TAKEN_CONDITIONS = {
    **dict.fromkeys(("Ready", "MemoryPressure", "DiskPressure", "PIDPressure"), _KUBELET),
    "NetworkUnavailable": "the network plugin",
    "NeuronHealth": "the node problem detector (there True means that something is wrong)",
    "AcceleratedHardwareReady": "EKS's node monitoring agent",
}
"""Node conditions with a writer of their own."""


class Numbering(enum.StrEnum):
    """How device nodes and cores are numbered inside a container."""

    AUTO = "auto"
    HOST = "host"
    CONTAINER = "container"


class TopologyPolicy(enum.StrEnum):
    """What happens to a pod without an assignment whose devices are not linked."""

    PREFERRED = "preferred"
    REQUIRED = "required"


class RegistrationWay(enum.StrEnum):
    """How the kubelet learns of the plugin."""

    SOCKET = "socket"
    WATCHER = "watcher"


class Mode(enum.StrEnum):
    """The kubelet's interface that offers devices; never both on one node."""

    DEVICE_PLUGIN = "device-plugin"
    DRA = "dra"


class ResourceName(enum.StrEnum):
    """Resources by their short names, as settings give them."""

    NEURON = "neuron"
    NEURONDEVICE = "neurondevice"
    NEURONCORE = "neuroncore"

    @property
    def resource(self) -> Resource:
        """The extended resource of this name."""
        return Resource(f"aws.amazon.com/{self.value}")


class PluginSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="kebab"):
    """Settings of the node daemon, ``neuron-plugin run``."""

    node_name: Annotated[str, Meta(description="name of this node in Kubernetes; NODE_NAME also sets it")] = ""
    cluster: Annotated[
        bool, Meta(description="use the API server; without it devices are served by their ids alone")
    ] = True
    kubeconfig: Annotated[Path | None, Meta(description="kubeconfig file; in-cluster credentials when not given")] = (
        None
    )
    resources: Annotated[
        tuple[ResourceName, ...], Meta(min_length=1, description="resources to advertise, comma separated")
    ] = tuple(ResourceName)
    mode: Annotated[
        Mode, Meta(description="offer devices as a device plugin, or as a driver of Dynamic Resource Allocation")
    ] = Mode.DEVICE_PLUGIN
    dra_driver: Annotated[
        str, Meta(min_length=1, max_length=63, description="name of the DRA driver and of its DeviceClass")
    ] = DRA_DRIVER
    dra_state: Annotated[
        Path | None,
        Meta(
            description="the kubelet's file of prepared claims; dra_manager_state above the kubelet-dir when not given"
        ),
    ] = None
    placed_claims: Annotated[
        bool,
        Meta(
            description="taint all devices, so that only the placement controller allocates claims, by scheduling gates"
        ),
    ] = False
    numbering: Annotated[Numbering, Meta(description="numbers inside containers; auto follows the driver version")] = (
        Numbering.AUTO
    )
    topology_policy: Annotated[
        TopologyPolicy,
        Meta(
            description="unlinked devices for a pod without assignment: preferred serves and reports, required refuses"
        ),
    ] = TopologyPolicy.PREFERRED
    visible_devices_env: Annotated[
        bool,
        Meta(description="set AWS_NEURON_VISIBLE_DEVICES to the host ids of requested devices; off with the OCI hook"),
    ] = True
    cdi: Annotated[bool, Meta(description="hand devices over by CDI names instead of device nodes")] = False
    cdi_dir: Annotated[Path, Meta(description="where the CDI specification is written")] = Path("/var/run/cdi")
    instance_types: Annotated[Path | None, Meta(description="YAML file of further instance types")] = None
    instance_type: Annotated[str, Meta(description="EC2 instance type when the machine does not name its own")] = ""
    sysfs: Annotated[Path, Meta(description="where sysfs is mounted")] = Path("/sys")
    dev: Annotated[Path, Meta(description="directory of the device nodes, as the host has it")] = Path("/dev")
    logical_core_file: Annotated[Path, Meta(description="the host's LNC setting")] = Path(
        "/opt/aws/neuron/logical_nc_config"
    )
    kubelet_dir: Annotated[Path, Meta(description="the kubelet's device plugin directory")] = Path(
        "/var/lib/kubelet/device-plugins"
    )
    registration: Annotated[
        RegistrationWay,
        Meta(description="how to register: by a call to kubelet.sock, or by the kubelet's plugin watcher"),
    ] = RegistrationWay.SOCKET
    plugins_registry: Annotated[Path, Meta(description="directory that the kubelet's plugin watcher looks into")] = (
        Path("/var/lib/kubelet/plugins_registry")
    )
    pod_resources_socket: Annotated[Path, Meta(description="the kubelet's PodResources socket")] = Path(
        "/var/lib/kubelet/pod-resources/kubelet.sock"
    )
    proc: Annotated[
        Path, Meta(description="the host's /proc, to see whose processes have a device open; needs hostPID or a mount")
    ] = Path("/proc")
    cgroup: Annotated[
        Path, Meta(description="the host's cgroups, to see when no process of an ended pod lives any more")
    ] = Path("/sys/fs/cgroup")
    hold_down_seconds: Annotated[
        float,
        Meta(ge=0, le=600, description="how long devices of a deleted pod rest where its cgroup cannot be seen"),
    ] = 30.0
    report_unhealthy_in_use: Annotated[
        bool,
        Meta(
            description="show the kubelet a broken device as unhealthy also while a pod has it; kube-scheduler then "
            "counts it twice"
        ),
    ] = False
    numa_hints: Annotated[
        bool, Meta(description="advertise each device's NUMA node; the kubelet then may choose without asking")
    ] = False
    rescan_seconds: Annotated[
        float, Meta(ge=1, le=3600, description="how often the hardware is read again without an event")
    ] = 10.0
    kmsg: Annotated[
        Path | None,
        Meta(
            description="kernel log for hardware errors (default: kmsg beside the device nodes); /dev/kmsg by syslog(2)"
        ),
    ] = None
    node_condition: Annotated[
        str,
        Meta(description="node condition to keep: True while all devices are healthy, such as NeuronDevicesHealthy"),
    ] = ""
    ready_condition: Annotated[
        str,
        Meta(
            description="node condition to keep: True while the kubelet follows every resource and the inventory is on "
            "the node, such as NeuronDevicesReady"
        ),
    ] = ""
    label_pods_on_sick_devices: Annotated[
        bool, Meta(description="set the label neuron-plugin.io/device-unhealthy on pods while a device of theirs is so")
    ] = False
    present_label: Annotated[
        bool, Meta(description="set the node's label neuron.amazonaws.com/present, by which Neuron Observer runs there")
    ] = True
    state_dir: Annotated[
        Path | None, Meta(description="where to keep which device errors are old; without, a restart forgets")
    ] = None
    utilization_seconds: Annotated[
        float,
        Meta(ge=0, le=3600, description="how often to read how much containers use their cores; 0 never"),
    ] = 30.0
    idle_after_seconds: Annotated[
        float,
        Meta(ge=1, le=1e6, description="how long a container's cores must have executed nothing to be called idle"),
    ] = 300.0
    idle_event_after_seconds: Annotated[
        float,
        Meta(ge=0, le=1e7, description="write an event on a pod that was idle for so long; 0 writes none"),
    ] = 0.0
    health: Annotated[HealthRules, Meta(description="what each health signal means; in the file only")] = HealthRules()
    decision_deadline_seconds: Annotated[
        float, Meta(gt=0, le=10, description="how long a preference may wait for the API server, once connected")
    ] = 2.0
    health_address: Annotated[str, Meta(description="address of probes, metrics and decisions, plain HTTP")] = "0.0.0.0"  # noqa: S104 - the kubelet probes the pod's address
    health_port: Annotated[
        int, Meta(ge=0, le=65535, description="port of probes, metrics and decisions; 0 serves none")
    ] = 12347
    node_lease: Annotated[
        bool, Meta(description="renew a Lease of this node, by which the extender sees that the plugin serves")
    ] = True
    lease_namespace: Annotated[str, Meta(min_length=1, description="namespace of the nodes' Leases")] = "kube-system"
    lease_duration_seconds: Annotated[
        float,
        Meta(
            ge=1,
            le=3600,
            description="how long after a renewal the extender uses the node; longer from 100 nodes on",
        ),
    ] = 8.0
    lease_renew_seconds: Annotated[
        float,
        Meta(
            ge=1,
            le=1800,
            description="how often the Lease is renewed; less often from 100 nodes on",
        ),
    ] = 2.0
    log_format: Annotated[LogFormat, Meta(description="form of the log lines")] = LogFormat.TEXT
    log_level: Annotated[LogLevel, Meta(description="least severity that is logged")] = LogLevel.INFO

    @property
    def dra_state_file(self) -> Path:
        """The kubelet's file of prepared claims, which lies in its root directory."""
        return self.dra_state or self.kubelet_dir.parent / DRA_STATE


def with_node_name(settings: PluginSettings, environ: Mapping[str, str]) -> PluginSettings:
    """With the node's name by NODE_NAME, which manifests set from spec.nodeName, where no setting says it."""
    return msgspec.structs.replace(settings, node_name=settings.node_name or environ.get("NODE_NAME", ""))


def check(settings: PluginSettings) -> None:
    """Refuse settings that contradict each other, or something else on the node.

    Raises:
        SettingsError: which, and what to change.
    """
    duration, renew = settings.lease_duration_seconds, settings.lease_renew_seconds
    if settings.node_lease and duration < 2 * renew:
        raise SettingsError(
            f"lease-renew-seconds is {renew:g} and lease-duration-seconds {duration:g}: one late renewal would close "
            f"the node. Expected a duration of at least {2 * renew:g}, or no-node-lease"
        )
    if settings.mode is Mode.DRA and not (settings.cluster and settings.node_name):
        raise SettingsError(
            "mode is dra, which reads claims from the API server and publishes slices of this node: expected cluster "
            "and a node-name"
        )
    health, ready = settings.node_condition, settings.ready_condition
    for setting, name, example in (
        ("node-condition", health, "NeuronDevicesHealthy"),
        ("ready-condition", ready, "NeuronDevicesReady"),
    ):
        if name in TAKEN_CONDITIONS:
            raise SettingsError(
                f"{setting} is {name!r}, which {TAKEN_CONDITIONS[name]} writes: choose another name, such as {example}"
            )
    if health and health == ready:
        raise SettingsError(
            f"node-condition and ready-condition are both {health!r}: expected two names, such as NeuronDevicesHealthy "
            "and NeuronDevicesReady"
        )
