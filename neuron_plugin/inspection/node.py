"""Which node is looked at, and the settings that its daemon goes by.

Everything that looks at a node reads them as the daemon does: flags win over the environment, that over the daemon's
file, that over the defaults. So in the plugin's pod, where the file and the environment are the daemon's own, no flag
is needed. A node given by its root is another machine: its places lie below the root, and of what is configured here
nothing speaks of it. Only a file that is named does, and only of health policies, for its paths are that machine's.
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

_PLACES = ("sysfs", "dev", "logical_core_file", "kubelet_dir", "pod_resources_socket")


@dataclass(frozen=True, slots=True)
class Node:
    """``root`` is None for this machine; ``file`` is the daemon's configuration, if one is known."""

    settings: PluginSettings
    root: Path | None = None
    file: Path | None = None

    @property
    def proc(self) -> Path:
        """The host's /proc where it is mounted: with the host, or where the daemon looks; else this machine's."""
        mounted = self.root / "proc" if self.root else self.settings.proc
        return mounted if os.path.isdir(mounted) else Path("/proc")  # noqa: PTH112 - Path.is_dir raises on EACCES


def node_of(flags: Mapping[str, object], environ: Mapping[str, str], file: Path | None) -> Node:
    """The node that is meant by ``flags``: its ``root``, and settings of the daemon by their fields' names.

    ``file`` is the daemon's configuration, see ``configuration_file``.

    Raises:
        SettingsError: a root that is no directory, a type that is not known, or settings that cannot be used.
    """
    root = _root(flags)
    settings = _settings(flags, environ, file, root)
    _check_type(flags, settings)
    return Node(settings, root, file)


def _settings(
    flags: Mapping[str, object], environ: Mapping[str, str], file: Path | None, root: Path | None
) -> PluginSettings:
    if root is None:
        return load(PluginSettings, flags, environ, file)
    below = {name: str(root / str(getattr(_DEFAULTS, name)).lstrip("/")) for name in _PLACES}
    given = {name: value for name, value in flags.items() if value is not None}
    health = load(PluginSettings, {}, {}, file).health
    return msgspec.structs.replace(load(PluginSettings, below | given, {}), health=health)


def _check_type(flags: Mapping[str, object], settings: PluginSettings) -> None:
    """Refuse a type that was mistyped; the daemon goes on with one that is not known, and so it is told."""
    if (name := flags.get("instance_type")) and name not in load_catalogue(settings.instance_types):
        raise SettingsError(
            f"--instance-type {name} is not known: see 'neuron-plugin simulate types', "
            "or describe it in a file for --instance-types"
        )


def configuration_file(flags: Mapping[str, object]) -> Path | None:
    """The daemon's configuration: the ``config`` that is named, or on this machine the one in the usual place.

    Raises:
        SettingsError: the one that is named is not there.
    """
    if named := flags.get("config"):
        if not os.path.lexists(str(named)):
            raise SettingsError(f"--config {named} is not there: expected the YAML file of 'neuron-plugin run'")
        return Path(str(named))
    return USUAL_FILE if not flags.get("root") and os.path.lexists(USUAL_FILE) else None


def _root(flags: Mapping[str, object]) -> Path | None:
    root = Path(str(flags["root"])) if flags.get("root") else None
    if root is not None and not root.is_dir():
        raise SettingsError(f"--root {root} is no directory: expected one with sys/ and dev/ in it")
    return root


_DEFAULTS = PluginSettings()
