"""What starting a daemon has in common: its log, the line that says its settings, the signals it obeys.

SIGTERM and SIGINT end it; SIGUSR1 has it log the stacks of all its tasks and threads.
"""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Awaitable, Callable

import msgspec

from neuron_plugin.build import build
from neuron_plugin.cli.command import CommandError
from neuron_plugin.settings import SettingsError, as_text
from neuron_plugin.telemetry import LogFormat, LogLevel, log_stacks, start_logging

logger = logging.getLogger(__name__)

Serve = Callable[[asyncio.Event], Awaitable[None]]
"""A daemon: serves until the event is set."""


def run_daemon(name: str, settings: msgspec.Struct, log_format: LogFormat, log_level: LogLevel, serve: Serve) -> None:
    """Log build and effective settings, then serve until SIGTERM or SIGINT.

    Raises:
        CommandError: it ended by itself; what nobody has foreseen is in its log, with the stack.
    """
    start_logging(log_format, log_level)
    shown = {field: as_text(value) for field, value in msgspec.structs.asdict(settings).items()}
    logger.info("%s starts", name, extra=build()._asdict() | shown)
    try:
        asyncio.run(_until_signal(serve))
    except (CommandError, SettingsError, OSError):
        raise
    except Exception as error:
        logger.exception("%s has failed", name)
        raise CommandError(f"{name} has failed ({error!r}): its log has the stack, please report it") from error
    logger.info("%s has ended", name)


async def _until_signal(serve: Serve) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    loop.add_signal_handler(signal.SIGUSR1, log_stacks)
    await serve(stop)
