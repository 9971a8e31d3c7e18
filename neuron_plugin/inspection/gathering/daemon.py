"""What the daemon of this node goes by, and what it says of itself on its probes and metrics."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping

from neuron_plugin.inspection.facts import Daemon
from neuron_plugin.inspection.node import Node, configuration_file, node_of
from neuron_plugin.inspection.probes import page_of
from neuron_plugin.inspection.unknown import Unknown
from neuron_plugin.instance_file import load_catalogue
from neuron_plugin.plugin.settings import PluginSettings, check
from neuron_plugin.settings import SettingsError

ASK_SECONDS = 2.0

_SILENT = " is not running: "
"""In what the readiness page notes of a source."""
_HELD_BACK = re.compile(r'^neuron_plugin_device_healthy\{device="(\d+)"\} 0(?:\.0)?$', re.MULTILINE)


def gather_daemon(flags: Mapping[str, object], environ: Mapping[str, str]) -> tuple[Node, Daemon]:
    """The node with its daemon; where the daemon's settings cannot be used defaults stand in for them.

    Raises:
        SettingsError: --config or --root is not there.
    """
    file = configuration_file(flags)
    trouble: str | Unknown
    if file and not os.access(file, os.R_OK):
        trouble = unasked = Unknown(f"{file} may not be read", "run this as root")
    else:
        try:
            node = node_of(flags, environ, file)
            check(node.settings)
            load_catalogue(node.settings.instance_types)
        except SettingsError as error:
            trouble, unasked = str(error), _NOT_ASKED
        else:
            return node, _asked(node)
    node = node_of(flags, {}, None)
    return node, Daemon(file, trouble, silent=unasked, held_back=unasked)


def _asked(node: Node) -> Daemon:
    if node.root:  # another machine, or a simulated one
        return Daemon(node.file, silent=_NOT_HERE, held_back=_NOT_HERE)
    told = frozenset(each.resource for each in node.settings.resources) if node.file else None
    silent, sick = silent_sources(node.settings), held_back(node.settings)
    return Daemon(node.file, resources=told, silent=silent, held_back=sick)


_NOT_HERE = Unknown("the daemon of a machine given by --root is not asked", "run this on that machine")
_NOT_ASKED = Unknown("the daemon's address is not known", "mend what the check 'configuration' reports first")


def silent_sources(settings: PluginSettings) -> tuple[str, ...] | Unknown:
    """Sources that do not work, in the daemon's words."""
    page = _page(settings, "/readyz")
    return page if isinstance(page, Unknown) else tuple(line for line in page.splitlines() if _SILENT in line)


def held_back(settings: PluginSettings) -> tuple[int, ...] | Unknown:
    """Devices that the daemon does not hand out."""
    page = _page(settings, "/metrics")
    return page if isinstance(page, Unknown) else tuple(sorted(int(device) for device in _HELD_BACK.findall(page)))


def _page(settings: PluginSettings, path: str) -> str | Unknown:
    if not settings.health_port:
        return Unknown("the daemon serves no probes", "give it a --health-port to be asked about its sources")
    page = page_of(settings.health_address, settings.health_port, path, seconds=ASK_SECONDS)
    return Unknown(page.why, "run this in the plugin's pod") if isinstance(page, Unknown) else page
