"""The account of device-hours: kept by the leader alone, and written into one ConfigMap for the next one.

Each write of the ConfigMap carries the version that was read or written before: the API server refuses any other. If
two replicas lead for a moment, only one goes on with the account, and the other reads it again. A new leader goes on
from the end of the written account. It knows nothing of unwritten time, and counts that by the pods' own times.

The counters of Prometheus show the written account only, so they never drop when a leader dies.
"""

from __future__ import annotations

import asyncio
import logging
from collections import ChainMap
from collections.abc import Iterable, Mapping

from neuron_plugin.allocation import NeuronPod, NodeInfo, PodUid
from neuron_plugin.allocation.event_reasons import EventReason
from neuron_plugin.cluster import ApiError, ApiRequest, ApiServer, ClusterError, ObjectReference
from neuron_plugin.cluster.api import REQUEST_SECONDS, send
from neuron_plugin.cluster.objects import CONFIG_MAPS, ConfigMap
from neuron_plugin.cluster.writes import write_config_map
from neuron_plugin.placement.account import (
    Account,
    AccountError,
    DeviceTime,
    Share,
    Split,
    by_node,
    read_account,
    split_devices,
    write_account,
)
from neuron_plugin.placement.context import Context
from neuron_plugin.placement.leadership import CONDITION, SYNCED
from neuron_plugin.placement.state import ClusterState

CONFIG_MAP = "neuron-device-hours"
"""In the namespace of the leader's Lease."""
_KEY = "account.json.gz"
SAVE_SECONDS = 120
"""Between two writes."""
LONGEST_SECONDS = 120
"""A longer time without a look counts as unseen."""
MOST_AHEAD_SECONDS = 3600
"""An account may end this long after now, as clocks differ or are set back: it waits. Beyond, the clock was wrong."""
END_SECONDS = 1.5
"""Time limit of the last write."""
_log = logging.getLogger(__name__)


async def read_written(api: ApiServer, namespace: str) -> tuple[bytes | None, ConfigMap | None]:
    """The written account, and its ConfigMap; None if there is none.

    Raises:
        ClusterError: the API server refused, or did not answer.
    """
    request = ApiRequest("GET", CONFIG_MAPS.item(CONFIG_MAP, namespace))
    try:
        record = CONFIG_MAPS.decode(await send(api, request, timeout_seconds=REQUEST_SECONDS))
    except ApiError as error:
        if error.missing:
            return None, None
        raise
    return (record.binary_data or {}).get(_KEY, b""), record


class DeviceHours:
    """The account of one replica. It is kept in ``state.history`` while this replica leads, for pages and commands."""

    def __init__(self, context: Context, namespace: str) -> None:
        self._context = context
        self._namespace = namespace
        self._history = context.state.history
        self._account: Account | None = None
        self._written = DeviceTime()
        self._split: Split | None = None
        """The split of devices since the end of the account; None before the first look."""
        self._version = ""
        self._tried = b""
        """The data of the last write, if its result is unknown."""
        self._due_at = 0
        self._warned = ""
        self._turn = asyncio.Lock()

    async def look(self) -> None:
        """Count the time since the last look, and write the account if that is due."""
        async with self._turn:
            context = self._context
            if any(context.ready.conditions[condition] for condition in (SYNCED, CONDITION)):
                self._forget()
            elif self._account or await self._read():
                infos, pods = list(context.state.nodes.values()), _pods(context.state)
                split = await asyncio.to_thread(split_of, context.state, infos, pods)
                self._count(infos, pods)  # here, where the account is read, too: some milliseconds
                self._split = split
                if self._account and self._account.until >= self._due_at and not context.why_not_write():
                    await self._save(self._account, context.times.write)

    async def take_over(self) -> None:
        """Read the account again: another replica may have led, and gone on with it, since this one looked last."""
        async with self._turn:
            self._forget()

    def _forget(self) -> None:
        self._account = self._split = self._history.device_hours = None
        self._written = DeviceTime()

    async def end(self) -> None:
        """Write the account, as this replica ends."""
        election, state = self._context.election, self._context.state
        try:
            async with asyncio.timeout(END_SECONDS), self._turn:
                if self._account and self._split and (election is None or election.seconds_left() > END_SECONDS):
                    self._count(state.nodes.values(), _pods(state))
                    await self._save(self._account, END_SECONDS)
        except TimeoutError:
            _log.info("the device-hours of the last minutes were not written down")

    @property
    def written(self) -> Mapping[Share, int]:
        """The totals that are known to be written; empty on a replica that does not lead."""
        return self._written if self._account else {}

    async def _read(self) -> bool:
        """Go on with the written account, or begin one.

        This replica's own account goes on if the ConfigMap has no account, or the one that this replica tried to write.
        """
        try:
            data, record = await read_written(self._context.api, self._namespace)
        except ClusterError as error:
            self._warn("the account of device-hours cannot be read", str(error))
            return False
        found, self._version = None, record.resource_version if record else ""
        try:
            found = None if data is None else read_account(data)
        except AccountError as error:
            self._warn("the account of device-hours is spoilt, and replaced", str(error))
            about = ObjectReference("ConfigMap", CONFIG_MAP, record.uid if record else "", "v1", self._namespace)
            begins = "The leader writes the one that it has" if self._account else "A new one begins"
            way_out = "to go on with an older one, put a copy of its data back"
            await self._context.report(about, EventReason.DEVICE_HOURS_SPOILT, f"{error}. {begins}; {way_out}.")
        if found:
            self._written = found.totals.copy()
        if self._account is None or (found and data != self._tried):
            now = int(self._context.unix_seconds())
            self._account = self._history.device_hours = found or Account(now, now)
            self._split = None
        self._due_at, self._tried = 0, b""
        return True

    def _count(self, infos: Iterable[NodeInfo], pods: Mapping[PodUid, NeuronPod]) -> None:
        """Count up to now."""
        account, now = self._account, int(self._context.unix_seconds())
        if account is None:
            return
        if account.until - now > MOST_AHEAD_SECONDS:
            ahead = {"seconds": account.until - now}
            _log.warning("the clock is behind the account of device-hours, which goes on from now", extra=ahead)
            account.set_back(now)
        elif self._split is None or now - account.until > LONGEST_SECONDS:
            account.count_unseen(infos, pods, now)
        elif now > account.until:
            account.count(self._split, now)

    async def _save(self, account: Account, seconds: float) -> None:
        data, totals = await asyncio.to_thread(write_account, account), account.totals.copy()
        request = write_config_map(self._namespace, CONFIG_MAP, _KEY, data, version=self._version)
        self._due_at = account.until + SAVE_SECONDS if totals else 0  # a new account is written soon, so that it shows
        try:
            answer = await send(self._context.api, request, timeout_seconds=seconds)
            self._version = CONFIG_MAPS.decode(answer).resource_version
            self._written, self._tried, self._warned = totals, b"", ""
        except ApiError as error:
            if error.conflict:
                await self._read()
            elif error.missing:  # it was deleted: all of it is here, and the next look creates it again
                self._version, self._due_at = "", 0
            else:
                self._warn("device-hours are not written down", str(error))
        except ClusterError as error:
            self._tried = data
            self._warn("device-hours are not written down", str(error))

    def _warn(self, text: str, why: str) -> None:
        if why != self._warned:
            _log.warning(text, extra={"configmap": f"{self._namespace}/{CONFIG_MAP}", "cause": why})
        self._warned = why


def split_of(state: ClusterState, infos: Iterable[NodeInfo], pods: Mapping[PodUid, NeuronPod]) -> Split:
    """All devices of some nodes at this moment."""
    split = Split(DeviceTime(), DeviceTime())
    for info in infos:
        shares = split_devices(info, pods, state.utilization_on(info.name))
        for amounts, more in zip(split, (shares, by_node(info.name, shares)), strict=True):
            amounts.update(more)
    return split


def _pods(state: ClusterState) -> Mapping[PodUid, NeuronPod]:
    """The pods that have devices, and those that ended a moment ago."""
    return ChainMap(dict(state.pods), {uid: pod for uid, (pod, _) in state.departed.items()})
