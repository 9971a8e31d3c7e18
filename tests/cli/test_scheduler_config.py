from __future__ import annotations

import json
from typing import Any

import pytest
import yaml

from neuron_plugin.allocation.node_rules import DEFAULT_SCHEDULER
from neuron_plugin.cli.scheduler_config import WEIGHT, ExtenderEndpoint, scheduler_configuration
from tests.cli.doubles import Cli

EXTENDER_KEYS = {
    "urlPrefix",
    "filterVerb",
    "prioritizeVerb",
    "preemptVerb",
    "bindVerb",
    "weight",
    "enableHTTPS",
    "tlsConfig",
    "httpTimeout",
    "nodeCacheCapable",
    "managedResources",
    "ignorable",
}
"""Every key of an extender in kubescheduler.config.k8s.io/v1; decoding is strict."""

STOCK_SCORERS = {
    "TaintToleration": 3,
    "NodeAffinity": 2,
    "PodTopologySpread": 2,
    "InterPodAffinity": 2,
    "DynamicResources": 2,
    "NodeResourcesFit": 1,
    "NodeResourcesBalancedAllocation": 1,
    "ImageLocality": 1,
    "VolumeBinding": 1,
}
"""Default weights of the stock scorers (pkg/scheduler/apis/config/v1/default_plugins.go); each gives 0-100."""

PLAIN = ExtenderEndpoint("http://127.0.0.1:12345/")
SECURE = ExtenderEndpoint("https://extender:12345", "/ca", "/cert", "/key")


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


def extender_of(configuration: dict[str, Any]) -> dict[str, Any]:
    (found,) = configuration["extenders"]
    return dict(found)


def test_what_decides_about_safety_is_set_as_it_must_be() -> None:
    found = scheduler_configuration(PLAIN)
    extender = extender_of(found)

    assert extender["ignorable"] is False
    assert extender["nodeCacheCapable"] is True
    assert found["profiles"] == [{"schedulerName": "neuron-scheduler", "percentageOfNodesToScore": 100}]
    assert {resource["name"]: resource["ignoredByScheduler"] for resource in extender["managedResources"]} == {
        "aws.amazon.com/neuron": False,
        "aws.amazon.com/neurondevice": False,
        "aws.amazon.com/neuroncore": False,
        "neuron-plugin.io/memory": True,
    }


@pytest.mark.parametrize("endpoint", [PLAIN, SECURE])
def test_no_key_is_unknown_to_the_scheduler(endpoint: ExtenderEndpoint) -> None:
    found = scheduler_configuration(endpoint, kubeconfig="/etc/kubernetes/scheduler.conf")

    assert set(extender_of(found)) <= EXTENDER_KEYS
    assert set(found) == {"apiVersion", "kind", "clientConnection", "leaderElection", "profiles", "extenders"}


def test_a_second_scheduler_has_a_lease_of_its_own_and_the_default_one_keeps_its_own() -> None:
    assert scheduler_configuration(PLAIN)["leaderElection"] == {"leaderElect": True, "resourceName": "neuron-scheduler"}
    assert "leaderElection" not in scheduler_configuration(PLAIN, scheduler_name=DEFAULT_SCHEDULER)


def test_tls_names_the_server_and_the_files_that_were_given_and_no_others() -> None:
    assert extender_of(scheduler_configuration(SECURE))["tlsConfig"] == {
        "serverName": "extender",
        "caFile": "/ca",
        "certFile": "/cert",
        "keyFile": "/key",
    }
    one_file = extender_of(scheduler_configuration(ExtenderEndpoint("https://[fd00::1]:1", "/ca")))
    assert one_file["tlsConfig"] == {"serverName": "fd00::1", "caFile": "/ca"}
    assert "enableHTTPS" not in extender_of(scheduler_configuration(PLAIN))


def test_e02_a_lead_of_one_point_outweighs_all_stock_scorers_together() -> None:
    highest_plugin_score, points_scale = 100, 10
    assert WEIGHT * points_scale > highest_plugin_score * sum(STOCK_SCORERS.values())
