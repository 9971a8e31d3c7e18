"""The pre-flight checks of nodes: make, look at and delete their pods, and write the results.

The leader looks periodically. The next step follows from the node's annotation, the pods of the checks and the time:
see ``check_steps``. Nothing else is remembered, so the next leader goes on where this one ended. The pod of a
check names its node: no scheduler places it, and so none evicts other pods for it. ``NodeInfo.unchecked`` keeps users'
pods off the node.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from http import HTTPStatus

from neuron_plugin.allocation import NeuronNode, PodUid, Rejection
from neuron_plugin.allocation.event_reasons import EventReason
from neuron_plugin.allocation.keys import PREFLIGHT_KEY
from neuron_plugin.allocation.preflight import Preflight, PreflightState, read_preflight, write_preflight
from neuron_plugin.cluster import ClusterError, ObjectReference
from neuron_plugin.cluster.objects import pages
from neuron_plugin.cluster.pods import PODS
from neuron_plugin.cluster.writes import create_pod, delete_pod, describe_node
from neuron_plugin.placement.check_pods import check_manifest, check_pod, check_results, check_scope
from neuron_plugin.placement.check_steps import (
    NOTHING,
    CheckEnd,
    CheckPod,
    CheckStep,
    PreflightRules,
    next_step,
    unable,
)
from neuron_plugin.placement.context import Context
from neuron_plugin.placement.settings import OnUnable, PreflightSettings
from neuron_plugin.placement.writer import Outcome, Writer
from neuron_plugin.topology import CoreMask

EVENTS = {PreflightState.FAILED: EventReason.PREFLIGHT_FAILED, PreflightState.UNABLE: EventReason.PREFLIGHT_UNABLE}
"""The reason of the event on a node whose check has not passed."""
MOST_WRITES = 50
"""Nodes whose check is written in one look."""
_log = logging.getLogger(__name__)


class PreflightChecks:
    """The checks of one replica; their pods are in ``namespace``."""

    def __init__(self, context: Context, writer: Writer, settings: PreflightSettings, namespace: str) -> None:
        self._context = context
        self._state = context.state
        self._writer = writer
        self._settings = settings
        self._namespace = namespace
        self._rules = rules_of(settings)
        self._written: dict[str, tuple[Preflight, float]] = {}
        """By node, the record written there, until the watch shows it or should have shown it."""
        self._queued: set[str] = set()
        """Nodes that wait for the checks of other nodes."""
        self._refused: set[str] = set()
        """Nodes that refused a write, which was reported."""
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
            scope = check_scope(self._namespace, "node")
            listed = pages(self._context.api, PODS, scope, page_timeout_seconds=self._context.times.request)
            pods = [pod async for page in listed for pod in page.records]
        except ClusterError as error:
            _log.info("pods of pre-flight checks not listed", extra={"error": str(error)})
            return
        checks = {pod.node_name: check_pod(pod, self._rules.timeout) for pod in pods}
        self._may_have_checks = bool(checks)
        for name in checks.keys() - nodes.keys():
            await delete_check(self._writer, self._namespace, checks[name])
        waiting, written = len(checks), 0
        due = [node for node in nodes.values() if node.name in checks or self._is_due(node)]
        self._queued &= {node.name for node in due}
        self._refused &= nodes.keys()
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
                await delete_check(self._writer, self._namespace, check)
            elif check and not isinstance(node.inventory, Rejection):
                await give_devices(self._context, self._writer, check, node.inventory.geometry.all_mask)
            if step.begin and waiting < self._settings.parallel:
                waiting += 1
                await self._begin(node)
            elif step.begin:
                self._queued.add(node.name)

    def _nodes(self) -> dict[str, NeuronNode]:
        """The nodes with the latest written records, which the watch may not show yet."""
        now = self._context.clock.now()
        covers = self._state.checked.covers
        nodes = {
            name: info.node for name, info in self._state.nodes.items() if info.inventory and covers(info.inventory)
        }
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
            return NOTHING  # the node was deleted since the look began
        ready = not (info.stale or node.cordoned or node.rules.lost)
        return next_step(node, check, self._rules, now, busy=self._state.users_on(node.name), ready=ready)

    async def _begin(self, node: NeuronNode) -> None:
        """Make the pod of a check. If it waited for other checks, its time to start running begins now."""
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
        # A conflict is the pod of the last check, which is being deleted, or a foreign pod.
        if attempt.outcome is Outcome.REFUSED and attempt.status and (attempt.status != HTTPStatus.CONFLICT or is_late):
            await self._write(node.name, unable(node, self._rules, now, f"its pod was refused: {attempt.error}"))

    async def _write(self, name: str, record: Preflight) -> bool:
        """Write a check's record, and report a check that has not passed; gives whether it is written."""
        attempt = await self._writer.send(describe_node(name, annotations={PREFLIGHT_KEY: write_preflight(record)}))
        reference = ObjectReference("Node", name, name, "v1")
        fields = {"node": name, "state": record.state.value, "said": record.text}
        if not attempt.done:
            if attempt.outcome is Outcome.REFUSED and attempt.status and name not in self._refused:
                self._refused.add(name)
                _log.warning("pre-flight state not written", extra={**fields, "error": str(attempt.error)})
                note = f"How the node's pre-flight check stands cannot be written: {attempt.error}. It is tried again"
                await self._context.report(reference, EVENTS[PreflightState.UNABLE], note)
            return False
        self._refused.discard(name)
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
            await self._context.report(reference, reason, f"{note}{PREFLIGHT_KEY}.")
        return True


async def delete_check(writer: Writer, namespace: str, check: CheckPod) -> None:
    """Delete the pod of a check."""
    if not check.terminating:
        await writer.send(delete_pod(namespace=namespace, name=check.name, uid=check.uid))


async def give_devices(context: Context, writer: Writer, check: CheckPod, mask: CoreMask) -> None:
    """Allocate these cores to the claim of a check's pod, where its node gives devices by claims.

    The claim is made from its template by kube-controller-manager, which reserves it for the pod, too, because the pod
    is on its node already (``pkg/controller/resourceclaim``); until then the kubelet waits.
    """
    pod, info = context.state.pods.get(PodUid(check.uid)), context.state.nodes.get(check.node)
    may_start = check.end is CheckEnd.RUNS and not check.terminating
    if not (may_start and writer.claims and pod and info and info.inventory and info.inventory.claim_driver):
        return
    results = check_results(pod, info.inventory, mask)
    attempt = await writer.allocate(writer.claims, pod, check.node, results)
    if not attempt.done:
        _log.info("claim of a check not allocated", extra={"pod": check.name, "error": str(attempt.error)})


def rules_of(settings: PreflightSettings) -> PreflightRules:
    """The settings as rules for ``check_steps``."""
    return PreflightRules(settings.timeout, settings.retry, settings.on_unable is OnUnable.CLOSED)
