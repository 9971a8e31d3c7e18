"""``neuron-plugin scheduler-config``: the kube-scheduler configuration for the extender.

Each value was found to be necessary with kube-scheduler 1.36. ``ignorable: true`` would turn a failed bind into a
binding without devices. Without ``nodeCacheCapable`` every call carries whole nodes. A scheduler that samples nodes
reports a pod as unschedulable although nodes that it never sent to us would fit (pkg/scheduler/extender.go,
schedule_one.go). The configuration is decoded strictly: an unknown key stops the scheduler.
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit

from neuron_plugin.allocation import Resource
from neuron_plugin.allocation.keys import PREFIX
from neuron_plugin.allocation.node_rules import DEFAULT_SCHEDULER, SECOND_SCHEDULER
from neuron_plugin.cli.command import OBJECTS, UsageError, add_output_flag, document, matching, server_url

DESCRIPTION = """\
Print a KubeSchedulerConfiguration (v1, for kube-scheduler --config): a second scheduler beside the
default one, or the default scheduler itself."""

EXAMPLES = """
neuron-plugin scheduler-config > neuron-scheduler.yaml
neuron-plugin scheduler-config --default-scheduler --kubeconfig /etc/kubernetes/scheduler.conf
neuron-plugin scheduler-config --url https://neuron-extender.kube-system.svc:12345 --ca-file /etc/neuron/ca.crt
"""

URL = "http://127.0.0.1:12345"
API_VERSION = "kubescheduler.config.k8s.io/v1"

WEIGHT = 200
"""One point of our score is worth ``WEIGHT`` * 10, 2000; all stock scorers together differ by at most 15 * 100, 1500
(pkg/scheduler/apis/config/v1/default_plugins.go).

Our scores are ranks (`placement.extender.filter.scores`), so the node that costs later pods least leads by a point and
always wins. Among nodes of equal cost the stock scorers decide.
"""


def add_flags(parser: ArgumentParser) -> None:
    """Add flags for the scheduler and its connection to the extender."""
    add_output_flag(parser, OBJECTS)
    which = parser.add_mutually_exclusive_group()
    name = f"name that pods give as schedulerName (default: {SECOND_SCHEDULER})"
    named = matching(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?", "name of a scheduler: expected small letters, digits and -")
    which.add_argument("--scheduler-name", metavar="NAME", type=named, default=SECOND_SCHEDULER, help=name)
    which.add_argument("--default-scheduler", action="store_true", help="configure the default scheduler instead")
    amount = "amount that pods ask of their devices beside memory; give the flag once for each"
    parser.add_argument("--amount", metavar="NAME", action="append", default=[], help=amount)
    parser.add_argument("--url", default=URL, help=f"where kube-scheduler finds the extender (default: {URL})")
    for flag, text in (
        ("--ca-file", "CA of the extender's certificate"),
        ("--client-cert", "kube-scheduler's certificate, for mutual TLS"),
        ("--client-key", "private key of that certificate"),
        ("--kubeconfig", "kube-scheduler's kubeconfig; in-cluster when not given"),
    ):
        parser.add_argument(flag, metavar="PATH", default="", help=text)


def run(arguments: Namespace) -> None:
    """Print the configuration."""
    url = server_url("--url", arguments.url)
    if url.startswith("https:") and not arguments.ca_file:
        raise UsageError(f"--url is {url}: kube-scheduler verifies nothing without --ca-file; give the extender's CA")
    if bool(arguments.client_cert) != bool(arguments.client_key):
        raise UsageError("--client-cert and --client-key go together: give both or neither")
    tls = {"--ca-file": arguments.ca_file, "--client-cert": arguments.client_cert}
    if url.startswith("http:") and (given := [flag for flag, value in tls.items() if value]):
        raise UsageError(f"{given[0]} is for TLS, and --url is {url}: give an https:// URL, or leave {given[0]} out")
    endpoint = ExtenderEndpoint(url, arguments.ca_file, arguments.client_cert, arguments.client_key)
    name = DEFAULT_SCHEDULER if arguments.default_scheduler else arguments.scheduler_name
    configuration = scheduler_configuration(
        endpoint, scheduler_name=name, kubeconfig=arguments.kubeconfig, amounts=("memory", *arguments.amount)
    )
    print(document(arguments.output, configuration), end="")


@dataclass(frozen=True, slots=True)
class ExtenderEndpoint:
    """The extender's URL and the scheduler's client certificate."""

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
    """A KubeSchedulerConfiguration v1 for a second scheduler of that name, or for the default one with our extender.

    A second scheduler needs a Lease of its own, otherwise it would wait for the first one's for ever. No node
    advertises ``amounts``: for a pod with amounts the scheduler asks the extender, and does not count them itself.
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
            # A standby redirects the scheduler to the leader's own address, which is in no certificate.
            "serverName": urlsplit(endpoint.url).hostname,
            "caFile": endpoint.ca_file,
            "certFile": endpoint.client_cert,
            "keyFile": endpoint.client_key,
        }
        extender["enableHTTPS"] = True
        extender["tlsConfig"] = {key: value for key, value in tls.items() if value}
    return configuration | {"extenders": [extender]}
