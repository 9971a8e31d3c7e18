"""Pods as the API server sends them: structs of the fields that are needed.

Also reads the progress of a pod's containers from its status. ``pods`` and ``pod_rules`` interpret a pod.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from datetime import datetime
from functools import lru_cache

import msgspec

from neuron_plugin.allocation import ContainerKind
from neuron_plugin.allocation.node_rules import DEFAULT_SCHEDULER, NodeSelectorTerm, Requirement
from neuron_plugin.allocation.pod import TERMINAL_PHASES
from neuron_plugin.allocation.runs import ContainerRun
from neuron_plugin.cluster.objects import ApiObject, Wire

REMEMBERED = 4_096
"""Entries of each cache of parts of pods: pods of one controller have equal requests and terms."""
NONE: Mapping[str, str] = {}
_FIRST_YEAR = 1970
"""A time in this year is not set."""
_RFC_3339 = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:[0-5]\d)", re.ASCII)


class _ClaimUse(Wire, frozen=True):
    name: str = ""
    request: str | None = None


class Resources(Wire, frozen=True):
    """``resources`` of a container: quantities as texts, such as ``2`` or ``1k``, and claims of the pod."""

    limits: dict[str, str] | None = None
    requests: dict[str, str] | None = None
    claims: tuple[_ClaimUse, ...] | None = None


class _Port(Wire, frozen=True):
    host_port: int | None = None
    host_ip: str = msgspec.field(default="", name="hostIP")
    protocol: str = "TCP"


class _SecurityContext(Wire, frozen=True):
    privileged: bool | None = None


class _Variable(Wire, frozen=True):
    name: str = ""


class Container(Wire, frozen=True):
    """A container or init container."""

    name: str = ""
    restart_policy: str | None = None
    resources: Resources | None = None
    ports: tuple[_Port, ...] | None = None
    security_context: _SecurityContext | None = None
    env: tuple[_Variable, ...] | None = None

    @property
    def limits(self) -> Mapping[str, str]:
        """Resource name to quantity."""
        return (self.resources and self.resources.limits) or NONE

    @property
    def requests(self) -> Mapping[str, str]:
        """Resource name to quantity."""
        return (self.resources and self.resources.requests) or NONE


class Present(Wire, frozen=True):
    """An object whose presence alone matters."""


class WireRequirement(Wire, frozen=True):
    """One requirement of a node selector term."""

    key: str
    operator: str
    values: tuple[str, ...] | None = None


class WireTerm(Wire, frozen=True):
    """A node selector term."""

    match_expressions: tuple[WireRequirement, ...] | None = None
    match_fields: tuple[WireRequirement, ...] | None = None


class WireNodeSelector(Wire, frozen=True):
    """A node selector: a node must match one of its terms."""

    node_selector_terms: tuple[WireTerm, ...] | None = None

    @property
    def terms(self) -> tuple[NodeSelectorTerm, ...]:
        """The terms as values."""
        return tuple(node_term(term) for term in self.node_selector_terms or ())


def node_term(term: WireTerm) -> NodeSelectorTerm:
    """The term as a value."""
    return NodeSelectorTerm(_requirements(term.match_expressions), _requirements(term.match_fields))


def _requirements(listed: tuple[WireRequirement, ...] | None) -> tuple[Requirement, ...]:
    return tuple(
        Requirement(requirement.key, requirement.operator, requirement.values or ()) for requirement in listed or ()
    )


class _PreferredTerm(Wire, frozen=True):
    weight: int = 0
    preference: WireTerm = WireTerm()


class _NodeAffinity(Wire, frozen=True):
    required_during_scheduling_ignored_during_execution: WireNodeSelector | None = None
    preferred_during_scheduling_ignored_during_execution: tuple[_PreferredTerm, ...] | None = None


class WireLabelSelector(Wire, frozen=True):
    """A label selector; an empty one matches everything."""

    match_labels: dict[str, str] | None = None
    match_expressions: tuple[WireRequirement, ...] | None = None

    @property
    def requirements(self) -> tuple[Requirement, ...]:
        """The requirements, all of which must be met."""
        labels = [Requirement(key, "In", (value,)) for key, value in (self.match_labels or {}).items()]
        return (*labels, *_requirements(self.match_expressions))


class WirePodAffinityTerm(Wire, frozen=True):
    """A term about other pods."""

    label_selector: WireLabelSelector | None = None
    topology_key: str = ""
    namespaces: tuple[str, ...] | None = None
    namespace_selector: WireLabelSelector | None = None
    match_label_keys: tuple[str, ...] | None = None
    mismatch_label_keys: tuple[str, ...] | None = None


class _WeightedPodAffinityTerm(Wire, frozen=True):
    weight: int = 0
    pod_affinity_term: WirePodAffinityTerm = WirePodAffinityTerm()


class WirePodAffinity(Wire, frozen=True):
    """Pod affinity or anti-affinity."""

    required_during_scheduling_ignored_during_execution: tuple[WirePodAffinityTerm, ...] | None = None
    preferred_during_scheduling_ignored_during_execution: tuple[_WeightedPodAffinityTerm, ...] | None = None


class WireAffinity(Wire, frozen=True):
    """Affinities of a pod."""

    node_affinity: _NodeAffinity | None = None
    pod_affinity: WirePodAffinity | None = None
    pod_anti_affinity: WirePodAffinity | None = None


class WireSpread(Wire, frozen=True):
    """A topology spread constraint."""

    max_skew: int = 1
    topology_key: str = ""
    when_unsatisfiable: str = ""
    label_selector: WireLabelSelector | None = None
    min_domains: int | None = None
    node_affinity_policy: str | None = None
    node_taints_policy: str | None = None
    match_label_keys: tuple[str, ...] | None = None


class SchedulingGroup(Wire, frozen=True):
    """The PodGroup that the pod is scheduled with."""

    pod_group_name: str | None = None


class _Gate(Wire, frozen=True):
    name: str = ""


class WireToleration(Wire, frozen=True):
    """A toleration."""

    key: str | None = None
    operator: str | None = None
    value: str | None = None
    effect: str | None = None


class _ClaimSource(Wire, frozen=True):
    claim_name: str = ""


class _ResourceClaim(Wire, frozen=True):
    """A claim of the pod; ``resource_claim_name`` is set if it is not made from a template."""

    name: str = ""
    resource_claim_name: str | None = None


class _ClaimStatus(Wire, frozen=True):
    """A claim made from a template; without a name, the pod does not need the claim."""

    name: str = ""
    resource_claim_name: str | None = None


class _Volume(Wire, frozen=True):
    name: str = ""
    persistent_volume_claim: _ClaimSource | None = None
    ephemeral: Present | None = None
    empty_dir: Present | None = None


class PodSpec(Wire, frozen=True):
    """The needed part of a pod's ``spec``."""

    node_name: str = ""
    scheduler_name: str = DEFAULT_SCHEDULER
    restart_policy: str = "Always"
    hostname: str | None = None
    subdomain: str | None = None
    priority: int | None = None
    preemption_policy: str | None = None
    containers: tuple[Container, ...] | None = None
    init_containers: tuple[Container, ...] | None = None
    resources: Resources | None = None
    overhead: dict[str, str] | None = None
    volumes: tuple[_Volume, ...] | None = None
    node_selector: dict[str, str] | None = None
    affinity: WireAffinity | None = None
    tolerations: tuple[WireToleration, ...] | None = None
    topology_spread_constraints: tuple[WireSpread, ...] | None = None
    scheduling_gates: tuple[_Gate, ...] | None = None
    resource_claims: tuple[_ResourceClaim, ...] | None = None
    scheduling_group: SchedulingGroup | None = None


class ContainerRunning(Wire, frozen=True):
    """A container that runs."""

    started_at: str | None = None


class ContainerEnd(Wire, frozen=True):
    """How a container ended."""

    exit_code: int = 0
    reason: str | None = None
    message: str | None = None
    started_at: str | None = None
    finished_at: str | None = None


class ContainerWaiting(Wire, frozen=True):
    """Why a container does not run yet."""

    reason: str | None = None
    message: str | None = None


class ContainerState(Wire, frozen=True):
    """The state of a container; one of the fields is set."""

    waiting: ContainerWaiting | None = None
    running: ContainerRunning | None = None
    terminated: ContainerEnd | None = None


class ContainerStatus(Wire, frozen=True):
    """The current and the last state of a container."""

    name: str = ""
    started: bool | None = None
    state: ContainerState | None = None
    last_state: ContainerState | None = None


class _Condition(Wire, frozen=True):
    type: str = ""
    status: str = ""
    reason: str | None = None


class PodStatus(Wire, frozen=True):
    """The needed part of a pod's ``status``."""

    phase: str = ""
    reason: str | None = None
    message: str | None = None
    nominated_node_name: str | None = None
    conditions: tuple[_Condition, ...] | None = None
    resource_claim_statuses: tuple[_ClaimStatus, ...] | None = None
    container_statuses: tuple[ContainerStatus, ...] | None = None
    init_container_statuses: tuple[ContainerStatus, ...] | None = None


class Pod(ApiObject, frozen=True):
    """A pod."""

    spec: PodSpec = PodSpec()
    status: PodStatus = PodStatus()

    @property
    def node_name(self) -> str:
        """The node that the pod is bound to; empty before."""
        return self.spec.node_name

    @property
    def phase(self) -> str:
        """Pending, Running, Succeeded, Failed or Unknown."""
        return self.status.phase

    @property
    def terminal(self) -> bool:
        """Whether its containers have ended for good; the object may remain."""
        return self.status.phase in TERMINAL_PHASES

    @property
    def terminating(self) -> bool:
        """Whether its deletion has begun; the pod keeps its devices until it is gone."""
        return self.metadata.deletion_timestamp is not None

    @property
    def controller(self) -> tuple[str, str]:
        """Kind and name of the owner that controls it; empty texts without one."""
        owners = self.metadata.owner_references or ()
        return next(((owner.kind, owner.name) for owner in owners if owner.controller), ("", ""))

    @property
    def rejected_at_admission(self) -> bool:
        """Whether the pod has failed for good because its kubelet got no devices for it from the plugin."""
        return self.status.phase == "Failed" and self.status.reason == "UnexpectedAdmissionError"

    @property
    def containers(self) -> Iterator[tuple[Container, ContainerKind]]:
        """Every container with its kind, in the order in which the kubelet admits them."""
        for container in self.spec.init_containers or ():
            yield container, ContainerKind.SIDECAR if container.restart_policy == "Always" else ContainerKind.INIT
        for container in self.spec.containers or ():
            yield container, ContainerKind.APP

    @property
    def started(self) -> bool:
        """Whether any container, init containers included, runs or has ever run.

        A crashed container that waits for its restart has only a last state.
        """
        for status in self._container_statuses:
            states = (status.state, status.last_state)
            if status.started or any(state and (state.running or state.terminated) for state in states):
                return True
        return False

    @property
    def running(self) -> bool:
        """Whether a container runs. The status may still say so after PodGC has set the phase to Failed."""
        return any(status.state and status.state.running for status in self._container_statuses)

    @property
    def ready(self) -> bool:
        """Whether its condition Ready is True."""
        return any(known.type == "Ready" and known.status == "True" for known in self.status.conditions or ())

    @property
    def seen_by_scheduler(self) -> bool:
        """Whether a scheduler has reported on the pod. The API server itself writes that a pod is gated."""
        conditions = self.status.conditions or ()
        return any(known.type == "PodScheduled" and known.reason != "SchedulingGated" for known in conditions)

    @property
    def end_requested(self) -> bool:
        """Whether the pod was ended from outside: deleted, evicted, preempted, or ended by the kubelet.

        The kubelet sets a reason on a pod that it ends as a whole (``Evicted``, ``Terminated`` and ``Preempting`` in
        pkg/kubelet/eviction, nodeshutdown and preemption; ``DeadlineExceeded``), and none if containers end by
        themselves.
        """
        disrupted = any(
            condition.type == "DisruptionTarget" and condition.status == "True"
            for condition in self.status.conditions or ()
        )
        return self.terminating or disrupted or bool(self.status.reason)

    @property
    def privileged(self) -> tuple[str, ...]:
        """The containers that run privileged, by name."""
        return tuple(
            container.name
            for container, _ in self.containers
            if container.security_context and container.security_context.privileged
        )

    @property
    def ending(self) -> bool:
        """Whether the pod's end was requested or has begun: an app container has ended and is not restarted."""
        policies = {each.name: each.restart_policy or self.spec.restart_policy for each in self.spec.containers or ()}
        for status in self.status.container_statuses or ():
            end, policy = status.state and status.state.terminated, policies.get(status.name)
            if end and (policy == "Never" or (policy == "OnFailure" and end.exit_code == 0)):
                return True
        return self.end_requested

    @property
    def runs(self) -> tuple[ContainerRun, ...]:
        """The latest run of each container that ever ran. A run whose end was requested has not failed.

        The kubelet ends sidecars once all other containers have ended.
        """
        runs = tuple(run for status in self._container_statuses if (run := _latest_run(status)))
        if self.end_requested:
            return tuple(replace(run, failed=False) for run in runs)
        ends = [status.state and status.state.terminated for status in self.status.container_statuses or ()]
        if not (ends and all(ends)):
            return runs
        last_end = max(unix_seconds(end.finished_at or "") for end in ends if end)
        sidecars = {container.name for container, kind in self.containers if kind is ContainerKind.SIDECAR}
        return tuple(
            replace(run, failed=False) if run.container in sidecars and run.ended >= last_end else run for run in runs
        )

    @property
    def _container_statuses(self) -> tuple[ContainerStatus, ...]:
        return (*(self.status.init_container_statuses or ()), *(self.status.container_statuses or ()))


NOT_ITS_OWN_ERROR = frozenset({"OOMKilled", "StartError", "ContainerCannotRun", "ContainerStatusUnknown"})
"""Reasons of an end that are unrelated to devices (``pkg/kubelet``, containerd)."""


def _latest_run(status: ContainerStatus) -> ContainerRun | None:
    """The current run, or the last one: a container that waits for its restart has only a last state."""
    if status.state and status.state.running:
        return ContainerRun(status.name, unix_seconds(status.state.running.started_at or ""))
    for state in (status.state, status.last_state):
        if state and (end := state.terminated):
            failed = end.exit_code != 0 and end.reason not in NOT_ITS_OWN_ERROR
            started, ended = unix_seconds(end.started_at or ""), unix_seconds(end.finished_at or "")
            return ContainerRun(status.name, started, ended, failed)
    return None


@lru_cache(maxsize=REMEMBERED)
def unix_seconds(text: str) -> float:
    """An RFC 3339 time in unix seconds; 0 for any other text."""
    if not _RFC_3339.fullmatch(text := text.strip()):  # ``fromisoformat`` also reads other formats than RFC 3339
        return 0.0
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        return 0.0
    return time.timestamp() if time.year > _FIRST_YEAR else 0.0
