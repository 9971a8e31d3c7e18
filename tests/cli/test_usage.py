from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest

from neuron_plugin.cli.usage import _shares
from neuron_plugin.monitor.usage import UsageOptions, usage_report
from neuron_plugin.simulation.api_server_kinds import CONFIG_MAPS
from tests.cli.cases import ten_days
from tests.support.api_server import StandInApiServer
from tests.support.running import SETTINGS, client_of, extender_on


@pytest.mark.parametrize("sums", [[1, 1, 1], [1], [2, 3, 5, 7, 11, 13], [0.001, 10_000]])
def test_shares_add_up_to_a_hundred_percent(sums: list[float]) -> None:
    assert sum(_shares(sums)) == 1000


async def test_the_leader_answers_the_same_and_another_replica_says_that_it_cannot(
    tmp_path: Path,
) -> None:
    off = msgspec.structs.replace(SETTINGS, device_hours=False)
    async with (
        StandInApiServer() as server,
        client_of(server, tmp_path) as api,
        extender_on(api, off) as extender,
    ):
        await extender.ready()
        assert (await extender.get("/usage"))[0] == 503
        extender.daemon.state.history.device_hours = ten_days()
        status, text = await extender.get("/usage?since=2d&by=workload")
        assert (status, (await extender.get("/usage?since=x"))[0]) == (200, 400)
        assert (await extender.get("/usage?by=colour"))[0] == 400
        assert "neuron_device_seconds" not in (await extender.get("/metrics"))[1]
        assert not server.objects(CONFIG_MAPS)
    report = usage_report(ten_days(), UsageOptions("2d", "workload"))
    assert json.loads(text)["rows"][0] == {
        "namespace": "ml",
        "workload": "train",
        "node": "",
        "instanceType": "trn1",
        "deviceHours": {"busy": 336.0, "idle": 48.0},
    }
    assert len(json.loads(text)["rows"]) == len(report.rows)
