"""Start of a daemon: settings, log and signals.

SIGTERM and SIGINT end it; SIGUSR1 makes it log the stacks of all its tasks and threads.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import signal
from argparse import ArgumentParser, Namespace
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import TypeVar

import msgspec

from neuron_plugin.build import build
from neuron_plugin.cli.command import CommandError
from neuron_plugin.settings import ENVIRONMENT_PREFIX, SettingsError, add_flags, as_text, as_yaml, load
from neuron_plugin.telemetry import LogFormat, LogLevel, log_stacks, start_logging

logger = logging.getLogger(__name__)

OBJECTS_BETWEEN_COLLECTIONS = 20_000
"""New objects after which Python looks for cyclic garbage, which is rare in daemons.

With Python's default of 700 that took some 5 % of the CPU of a placement.
"""

_Settings = TypeVar("_Settings", bound=msgspec.Struct)

Serve = Callable[[asyncio.Event], Awaitable[None]]
"""A daemon: serves until the event is set."""


def add_settings(parser: ArgumentParser, settings: type[msgspec.Struct]) -> None:
    """Add a flag for each setting, ``--config`` and ``--print-config``."""
    add_flags(parser, settings)
    file = f"YAML file of settings, keys as the flags without --; flags and {ENVIRONMENT_PREFIX}* win over it"
    parser.add_argument("--config", metavar="FILE", type=Path, help=file)
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
    """Print the settings if the user asked for them. Returns whether it did: then the daemon must not start."""
    if arguments.print_config:
        print(as_yaml(settings), end="")
    return bool(arguments.print_config)


def run_daemon(name: str, settings: msgspec.Struct, log_format: LogFormat, log_level: LogLevel, serve: Serve) -> None:
    """Log build and effective settings, then serve until SIGTERM or SIGINT.

    Raises:
        CommandError: the daemon failed; the stack of an unforeseen error is in its log.
    """
    start_logging(log_format, log_level)
    shown = {field: as_text(value) for field, value in msgspec.structs.asdict(settings).items()}
    logger.info("%s starts", name, extra=build()._asdict() | shown)
    gc.set_threshold(OBJECTS_BETWEEN_COLLECTIONS)

    async def until_signal() -> None:
        stop, loop = asyncio.Event(), asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stop.set)
        loop.add_signal_handler(signal.SIGUSR1, log_stacks)
        await serve(stop)

    try:
        asyncio.run(until_signal())
    except (CommandError, SettingsError, OSError):
        raise
    except Exception as error:
        logger.exception("%s has failed", name)
        raise CommandError(f"{name} has failed ({error!r}): its log has the stack, please report it") from error
    logger.info("%s has ended", name)
