"""The ``neuron-plugin`` command: finds the command that was asked for, and turns its errors into one line.

A new command is one more name in ``COMMANDS``.
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Sequence
from io import TextIOWrapper

from neuron_plugin import __version__
from neuron_plugin.cli import (
    completion,
    decisions,
    demo,
    devices,
    doctor,
    explain,
    extender,
    manifests,
    run,
    scheduler_config,
    simulate,
    topology,
    uninstall_node,
    version,
)
from neuron_plugin.cli.command import EXIT_STATUSES, CommandError, Exit, Parser, complain, wrapped
from neuron_plugin.settings import SettingsError

COMMANDS = (
    demo,
    devices,
    topology,
    decisions,
    doctor,
    explain,
    simulate,
    run,
    extender,
    scheduler_config,
    manifests,
    uninstall_node,
    completion,
    version,
)
"""In the order of the help."""

DESCRIPTION = """\
AWS Neuron devices for Kubernetes: the daemon of a node (run), the scheduler's extender (extender), and commands that
look at the Neuron hardware of this machine or of a simulated one."""

STACK = "NEURON_PLUGIN_STACK"
"""Set by who reports a fault of ours."""

EPILOG = """\
try it without hardware or cluster:
  neuron-plugin demo
  neuron-plugin simulate node ./trn1 --type trn1.32xlarge
  neuron-plugin devices --root ./trn1
  neuron-plugin topology --root ./trn1
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns its exit status. Wrong usage and --help raise SystemExit, as argparse does."""
    _never_fail_to_encode()
    parser = build_parser()
    if not (sys.argv[1:] if argv is None else argv):
        parser.print_help(sys.stderr)
        return Exit.USAGE
    arguments = parser.parse_args(argv)
    try:
        status = int(arguments.run(arguments))
        sys.stdout.flush()  # here, where a reader that is gone can still be noticed
    except KeyboardInterrupt:
        return Exit.INTERRUPTED
    except BrokenPipeError:
        _forget_stdout()
        return Exit.READER_GONE
    except Exception as error:  # noqa: BLE001 - nobody who types a command wants a stack, unless to report it
        return _told(error, arguments.command)
    return status


def _told(error: Exception, command: str) -> Exit:
    """Say what went wrong in one line; returns the status."""
    match error:
        case CommandError():
            complain(str(error))
            return error.status
        case SettingsError():
            complain(str(error))
            return Exit.USAGE
        case OSError():
            complain(f"{error.filename or command}: {error.strerror or error}")
            return Exit.TROUBLE
    complain(f"{command} failed itself ({error!r}): please report it, with what {STACK}=1 adds")
    if os.environ.get(STACK):
        traceback.print_exception(error)
    return Exit.TROUBLE


def build_parser() -> Parser:
    """The parser of all commands."""
    parser = Parser(
        prog="neuron-plugin", description=wrapped(DESCRIPTION), epilog=f"{EPILOG}\n{wrapped(EXIT_STATUSES)}"
    )
    parser.add_argument("--version", action="version", version=f"neuron-plugin {__version__}")
    subparsers = parser.add_subparsers(title="commands", metavar="COMMAND", dest="command", required=True)
    for command in COMMANDS:
        command.register(subparsers)
    return parser


def _never_fail_to_encode() -> None:
    """A name in a script that this terminal cannot show is no reason to show nothing."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _forget_stdout() -> None:
    """Let the interpreter's last flush go nowhere, or it would complain about the reader that is gone."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


if __name__ == "__main__":
    sys.exit(main())
