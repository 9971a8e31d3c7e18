"""Places that are kept for pods of groups: for all until they are bound, for pods not made yet, and spare nodes.

The places of a group are kept, and written down, before its first pod is released, so the next leader can complete the
group. A leader is placed where its whole group fits, before its other pods are made; their places are kept. The place
of a lost pod is kept for the pod that takes its rank. A place ends when it is used, when the group is gone, after a
while without progress, or when a device of it gets sick.

A group may ask for spare nodes: places without a rank. They are chosen once all its pods have places, and again when
one was used or got sick. Meanwhile they are lent to pods that may be moved away.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import replace

import msgspec

from neuron_plugin.allocation import NeuronPod, Rejection
from neuron_plugin.allocation.event_reasons import EventReason
from neuron_plugin.allocation.group import GroupName, is_replica, rank_key, rank_text, spare_key
from neuron_plugin.allocation.placement import placement_mask
from neuron_plugin.allocation.pod import assigned_allocations, mask_union
from neuron_plugin.cluster import ApiError, ApiRequest, ClusterError
from neuron_plugin.cluster.api import send
from neuron_plugin.cluster.groups import LWS_EXCLUSIVE
from neuron_plugin.cluster.pods import PODS, neuron_pod
from neuron_plugin.placement.context import Context
from neuron_plugin.placement.reserves import ReserveRecord, cores_text, is_sick
from neuron_plugin.planning.groups import members_to_come, spare_nodes
from neuron_plugin.planning.scene import Place
from neuron_plugin.topology import CoreMask

LEAST_PRIORITY = -(2**31)
"""No pod's priority is below: the place is not lent to any pod."""
MOST_RESERVED_GROUPS = 8
"""Groups of one namespace that may have places kept for pods not made yet, at a time."""


class GroupPlaces:
    """The places that one replica keeps, by the names of their ranks."""

    def __init__(self, context: Context) -> None:
        self.records: dict[str, ReserveRecord] = {}
        self._context = context
        self._state = context.state
        self._groups: dict[GroupName, float] = {}
        """By group, the time of its last progress, in unix seconds."""
        self._asked: dict[GroupName, float] = {}
        """By replica without pods: when to ask for its LeaderWorkerSet again."""
        self._gone: set[GroupName] = set()
        """Replicas without pods that will not be made again."""
        self._no_spares_until: dict[GroupName, float] = {}
        """By group that found too few whole nodes: when to look for spare nodes again."""

    def take_over(self, record: ReserveRecord) -> None:
        """Go on keeping a place that the last leader has kept; when the group came on last is not known."""
        is_for_pod, waits = record.is_for_pod, record.uid in self._state.gated
        may_come = waits if is_for_pod else self._may_come(record.group_name, record.at)
        if may_come:
            self._come_on(record.group_name)
            self._keep(record)

    async def tend(self) -> None:
        """End the places that are used, not needed or useless."""
        await self._ask_for_replicas(self._context.clock.now())
        unix_now = self._context.unix_seconds()
        for record in list(self.records.values()):
            self._tend_place(record, unix_now)
        if not self._context.ready.why_not:
            groups = {pod.group for pod in self._state.pods.values() if pod.group and _spares_of(pod)}
            self._no_spares_until = {group: until for group, until in self._no_spares_until.items() if group in groups}
            for group in sorted(groups):
                self._keep_spares(group)

    def forget(self) -> None:
        """Another replica leads: keep nothing."""
        for key in self.records:
            self._state.release(key)
        for table in (self.records, self._groups, self._asked, self._gone):
            table.clear()

    def _keep(self, record: ReserveRecord) -> None:
        self.records[record.uid] = record
        self._state.reserve(record.reservation)

    def _tend_place(self, record: ReserveRecord, unix_now: float) -> None:
        """A rank's place is kept while its group lives and makes progress, a spare node while its group lives."""
        group, times = record.group_name, self._context.times
        is_used = record.uid not in self._state.reserved
        is_over = unix_now >= self._groups.get(group, 0.0) + times.reserve
        if record.is_spare:
            info = self._state.nodes.get(record.node)
            is_over = info is None or bool(info.closed) or info.node.rules.lost
        may_come = record.is_for_pod or self._may_come(group, record.at)
        if is_used or is_over or not may_come or is_sick(self._state, record):
            self._drop(record)
            if not any(other.group == record.group for other in self.records.values()):
                self._groups.pop(group, None)

    def _drop(self, record: ReserveRecord) -> None:
        self.records.pop(record.uid, None)
        self._state.release(record.uid)

    def _keep_spares(self, group: GroupName) -> None:
        """Keep as many whole nodes as a group's pods ask for, once all of these have places."""
        members, now = self._state.members_of(group), self._context.clock.now()
        wanted = max(map(_spares_of, members), default=0)
        keys = {spare_key(group, number): number for number in range(1, wanted + 1)}
        for record in list(self.records.values()):
            if record.is_spare and record.group_name == group and record.uid not in keys:
                self._drop(record)
        missing = [key for key in list(keys)[: len(members)] if key not in self.records]
        are_placed = len(members) >= self._state.least_of(group) and all(pod.place for pod in members)
        if not missing or not are_placed or now < self._no_spares_until.get(group, now):
            return
        first, scene = members[0], self._state.scene()
        nodes = spare_nodes(scene, first)
        if len(nodes) < len(missing):
            self._no_spares_until[group] = now + self._context.times.retry
        can_take_back = all(pod.preempts for pod in members)
        lent_below = min(pod.priority for pod in members) if can_take_back else LEAST_PRIORITY
        for key, info in zip(missing, nodes, strict=False):
            name = f"{group[1]} spare {keys[key]}"
            self._keep_place(group, key, name, info.name, info.free_mask, lent_below)

    def _may_come(self, group: GroupName, since: float) -> bool:
        """Whether a pod that was lost at ``since``, in unix seconds, may come again.

        It may if pods of its group from that time still live, or its controller makes all of them again. A group with
        only younger pods is another group of the same name.
        """
        if is_replica(group):
            return bool(self._state.members_of(group)) or group not in self._gone
        return any(pod.created <= since for pod in self._state.members_of(group))

    async def _ask_for_replicas(self, now: float) -> None:
        """For replicas without pods, ask whether their LeaderWorkerSet will make them again."""
        groups = {record.group_name for record in self.records.values()}
        empty = {group for group in groups if is_replica(group) and not self._state.members_of(group)}
        self._gone &= empty
        self._asked = {group: until for group, until in self._asked.items() if group in empty}
        for group in sorted(empty):
            if now >= self._asked.get(group, now):
                self._asked[group] = now + self._context.times.retry
                if not await self._is_made_again(group):
                    self._gone.add(group)

    async def _is_made_again(self, group: GroupName) -> bool:
        """Whether a LeaderWorkerSet exists and has this replica; true if that cannot be known."""
        name, _, index = group[1].partition("/")
        request = ApiRequest("GET", _worker_set_path(group[0], name))
        try:
            text = await send(self._context.api, request, timeout_seconds=self._context.times.request)
            owner = msgspec.json.decode(text, type=_Owner)
        except ApiError as error:
            return not error.missing
        except (ClusterError, msgspec.MsgspecError):
            return True
        has_it = owner.spec.replicas is None or not index.isdigit() or int(index) < owner.spec.replicas
        return has_it and not owner.metadata.deletion_timestamp

    def see_member(self, before: NeuronPod, *, gone: bool) -> None:
        """A pod of a group has changed, or is gone. The place of a lost pod is kept for its rank.

        It is not kept if another pod has the rank, as when a node was lost and its pod ended late.
        """
        group, member = before.group, before.member
        if group is None or member is None:
            return
        now = self._state.pods.get(before.uid)
        comes_on = gone or (now is not None and (now.node, now.ready) != (before.node, before.ready))
        if comes_on and group in self._groups:
            self._come_on(group)
        is_lost = (
            before.node
            and not before.ended
            and (gone or (now is not None and now.terminating and not before.terminating))
        )
        if (
            is_lost
            and member.rank is not None
            and self._may_come(group, self._context.unix_seconds())
            and not self._context.ready.why_not
        ):
            mask, key = self._had(before), rank_key(group, member.rank)
            is_taken = any(
                pod.place and pod.member and pod.member.rank == member.rank for pod in self._state.members_of(group)
            )
            if mask and key not in self._state.reserved and not is_taken:
                self._come_on(group)
                self._keep_place(group, key, f"{group[1]} rank {rank_text(member.rank)}", before.node, mask)

    def _had(self, pod: NeuronPod) -> CoreMask:
        """The cores of a bound pod, which may be gone."""
        info = self._state.nodes.get(pod.node)
        if info is None or info.inventory is None:
            return CoreMask(0)
        assigned = assigned_allocations(pod, info.inventory.geometry)
        return info.ledger.mask_of(pod.uid) or mask_union(() if isinstance(assigned, Rejection) else assigned)

    def _come_on(self, group: GroupName) -> None:
        self._groups[group] = self._context.unix_seconds()

    def _keep_place(
        self, group: GroupName, key: str, name: str, node: str, mask: CoreMask, lent_below: int | None = None
    ) -> None:
        record = ReserveRecord(
            uid=key,
            namespace=group[0],
            name=name,
            node=node,
            cores=cores_text(mask),
            at=self._context.unix_seconds(),
            group="/".join(group),
            lent_below=lent_below,
        )
        self._keep(record)

    def place_ends(self, pod: NeuronPod) -> bool:
        """Whether a place that is kept for a pod is still held by terminating pods, and no other is free."""
        ends = False
        for kept in self._state.scene().cluster.kept_for(pod):
            info = self._state.nodes.get(kept.node)
            if info is None or info.stale or info.node.rules.lost:
                continue
            holders = {allocation.pod.uid for allocation in info.ledger.overlapping(kept.mask)}
            if not holders:
                return False
            pods = [self._state.pods.get(uid) for uid in holders]
            ends |= all(holder is not None and holder.terminating for holder in pods)
        return ends

    def others_of(self, leader: NeuronPod, members: Collection[NeuronPod], least: int) -> list[NeuronPod] | None:
        """Hypothetical pods for the missing ones of a leader's group; empty if their requests cannot be known.

        None means that their requests have to be read first.
        """
        group = leader.group or ("", "")
        if group not in self._state.templates:
            return None
        template = self._state.templates[group]
        if template is None or self._reserved_groups(group[0]) >= MOST_RESERVED_GROUPS:
            return []
        return members_to_come(template, leader, members, least)

    def _reserved_groups(self, namespace: str) -> int:
        ranks = [record for record in self.records.values() if not (record.is_spare or record.is_for_pod)]
        return len({record.group for record in ranks if record.namespace == namespace})

    async def look_for_others(self, leader: NeuronPod, least: int) -> None:
        """Read the requests of the other pods of a leader's group from their controller."""
        group = leader.group or ("", "")
        self._state.templates[group] = None
        self._groups.setdefault(group, self._context.unix_seconds())
        path, found, why = _template_of(leader), _Owner(), "nothing that is known makes them"
        try:
            if path:
                request = ApiRequest("GET", path)
                body = await send(self._context.api, request, timeout_seconds=self._context.times.request)
                found = msgspec.json.decode(body, type=_Owner)
                why = "" if found.makes(least) else f"{path.rpartition('/')[2]} does not make {least} pods together"
        except (ClusterError, msgspec.MsgspecError) as error:
            why = str(error)
        if why:
            note = f"Nothing is kept for the other pods of group {group[1]}: {why}"
            await self._context.report(leader.reference, EventReason.GROUP_NOT_RESERVED, note)
            return
        template = found.worker_template
        if template is None:
            # The leader's affinity and anti-affinity do not apply to the pods that follow it.
            rules = replace(leader.rules, affinity=(), anti_affinity=())
            self._state.templates[group] = replace(leader, rules=rules)
            return
        try:
            pod = PODS.decode(msgspec.json.encode({**msgspec.to_builtins(template), "kind": "Pod"}))
        except ClusterError:
            return
        worker = neuron_pod(pod)
        rules = replace(worker.rules, gates=leader.rules.gates)
        self._state.templates[group] = replace(worker, rules=rules, labels=leader.labels)

    def keep_for(self, group: GroupName, places: Iterable[tuple[NeuronPod, Place]]) -> None:
        """Keep places for pods of a group, also for pods that do not exist yet."""
        self._come_on(group)
        for pod, (node, placement) in places:
            self._keep_place(group, pod.uid, pod.reference.name, node, placement_mask(placement))

    def give_up(self, pods: Iterable[NeuronPod]) -> bool:
        """Release the places of these pods, but not those of their ranks; gives whether there were any."""
        records = [record for pod in pods if (record := self.records.get(pod.uid))]
        for record in records:
            self._drop(record)
        return bool(records)


class _Template(msgspec.Struct):
    metadata: dict[str, object] = {}
    spec: dict[str, object] = {}


class _LeaderWorkerTemplate(msgspec.Struct, rename="camel"):
    size: int = 1
    worker_template: _Template | None = None


class _OwnerSpec(msgspec.Struct, rename="camel"):
    replicas: int | None = None
    parallelism: int | None = None
    leader_worker_template: _LeaderWorkerTemplate | None = None


class _OwnerMetadata(msgspec.Struct, rename="camel"):
    deletion_timestamp: str = ""
    annotations: dict[str, str] = {}


class _Owner(msgspec.Struct):
    """A LeaderWorkerSet, a StatefulSet or a Job, with the fields that describe its other pods."""

    metadata: _OwnerMetadata = msgspec.field(default_factory=_OwnerMetadata)
    spec: _OwnerSpec = msgspec.field(default_factory=_OwnerSpec)

    def makes(self, pods: int) -> bool:
        """Whether it makes so many pods of which one group can be placed: no replicas that are to be apart."""
        template, replicas = self.spec.leader_worker_template, self.spec.replicas or 1
        if template:
            return template.size * (1 if LWS_EXCLUSIVE in self.metadata.annotations else replicas) >= pods
        return max(replicas, self.spec.parallelism or 1) >= pods

    @property
    def worker_template(self) -> _Template | None:
        template = self.spec.leader_worker_template
        return template.worker_template if template else None


def _template_of(leader: NeuronPod) -> str:
    """The path of the object with the requests of a leader's other pods; empty if there is no known one."""
    namespace, member = leader.reference.namespace, leader.member
    if member and member.leader_worker_set:
        return _worker_set_path(namespace, member.leader_worker_set)
    kind, _, name = leader.controller.partition("/")
    group = {"StatefulSet": "apps/v1", "Job": "batch/v1"}.get(kind)
    return f"/apis/{group}/namespaces/{namespace}/{kind.lower()}s/{name}" if group else ""


def _worker_set_path(namespace: str, name: str) -> str:
    return f"/apis/leaderworkerset.x-k8s.io/v1/namespaces/{namespace}/leaderworkersets/{name}"


def _spares_of(pod: NeuronPod) -> int:
    return pod.member.spares if pod.member else 0
