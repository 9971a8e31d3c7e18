"""``neuron-plugin run``: the node daemon."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from argparse import Namespace

import msgspec

from neuron_plugin import __version__
from neuron_plugin.cli.command import Exit, Subparsers, add_command
from neuron_plugin.cli.configuration import add_settings, load_settings, printed_settings
from neuron_plugin.instance_file import load_catalogue
from neuron_plugin.plugin.settings import PluginSettings
from neuron_plugin.settings import SettingsError, as_text
from neuron_plugin.telemetry import start_logging
from neuron_plugin.topology.instances import Catalogue

logger = logging.getLogger(__name__)

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
            "no node name: set NODE_NAME or --node-name to this node's name in Kubernetes, or --no-cluster"
        )
    types = load_catalogue(settings.instance_types)
    start_logging(settings.log_format, settings.log_level)
    shown = {field: as_text(value) for field, value in msgspec.structs.asdict(settings).items()}
    logger.info("neuron-plugin starts", extra={"version": __version__, **shown})
    asyncio.run(_serve(settings, types))
    return Exit.FINE


def with_node_name(settings: PluginSettings) -> PluginSettings:
    """``NODE_NAME``, which manifests set from ``spec.nodeName``, is the node's name unless one was given."""
    return (
        settings if settings.node_name else msgspec.structs.replace(settings, node_name=os.environ.get("NODE_NAME", ""))
    )


async def _serve(settings: PluginSettings, types: Catalogue) -> None:
    from neuron_plugin.plugin.daemon import NodeDaemon  # noqa: PLC0415 - grpc: other commands start without it

    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    await NodeDaemon(settings, types).run(stop)
    logger.info("neuron-plugin has ended")
