"""What the daemon of this node goes by: its settings, and what it remembers of devices.

Its configuration file is found where the chart mounts it, so that in the plugin's pod ``doctor`` needs no flag; the
environment there is the daemon's own.
"""

from __future__ import annotations

import os
from argparse import Namespace
from collections.abc import Mapping
from pathlib import Path

from neuron_plugin.cli.command import CommandError
from neuron_plugin.cli.doctor_facts import Daemon, Unknown
from neuron_plugin.plugin.health_memory import FILE_NAME, Memory, boot_id, load
from neuron_plugin.plugin.settings import PluginSettings, check
from neuron_plugin.settings import SettingsError
from neuron_plugin.settings import load as load_settings

USUAL_FILE = Path("/etc/neuron-plugin/config.yaml")
"""Where the chart mounts the daemon's configuration."""

ASK_SECONDS = 2.0
_MOST_BYTES = 1 << 20
_NOTE = " is not running: "
"""In what the daemon's readiness page says of a source."""

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
        return Daemon(file=file, trouble=unread, memory=_NO_FILE, silent=unread)
    try:
        settings = load_settings(PluginSettings, {}, environ, file)
        check(settings)
    except SettingsError as error:
        return Daemon(file=file, trouble=str(error), memory=_NO_FILE, silent=_NOT_ASKED)
    return Daemon(
        settings, file, memory=_remembered(settings), silent=_silent(settings, simulated=bool(arguments.root))
    )


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


_NOT_ASKED = Unknown("the daemon's address is not known", "mend what the check 'configuration' reports first")


def _silent(settings: PluginSettings, *, simulated: bool) -> tuple[str, ...] | Unknown:
    """What the running daemon's readiness page notes of sources that do not work."""
    import http.client  # noqa: PLC0415 - only for this question

    if simulated or not settings.health_port:
        return Unknown("the daemon is not asked: it is another machine's, or serves no probes", "ask its /readyz page")
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(settings.health_address, settings.health_address)  # noqa: S104 - read, not bound
    connection = http.client.HTTPConnection(host, settings.health_port, timeout=ASK_SECONDS)
    try:
        connection.request("GET", "/readyz")
        lines = connection.getresponse().read(_MOST_BYTES).decode("utf-8", "backslashreplace").splitlines()
    except (OSError, http.client.HTTPException) as error:
        return Unknown(f"no daemon answers on {host}:{settings.health_port} ({error})", "run this in the plugin's pod")
    finally:
        connection.close()
    return tuple(line for line in lines if _NOTE in line)


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
