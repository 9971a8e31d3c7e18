"""Which node is inspected, and the settings of its daemon.

Settings are read as the daemon reads them: flags win over the environment, the environment over the daemon's file, the
file over the defaults. In the plugin's pod file and environment are the daemon's own, so no flag is needed there.
A node given by ``--root`` is another machine: its paths lie below the root, and neither the environment nor the usual
file here applies to it. A file that is named with ``--config`` applies, but only its health policies: its paths are
those of that machine.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec

from neuron_plugin.instance_file import load_catalogue
from neuron_plugin.plugin.settings import PluginSettings
from neuron_plugin.settings import SettingsError, load

USUAL_FILE = Path("/etc/neuron-plugin/config.yaml")
"""Where the chart mounts the daemon's configuration."""

_PATHS = ("sysfs", "dev", "logical_core_file", "kubelet_dir", "pod_resources_socket")


@dataclass(frozen=True, slots=True)
class Node:
    """``root`` is None for this machine; ``file`` is the daemon's configuration, if one is known."""

    settings: PluginSettings
    root: Path | None = None
    file: Path | None = None

    @property
    def proc(self) -> Path:
        """The host's /proc where it is mounted: below the root, or where the daemon looks; else this machine's."""
        mounted = self.root / "proc" if self.root else self.settings.proc
        return mounted if os.path.isdir(mounted) else Path("/proc")  # noqa: PTH112 - Path.is_dir raises on EACCES


def node_of(flags: Mapping[str, object], environ: Mapping[str, str], file: Path | None) -> Node:
    """The node that ``flags`` mean: ``root``, and settings of the daemon by their fields' names.

    ``file`` is the daemon's configuration, see ``configuration_file``.

    Raises:
        SettingsError: the root is not a directory, the type is not known, or the settings cannot be used.
    """
    root = Path(str(flags["root"])) if flags.get("root") else None
    if root is None:
        settings = load(PluginSettings, flags, environ, file)
    elif not root.is_dir():
        raise SettingsError(f"--root {root} is no directory: expected one with sys/ and dev/ in it")
    else:
        defaults = PluginSettings()
        below = {name: str(root / str(getattr(defaults, name)).lstrip("/")) for name in _PATHS}
        given = {name: value for name, value in flags.items() if value is not None}
        health = load(PluginSettings, {}, {}, file).health
        settings = msgspec.structs.replace(load(PluginSettings, below | given, {}), health=health)
    # The daemon starts with a type that it does not know; on a command line an unknown type is a typing error.
    if (name := flags.get("instance_type")) and name not in load_catalogue(settings.instance_types):
        raise SettingsError(
            f"--instance-type {name} is not known: see 'neuron-plugin simulate types', "
            "or describe it in a file for --instance-types"
        )
    return Node(settings, root, file)


def configuration_file(flags: Mapping[str, object]) -> Path | None:
    """The daemon's configuration: the one named by ``config``, or on this machine the one in the usual place.

    Raises:
        SettingsError: the named file does not exist.
    """
    if named := flags.get("config"):
        if not os.path.lexists(str(named)):
            raise SettingsError(f"--config {named} is not there: expected the YAML file of 'neuron-plugin run'")
        return Path(str(named))
    return USUAL_FILE if not flags.get("root") and os.path.lexists(USUAL_FILE) else None
