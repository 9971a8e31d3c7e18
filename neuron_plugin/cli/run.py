"""``neuron-plugin run``: the node daemon."""

from __future__ import annotations

import asyncio
import os
from argparse import Namespace

import msgspec

from neuron_plugin.cli.command import Exit, Subparsers, add_command
from neuron_plugin.cli.configuration import add_settings, load_settings, printed_settings
from neuron_plugin.cli.daemons import run_daemon
from neuron_plugin.instance_file import load_catalogue
from neuron_plugin.plugin.settings import PluginSettings, check
from neuron_plugin.settings import SettingsError

EXAMPLES = """
NODE_NAME=$(hostname) neuron-plugin run --kubeconfig /etc/kubernetes/kubelet.conf
neuron-plugin run --no-cluster --resources neuroncore
neuron-plugin run --config /etc/neuron-plugin.yaml --print-config
"""


def register(subparsers: Subparsers) -> None:
    """Add the command."""
    parser = add_command(
        subparsers,
        "run",
        run,
        summary="serve this node's Neuron devices to its kubelet (the daemon)",
        description=(
            "Find this machine's Neuron devices, offer them to the kubelet and give each container the set that the "
            "scheduler extender decided, or else the best linked set. Runs until SIGTERM."
        ),
        examples=EXAMPLES,
    )
    add_settings(parser, PluginSettings)


def run(arguments: Namespace) -> int:
    """Run the daemon until a signal ends it."""
    settings = with_node_name(load_settings(PluginSettings, arguments))
    if printed_settings(settings, arguments):
        return Exit.FINE
    if settings.cluster and not settings.node_name:
        raise SettingsError(
            "no node name: set NODE_NAME or --node-name to this node's name in Kubernetes, or give --no-cluster"
        )
    check(settings)
    types = load_catalogue(settings.instance_types)

    async def serve(stop: asyncio.Event) -> None:
        from neuron_plugin.plugin.daemon import NodeDaemon

        await NodeDaemon(settings, types).run(stop)

    run_daemon("neuron-plugin", settings, settings.log_format, settings.log_level, serve)
    return Exit.FINE


def with_node_name(settings: PluginSettings) -> PluginSettings:
    """``NODE_NAME``, which manifests set from ``spec.nodeName``, is the node's name unless one was given."""
    if settings.node_name:
        return settings
    return msgspec.structs.replace(settings, node_name=os.environ.get("NODE_NAME", ""))
