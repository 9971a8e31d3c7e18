"""``neuron-plugin extender``: the placement controller."""

from __future__ import annotations

import asyncio
from argparse import ArgumentParser, Namespace

from neuron_plugin.cli.command import CommandError
from neuron_plugin.cli.daemons import add_settings, load_settings, printed_settings, run_daemon
from neuron_plugin.instance_file import load_catalogue
from neuron_plugin.placement import ExtenderSettings, check
from neuron_plugin.settings import SettingsError

DESCRIPTION = """\
Answer kube-scheduler's filter, prioritize, preempt and bind for pods that ask for Neuron: choose
nodes by their free linked sets and write the set on the pod as it is bound. Runs until SIGTERM."""

EXAMPLES = """
neuron-plugin extender --kubeconfig ~/.kube/config
neuron-plugin extender --address 0.0.0.0 --tls-cert tls.crt --tls-key tls.key --client-ca ca.crt
neuron-plugin extender --config /etc/neuron-extender.yaml --print-config
"""


def add_flags(parser: ArgumentParser) -> None:
    """Add a flag for each setting of the extender."""
    add_settings(parser, ExtenderSettings)


def run(arguments: Namespace) -> None:
    """Run the extender until a signal ends it."""
    settings = load_settings(ExtenderSettings, arguments)
    if printed_settings(settings, arguments):
        return
    check(settings)
    types = load_catalogue(settings.instance_types)
    token = settings.ui_token_file.read_text("utf-8").strip() if settings.ui_token_file else ""
    if settings.ui_token_file and not token:
        raise SettingsError(f"ui-token-file is {settings.ui_token_file}, which is empty: expected a token in it")

    async def serve(stop: asyncio.Event) -> None:
        from neuron_plugin.cluster import ClusterError
        from neuron_plugin.cluster.client import connect
        from neuron_plugin.monitor.pages import MonitorPages
        from neuron_plugin.placement.daemon import ExtenderDaemon, Pages
        from neuron_plugin.ui import Picture

        try:
            api = await connect(settings.kubeconfig)
        except ClusterError as error:
            raise CommandError(str(error)) from error
        picture = Picture(token, settings.prometheus_url) if settings.ui else None
        async with api:
            pages: list[Pages] = [MonitorPages(), *([picture] if picture else [])]
            await ExtenderDaemon(settings, types, api, pages=pages).run(stop)

    run_daemon("neuron-plugin extender", settings, settings.log_format, settings.log_level, serve)
