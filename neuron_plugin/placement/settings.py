"""Settings of the scheduler extender, ``neuron-plugin extender``."""

from __future__ import annotations

import enum
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from neuron_plugin.allocation import Dialect, PlacementStrategy
from neuron_plugin.planning.choice import PreferenceOrder
from neuron_plugin.settings import SettingsError
from neuron_plugin.telemetry import LogFormat, LogLevel

LOOPBACK = ("127.0.0.1", "::1", "localhost")
WILDCARDS = ("0.0.0.0", "::")  # noqa: S104 - names of addresses, nothing listens here


class FilterMode(enum.StrEnum):
    """The answer of filter for a pod that fits some nodes."""

    BEST = "best"
    """The best node alone, and the pod's set is assumed there."""
    ALL = "all"
    """Every node where it fits; prioritize then scores them, and the scheduler's own scorers take part."""


class MakeRoom(enum.StrEnum):
    """The action for a pod that waits although enough is free."""

    OFF = "off"
    """Nothing."""
    PLAN = "plan"
    """A metric and an event on the pod say which move of other pods would give it room."""
    ACT = "act"
    """The move is made: the set is reserved for the pod, and the others are evicted."""


class OnUnable(enum.StrEnum):
    """The state of a node whose pre-flight check cannot run."""

    OPEN = "open"
    """It takes pods unchecked."""
    CLOSED = "closed"
    """It takes none."""


class GroupPreflight(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="kebab"):
    """The check of a group that asks for one, as far as it differs from a node's. Without a command there is none."""

    command: tuple[str, ...] = ()
    host_network: bool = False


class PreflightSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="kebab"):
    """The check of a node before it takes pods. ``pod`` is its pod's spec; without one nothing is checked.

    Seconds: ``timeout`` is how long a check may take, or be kept from running. A check that has not passed is made
    again after ``retry``, 0 for by hand only. At most ``parallel`` nodes are checked at a time. If nodes give devices
    by claims, a check has a claim from ``claim_template``; without one they are not checked.
    """

    pod: dict[str, Any] = {}
    timeout: Annotated[float, Meta(ge=1, le=86400)] = 600.0
    retry: Annotated[float, Meta(ge=0)] = 3600.0
    parallel: Annotated[int, Meta(ge=1, le=1000)] = 4
    on_unable: OnUnable = OnUnable.OPEN
    claim_template: str = ""
    group: GroupPreflight = GroupPreflight()

    @property
    def checks_groups(self) -> bool:
        """Whether groups that ask for it are checked before they start."""
        return bool(self.pod and self.group.command)


class ExtenderSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="kebab"):
    """Settings of the scheduler extender, ``neuron-plugin extender``.

    Both dialects are written by default, so that the vendor's device plugin finds its ids, too.
    """

    address: Annotated[str, Meta(description="address to listen on for the scheduler")] = "127.0.0.1"
    port: Annotated[int, Meta(ge=0, le=65535, description="port for the scheduler")] = 12345
    tls_cert: Annotated[Path | None, Meta(description="server certificate chain (PEM); read again when it changes")] = (
        None
    )
    tls_key: Annotated[Path | None, Meta(description="private key of the server certificate (PEM)")] = None
    client_ca: Annotated[
        Path | None, Meta(description="CA (PEM) that callers' certificates must come from: mutual TLS")
    ] = None
    insecure: Annotated[bool, Meta(description="allow plain HTTP beyond loopback, unguarded")] = False
    health_address: Annotated[str, Meta(description="address of probes and metrics, plain HTTP")] = "0.0.0.0"  # noqa: S104 - the kubelet probes the pod's address
    health_port: Annotated[int, Meta(ge=0, le=65535, description="port of probes, metrics, monitor API")] = 12346
    kubeconfig: Annotated[Path | None, Meta(description="kubeconfig file; in-cluster credentials when not given")] = (
        None
    )
    webhook_port: Annotated[
        int,
        Meta(
            ge=0,
            le=65535,
            description="port of the webhook that gates new pods, for API servers without MutatingAdmissionPolicy: TLS "
            "without clients' certificates; 0 for none",
        ),
    ] = 0
    dialects: Annotated[
        tuple[Dialect, ...], Meta(min_length=1, description="annotation dialects to write, comma separated")
    ] = (Dialect.NEURON_PLUGIN, Dialect.VENDOR)
    instance_types: Annotated[Path | None, Meta(description="YAML file of further instance types")] = None
    leader_election: Annotated[
        bool,
        Meta(
            description="serve only while holding the Lease, which keeps what is reserved for the next leader; without "
            "it start one replica, and the next only after it has ended"
        ),
    ] = True
    lease_namespace: Annotated[
        str, Meta(min_length=1, description="namespace of the leader's Lease and of the plugins'")
    ] = "kube-system"
    identity: Annotated[
        str, Meta(description="this replica's name in the Lease, its own alone; the host name when empty")
    ] = ""
    advertise_address: Annotated[
        str,
        Meta(
            description="address at which the scheduler reaches this replica: a standby sends it to the leader's; "
            "'address' when empty"
        ),
    ] = ""
    plugin_leases: Annotated[bool, Meta(description="close a node whose plugin has stopped renewing its Lease")] = True
    answer: Annotated[
        FilterMode,
        Meta(
            description="nodes that filter names for a pod: 'best' is the best one alone, where the pod's set is "
            "assumed at once; 'all' is every node that fits, scored by prioritize"
        ),
    ] = FilterMode.BEST
    placement: Annotated[
        PlacementStrategy,
        Meta(
            description="which node is the best: 'pack' takes least from later pods, 'spread' has the most free "
            "devices; a pod's annotation neuron-plugin.io/placement decides for that pod"
        ),
    ] = PlacementStrategy.PACK
    release_when_full: Annotated[
        str,
        Meta(
            pattern=r"^(auto|never|[0-9]{1,5})$",
            description="after how many seconds a gated pod that fits on no open node by count is handed to its "
            "scheduler, so that an autoscaler acts: a number, 'never', or 'auto': 5 where the cluster has Karpenter or "
            "cluster-autoscaler, else never",
        ),
    ] = "auto"
    preferences: Annotated[
        PreferenceOrder,
        Meta(
            description="when a pod's own preferences (preferred affinities, ScheduleAnyway, PreferNoSchedule) decide: "
            "'first' before packing, 'ties' among nodes that packing finds equal"
        ),
    ] = PreferenceOrder.FIRST
    topology_levels: Annotated[
        tuple[str, ...],
        Meta(
            description="node labels of the network's levels, broad to narrow, comma separated; when empty those of "
            "EKS and of UltraServers that nodes have"
        ),
    ] = ()
    group_reserve: Annotated[
        float,
        Meta(
            ge=0,
            le=86400,
            description="seconds for which room is kept for pods of a group that are not there yet, or were lost, "
            "since the group came on last",
        ),
    ] = 600.0
    dra_driver: Annotated[
        str,
        Meta(
            max_length=63,
            description="name of the DRA driver whose claims are allocated for gated pods, such as neuron.aws.com; "
            "empty where nodes offer devices by count only",
        ),
    ] = ""
    make_room: Annotated[
        MakeRoom,
        Meta(
            description="for a pod that waits although enough is free: 'plan' says in a metric and an event which move "
            "of other pods would give it room, 'act' makes it: the set is reserved and the others are evicted. In "
            'YAML "off" needs quotes'
        ),
    ] = MakeRoom.PLAN
    make_room_after: Annotated[
        float, Meta(ge=0, le=86400, description="seconds that a pod has to wait before a move is planned for it")
    ] = 60.0
    make_room_by_priority: Annotated[
        bool, Meta(description="plan with pods of lower priority, too, that do not say that they may be moved")
    ] = False
    make_room_evictions_per_minute: Annotated[
        int, Meta(ge=1, le=1000, description="most evictions in a minute with make-room=act")
    ] = 4
    device_hours: Annotated[
        bool,
        Meta(
            description="count whose devices were busy, idle, held, free or broken for how long, and keep it in the "
            "ConfigMap neuron-device-hours of lease-namespace"
        ),
    ] = True
    preflight: Annotated[
        PreflightSettings,
        Meta(
            description="the pod that checks a node before it takes others, its limits, and what becomes of a node "
            "whose check cannot run: values `preflight` of the chart, docs/preflight.md; no checks by default"
        ),
    ] = PreflightSettings()
    ui: Annotated[bool, Meta(description="serve a live page of all devices at /ui/ on the health port")] = False
    ui_token_file: Annotated[
        Path | None,
        Meta(
            description="file with a token that all pages on the health port but probes and metrics then ask for, as "
            "bearer token or password"
        ),
    ] = None
    prometheus_url: Annotated[
        str,
        Meta(
            pattern=r"^(https?://.+)?$",
            description="URL of a Prometheus that scrapes this program, of this cluster alone: from it the live page "
            "has the hours before a restart",
        ),
    ] = ""
    log_format: Annotated[LogFormat, Meta(description="form of the log lines")] = LogFormat.JSON
    log_level: Annotated[LogLevel, Meta(description="least severity that is logged")] = LogLevel.INFO

    @property
    def release_after(self) -> float | str | None:
        """``release_when_full`` as seconds, None for never, or ``auto``."""
        text = self.release_when_full
        return None if text == "never" else text if text == "auto" else float(text)

    @property
    def url(self) -> str:
        """Where the scheduler reaches this replica; empty if no setting says so."""
        address = self.advertise_address or self.address
        if address in WILDCARDS or not self.port:
            return ""
        host = f"[{address}]" if ":" in address else address
        return f"{'https' if self.tls else 'http'}://{host}:{self.port}"

    @property
    def tls(self) -> bool:
        """Whether the scheduler is served over TLS."""
        return self.tls_cert is not None


def check(settings: ExtenderSettings) -> None:
    """Refuse combinations that would serve less safely than they look.

    Raises:
        SettingsError: settings contradict each other; names them and the change to make.
    """
    if (settings.tls_cert is None) != (settings.tls_key is None):
        raise SettingsError("tls-cert and tls-key go together: give both or neither")
    if settings.client_ca and not settings.tls:
        raise SettingsError(f"client-ca is {settings.client_ca}, but without tls-cert no certificate is asked for")
    if settings.webhook_port and not settings.tls:
        raise SettingsError(
            f"webhook-port is {settings.webhook_port}, but the API server calls a webhook by TLS only: give tls-cert "
            "and tls-key"
        )
    if settings.make_room is MakeRoom.ACT and not settings.leader_election:
        raise SettingsError(
            "make-room is act, but leader-election is off: the leader's Lease keeps what is reserved. Switch it on, or "
            "use make-room=plan"
        )
    containers = settings.preflight.pod.get("containers")
    if settings.preflight.pod and not (isinstance(containers, list) and containers and all(map(_has_name, containers))):
        raise SettingsError("preflight.pod has no containers with a name: expected the spec of a pod")
    if settings.ui_token_file and not settings.ui:
        raise SettingsError(f"ui-token-file is {settings.ui_token_file}, but ui is off: switch it on, too")
    if settings.prometheus_url and not settings.ui:
        raise SettingsError(f"prometheus-url is {settings.prometheus_url}, but ui is off: switch it on, too")
    if not settings.tls and not settings.insecure and settings.address not in LOOPBACK:
        raise SettingsError(
            f"address is {settings.address!r} and there is no tls-cert: any caller on the network can bind pods. "
            "Give tls-cert, tls-key and client-ca, listen on 127.0.0.1, or allow it with insecure"
        )


def _has_name(container: object) -> bool:
    return isinstance(container, dict) and bool(container.get("name"))
