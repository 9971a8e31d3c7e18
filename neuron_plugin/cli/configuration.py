"""The settings of a daemon: its own from its command line, and those that others of its pod go by."""

from __future__ import annotations

import os
from argparse import ArgumentParser, Namespace
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

import msgspec

from neuron_plugin.extender import ExtenderSettings
from neuron_plugin.inspection.node import configuration_file
from neuron_plugin.plugin.settings import PluginSettings
from neuron_plugin.settings import ENVIRONMENT_PREFIX, SettingsError, add_flags, as_yaml, load

_Settings = TypeVar("_Settings", bound=msgspec.Struct)


def add_settings(parser: ArgumentParser, settings: type[msgspec.Struct]) -> None:
    """Give a daemon's parser a flag for each setting, and ``--config`` and ``--print-config``."""
    add_flags(parser, settings)
    parser.add_argument(
        "--config",
        metavar="FILE",
        type=Path,
        help=f"YAML file of settings, keys as the flags without --; flags and {ENVIRONMENT_PREFIX}* win over it",
    )
    parser.add_argument(
        "--print-config", action="store_true", help="print the settings in force as such a file, and exit"
    )


def load_settings(
    settings: type[_Settings], arguments: Namespace, environment: Mapping[str, str] | None = None
) -> _Settings:
    """The settings in force: flags, then environment (this process's by default), then file, then defaults.

    Raises:
        SettingsError: one of them cannot be used.
    """
    return load(settings, vars(arguments), os.environ if environment is None else environment, arguments.config)


def settings_here() -> PluginSettings | ExtenderSettings:
    """Settings of the daemon of this pod or machine, by the environment and the file in the usual place.

    Plugin and extender have theirs in the same place, each in its own pods.

    Raises:
        SettingsError: they are neither's.
    """
    file = configuration_file({})
    try:
        return load(PluginSettings, {}, os.environ, file)
    except SettingsError as error:
        with suppress(SettingsError):
            return load(ExtenderSettings, {}, os.environ, file)
        raise error from None


def printed_settings(settings: msgspec.Struct, arguments: Namespace) -> bool:
    """Whether the user asked only to see the settings; if so they have been printed, and the daemon must not start."""
    if arguments.print_config:
        print(as_yaml(settings), end="")
    return bool(arguments.print_config)
