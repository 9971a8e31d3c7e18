"""The checks of nodes before these take pods: their pods are made, looked at and deleted, and the results written.

Once in a while, by the leader. What is due follows from the node's annotation, the pods of the checks and the time: see
``planning.preflight``. Nothing else is remembered, so the next leader goes on where this one ended. The pod of a check
names its node: no scheduler places it, and so none evicts others for it. What keeps users' pods off the node is
``NodeInfo.unchecked``.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Mapping
from dataclasses import replace
from http import HTTPStatus
from typing import Any

import msgspec

from neuron_plugin.allocation import NeuronNode, NodeInventory, Rejection, Resource
from neuron_plugin.allocation.keys import PREFIX, PREFLIGHT_KEY
from neuron_plugin.allocation.preflight import Preflight, PreflightState, read_preflight, write_preflight
from neuron_plugin.cluster import ClusterError, ObjectReference, Pod, Scope
from neuron_plugin.cluster.objects import pages
from neuron_plugin.cluster.pod_wire import NOT_ITS_OWN_ERROR, ContainerState, unix_seconds
from neuron_plugin.cluster.pods import PODS
from neuron_plugin.cluster.writes import create_pod, delete_pod, describe_node
from neuron_plugin.placement.context import Context
from neuron_plugin.placement.settings import OnUnable, PreflightSettings
from neuron_plugin.placement.writer import Outcome, Writer
from neuron_plugin.planning.preflight import (
    NOTHING,
    CheckEnd,
    CheckPod,
    CheckStep,
    PreflightRules,
    next_step,
    timed_out,
    unable,
)
from neuron_plugin.topology import Unit

EVENTS = {PreflightState.FAILED: "NeuronPreflightFailed", PreflightState.UNABLE: "NeuronPreflightUnable"}
"""The reason of the event on a node whose check has not passed."""
BOOT_KEY = f"{PREFIX}boot-id"
"""Annotation of a check's pod: the boot of the machine that it checks."""
MOST_WRITES = 50
"""Nodes of which something is written in one look."""
_COULD_NOT_RUN = (126, 127)
"""Exit codes of a shell that finds no such command: they say nothing about the node."""
_LONGEST_NAME, _DIGEST = 200, 8
_log = logging.getLogger(__name__)


class PreflightChecks:
    """The checks of one replica; their pods are in ``namespace``."""

    def __init__(self, context: Context, writer: Writer, settings: PreflightSettings, namespace: str) -> None:
        self._context = context
        self._state = context.state
        self._writer = writer
        self._settings = settings
        self._namespace = namespace
        closes = settings.on_unable is OnUnable.CLOSED
        self._rules = PreflightRules(settings.timeout, settings.retry, closes)
        self._written: dict[str, tuple[Preflight, float]] = {}
        """By node, what was written there, until the watch shows it or it should have."""
        self._queued: set[str] = set()
        """Nodes that wait for others to be checked."""
        self._may_have_checks = True

    async def look(self) -> None:
        """One look at all nodes and checks."""
        if self._context.why_not_write():
            self._may_have_checks = True
            return
        nodes = self._nodes()
        if not (self._may_have_checks or any(self._is_due(node) for node in nodes.values())):
            return
        try:
            listed = pages(self._context.api, PODS, _scope(self._namespace), page_timeout_seconds=self._seconds)
            checks = {check.node: check async for page in listed for check in map(self._check, page.records)}
        except ClusterError as error:
            _log.info("pods of pre-flight checks not listed", extra={"error": str(error)})
            return
        self._may_have_checks = bool(checks)
        for name in checks.keys() - nodes.keys():
            await self._delete(checks[name])
        waiting, written = len(checks), 0
        due = [node for node in nodes.values() if node.name in checks or self._is_due(node)]
        self._queued &= {node.name for node in due}
        for node in sorted(due, key=lambda node: (node.preflight.at if node.preflight else 0.0, node.name)):
            check = checks.get(node.name)
            step = self._step(node, check)
            if step.record and written == MOST_WRITES:
                break
            if step.record:
                written += 1
                if not await self._write(node.name, step.record):
                    continue
            if step.delete and check:
                await self._delete(check)
            if step.begin and waiting < self._settings.parallel:
                waiting += 1
                await self._begin(node)
            elif step.begin:
                self._queued.add(node.name)

    @property
    def _seconds(self) -> float:
        return self._context.times.request

    def _nodes(self) -> dict[str, NeuronNode]:
        """The nodes with what was written on them lately, which the watch may not show yet."""
        now = self._context.clock.now()
        nodes = {name: info.node for name, info in self._state.nodes.items() if info.inventory}
        self._written = {
            name: (record, until)
            for name, (record, until) in self._written.items()
            if now < until and name in nodes and nodes[name].preflight != record
        }
        for name, (record, _) in self._written.items():
            nodes[name] = replace(nodes[name], preflight=record)
        return nodes

    def _is_due(self, node: NeuronNode) -> bool:
        record = node.preflight
        if record and record.state is PreflightState.PASSED and record.boot_id == node.boot_id:
            return False  # most nodes of a large cluster
        step = self._step(node, None)
        return step.begin or step.record is not None

    def _step(self, node: NeuronNode, check: CheckPod | None) -> CheckStep:
        info, now = self._state.nodes.get(node.name), self._context.unix_seconds()
        if info is None:
            return NOTHING  # it is gone since the look began
        ready = not (info.stale or node.cordoned or node.rules.lost)
        return next_step(node, check, self._rules, now, busy=self._state.users_on(node.name), ready=ready)

    async def _begin(self, node: NeuronNode) -> None:
        """Make the pod of a check. One that waited for other checks may be kept from running for a while from now."""
        now = self._context.unix_seconds()
        if node.name in self._queued:
            record = Preflight(PreflightState.PENDING, node.boot_id, now)
            if not await self._write(node.name, record):
                return
            self._queued.discard(node.name)
            node = replace(node, preflight=record)
        manifest = check_manifest(self._settings, node, self._namespace)
        attempt = await self._writer.send(create_pod(manifest, self._namespace))
        self._may_have_checks = True
        is_late = node.preflight is None or now - node.preflight.at >= self._rules.timeout
        # A conflict is the pod of the last check, which is being deleted; or somebody else's.
        if attempt.outcome is Outcome.REFUSED and attempt.status and (attempt.status != HTTPStatus.CONFLICT or is_late):
            await self._write(node.name, unable(node, self._rules, now, f"its pod was refused: {attempt.error}"))

    async def _write(self, name: str, record: Preflight) -> bool:
        """Write how a node stands, and say so where a check has not passed; whether it is written."""
        attempt = await self._writer.send(describe_node(name, annotations={PREFLIGHT_KEY: write_preflight(record)}))
        fields = {"node": name, "state": record.state.value, "said": record.text}
        if not attempt.done:
            _log.warning("pre-flight state not written", extra={**fields, "error": str(attempt.error)})
            return False
        seen = read_preflight(write_preflight(record)) or record
        self._written[name] = seen, self._context.clock.now() + self._context.times.landing
        _log.info("pre-flight", extra=fields)
        if reason := EVENTS.get(record.state):
            opens = record.state is PreflightState.UNABLE and not record.closes
            verb = "cannot run" if record.state is PreflightState.UNABLE else "has failed"
            effect = "The node takes pods unchecked" if opens else "No Neuron pod comes here"
            after = (
                f"after {self._rules.retry:g} s, or at once if you remove" if self._rules.retry else "once you remove"
            )
            note = f"The pre-flight check {verb}: {record.text}. {effect}. It is checked again {after} the annotation "
            await self._context.report(ObjectReference("Node", name, name, "v1"), reason, f"{note}{PREFLIGHT_KEY}.")
        return True

    async def _delete(self, check: CheckPod) -> None:
        if not check.terminating:
            await self._writer.send(delete_pod(namespace=self._namespace, name=check.name, uid=check.uid))

    def _check(self, pod: Pod) -> CheckPod:
        """The pod of a check, and what became of it."""
        status, state = pod.status, _deciding_state(pod)
        ended, waiting = state.terminated, state.waiting
        is_own = ended and ended.reason not in NOT_ITS_OWN_ERROR and ended.exit_code not in _COULD_NOT_RUN
        ran = state.running is not None or bool(ended and ended.started_at and is_own)
        said, end = (ended.message if ended else "") or "", CheckEnd.RUNS
        if status.phase == "Succeeded":
            end = CheckEnd.PASSED
        elif status.phase == "Failed" and status.reason == "DeadlineExceeded" and ran:
            end, said = CheckEnd.FAILED, f"{said}\n{timed_out(self._rules.timeout)}"
        elif status.phase == "Failed":
            own = ran and not status.reason
            end = CheckEnd.FAILED if own else CheckEnd.NOT_RUN
            if own and ended and not said.strip():
                said = f"it ended with exit code {ended.exit_code} and has said nothing"
        if end in {CheckEnd.NOT_RUN, CheckEnd.RUNS} and not ran:
            why = (ended.reason if ended else "", waiting.reason if waiting else "", status.reason)
            texts = (status.message, said, waiting.message if waiting else "")
            said = ": ".join(filter(None, (next(filter(None, why), ""), next(filter(None, texts), ""))))
        return CheckPod(
            pod.name,
            pod.uid,
            pod.node_name,
            pod.annotations.get(BOOT_KEY, ""),
            unix_seconds(pod.metadata.creation_timestamp or ""),
            end,
            ran=ran,
            said=said,
            terminating=pod.terminating,
        )


def _deciding_state(pod: Pod) -> ContainerState:
    """The state of the container that ended badly, else of the first."""
    states = [status.state or ContainerState() for status in pod.status.container_statuses or ()] or [ContainerState()]
    bad = (state for state in states if state.terminated and state.terminated.exit_code)
    return next(bad, states[0])


def check_manifest(settings: PreflightSettings, node: NeuronNode, namespace: str) -> dict[str, Any]:
    """The pod that checks a node: the one of the settings, with all devices of the node, on the node.

    Its owner is the node, so that it goes with the node, and a drain does not stop at it. Its first container gets the
    devices, and is told how many devices and cores these are.
    """
    inventory = node.inventory
    if isinstance(inventory, Rejection):
        raise TypeError(f"node {node.name} has no inventory")
    spec = msgspec.json.decode(msgspec.json.encode(settings.pod))
    first, geometry = spec["containers"][0], inventory.geometry
    resource, count = _all_of(node, inventory)
    limits = first.setdefault("resources", {}).setdefault("limits", {})
    limits[resource.value] = str(count)
    counts = {"NEURON_PREFLIGHT_DEVICES": geometry.device_count, "NEURON_PREFLIGHT_CORES": geometry.core_count}
    first["env"] = [*first.get("env", ()), *({"name": name, "value": str(number)} for name, number in counts.items())]
    for container in spec["containers"]:
        container["terminationMessagePolicy"] = "FallbackToLogsOnError"  # so the right to read logs is not needed
    digest = hashlib.sha256(node.name.encode()).hexdigest()[:_DIGEST]
    short = node.name if len(node.name) <= _LONGEST_NAME else f"{node.name[:_LONGEST_NAME]}-{digest}"
    owner = {"apiVersion": "v1", "kind": "Node", "name": node.name, "uid": node.uid, "controller": True}
    return {
        "metadata": {
            "name": f"neuron-preflight-{short}",
            "namespace": namespace,
            "labels": {PREFLIGHT_KEY: "node"},
            "annotations": {BOOT_KEY: node.boot_id, "cluster-autoscaler.kubernetes.io/safe-to-evict": "true"},
            "ownerReferences": [owner],
        },
        "spec": spec
        | {
            "nodeName": node.name,
            "restartPolicy": "Never",
            "activeDeadlineSeconds": round(settings.timeout),
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            "tolerations": [{"operator": "Exists"}],
        },
    }


def _all_of(node: NeuronNode, inventory: NodeInventory) -> tuple[Resource, int]:
    """All of a node, by a name under which its kubelet offers it."""
    offered: Mapping[str, int] = dict(node.rules.neuron)
    known = [resource for resource in Resource if offered.get(resource.value)]
    resource = next((one for one in known if one.unit is Unit.DEVICE), known[0] if known else Resource.NEURON)
    geometry = inventory.geometry
    return resource, geometry.device_count if resource.unit is Unit.DEVICE else geometry.core_count


def _scope(namespace: str) -> Scope:
    return Scope(namespace, label_selector=f"{PREFLIGHT_KEY}=node")
