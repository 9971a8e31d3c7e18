from __future__ import annotations

import base64
import csv
import io
import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest

from neuron_plugin.cli.usage import _shares
from neuron_plugin.monitor.usage import UsageOptions, usage_report
from neuron_plugin.placement.device_hours import CONFIG_MAP
from neuron_plugin.planning.device_hours import DAY, HOUR, PARTS, Account, DeviceTime, Share, Split, write_account
from neuron_plugin.simulation.api_server_kinds import CONFIG_MAPS
from tests.cli.doubles import Background, Cli
from tests.support.api_server import StandInApiServer
from tests.support.running import SETTINGS, client_of, extender_on

BEGIN = 20_000 * DAY


def account() -> Account:
    """Ten days of a node with 16 devices and one with 6."""
    shares = {
        ("ml", "train", "trn1", "busy"): 7,
        ("ml", "train", "trn1", "idle"): 1,
        ("ml", "eval", "trn1", "unknown"): 4,
    }
    shares |= {("web", "serve", "inf2", "busy"): 2, ("", "", "trn1", "broken"): 4, ("", "", "inf2", "free"): 4}
    nodes = {("", "a", "trn1", "busy"): 7, ("", "a", "trn1", "idle"): 9, ("", "b", "inf2", "free"): 6}
    split = Split(
        *(DeviceTime({Share(*who): parts * PARTS for who, parts in each.items()}) for each in (shares, nodes))
    )
    account = Account(BEGIN, BEGIN)
    for hour in range(240):
        account.count(split, BEGIN + (hour + 1) * HOUR)
    return account


def written(server: StandInApiServer, data: bytes) -> None:
    body = {"metadata": {"name": CONFIG_MAP}, "binaryData": {"account.json.gz": base64.b64encode(data).decode()}}
    server.create(CONFIG_MAPS, body, "kube-system")


@pytest.fixture
def server(background: Background) -> Iterator[StandInApiServer]:
    server = StandInApiServer()
    background.do(server.start())
    yield server
    background.do(server.stop())


@pytest.fixture
def usage(cli: Cli, server: StandInApiServer, tmp_path: Path) -> Any:
    return partial(cli, "usage", "--kubeconfig", server.write_kubeconfig(tmp_path / "kubeconfig"))


def test_the_table_adds_up_to_all_devices(usage: Any, server: StandInApiServer) -> None:
    written(server, write_account(account()))
    lines = usage("--since", "24h").out.splitlines()
    assert [line.split() for line in lines[:5]] == [
        ["NAMESPACE", "DEVICE-HOURS", "SHARE", "BUSY", "IDLE", "UNKNOWN", "HELD", "FREE", "BROKEN"],
        ["ml", "288.0", "54.5%", "168.0", "24.0", "96.0", "0.0", "0.0", "0.0"],
        ["web", "48.0", "9.1%", "48.0", "0.0", "0.0", "0.0", "0.0", "0.0"],
        ["-", "192.0", "36.4%", "0.0", "0.0", "0.0", "0.0", "96.0", "96.0"],
        ["TOTAL", "528.0", "100.0%", "216.0", "24.0", "96.0", "0.0", "96.0", "96.0"],
    ]
    assert lines[-1] == "from 2024-10-13 00:00 to 2024-10-14 00:00 UTC"


@pytest.mark.parametrize(
    ("by", "names"),
    [
        ("workload", ["ml train", "ml eval", "web serve", "- -", "TOTAL -"]),
        ("node", ["a 3072.0", "b 1152.0", "TOTAL 4224.0"]),
        ("state", ["busy 1728.0", "unknown 768.0", "broken 768.0", "free 768.0", "idle 192.0", "TOTAL 4224.0"]),
    ],
)
def test_it_is_added_up_by_what_is_asked_for(usage: Any, server: StandInApiServer, by: str, names: list[str]) -> None:
    written(server, write_account(account()))
    rows = [" ".join(line.split()[:2]) for line in usage("--since", "8d", "--by", by).out.splitlines()[1:-2]]
    assert sorted(rows) == sorted(names)


def test_the_workloads_that_idle_most_come_last_on_request(usage: Any, server: StandInApiServer) -> None:
    written(server, write_account(account()))
    asked = ("--by", "workload", "--sort-by", ".deviceHours.idle")
    assert usage(*asked, "--no-headers").rows[-1][:2] == ["ml", "train"]
    assert json.loads(usage(*asked, "-o", "json").out)["rows"][-1]["workload"] == "train"


def test_one_namespace_is_a_whole_of_its_own(usage: Any, server: StandInApiServer) -> None:
    written(server, write_account(account()))
    rows = usage("--since", "24h", "--by", "workload", "-n", "ml").rows
    assert [row[:4] for row in rows[1:4]] == [
        ["ml", "train", "192.0", "66.7%"],
        ["ml", "eval", "96.0", "33.3%"],
        ["TOTAL", "-", "288.0", "100.0%"],
    ]
    assert json.loads(usage("--since", "24h", "-n", "web", "-o", "json").out)["deviceHours"] == 48
    assert usage("--by", "node", "-n", "ml").status == 2
    assert usage("-A", "-n", "ml").out == usage().out
    assert usage("-n", "nosuch").err == "neuron-plugin: no device-hours are counted of namespace nosuch\n"


def test_a_csv_has_a_line_for_each_number(usage: Any, server: StandInApiServer) -> None:
    written(server, write_account(account()))
    lines = [*csv.DictReader(io.StringIO(usage("--by", "workload", "-o", "csv").out))]
    assert sum(float(line["device_hours"]) for line in lines) == 22 * 7 * 24
    assert {"namespace": "ml", "workload": "train", "node": "", "instance_type": "trn1", "state": "idle"}.items() <= {
        key: value for line in lines for key, value in line.items() if line["state"] == "idle"
    }.items()


@pytest.mark.parametrize(
    ("data", "said"), [(None, "there is no ConfigMap kube-system/neuron-device-hours"), (b"x", "cannot be read")]
)
def test_without_an_account_it_says_why(usage: Any, server: StandInApiServer, data: bytes | None, said: str) -> None:
    if data is not None:
        written(server, data)
    found = usage()
    assert (found.status, said in found.err) == (1, True)


@pytest.mark.parametrize("since", ["7", "1w", "0d", "36d", "-1h", "٣d"])
def test_a_time_that_is_not_understood_is_named(usage: Any, since: str) -> None:
    found = usage(f"--since={since}")
    assert (found.status, "expected hours or days such as 36h or 7d" in found.err) == (2, True)


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
        extender.daemon.state.history.device_hours = account()
        status, text = await extender.get("/usage?since=2d&by=workload")
        assert (status, (await extender.get("/usage?since=x"))[0]) == (200, 400)
        assert (await extender.get("/usage?by=colour"))[0] == 400
        assert "neuron_device_seconds" not in (await extender.get("/metrics"))[1]
        assert not server.objects(CONFIG_MAPS)
    report = usage_report(account(), UsageOptions("2d", "workload"))
    assert json.loads(text)["rows"][0] == {
        "namespace": "ml",
        "workload": "train",
        "node": "",
        "instanceType": "trn1",
        "deviceHours": {"busy": 336.0, "idle": 48.0},
    }
    assert len(json.loads(text)["rows"]) == len(report.rows)
