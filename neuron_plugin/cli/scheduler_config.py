"""``neuron-plugin scheduler-config``: the kube-scheduler configuration that goes with the extender."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

from neuron_plugin.allocation.node_rules import DEFAULT_SCHEDULER
from neuron_plugin.cli.command import OBJECTS, UsageError, add_output_flag, document, matching, server_url
from neuron_plugin.placement.extender.scheduler_config import (
    SECOND_SCHEDULER,
    ExtenderEndpoint,
    scheduler_configuration,
)

DESCRIPTION = """\
Print a KubeSchedulerConfiguration (v1, for kube-scheduler --config): a second scheduler beside the
default one, or the default scheduler itself."""

EXAMPLES = """
neuron-plugin scheduler-config > neuron-scheduler.yaml
neuron-plugin scheduler-config --default-scheduler --kubeconfig /etc/kubernetes/scheduler.conf
neuron-plugin scheduler-config --url https://neuron-extender.kube-system.svc:12345 --ca-file /etc/neuron/ca.crt
"""

URL = "http://127.0.0.1:12345"


def add_flags(parser: ArgumentParser) -> None:
    """Which scheduler, and how it reaches the extender."""
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
