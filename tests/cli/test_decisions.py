from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest
import yaml

from neuron_plugin.allocation import PodReference, PodUid, Resource
from neuron_plugin.cli import decisions
from neuron_plugin.decision_log import DecisionLog, LoggedDecision, Step, decisions_document
from neuron_plugin.plugin.settings import PluginSettings
from tests.cli.doubles import Cli
from tests.topology.oracle import TRN1


def decision_log() -> DecisionLog:
    """As a plugin keeps it: two pods, one of them refused."""
    kept = DecisionLog()
    for number, (name, step) in enumerate(
        [("train", Step.PREFERRED), ("train", Step.ALLOCATED), ("serve", Step.REFUSED)]
    ):
        kept.record(
            LoggedDecision(
                at_ns=1_789_352_350_678_000_000 + number,
                step=step,
                node="n1",
                geometry=TRN1,
                resource=Resource.NEURONDEVICE,
                chosen=TRN1.devices_mask([4, 5, 6, 7]),
                reason="why so",
                pod=PodReference(PodUid(f"uid-{name}"), "default", name),
                container="main",
                usable=lambda: TRN1.all_mask,
            )
        )
    return kept


class Daemon:
    """Answers one page, with what a test says."""

    def __init__(self) -> None:
        self.body, self.status, self.asked = decisions_document(decision_log()), 200, list[str]()
        daemon = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                daemon.asked.append(self.path)
                self.send_response(daemon.status)
                self.end_headers()
                self.wfile.write(daemon.body)

            def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the library's name
                """Say nothing."""

        self.server = HTTPServer(("127.0.0.1", 0), Handler)
        self.address = f"127.0.0.1:{self.server.server_port}"


@pytest.fixture
def daemon() -> Iterator[Daemon]:
    made = Daemon()
    serving = threading.Thread(target=made.server.serve_forever, kwargs={"poll_interval": 0.01})
    serving.start()
    yield made
    made.server.shutdown()
    serving.join()
    made.server.server_close()


def test_decisions_are_a_row_each_oldest_first(cli: Cli, daemon: Daemon) -> None:
    shown = cli("decisions", "--server", daemon.address)
    heading, *rows = shown.out.splitlines()
    assert heading.split() == ["TIME", "STEP", "POD", "CONTAINER", "RESOURCE", "IDS", "CANDIDATES", "REASON"]
    assert [row.split()[1] for row in rows] == ["preferred", "allocated", "refused"]
    time, _, pod, container, resource, ids, candidates, *reason = rows[0].split()
    assert time == "2026-09-14T02:19:10.678Z"
    assert (pod, container, resource, ids) == ("default/train", "main", "neurondevice", "4-7")
    assert candidates.startswith("0-3(")
    assert len(candidates.split(";")) == 4
    assert reason == ["why", "so"]
    assert daemon.asked == ["/decisions"]


def test_without_headers_there_are_rows_alone(cli: Cli, daemon: Daemon) -> None:
    bare = cli("decisions", "--server", daemon.address, "--no-headers")
    assert bare.rows == cli("decisions", "--server", daemon.address).rows[1:]


def test_json_has_everything(cli: Cli, daemon: Daemon) -> None:
    shown = json.loads(cli("decisions", "--server", daemon.address, "-o", "json").out)
    assert shown == {"version": 1, **json.loads(daemon.body)}, "what the daemon says"
    assert shown["decisions"][0]["time"].startswith("2026-09-14T02:19:10.678")
    assert yaml.safe_load(cli("decisions", "--server", daemon.address, "-o", "yaml").out) == shown


def test_one_pods_decisions_and_only_the_newest(cli: Cli, daemon: Daemon) -> None:
    def steps(*flags: object) -> list[str]:
        shown = json.loads(cli("decisions", "--server", daemon.address, "-o", "json", *flags).out)
        return [one["step"] for one in shown["decisions"]]

    assert steps("--pod", "default/train") == ["preferred", "allocated"]
    assert steps("--last", 2) == ["allocated", "refused"]
    assert steps("--pod", "default/train", "--last", 1) == ["allocated"]
    assert steps("--pod", "train") == ["preferred", "allocated"]
    assert steps("--sort-by", ".step") == ["allocated", "preferred", "refused"]


@pytest.mark.parametrize("pod", ["default/tain", "tain"])
def test_a_pod_that_nothing_was_decided_about_is_an_error_that_names_the_others(
    cli: Cli, daemon: Daemon, pod: str
) -> None:
    shown = cli("decisions", "--server", daemon.address, "--pod", pod)

    expected = "there is no decision kept about pod default/tain: there are default/train, default/serve"
    assert (shown.status, shown.out, shown.err) == (1, "", f"neuron-plugin: {expected}\n")


def test_more_candidates_than_are_shown_are_counted(cli: Cli, daemon: Daemon) -> None:
    said = json.loads(daemon.body)
    said["decisions"][0]["candidateCount"] = 9
    daemon.body = json.dumps(said).encode()
    assert ";+5" in cli("decisions", "--server", daemon.address).out


def test_a_name_that_no_host_can_have_is_one_line(cli: Cli) -> None:
    shown = cli("decisions", "--server", "worker..example:12347")
    assert shown.status == 1
    assert shown.err.startswith("neuron-plugin: no daemon answers on worker..example:12347 (")


def test_no_daemon_there_is_one_line_that_says_what_to_check(cli: Cli) -> None:
    shown = cli("decisions", "--server", "127.0.0.1:1")
    assert shown.status == 1
    assert "--health-port 1" in shown.err
    assert shown.err.count("\n") == 1


@pytest.mark.parametrize("body", [b"ok\n", b"[]", b"{}", b"", b'{"decisions": [{}]}', b'{"decisions": 1}'])
def test_another_server_is_recognised(cli: Cli, daemon: Daemon, body: bytes) -> None:
    daemon.body = body
    shown = cli("decisions", "--server", daemon.address)
    assert (shown.status, "is it a neuron-plugin?" in shown.err) == (1, True)


def test_a_daemon_without_that_page_is_recognised(cli: Cli, daemon: Daemon) -> None:
    daemon.status = 404
    shown = cli("decisions", "--server", daemon.address)
    assert (shown.status, "404" in shown.err) == (1, True)


@pytest.mark.parametrize("server", ["", "x", ":1", "host:", "host:port"])
def test_what_is_no_address_is_wrong_usage(cli: Cli, server: str) -> None:
    shown = cli("decisions", "--server", server)
    assert (shown.status, "expected HOST:PORT" in shown.err) == (2, True)


def test_without_an_address_the_daemon_here_is_asked_by_its_settings(
    cli: Cli, daemon: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = PluginSettings(health_port=int(daemon.address.partition(":")[2]))
    monkeypatch.setattr(decisions, "settings_here", lambda: here)
    assert len(cli("decisions").out.splitlines()) == 4


@pytest.mark.parametrize("last", ["0", "-3", "few"])
def test_less_than_one_decision_is_wrong_usage(cli: Cli, last: str) -> None:
    shown = cli("decisions", f"--last={last}")
    assert (shown.status, f"'{last}' is no count of 1 or more" in shown.err) == (2, True)
