from __future__ import annotations

import asyncio
import io
import json
import logging
import re
import threading
from collections.abc import Iterator

import pytest

from neuron_plugin.telemetry import (
    JsonFormatter,
    LogFormat,
    LogLevel,
    Problem,
    TextFormatter,
    log_stacks,
    start_logging,
)

TIME = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z"


@pytest.fixture(autouse=True)
def root_logger() -> Iterator[logging.Logger]:
    """The root logger; it and ours are put back afterwards."""
    root, ours = logging.getLogger(), logging.getLogger("neuron_plugin")
    handlers, levels = root.handlers[:], (root.level, ours.level)
    yield root
    root.handlers[:] = handlers
    root.setLevel(levels[0])
    ours.setLevel(levels[1])


def record(message: str = "registered", level: int = logging.INFO, **fields: object) -> logging.LogRecord:
    return logging.getLogger("neuron_plugin.x").makeRecord(
        "neuron_plugin.x", level, "f.py", 1, message, (), None, extra=fields
    )


def failed(message: str) -> logging.LogRecord:
    one = record(message)
    try:
        _ = 1 / 0
    except ZeroDivisionError as error:
        one.exc_info = (type(error), error, error.__traceback__)
    return one


def test_a_json_line_has_time_level_logger_message_and_fields() -> None:
    line = json.loads(JsonFormatter().format(record(resource="neuron", ids=[2, 3])))
    assert re.fullmatch(TIME, line.pop("time"))
    assert line == {
        "level": "info",
        "logger": "neuron_plugin.x",
        "message": "registered",
        "resource": "neuron",
        "ids": [2, 3],
    }


def test_time_is_utc() -> None:
    one = record()
    one.created = 0.5
    assert json.loads(JsonFormatter().format(one))["time"] == "1970-01-01T00:00:00.500Z"


@pytest.mark.parametrize(
    ("value", "written"),
    [
        (ValueError("bad"), "bad"),
        (frozenset({1}), [1]),
        (2**100, 2**100),
        ({1: "a"}, {"1": "a"}),
        (float("nan"), None),
        (LogLevel.INFO, "info"),
    ],
)
def test_a_field_of_any_type_can_be_written(value: object, written: object) -> None:
    assert json.loads(JsonFormatter().format(record(field=value)))["field"] == written


def test_arguments_of_a_library_are_put_into_its_message() -> None:
    one = logging.LogRecord("grpc", logging.WARNING, "f.py", 1, "lost %s after %d s", ("peer", 3), None)
    assert json.loads(JsonFormatter().format(one))["message"] == "lost peer after 3 s"


@pytest.mark.parametrize("formatter", [JsonFormatter(), TextFormatter()])
def test_an_exception_comes_with_its_traceback(formatter: logging.Formatter) -> None:
    text = formatter.format(failed("it broke"))
    assert "ZeroDivisionError: division by zero" in text
    assert "Traceback" in text


def test_a_json_line_is_one_line_even_with_a_traceback() -> None:
    assert "\n" not in JsonFormatter().format(failed("a\nb"))


def test_a_text_line_has_its_fields_behind_the_message() -> None:
    line = TextFormatter().format(record(resource="neuron", count=3))
    assert re.fullmatch(TIME + r" INFO    registered resource=neuron count=3", line)


@pytest.mark.parametrize(
    ("value", "written"),
    [
        ("", '""'),
        ("two words", '"two words"'),
        ("a=b", '"a=b"'),
        ("a\nb", r'"a\nb"'),
        ('"', r'"\""'),
        ("it's", "it's"),
        ("\x1b[31m", r'"\u001b[31m"'),
        ("a\u2028b", r'"a\u2028b"'),
        ("\xe9 t\xe9", '"\xe9 t\xe9"'),
        ([1, 2], "1,2"),
        (frozenset({3}), "3"),
        ((), '""'),
        ({"Fewer than 4 free": 1, "not known": 2}, '"Fewer than 4 free: 1; not known: 2"'),
        ({"3": "ECC"}, '"3: ECC"'),
        (True, "true"),
        (None, "None"),
        ("default/pod-0", "default/pod-0"),
    ],
)
def test_a_value_that_could_be_mistaken_is_quoted(value: object, written: str) -> None:
    assert TextFormatter().format(record(field=value)).endswith(f" field={written}")


def test_a_message_cannot_forge_a_second_line() -> None:
    line = TextFormatter().format(record("gone\n2026-01-01T00:00:00.000Z INFO all is well"))
    assert "\n" not in line
    assert r"gone\n2026" in line


@pytest.mark.parametrize(("log_format", "is_json"), [(LogFormat.JSON, True), (LogFormat.TEXT, False)])
def test_logging_starts_in_one_format_for_everybody(
    root_logger: logging.Logger, log_format: LogFormat, *, is_json: bool
) -> None:
    stream = io.StringIO()
    start_logging(log_format, LogLevel.INFO, stream)
    logging.getLogger("some.library").warning("hello", extra={"a": 1})
    assert stream.getvalue().startswith("{") == is_json
    assert stream.getvalue().count("\n") == 1
    assert len(root_logger.handlers) == 1


@pytest.mark.parametrize(
    ("level", "written"), [(LogLevel.DEBUG, 4), (LogLevel.INFO, 3), (LogLevel.WARNING, 2), (LogLevel.ERROR, 1)]
)
def test_lines_below_the_level_are_left_out(level: LogLevel, written: int) -> None:
    stream = io.StringIO()
    start_logging(LogFormat.TEXT, level, stream)
    for severity in (logging.DEBUG, logging.INFO, logging.WARNING, logging.ERROR):
        logging.getLogger("neuron_plugin.plugin").log(severity, "line")
    assert stream.getvalue().count("\n") == written


@pytest.mark.parametrize(("level", "written"), [(LogLevel.DEBUG, 2), (LogLevel.WARNING, 2), (LogLevel.ERROR, 1)])
def test_libraries_are_never_more_talkative_than_warnings(level: LogLevel, written: int) -> None:
    stream = io.StringIO()
    start_logging(LogFormat.TEXT, level, stream)
    for severity in (logging.DEBUG, logging.INFO, logging.WARNING, logging.ERROR):
        logging.getLogger("grpc").log(severity, "line")
    assert stream.getvalue().count("\n") == written


def test_lines_go_to_standard_error_by_default(capsys: pytest.CaptureFixture[str]) -> None:
    start_logging(LogFormat.TEXT, LogLevel.INFO)
    logging.getLogger("neuron_plugin").info("hello")
    captured = capsys.readouterr()
    assert (captured.out, "hello" in captured.err) == ("", True)


async def wait_here(event: asyncio.Event) -> None:
    await event.wait()


async def dumped(log_format: LogFormat, level: LogLevel = LogLevel.ERROR) -> str:
    """What is written of the stacks while a task and a thread wait."""
    stream, event, over = io.StringIO(), asyncio.Event(), threading.Event()
    start_logging(log_format, level, stream)
    thread = threading.Thread(target=over.wait, name="a-thread")
    thread.start()
    task = asyncio.create_task(wait_here(event), name="a-task")
    await asyncio.sleep(0)
    log_stacks()
    over.set()
    event.set()
    await task
    thread.join()
    return stream.getvalue()


async def test_stacks_name_every_task_and_thread_and_where_it_stands() -> None:
    lines = [json.loads(line) for line in (await dumped(LogFormat.JSON)).splitlines()]
    task = next(line for line in lines if line.get("task_name") == "a-task")
    assert "in wait_here" in task["stack"]
    thread = next(line for line in lines if line.get("thread_name") == "a-thread")
    assert "threading.py" in thread["stack"]
    assert {line["message"] for line in lines} == {"stack"}


async def test_stacks_are_readable_as_text() -> None:
    text = await dumped(LogFormat.TEXT)
    assert re.search(r"ERROR   stack task_name=a-task\n  File \".*\", line \d+, in wait_here", text)


@pytest.mark.parametrize("level", list(LogLevel))
async def test_stacks_are_written_at_every_level(level: LogLevel) -> None:
    assert "a-task" in await dumped(LogFormat.TEXT, level)


def test_a_problem_is_logged_when_it_begins_and_when_its_text_changes(caplog: pytest.LogCaptureFixture) -> None:
    problem = Problem(logging.getLogger("tests"), "does not work", OSError, node="n")
    for error in ("full", "full", "", "full", "denied"):
        with problem:
            if error:
                raise OSError(error)
        assert problem.text == error
    assert [(vars(record)["error"], vars(record)["node"]) for record in caplog.records] == [
        ("full", "n"),
        ("full", "n"),
        ("denied", "n"),
    ]


def test_an_error_that_a_problem_does_not_name_goes_on_and_leaves_it_as_it_is() -> None:
    problem = Problem(logging.getLogger("tests"), "does not work", OSError)
    problem.say("full")
    with pytest.raises(ValueError, match="other"), problem:
        raise ValueError("other")
    assert problem.text == "full"
