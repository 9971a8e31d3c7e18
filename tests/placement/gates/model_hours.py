"""The account of device-hours in the model: whoever leads, it adds up and only grows."""

from __future__ import annotations

from base64 import b64decode
from collections import Counter
from typing import TYPE_CHECKING

from neuron_plugin.cluster import ApiRequest
from neuron_plugin.placement.account import PARTS, Account, DeviceState, DeviceTime, read_account
from neuron_plugin.placement.device_hours import CONFIG_MAP
from neuron_plugin.simulation.api_server_kinds import CONFIG_MAPS, AnyJson, Target
from tests.placement.gates.model_part import Part

if TYPE_CHECKING:
    from tests.placement.gates.model import Model

DEVICES = 16


class Hours(Part):
    """Somebody who reads the counters, and each version of the account that is written."""

    def __init__(self, model: Model) -> None:
        super().__init__(model)
        self.shown = DeviceTime()
        """The most that any leader has shown."""
        self.begun: int | None = None
        self.until = 0
        self.written = 0

    def done(self, request: ApiRequest, target: Target, before: AnyJson | None) -> None:  # noqa: ARG002 - a part's
        if target.kind is CONFIG_MAPS and request.method != "GET" and target.name in {"", CONFIG_MAP}:
            self.written += 1
            self.check_account(self.account())

    def account(self) -> Account:
        found = self.model.server.objects(CONFIG_MAPS)[0]
        return read_account(b64decode(found["binaryData"]["account.json.gz"]))

    def check_account(self, account: Account) -> None:
        """One account goes on, each second of a device is in each table once, and no node has more than its devices."""
        self.begun = account.begun if self.begun is None else self.begun
        assert (account.begun, account.until >= self.until) == (self.begun, True), "another account was begun"
        self.until = account.until
        seconds = account.until - account.begun
        tables = [account.totals, *(added(table.values()) for table in (account.hours, account.days, account.nodes))]
        assert len({sum(table.values()) for table in tables}) == 1, "the tables differ"
        by_node = Counter[str]()
        for share, amount in added(account.nodes.values()).items():
            assert amount >= 0, share
            by_node[share.workload] += amount
        assert all(amount <= DEVICES * PARTS * seconds for amount in by_node.values()), by_node
        whose = {share for share in account.totals if share.state in {DeviceState.BUSY, DeviceState.IDLE}}
        assert not whose, "nobody has measured how busy devices are"

    def check(self) -> None:
        """What a leader shows is never less than what any has shown."""
        leader = self.model.leader
        if leader and not leader.ready.why_not and (written := leader.hours.written):
            less = {share for share, amount in self.shown.items() if written.get(share, 0) < amount}
            assert not less, less
            self.shown = DeviceTime(written)

    def finish(self) -> None:
        assert self.written, "nothing was written down"


def added(tables: object) -> DeviceTime:
    total = DeviceTime()
    for table in tables:  # type: ignore[attr-defined]
        total.update(table)
    return total
