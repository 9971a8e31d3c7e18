from __future__ import annotations

from typing import Any

import pytest

from neuron_plugin.allocation.node_rules import DEFAULT_SCHEDULER
from neuron_plugin.placement.extender.scheduler_config import WEIGHT, ExtenderEndpoint, scheduler_configuration

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
