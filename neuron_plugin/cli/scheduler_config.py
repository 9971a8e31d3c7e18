"""``neuron-plugin scheduler-config``: the kube-scheduler configuration that goes with the extender."""

from __future__ import annotations

from argparse import Namespace

from neuron_plugin.cli.command import Exit, Subparsers, UsageError, add_command
from neuron_plugin.cli.output import ObjectForm, add_output_flag, document
from neuron_plugin.extender import (
    DEFAULT_SCHEDULER,
    SECOND_SCHEDULER,
    ExtenderEndpoint,
    scheduler_configuration,
)

EXAMPLES = """
neuron-plugin scheduler-config > neuron-scheduler.yaml
neuron-plugin scheduler-config --default-scheduler --kubeconfig /etc/kubernetes/scheduler.conf
neuron-plugin scheduler-config --url https://neuron-extender.kube-system.svc:12345 --ca-file /etc/neuron/ca.crt
"""


def register(subparsers: Subparsers) -> None:
    """Add the command."""
    parser = add_command(
        subparsers,
        "scheduler-config",
        run,
        summary="print a kube-scheduler configuration that uses the extender",
        description=(
            "Print a KubeSchedulerConfiguration (v1, for kube-scheduler --config): a second scheduler beside the "
            "default one, or the default scheduler itself."
        ),
        examples=EXAMPLES,
    )
    add_output_flag(parser, ObjectForm)
    which = parser.add_mutually_exclusive_group()
    which.add_argument(
        "--scheduler-name",
        metavar="NAME",
        default=SECOND_SCHEDULER,
        help=f"name that pods give as schedulerName (default: {SECOND_SCHEDULER})",
    )
    which.add_argument("--default-scheduler", action="store_true", help="configure the default scheduler instead")
    parser.add_argument(
        "--url",
        default="http://127.0.0.1:12345",
        help="where kube-scheduler finds the extender (default: http://127.0.0.1:12345)",
    )
    parser.add_argument("--ca-file", metavar="PATH", default="", help="CA of the extender's certificate")
    parser.add_argument(
        "--client-cert", metavar="PATH", default="", help="kube-scheduler's certificate, for mutual TLS"
    )
    parser.add_argument("--client-key", metavar="PATH", default="", help="private key of that certificate")
    parser.add_argument(
        "--kubeconfig", metavar="PATH", default="", help="kube-scheduler's kubeconfig; in-cluster when not given"
    )


def run(arguments: Namespace) -> int:
    """Print the configuration."""
    endpoint = ExtenderEndpoint(_checked_url(arguments), arguments.ca_file, arguments.client_cert, arguments.client_key)
    name = DEFAULT_SCHEDULER if arguments.default_scheduler else arguments.scheduler_name
    found = scheduler_configuration(endpoint, scheduler_name=name, kubeconfig=arguments.kubeconfig)
    print(document(ObjectForm(arguments.output), found), end="")
    return Exit.FINE


def _checked_url(arguments: Namespace) -> str:
    url = str(arguments.url)
    if not url.startswith(("http://", "https://")):
        raise UsageError(f"--url is {url!r}, expected it to begin with http:// or https://")
    if url.startswith("https:") and not arguments.ca_file:
        raise UsageError(f"--url is {url}: kube-scheduler verifies nothing without --ca-file; give the extender's CA")
    if bool(arguments.client_cert) != bool(arguments.client_key):
        raise UsageError("--client-cert and --client-key go together: give both or neither")
    return url
