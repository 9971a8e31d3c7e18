from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import tomllib
from argparse import Namespace
from pathlib import Path

import pytest

from neuron_plugin import __version__
from neuron_plugin.cli import describe, nodes, pods, scheduler_config
from neuron_plugin.cli.command import CommandError, Exit, UsageError
from neuron_plugin.cli.main import ROOMS
from neuron_plugin.settings import SettingsError
from tests.cli.doubles import Cli, CliProcess
from tests.inspection.doubles import MakeNode

COMMANDS = [
    *("demo", "devices", "topology", "decisions", "doctor", "explain", "simulate"),
    *("run", "extender", "scheduler-config", "manifests", "uninstall-node", "completion"),
]


def test_help_names_every_command_and_the_exit_statuses(cli: Cli) -> None:
    shown = cli("--help")
    assert shown.status == 0
    assert all(re.search(rf"\n    {command}\s", shown.out) for command in COMMANDS)
    assert "exit status: 0 success; 1 failure" in shown.out


@pytest.mark.parametrize("command", [*COMMANDS, "simulate node", "simulate fault", "simulate fault DIR ecc"])
def test_every_command_has_help_of_its_own(cli: Cli, command: str) -> None:
    shown = cli(*command.split(), "--help")
    assert (shown.status, shown.err) == (0, "")
    assert shown.out.startswith(f"usage: neuron-plugin {command}")
    assert "exit status:" in shown.out


@pytest.mark.parametrize("command", [*COMMANDS, "simulate node", "simulate fault"])
def test_no_line_of_a_description_is_wider_than_a_page(cli: Cli, command: str) -> None:
    described = cli(*command.split(), "--help").out.partition("\n\n")[2].partition("\noptions:")[0]
    assert described
    assert [line for line in described.splitlines() if len(line) > 120] == []


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_shows_examples_to_copy(cli: Cli, command: str) -> None:
    examples = cli(command, "--help").out.partition("\nexamples:\n  ")[2]
    assert f"neuron-plugin {command}" in examples


def test_the_version_flag_prints_one_line(cli: Cli) -> None:
    shown = cli("--version")
    assert (shown.status, shown.out) == (0, f"neuron-plugin {__version__}\n")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("devics",), "there is no devics; did you mean devices?"),
        (("help", "devics"), "there is no devics; did you mean devices?"),
        (("drain", "trn1-1"), "there is no drain; did you mean plan --drain NODE?"),
        (("version-of",), "there is no version-of; did you mean version?"),
        (("xyzzy",), "there is no xyzzy; see: neuron-plugin --help"),
        (("explain", "pod", "--outptu", "json"), "unrecognized arguments: --outptu json; did you mean --output?"),
        (("devices", "--xyzzy"), "unrecognized arguments: --xyzzy; see: neuron-plugin devices --help"),
        (("devices", "-o", "xml"), "invalid choice: 'xml'"),
        (("simulate",), "ACTION"),
        (("manifests",), "PART"),
        (("completion",), "SHELL"),
        (("simulate", "node", "somewhere"), "--type"),
    ],
)
def test_wrong_usage_is_one_line_that_names_the_help(cli: Cli, arguments: tuple[str, ...], said: str) -> None:
    shown = cli(*arguments)
    assert (shown.status, shown.out) == (2, "")
    assert said in shown.err
    assert "--help" in shown.err
    assert shown.err.count("\n") == 1


def test_version_is_a_command_too_and_for_scripts_a_document(cli: Cli) -> None:
    assert cli("version").out.startswith(f"neuron-plugin {__version__} (commit ")
    assert json.loads(cli("version", "-o", "json").out)["build"]["version"] == __version__


def test_help_is_a_command_too_and_takes_a_command_with_its_action(cli: Cli) -> None:
    assert cli("help") == cli("--help")
    assert cli("help", "simulate", "node") == cli("simulate", "node", "--help")


@pytest.mark.parametrize(
    ("typed", "ours"),
    [
        ("no trn-1", "nodes trn-1"),
        ("get node trn-1 -o name", "nodes trn-1 -o name"),
        ("po", "pods"),
        ("get pods -A", "pods -A"),
        ("describe no/trn-1", "describe node trn-1"),
        ("describe pods ml/train", "describe pod ml/train"),
        ("describe pod/train", "describe pod train"),
    ],
)
def test_the_words_of_kubectl_are_taken(cli: Cli, monkeypatch: pytest.MonkeyPatch, typed: str, ours: str) -> None:
    seen = list[Namespace]()

    def note(arguments: Namespace) -> int:
        seen.append(arguments)
        return 0

    for command in (nodes, pods, describe):
        monkeypatch.setattr(command, "run", note)
    assert (cli(*typed.split()).status, cli(*ours.split()).status) == (0, 0)
    assert seen[0] == seen[1]


def test_flags_are_not_abbreviated_because_a_new_flag_would_break_scripts(cli: Cli) -> None:
    assert cli("scheduler-config", "--outp", "json").status == 2


@pytest.mark.parametrize(
    ("error", "status", "said"),
    [
        (CommandError("the disk is full:\nmake room"), 1, "neuron-plugin: the disk is full: make room\n"),
        (UsageError("--lnc 3: expected 1 or 2"), 2, "neuron-plugin: --lnc 3: expected 1 or 2\n"),
        (SettingsError("x.yaml has the unknown key 'a'"), 2, "neuron-plugin: x.yaml has the unknown key 'a'\n"),
        (PermissionError(13, "Permission denied", "/x"), 1, "neuron-plugin: /x: Permission denied\n"),
        (OSError("no file name"), 1, "neuron-plugin: scheduler-config: no file name\n"),
        (KeyboardInterrupt(), 130, ""),
    ],
)
def test_an_error_becomes_one_line_and_a_status(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, error: BaseException, status: int, said: str
) -> None:
    def fail(_arguments: Namespace) -> int:
        raise error

    monkeypatch.setattr(scheduler_config, "run", fail)
    shown = cli("scheduler-config")
    assert (shown.status, shown.err) == (status, said)


def test_an_unforeseen_error_is_one_line_too_and_shows_its_stack_on_request(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_arguments: Namespace) -> int:
        raise ZeroDivisionError("by nothing")

    monkeypatch.setattr(scheduler_config, "run", fail)
    shown = cli("scheduler-config")
    assert (shown.status, shown.err.count("\n")) == (1, 1)
    assert "scheduler-config failed itself (ZeroDivisionError('by nothing')): please report it" in shown.err
    monkeypatch.setenv("NEURON_PLUGIN_STACK", "1")
    assert "Traceback" in cli("scheduler-config").err


def test_nothing_at_all_is_answered_with_the_help(cli: Cli) -> None:
    shown = cli()
    assert (shown.status, shown.out) == (2, "")
    assert shown.err == cli("--help").out


def test_control_characters_of_others_do_not_reach_the_terminal(cli: Cli) -> None:
    shown = cli("devices", "--root", "/nowhere\x1b[31m")
    assert "\x1b" not in shown.err
    assert "/nowhere\N{REPLACEMENT CHARACTER}[31m" in shown.err


def test_a_closed_pipe_ends_the_command_silently(cli_process: CliProcess, make_node: MakeNode) -> None:
    with cli_process("devices", "--root", make_node().root, "-o", "json") as process:
        assert process.stdout is not None
        process.stdout.close()
        assert process.stderr is not None
        err = process.stderr.read()
    assert (process.returncode, err) == (141, "")


def _environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}


def ran(script: str, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """A script of Python in a process of its own."""
    line, own = [sys.executable, "-c", script, *words], {**_environment(), **environment}
    return subprocess.run(line, capture_output=True, text=True, env=own, check=False)  # noqa: S603 - our own program


def test_a_closed_standard_output_is_no_fault() -> None:
    typed = shlex.join([*_command(), "version"])
    done = subprocess.run(["/bin/sh", "-c", f"{typed} >&-"], stderr=subprocess.PIPE, env=_environment(), check=False)  # noqa: S603 - our own program
    assert (done.returncode, done.stderr) == (0, b"")


def test_ctrl_c_ends_a_watch_quietly_with_130(cli_process: CliProcess, make_node: MakeNode) -> None:
    with cli_process("devices", "--root", make_node().root, "-o", "json", "--watch") as process:
        assert process.stdout is not None
        assert process.stdout.readline().startswith('{"version":1')
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=30)
    assert (process.returncode, err) == (130, "")


def test_a_name_that_the_output_cannot_show_is_escaped(make_node: MakeNode) -> None:
    environment = {**_environment(), "PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"}
    command = [*_command(), "topology", "--root", str(make_node("inf2.xlarge").root)]
    done = subprocess.run(command, capture_output=True, env=environment, check=False)  # noqa: S603 - our own program
    assert done.returncode == 0
    assert b"| 0    |" in done.stdout


def _command() -> list[str]:
    return [sys.executable, "-m", "neuron_plugin"]


@pytest.mark.parametrize(
    ("command", "module"),
    [
        *((command, module) for command in ("demo", "playground") for module in ("msgspec", "grpc", "aiohttp")),
        *(("nodes", module) for module in ("neuron_plugin.cli.main", "neuron_plugin.cli.nodes")),
    ],
)
def test_ctrl_c_in_the_middle_of_an_import_ends_the_command_without_a_word(
    short_directory: Path, command: str, module: str
) -> None:
    script = f"""
import os, signal, sys

class Interrupting:
    def find_spec(name, *_):
        if name == {module!r}:
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Interrupting)
from neuron_plugin.__main__ import entry
entry()
"""
    done = ran(script, command, TMPDIR=str(short_directory))
    assert (done.returncode, done.stderr) == (Exit.INTERRUPTED, "")
    assert list(short_directory.iterdir()) == []


def test_a_shell_that_lets_ctrl_c_be_ignored_is_heeded() -> None:
    script = """
import signal, sys
signal.signal(signal.SIGINT, signal.SIG_IGN)
from neuron_plugin.__main__ import entry
sys.argv = ["neuron-plugin", "--version"]
try:
    entry()
finally:
    print(signal.getsignal(signal.SIGINT) is signal.SIG_IGN)
"""
    assert ran(script).stdout.splitlines()[-1] == "True"


@pytest.mark.parametrize("command", ["nodes", "pods", "explain"])
def test_a_look_at_the_cluster_loads_nothing_of_a_node_s_daemon(command: str) -> None:
    script = f"""
import contextlib, sys
from neuron_plugin.cli.main import main
with contextlib.suppress(SystemExit):
    main([{command!r}, "--help"])
daemon = ("neuron_plugin.inspection", "neuron_plugin.plugin", "neuron_plugin.hardware", "neuron_plugin.kubelet")
print([name for name in sys.modules if name.startswith(daemon)])
"""
    assert ran(script).stdout.splitlines()[-1:] == ["[]"]


@pytest.mark.parametrize("words", [["--help"], ["devices", "--help"], ["scheduler-config"]])
def test_starting_loads_nothing_heavy_and_no_command_but_the_one_that_runs(words: list[str]) -> None:
    heavy = "{'rich', 'grpc', 'aiohttp', 'kubernetes', 'pyudev', 'google'}"
    others = [
        f"{ROOMS.get(each, 'neuron_plugin.cli')}.{each.replace('-', '_')}" for each in COMMANDS if each not in words
    ]
    script = f"""
import contextlib, io, sys
from neuron_plugin.cli.main import main
with contextlib.suppress(SystemExit), contextlib.redirect_stdout(io.StringIO()):
    main({words})
print(sorted(({heavy} | set({others})) & set(sys.modules)))
"""
    assert ran(script).stdout.strip() == "[]"


def test_as_a_plugin_of_kubectl_it_calls_itself_as_it_was_typed(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["/usr/local/bin/kubectl-neuron"])
    assert cli("nodes", "--help").out.startswith("usage: kubectl neuron nodes ")
    assert "see: kubectl neuron --help" in cli("nods").err
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    assert set(project["scripts"]) == {"neuron-plugin", "kubectl-neuron", "kubectl_complete-neuron"}
    assert len(set(project["scripts"].values())) == 1
