from __future__ import annotations

import json

import pytest
import yaml

from tests.cli.doubles import Cli


def test_it_prints_a_configuration_of_a_second_scheduler(cli: Cli) -> None:
    outcome = cli("scheduler-config")

    found = yaml.safe_load(outcome.out)
    assert outcome.status == 0
    assert found["apiVersion"] == "kubescheduler.config.k8s.io/v1"
    assert found["profiles"][0]["schedulerName"] == "neuron-scheduler"
    assert found["extenders"][0]["urlPrefix"] == "http://127.0.0.1:12345"


def test_amounts_beside_memory_are_managed_and_not_counted_by_the_scheduler(cli: Cli) -> None:
    found = yaml.safe_load(cli("scheduler-config", "--amount", "shares", "--amount", "memory").out)
    managed = found["extenders"][0]["managedResources"]
    ignored = [each["name"] for each in managed if each["ignoredByScheduler"]]
    assert ignored == ["neuron-plugin.io/memory", "neuron-plugin.io/shares"]


def test_json_is_the_same_configuration(cli: Cli) -> None:
    assert json.loads(cli("scheduler-config", "-o", "json").out) == yaml.safe_load(cli("scheduler-config").out)


def test_the_default_scheduler_keeps_its_name_and_kubeconfig(cli: Cli) -> None:
    outcome = cli("scheduler-config", "--default-scheduler", "--kubeconfig", "/etc/kubernetes/scheduler.conf")

    found = yaml.safe_load(outcome.out)
    assert found["profiles"][0]["schedulerName"] == "default-scheduler"
    assert found["clientConnection"] == {"kubeconfig": "/etc/kubernetes/scheduler.conf"}


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--url", "extender:12345"], "expected it to begin with"),
        (["--url", "https://extender"], "verifies nothing"),
        (["--client-cert", "c"], "go together"),
        (["--ca-file", "/ca.crt"], "--ca-file is for TLS, and --url is http://127.0.0.1:12345"),
        (["--client-cert", "c", "--client-key", "k"], "--client-cert is for TLS"),
        (["--scheduler-name", "Bad Name"], "'Bad Name' is no name of a scheduler"),
        (["--scheduler-name", "a" * 64], "is no name of a scheduler"),
        (["--scheduler-name", "x", "--default-scheduler"], "not allowed with"),
    ],
)
def test_what_cannot_be_meant_is_refused(cli: Cli, arguments: list[str], text: str) -> None:
    outcome = cli("scheduler-config", *arguments)

    assert outcome.status == 2
    assert text in outcome.err
