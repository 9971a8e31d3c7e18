"""What the daemon of this node goes by: its settings, and what it remembers of devices.

Its configuration file is found where the chart mounts it, so that in the plugin's pod ``doctor`` needs no flag; the
environment there is the daemon's own.
"""

from __future__ import annotations

import os
from argparse import Namespace
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from neuron_plugin.cli.command import CommandError
from neuron_plugin.cli.doctor_facts import Daemon, Unknown
from neuron_plugin.cli.doctor_gather_probes import held_back, silent_sources
from neuron_plugin.plugin.health.memory import FILE_NAME, Memory, boot_id, load
from neuron_plugin.plugin.settings import PluginSettings, check
from neuron_plugin.settings import SettingsError
from neuron_plugin.settings import load as load_settings

USUAL_FILE = Path("/etc/neuron-plugin/config.yaml")
"""Where the chart mounts the daemon's configuration."""

_SHARED = (
    *("sysfs", "dev", "logical_core_file", "instance_types", "instance_type"),
    *("kubelet_dir", "pod_resources_socket", "kubeconfig", "node_name"),
)
"""Settings of the daemon that are flags here, too."""


def gather_daemon(arguments: Namespace, environ: Mapping[str, str], usual: Path = USUAL_FILE) -> Daemon:
    """The settings in force, or why those cannot be used.

    Raises:
        CommandError: --config is no file.
    """
    given: Path | None = arguments.config
    if given is not None and not os.path.lexists(given):
        raise CommandError(f"--config {given} is not there: expected the YAML file of settings of 'neuron-plugin run'")
    file = given or (usual if arguments.root is None and os.path.lexists(usual) else None)
    if file and not os.access(file, os.R_OK):
        unread = Unknown(f"{file} may not be read", "run this as root")
        return Daemon(file=file, trouble=unread, memory=_NO_FILE, silent=unread, held_back=unread)
    try:
        settings = load_settings(PluginSettings, {}, environ, file)
        check(settings)
    except SettingsError as error:
        return Daemon(file=file, trouble=str(error), memory=_NO_FILE, silent=_NOT_ASKED, held_back=_NOT_ASKED)
    daemon = Daemon(settings, file, memory=_remembered(settings))
    if arguments.root:  # another machine, or a simulated one
        return replace(daemon, silent=_NOT_HERE, held_back=_NOT_HERE)
    return replace(daemon, silent=silent_sources(settings), held_back=held_back(settings))


def with_settings(arguments: Namespace, settings: PluginSettings) -> Namespace:
    """``arguments`` with what the daemon was told and the user has not said.

    Not for a machine given by ``--root``: the daemon's paths are this machine's.
    """
    told = Namespace(**vars(arguments))
    for name in _SHARED if arguments.root is None else ():
        value = getattr(settings, name)
        if getattr(told, name) is None and value != getattr(_DEFAULTS, name):
            setattr(told, name, value)
    return told


_DEFAULTS = PluginSettings()
_NO_FILE = Unknown("no state file of the daemon's is known", "give --config, the daemon's configuration")
_NOT_HERE = Unknown("the daemon of a machine given by --root is not asked", "run this on that machine")
_NOT_ASKED = Unknown("the daemon's address is not known", "mend what the check 'configuration' reports first")


def _remembered(settings: PluginSettings) -> Memory | Unknown:
    if settings.state_dir is None:
        return _NO_FILE
    file = settings.state_dir / FILE_NAME
    try:
        file.read_bytes()
    except FileNotFoundError:
        return Unknown(f"{file} is not there", "the daemon writes it when it has seen a device")
    except OSError as error:
        return Unknown(f"{file} cannot be read ({error.strerror})", "run this as root")
    return load(file, boot_id())
