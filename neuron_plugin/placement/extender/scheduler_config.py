"""The kube-scheduler configuration that the extender is meant for, as data.

Each of these values was seen to matter with kube-scheduler 1.36. ``ignorable: true`` would turn a failed bind into a
binding without devices. Without ``nodeCacheCapable`` every call carries whole nodes. A scheduler that samples nodes
reports a pod unschedulable although nodes it never showed us would fit (pkg/scheduler/extender.go, schedule_one.go).
The configuration is decoded strictly: a key it does not know stops the scheduler.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit

from neuron_plugin.allocation import Resource
from neuron_plugin.allocation.keys import PREFIX
from neuron_plugin.allocation.node_rules import DEFAULT_SCHEDULER

API_VERSION = "kubescheduler.config.k8s.io/v1"
SECOND_SCHEDULER = "neuron-scheduler"

WEIGHT = 200
"""One point of ours is worth ``WEIGHT`` * 10, 2000; all stock scorers together differ by 15 * 100, 1500, at most
(pkg/scheduler/apis/config/v1/default_plugins.go).

Our scores are ranks (`filter.scores`), so the node that costs later pods least leads by a point and always wins. Among
nodes of equal cost the stock scorers decide, as ever.
"""


class FilterMode(enum.StrEnum):
    """What filter answers for a pod that fits some nodes."""

    BEST = "best"
    """The best node alone, and the pod's set is assumed there."""
    ALL = "all"
    """Every node where it fits; prioritize then scores them, and the scheduler's own scorers take part."""


@dataclass(frozen=True, slots=True)
class ExtenderEndpoint:
    """Where the scheduler finds the extender, and with what it proves who it is."""

    url: str
    ca_file: str = ""
    client_cert: str = ""
    client_key: str = ""


def scheduler_configuration(
    endpoint: ExtenderEndpoint,
    *,
    scheduler_name: str = SECOND_SCHEDULER,
    kubeconfig: str = "",
    resources: Sequence[Resource] = tuple(Resource),
    amounts: Sequence[str] = ("memory",),
) -> dict[str, object]:
    """A KubeSchedulerConfiguration v1: a second scheduler of that name, or the default one with our extender.

    A second scheduler needs a Lease of its own, or it would wait for the first one's for ever. No node advertises
    ``amounts``: the scheduler asks the extender about a pod that has some, and does not count them itself.
    """
    configuration: dict[str, object] = {"apiVersion": API_VERSION, "kind": "KubeSchedulerConfiguration"}
    if kubeconfig:
        configuration["clientConnection"] = {"kubeconfig": kubeconfig}
    if scheduler_name != DEFAULT_SCHEDULER:
        configuration["leaderElection"] = {"leaderElect": True, "resourceName": scheduler_name}
    configuration["profiles"] = [{"schedulerName": scheduler_name, "percentageOfNodesToScore": 100}]
    extender: dict[str, object] = {
        "urlPrefix": endpoint.url.rstrip("/"),
        "filterVerb": "filter",
        "prioritizeVerb": "prioritize",
        "preemptVerb": "preempt",
        "bindVerb": "bind",
        "weight": WEIGHT,
        "httpTimeout": "5s",
        "nodeCacheCapable": True,
        "ignorable": False,
        "managedResources": [
            *({"name": resource.value, "ignoredByScheduler": False} for resource in resources),
            *({"name": PREFIX + name, "ignoredByScheduler": True} for name in dict.fromkeys(amounts)),
        ],
    }
    if endpoint.url.startswith("https:"):
        tls = {
            # A standby sends the scheduler to the leader's own address, which stands in no certificate.
            "serverName": urlsplit(endpoint.url).hostname,
            "caFile": endpoint.ca_file,
            "certFile": endpoint.client_cert,
            "keyFile": endpoint.client_key,
        }
        extender["enableHTTPS"] = True
        extender["tlsConfig"] = {key: value for key, value in tls.items() if value}
    return configuration | {"extenders": [extender]}
