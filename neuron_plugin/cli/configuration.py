"""The settings of a daemon from its command line, the same way for every daemon."""

from __future__ import annotations

import os
from argparse import ArgumentParser, Namespace
from collections.abc import Mapping
from pathlib import Path
from typing import TypeVar

import msgspec

from neuron_plugin.settings import ENVIRONMENT_PREFIX, add_flags, as_yaml, load

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


def printed_settings(settings: msgspec.Struct, arguments: Namespace) -> bool:
    """Whether the user asked only to see the settings; if so they have been printed, and the daemon must not start."""
    if arguments.print_config:
        print(as_yaml(settings), end="")
    return bool(arguments.print_config)
