"""The program ``neuron-plugin``: runs the requested command, and prints errors in one line."""

from __future__ import annotations

import importlib
import os
import sys
import traceback
from collections.abc import Sequence
from io import TextIOWrapper
from pathlib import Path

from neuron_plugin import __version__
from neuron_plugin.cli.command import EXIT_STATUSES, CommandError, Exit, Parser, add_command, complain, program

COMMANDS = {
    "demo": "see pods get their linked devices, or a refusal, in a simulated cluster on this machine",
    "playground": "keep a simulated cluster up on this machine, for your own pods, faults and kubectl",
    "devices": "show the Neuron devices of this machine, their health and who holds them",
    "topology": "draw the devices with their links and holders, and say which sets are free",
    "decisions": "show what the plugin of this node chose lately, what else there was, and why",
    "doctor": "find out what is wrong with this node, and what to do about it",
    "nodes": "show the Neuron nodes of the cluster, what of them is free, and which are closed",
    "pods": "show which pods of the cluster ask for Neuron, and which devices and cores they have",
    "describe": "show all that is known of one node or pod: devices, holders, health, why, events",
    "gather": "write an archive with what a bug report needs, of this node or of the cluster",
    "explain": "say for each node why a pod fits it or not",
    "plan": "say what would make room for waiting pods, what a drain takes, and what else fits",
    "usage": "show whose devices were busy, idle, held, free or broken, in device-hours",
    "cordon": "take devices of a node out of service: no new pod gets them",
    "uncordon": "put devices of a node back into service",
    "repair": "empty a device for a reset, a reboot or a replacement, and put it back",
    "ungate": "hand gated pods to their scheduler without a place, while no controller runs",
    "simulate": "write a simulated machine into a directory and break it; compare policies on a cluster on paper",
    "run": "serve this node's Neuron devices to its kubelet (the daemon)",
    "extender": "serve kube-scheduler as its extender (a daemon, once or twice a cluster)",
    "scheduler-config": "print a kube-scheduler configuration that uses the extender",
    "manifests": "print Kubernetes manifests, as the Helm chart renders them",
    "uninstall-node": "remove the plugin's annotation, labels, Lease and condition from nodes, after the plugin itself",
    "completion": "print a script that completes this command in your shell",
    "version": "print the version of this program",
}
"""Names and summaries, in the order of the help. Each is a module of this package or of ``ROOMS``."""

ROOMS = dict.fromkeys(("demo", "playground", "simulate"), "neuron_plugin.simulation.commands")
"""The packages of commands of other rooms: the simulation, from which the product imports nothing."""

DESCRIPTION = """\
AWS Neuron devices for Kubernetes: the daemon of a node (run), the scheduler's extender (extender),
and commands that look at the Neuron hardware of this machine or of a simulated one."""

KINDS = {"no": "node", "nodes": "node", "po": "pod", "pods": "pod"}
"""kubectl's other names of kinds of objects."""

COMPLETE = "__complete"
"""The hidden command of completion scripts; its arguments are all words up to the one to complete."""
KUBECTL_COMPLETE = "kubectl_complete-neuron"
"""kubectl runs this program by this name, with the same words, to complete 'kubectl neuron'."""

STACK = "NEURON_PLUGIN_STACK"
"""Set this variable to see the stack of an error in this program."""

EPILOG = f"""\
try it without hardware or cluster:
  neuron-plugin demo
  neuron-plugin playground
  neuron-plugin simulate node ./trn1 --type trn1.32xlarge
  neuron-plugin devices --root ./trn1
  neuron-plugin topology --root ./trn1

{EXIT_STATUSES}"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns its exit status. Wrong usage and --help raise SystemExit, as argparse does."""
    for stream in (sys.stdout, sys.stderr):  # a name that the terminal cannot show must not be an error
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    words = sys.argv[1:] if argv is None else list(argv)
    if words[:1] == [COMPLETE] or Path(sys.argv[0]).name == KUBECTL_COMPLETE:
        from neuron_plugin.cli.completion import complete

        return complete(words[1:] if words[:1] == [COMPLETE] else words)
    words = _as_ours(words) if words else []
    name = "kubectl neuron" if program() == "kubectl neuron" else "neuron-plugin"
    parser = build_parser(next((word for word in words if not word.startswith("-")), ""), name)
    if not words:
        parser.print_help(sys.stderr)
        return Exit.USAGE
    arguments = parser.parse_args(words)
    try:
        status = int(arguments.run(arguments) or Exit.SUCCESS)
        if sys.stdout:
            sys.stdout.flush()  # here a closed pipe can still be handled
    except KeyboardInterrupt:
        return Exit.INTERRUPTED
    except BrokenPipeError:
        # Redirect the interpreter's last flush, which would complain about the closed pipe.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return Exit.BROKEN_PIPE
    except CommandError as error:
        complain(str(error))
        return error.status
    except OSError as error:
        complain(f"{error.filename or arguments.command}: {error.strerror or error}")
        return Exit.FAILURE
    except Exception as error:  # noqa: BLE001 - users need no stack, unless to report a bug
        from neuron_plugin.settings import SettingsError

        if isinstance(error, SettingsError):
            complain(str(error))
            return Exit.USAGE
        complain(f"{arguments.command} failed itself ({error!r}): please report it, with what {STACK}=1 adds")
        if os.environ.get(STACK):
            traceback.print_exception(error)
        return Exit.FAILURE
    return status


def _as_ours(words: list[str]) -> list[str]:
    """The words of our commands for ``help nodes``, ``get po``, ``no`` or ``describe pod/train``."""
    if words[0] == "help":
        return [*words[1:], "--help"]
    first, *rest = words[1:] if words[0] == "get" and len(words) > 1 else words
    if first == "describe" and rest:
        kind, slash, name = rest[0].partition("/")
        rest[:1] = [KINDS.get(kind, kind), *([name] if slash else [])]
    kind = KINDS.get(first, first)
    return [f"{kind}s" if kind in KINDS.values() else first, *rest]


def build_parser(only: str | None = None, name: str = "neuron-plugin") -> Parser:
    """The parser of all commands; with ``only``, just that command gets its flags, and no other module is imported.

    ``name`` is the program's name in the help.
    """
    parser = Parser(prog=name, description=DESCRIPTION, epilog=EPILOG)
    parser.add_argument("--version", action="version", version=f"neuron-plugin {__version__}")
    subparsers = parser.add_subparsers(title="commands", metavar="COMMAND", dest="command", required=True)
    for command, summary in COMMANDS.items():
        if only not in {None, command}:
            subparsers.add_parser(command, help=summary)
            continue
        module = importlib.import_module(f"{ROOMS.get(command, 'neuron_plugin.cli')}.{command.replace('-', '_')}")
        texts = {"description": module.DESCRIPTION, "examples": module.EXAMPLES}
        module.add_flags(add_command(subparsers, command, module.run, summary=summary, **texts))
    return parser


if __name__ == "__main__":
    sys.exit(main())
