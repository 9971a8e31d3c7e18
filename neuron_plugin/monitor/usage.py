"""The shown account of device-hours: the owners of devices in the last hours or days, and the state of the rest."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Literal

import msgspec

from neuron_plugin.placement.account import DAY, HOUR, MOST_DAYS, PARTS, Account

By = Literal["namespace", "workload", "node", "state"]
_UNITS = {"h": HOUR, "d": DAY}


class SinceError(ValueError):
    """A duration that is not understood; the text names it and the expected form."""


class UsageOptions(msgspec.Struct, frozen=True):
    """The query: the duration ``since``, such as ``36h`` or ``7d``, and the key ``by`` of the sums."""

    since: str = "7d"
    by: By = "namespace"

    @property
    def seconds(self) -> int:
        """``since``.

        Raises:
            SinceError: it is no such duration.
        """
        match = re.fullmatch(r"([1-9][0-9]{0,3})([hd])", self.since)
        if match and (seconds := int(match[1]) * _UNITS[match[2]]) <= MOST_DAYS * DAY:
            return seconds
        raise SinceError(f"since is {self.since!r}, expected hours or days such as 36h or 7d, {MOST_DAYS}d at most")


class UsageRow(msgspec.Struct, frozen=True, rename="camel"):
    """The device-hours of one name and type, by state. A missing owner is empty, as are fields outside ``by``."""

    namespace: str
    workload: str
    node: str
    instance_type: str
    device_hours: Mapping[str, float]


class UsageReport(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The document of ``usage``. ``device_hours`` is the sum of all rows: all devices of all nodes, used or not."""

    version: int = 1
    by: By
    since: datetime
    until: datetime
    device_hours: float
    rows: tuple[UsageRow, ...]


def usage_report(account: Account, options: UsageOptions) -> UsageReport:
    """Add the account up, the largest first; the rows without an owner come last.

    Raises:
        SinceError: ``since`` is no duration.
    """
    since, amounts = account.since(options.seconds, nodes=options.by == "node")
    rows = defaultdict[tuple[str, str, str, str], defaultdict[str, int]](lambda: defaultdict(int))
    for share, amount in amounts.items():
        named = {
            "namespace": (share.namespace, "", ""),
            "workload": (share.namespace, share.workload, ""),
            "node": ("", "", share.workload),
            "state": ("", "", ""),
        }[options.by]
        rows[*named, share.instance_type][share.state] += amount
    ranked = sorted(rows.items(), key=lambda row: (not any(row[0][:3]), -sum(row[1].values()), row[0]))
    return UsageReport(
        by=options.by,
        since=datetime.fromtimestamp(since, UTC),
        until=datetime.fromtimestamp(account.until, UTC),
        device_hours=_hours(sum(amounts.values())),
        rows=tuple(
            UsageRow(*name, {state: _hours(amount) for state, amount in states.items() if amount})
            for name, states in ranked
        ),
    )


def _hours(amount: int) -> float:
    return round(amount / (PARTS * HOUR), 6)
