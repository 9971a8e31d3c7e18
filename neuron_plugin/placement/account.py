"""An account of device-time by owner and state: busy, idle, held, free or broken. It adds up.

At a look every device of every node is split into shares. They add up to the devices that the nodes should have, in
whole numbers. The account multiplies the shares by the time until the next look, so nothing is lost to rounding. It
counts each second of the wall clock once.

Nothing is guessed about a time without a look. Nodes count since they joined, and the devices of live pods since the
pods' start; everything else of that time is unknown.
"""

from __future__ import annotations

import enum
import gzip
import json
import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from neuron_plugin.allocation import Assignment, ContainerKind, NeuronPod, NodeInfo, PodReference, PodUid
from neuron_plugin.allocation.utilization import Utilization

PARTS = 84_000
"""Parts of one device: a percent of a core is a whole number of them, with 1 to 8 cores in a device."""
HOUR, DAY = 3600, 86_400
MOST_HOURS, MOST_DAYS = 48, 35
"""Hours and days that are kept, in UTC, besides the current one."""
MOST_NAMED = 1000
"""Named workloads of the last two days, and named nodes of today; the others are OTHER."""
MOST_KEPT = 200
"""Names kept of a past hour or day: the largest."""
MOST_BYTES = 600_000
"""Limit of the written account; an object may have a MiB, and base64 adds a third."""
OTHER = "other"

_VERSION = 1
_PERCENT = 100
_VERSIONED = re.compile(r"ReplicaSet/(.+)-[^-]+|Job/(.+)-\d{8}")
"""Objects made by a Deployment or a CronJob, named after each version or each time (in minutes since 1970)."""


class AccountError(ValueError):
    """A written account that cannot be read; the text says why."""


class DeviceState(enum.StrEnum):
    """The state of a part of a device."""

    BUSY = "busy"
    """A pod has it, and it executed."""
    IDLE = "idle"
    """A pod has it, and it executed nothing."""
    UNKNOWN = "unknown"
    """A pod has it and its use is not known. Without a pod: its pod is not known, or it was not looked at."""
    HELD = "held"
    """No pod has it and no other pod may get it: it is kept for a pod, held down, or its node takes no pods."""
    FREE = "free"
    BROKEN = "broken"
    """No pod has it, and it is unhealthy, missing or disabled."""


class Share(NamedTuple):
    """The owner, type and state of a part of the devices. ``namespace`` and ``workload`` may be empty.

    Where nodes are counted, ``workload`` is the node's name.
    """

    namespace: str
    workload: str
    instance_type: str
    state: str


DeviceTime = Counter[Share]
"""Parts of devices, or parts of devices times seconds, by share."""
Name = tuple[str, str]
"""Namespace and workload, or an empty text and a node."""


class Split(NamedTuple):
    """The same devices by owner, and by node."""

    shares: DeviceTime
    nodes: DeviceTime


def workload_of(reference: PodReference, pod: NeuronPod | None) -> str:
    """The workload of a pod: its group, its controller, or the pod itself.

    If a Deployment, LeaderWorkerSet or CronJob makes the controller for each version, replica or time, that is the
    workload.
    """
    group = pod.group[1] if pod and pod.group else reference.uid.rpartition("#")[0].partition("/")[2]  # or ``rank_key``
    if group:
        return group.partition("/")[0]
    controller = pod.controller if pod else ""
    if made := _VERSIONED.fullmatch(controller):
        return made[1] or made[2]
    return controller.partition("/")[2] or reference.name


def split_devices(info: NodeInfo, pods: Mapping[PodUid, NeuronPod], utilization: Utilization) -> DeviceTime:
    """The devices that a node should have, as shares of ``PARTS`` for each; ``utilization`` is by its containers.

    A core that several pods have counts once. A silent plugin measures nothing.
    """
    inventory, shares = info.inventory, DeviceTime()
    if inventory is None:
        return shares
    geometry = inventory.geometry
    core, left = PARTS // geometry.cores_per_device, int(geometry.all_mask)
    used = {} if info.stale else utilization

    def add(cores: int, state: DeviceState, reference: PodReference | None = None) -> None:
        pod = pods.get(reference.uid) if reference else None
        owner = (reference.namespace, workload_of(reference, pod)) if reference else ("", "")
        if cores:
            shares[Share(*owner, geometry.instance_type, state)] += cores

    # By the time of the measurement, another container has the cores of a plain init container.
    for allocation in sorted(info.ledger.allocations, key=lambda each: each.kind is ContainerKind.INIT):
        parts = (allocation.mask & left).bit_count() * core
        left &= ~allocation.mask
        pod = pods.get(allocation.pod.uid)
        is_init = allocation.kind is ContainerKind.INIT
        use = None if is_init else used.get(allocation.pod.uid, {}).get(allocation.user)
        if pod and not pod.node:
            add(parts, DeviceState.HELD, allocation.pod)
        elif use is None:
            add(parts, DeviceState.UNKNOWN, allocation.pod)
        else:
            busy = parts * use.busy_percent // _PERCENT
            add(busy, DeviceState.BUSY, allocation.pod)
            add(parts - busy, DeviceState.IDLE, allocation.pod)
    works = {*inventory.present} - {*inventory.disabled}
    held_down_mask = geometry.devices_mask(device for device in inventory.held_down if device in works)
    for kept in info.reservations:
        mask = kept.mask & left & inventory.healthy_mask
        left &= ~mask
        add(mask.bit_count() * core, DeviceState.HELD, kept.pod)
    add((left & held_down_mask).bit_count() * core, DeviceState.HELD)
    add((left & ~held_down_mask & ~inventory.healthy_mask).bit_count() * core, DeviceState.BROKEN)
    rest = (left & ~held_down_mask & inventory.healthy_mask).bit_count() * core
    add(rest, DeviceState.UNKNOWN if info.unclear else DeviceState.HELD if info.closed else DeviceState.FREE)
    return shares


def by_node(node: str, shares: DeviceTime) -> DeviceTime:
    """The shares of one node, counted for the node."""
    amounts = DeviceTime()
    for share, parts in shares.items():
        amounts[share._replace(namespace="", workload=node)] += parts
    return amounts


@dataclass(slots=True)
class Account:
    """Device-time since ``begun`` and until ``until``, in unix seconds; amounts are parts of devices times seconds.

    ``totals`` only grow, and have the shares seen in the last two days. ``hours`` and ``days`` are by their start; the
    first is incomplete. Nodes are counted by day alone.
    """

    begun: int
    until: int
    totals: DeviceTime = field(default_factory=DeviceTime)
    hours: dict[int, DeviceTime] = field(default_factory=dict)
    days: dict[int, DeviceTime] = field(default_factory=dict)
    nodes: dict[int, DeviceTime] = field(default_factory=dict)

    def count(self, split: Split, until: int) -> None:
        """The devices were split like this from ``self.until`` on."""
        shares, nodes = _bounded(split.shares, MOST_NAMED, self.totals), _bounded(split.nodes, MOST_NAMED)
        self._count(Split(shares, nodes), self.until, until)
        self._go_on(until)

    def count_unseen(self, infos: Iterable[NodeInfo], pods: Mapping[PodUid, NeuronPod], until: int) -> None:
        """Nothing was looked at from ``self.until`` on.

        Nodes count since they were created, and the devices of live pods since the pods got them.
        """
        begin = max(self.until, until - MOST_DAYS * DAY)
        had, starts = DeviceTime(), list[tuple[Share, int, int]]()
        for info in infos:
            if info.inventory is None:
                continue
            geometry = info.inventory.geometry
            unowned = Share("", "", geometry.instance_type, DeviceState.UNKNOWN)
            whole, left = DeviceTime({unowned: geometry.device_count * PARTS}), int(geometry.all_mask)
            joined = max(begin, round(info.node.created))
            self._count(Split(whole, by_node(info.name, whole)), joined, until)
            for uid in info.ledger.by_pod:
                mask = info.ledger.mask_of(uid) & left
                pod = pods.get(uid)
                if not (pod and pod.node and mask):
                    continue
                left &= ~mask
                assigned = pod.assignment.alloc_time_ns // 10**9 if isinstance(pod.assignment, Assignment) else 0
                own = unowned._replace(namespace=pod.reference.namespace, workload=workload_of(pod.reference, pod))
                parts = mask.bit_count() * PARTS // geometry.cores_per_device
                had[own] += parts
                starts.append((own, parts, max(joined, assigned or round(pod.created))))
        renamed = _renamed(had, MOST_NAMED, self.totals)
        for own, parts, start in starts:
            named = Share(*renamed.get(own[:2], own[:2]), *own[2:])
            unowned = own._replace(namespace="", workload="")
            self._count(Split(DeviceTime({named: parts, unowned: -parts}), DeviceTime()), start, until)
        self._go_on(until)

    def set_back(self, now: int) -> None:
        """The clock was ahead: forget the hours and days that have not come yet."""
        for periods in (self.hours, self.days, self.nodes):
            for start in [start for start in periods if start > now]:
                del periods[start]
        self.begun, self.until = min(self.begun, now), now

    def _count(self, split: Split, begin: int, end: int) -> None:
        if end <= begin:
            return
        _add(self.totals, split.shares, end - begin)
        for periods, amounts, length, most in self._tables(split):
            at = max(begin, end - most * length)
            while at < end:
                start = at - at % length
                stop = min(start + length, end)
                _add(periods.setdefault(start, DeviceTime()), amounts, stop - at)
                at = stop

    def _tables(self, split: Split) -> tuple[tuple[dict[int, DeviceTime], DeviceTime, int, int], ...]:
        return (
            (self.hours, split.shares, HOUR, MOST_HOURS),
            (self.days, split.shares, DAY, MOST_DAYS),
            (self.nodes, split.nodes, DAY, MOST_DAYS),
        )

    def _go_on(self, until: int) -> None:
        """Go on from ``until``. When an hour is over, forget hours that are too old, and the names of small amounts."""
        is_new_hour = until // HOUR != self.until // HOUR
        self.until = max(self.until, until)
        if not is_new_hour:
            return
        for periods, _, length, most in self._tables(Split(DeviceTime(), DeviceTime())):
            for start in sorted(periods):
                if start + (most + 1) * length <= until:
                    del periods[start]
                elif start + length <= until:
                    periods[start] = _bounded(periods[start], MOST_KEPT)
        seen = {share for hour in self.hours.values() for share in hour}
        self.totals = DeviceTime({share: amount for share, amount in self.totals.items() if share in seen})

    def since(self, seconds: int, *, nodes: bool = False) -> tuple[int, DeviceTime]:
        """The amounts of at least the last ``seconds``, as far as they are kept, and the time at which they begin.

        They begin at a whole hour, and at a day in UTC if that is more than two days ago, or for ``nodes``.
        """
        by_hour = seconds < MOST_HOURS * HOUR and not nodes
        length, periods = (HOUR, self.hours) if by_hour else (DAY, self.nodes if nodes else self.days)
        begin = (self.until - seconds) // length * length
        amounts = DeviceTime()
        for start, period in periods.items():
            if start >= begin:
                _add(amounts, period, 1)
        return max(begin, self.begun, min(periods, default=begin)), amounts


def _add(amounts: DeviceTime, more: DeviceTime, times: int) -> None:
    for share, parts in more.items():
        amounts[share] += parts * times


def _bounded(amounts: DeviceTime, most: int, known: Collection[Share] = ()) -> DeviceTime:
    """The same amounts of at most so many names; see ``_renamed``."""
    if not (renamed := _renamed(amounts, most, known)):
        return amounts
    fewer = DeviceTime()
    for share, amount in amounts.items():
        fewer[Share(*renamed.get(share[:2], share[:2]), *share[2:])] += amount
    return fewer


def _renamed(amounts: DeviceTime, most: int, known: Collection[Share]) -> dict[Name, Name]:
    """The new names of shares that lose theirs. The ``known`` keep theirs first, then the largest.

    They become OTHER of their namespace, if that has another name. A share without an owner needs no name.
    """
    if len(amounts) + len(known) <= most:  # fewer names than shares
        return {}
    old, sizes = {share[:2] for share in known}, Counter[Name]()
    for share, amount in amounts.items():
        if share.workload not in {"", OTHER}:
            sizes[share[:2]] += amount
    new = sorted(sizes.keys() - old, key=lambda name: (-sizes[name], name))
    lost = new[max(0, most - len(old)) :]
    namespaces = {namespace for namespace, _ in (sizes.keys() | old) - {*lost}}
    return {name: (name[0] if name[0] in namespaces else OTHER if name[0] else "", OTHER) for name in lost}


def write_account(account: Account) -> bytes:
    """The account as compressed JSON: names once, then by table and begin the number of each name and its amount."""
    most = MOST_KEPT
    while len(data := _written(account)) > MOST_BYTES and most:
        most //= 2
        for periods in (account.hours, account.days, account.nodes):
            periods.update({start: _bounded(amounts, most) for start, amounts in periods.items()})
    return data


def _written(account: Account) -> bytes:
    numbers: dict[Share, int] = {}

    def rows(amounts: DeviceTime) -> list[int]:
        known = ((numbers.setdefault(share, len(numbers)), amount) for share, amount in amounts.items() if amount)
        return [number for pair in known for number in pair]

    def table(periods: Mapping[int, DeviceTime]) -> dict[str, list[int]]:
        return {str(start): rows(amounts) for start, amounts in sorted(periods.items())}

    content: dict[str, object] = {"version": _VERSION, "begun": account.begun, "until": account.until}
    content |= {"totals": rows(account.totals), "hours": table(account.hours), "days": table(account.days)}
    content |= {"nodes": table(account.nodes), "names": list(numbers)}
    return gzip.compress(json.dumps(content, separators=(",", ":")).encode(), compresslevel=6, mtime=0)


def read_account(data: bytes) -> Account:
    """Read what ``write_account`` has written.

    Raises:
        AccountError: it is something else.
    """
    try:
        content = json.loads(gzip.decompress(data))
        if content["version"] != _VERSION:
            raise ValueError(f"version {content['version']}, expected {_VERSION}")  # noqa: TRY301 - as all that is amiss
        names = [Share(*map(str, name)) for name in content["names"]]

        def amounts(row: list[int]) -> DeviceTime:
            return DeviceTime({names[number]: int(amount) for number, amount in zip(row[::2], row[1::2], strict=True)})

        tables = [{int(at): amounts(row) for at, row in content[key].items()} for key in ("hours", "days", "nodes")]
        return Account(int(content["begun"]), int(content["until"]), amounts(content["totals"]), *tables)
    except (OSError, EOFError, ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
        raise AccountError(f"the account cannot be read: {error!r}") from None
