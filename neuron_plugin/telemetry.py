"""Logging of both daemons: fixed messages with variables as fields, and on request the stacks of threads and tasks.

A problem that lasts is logged once.

Fields are passed the standard way, ``logger.info("registered", extra={"resource": name})``, so libraries that use the
standard library's logging appear in the same form.
"""

from __future__ import annotations

import asyncio
import enum
import json
import logging
import sys
import threading
import traceback
from collections.abc import Collection, Mapping
from datetime import UTC, datetime
from types import TracebackType
from typing import TextIO

import msgspec

logger = logging.getLogger(__name__)

_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


class LogFormat(enum.StrEnum):
    """The format of log lines."""

    TEXT = "text"
    JSON = "json"


class LogLevel(enum.StrEnum):
    """The lowest severity that is logged."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


class JsonFormatter(logging.Formatter):
    """One JSON object a line: time (RFC 3339, UTC), level, logger, message, then the fields."""

    def format(self, record: logging.LogRecord) -> str:
        """Format a record; a value that JSON cannot represent becomes text."""
        line: dict[str, object] = {
            "time": _time_of(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        } | _fields_of(record)
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        if record.stack_info:
            line["stack"] = record.stack_info
        return msgspec.json.encode(line, enc_hook=str).decode()


class TextFormatter(logging.Formatter):
    """``TIME LEVEL message key=value ...`` for people."""

    def format(self, record: logging.LogRecord) -> str:
        """Format a record as one line; a traceback or stack follows on its own lines."""
        fields = "".join(f" {key}={_text_of(value)}" for key, value in _fields_of(record).items())
        message = record.getMessage()
        if not message.isprintable():  # a name with a newline in it must not look like a line of its own
            message = repr(message)[1:-1]
        line = f"{_time_of(record)} {record.levelname:<7} {message}{fields}"
        traceback_text = self.formatException(record.exc_info) if record.exc_info else None
        return "\n".join(filter(None, [line, traceback_text, record.stack_info]))


def start_logging(log_format: LogFormat, level: LogLevel, stream: TextIO | None = None) -> None:
    """Send log lines to ``stream`` (standard error by default) in one format.

    ``level`` is for this package. Libraries log warnings and errors only: at debug level gRPC alone writes several
    lines a call.
    """
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(JsonFormatter() if log_format is LogFormat.JSON else TextFormatter())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(max(logging.WARNING, logging.getLevelNamesMapping()[level.upper()]))
    logging.getLogger("neuron_plugin").setLevel(level.upper())


class Problem:
    """Something that may not work for a while. It is logged when it begins, and again when its text changes.

    Used as a context, it takes in whether the block works: one of ``errors`` is logged and ends there.
    """

    def __init__(self, logger: logging.Logger, message: str, *errors: type[Exception], **fields: object) -> None:
        self.text = ""
        self._logger = logger
        self._message = message
        self._errors = errors
        self._fields = fields

    def say(self, error: object) -> None:
        """Take in that it does not work."""
        if str(error) != self.text:
            self._logger.warning(self._message, extra={**self._fields, "error": str(error)})
        self.text = str(error)

    def end(self) -> None:
        """Take in that it works."""
        self.text = ""

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> bool:
        if isinstance(error, self._errors):
            self.say(error)
        elif kind is None:
            self.end()
        return isinstance(error, self._errors)


def log_stacks() -> None:
    """Log where every thread and every task of the running loop is, to find out why a daemon makes no progress.

    Logged at any log level, because it was requested. One line per thread and task, with its stack below.
    """
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    for ident, frame in sys._current_frames().items():  # noqa: SLF001 - the documented way to other threads' stacks
        _log_stack("thread_name", names.get(ident, str(ident)), "".join(traceback.format_stack(frame)))
    for task in sorted(asyncio.all_tasks(), key=asyncio.Task.get_name):
        frames = [line for frame in task.get_stack() for line in traceback.format_stack(frame, limit=1)]
        _log_stack("task_name", task.get_name(), "".join(frames))


def _log_stack(kind: str, name: str, stack: str) -> None:
    record = logger.makeRecord(
        logger.name, logging.ERROR, __file__, 0, "stack", (), None, extra={kind: name}, sinfo=stack.rstrip()
    )
    logger.handle(record)


def _time_of(record: logging.LogRecord) -> str:
    return datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _fields_of(record: logging.LogRecord) -> dict[str, object]:
    return {key: value for key, value in vars(record).items() if key not in _STANDARD}


def _text_of(value: object) -> str:
    """A value for people: lists without brackets, double quotes only where the end of a text is unclear."""
    if isinstance(value, Mapping):
        text = "; ".join(f"{key}: {item}" for key, item in value.items())
    elif isinstance(value, Collection) and not isinstance(value, str | bytes):
        text = ",".join(map(str, value))
    else:
        text = str(value).lower() if isinstance(value, bool) else str(value)
    plain = text.isprintable() and text and not set(text) & set(' ="')
    return text if plain else json.dumps(text, ensure_ascii=not text.isprintable())
