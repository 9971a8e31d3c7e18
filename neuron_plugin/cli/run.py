"""``neuron-plugin run``: the node daemon."""

from __future__ import annotations

import asyncio
import os
from argparse import ArgumentParser, Namespace

from neuron_plugin.cli.daemons import add_settings, load_settings, printed_settings, run_daemon
from neuron_plugin.instance_file import load_catalogue
from neuron_plugin.plugin.settings import PluginSettings, check, with_node_name
from neuron_plugin.settings import SettingsError

DESCRIPTION = """\
Find this machine's Neuron devices, offer them to the kubelet and give each container the set that
the scheduler extender assigned, or else the best linked set. Runs until SIGTERM."""

EXAMPLES = """
NODE_NAME=$(hostname) neuron-plugin run --kubeconfig /etc/kubernetes/kubelet.conf
neuron-plugin run --no-cluster --resources neuroncore
neuron-plugin run --config /etc/neuron-plugin.yaml --print-config
"""


def add_flags(parser: ArgumentParser) -> None:
    """Add a flag for each setting of the daemon."""
    add_settings(parser, PluginSettings)


def run(arguments: Namespace) -> None:
    """Run the daemon until a signal ends it."""
    settings = with_node_name(load_settings(PluginSettings, arguments), os.environ)
    if printed_settings(settings, arguments):
        return
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
