"""``neuron-plugin playground``: a simulated cluster that stays up, for kubectl, our commands and faults.

Its directory holds all that other shells need: the kubeconfig, and each node's machine and daemon configuration. The
directory is removed with the playground.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import json
import os
import shutil
import tempfile
import time
from argparse import SUPPRESS, ArgumentTypeError, Namespace
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from neuron_plugin.cli.command import CommandError, Exit, Parser, Run, UsageError, add_command, count, program
from neuron_plugin.simulation.commands.demo import EndOnSignals, add_ask_flag
from neuron_plugin.simulation.commands.simulate import add_faults, known_types
from neuron_plugin.simulation.machines import CHECK_CLAIM, CPU_NODE, MOST_PLUGINS, NODE_FAULTS, NODE_FAULTS_PATH
from neuron_plugin.wording import plural

if TYPE_CHECKING:
    from neuron_plugin.simulation import SimulatedCluster

DESCRIPTION = """\
Start a simulated cluster and keep it up until Ctrl-C: machines, kubelets, API server and scheduler
are simulated, the plugin of each node and the extender are the real ones. Without an action it
starts the playground; the actions are for a second shell.

New pods are gated, and the placement controller chooses node and devices before the scheduler sees
them; with --placement extender the scheduler asks the extender instead. The simulated schedulers
(default-scheduler and neuron-scheduler, which asks the extender always) look at cordons, taints,
nodeSelector, node affinity, required pod anti-affinity, host ports, CPU, memory and other counts,
and at nothing else (pod affinity, spread, where volumes are), and preempt nobody, which the
placement controller does for gated pods; pods run until they are deleted."""

EXAMPLES = """
neuron-plugin playground --nodes trn1.32xlarge=2,inf2.48xlarge=1
neuron-plugin playground --placement extender
neuron-plugin playground --mode dra
neuron-plugin playground --preflight
neuron-plugin playground run --ask neuron=4 --ask neuron=7
neuron-plugin playground run -f job.yaml
neuron-plugin playground fault trn1-1 device 5 gone
neuron-plugin playground fault trn1-1 device 5 back
neuron-plugin playground fault trn1-1 use 0-3 idle
neuron-plugin playground fault trn1-1 machine reboot
"""

LOCK = ".playground"
"""Locked by the playground in its directory; a killed playground leaves the file."""
DEFAULT_NODES = "trn1.32xlarge=2,inf2.48xlarge=1"
MOST_NODES = 1000
PREFLIGHT_SECONDS = 60
"""Timeout and retry of pre-flight checks: short, because a person waits."""
LONGEST_DIRECTORY_BYTES = 40
"""A socket path has at most 107 bytes. A node's sockets need some 65 below the playground's directory."""


def _nodes(text: str) -> dict[str, str]:
    """Instance types by node name: ``trn1.32xlarge=2`` is trn1-1 and trn1-2. A node cpu-1 is added by default."""
    nodes: dict[str, str] = {}
    numbers: Counter[str] = Counter()
    words = text.split(",")
    for word in words if any(word.partition("=")[0] == CPU_NODE for word in words) else (*words, f"{CPU_NODE}=1"):
        name, _, digits = word.partition("=")
        least = 0 if name == CPU_NODE else 1
        if not (name and digits.isascii() and digits.isdecimal() and least <= int(digits) <= MOST_NODES):
            raise ArgumentTypeError(f"{word!r} is no TYPE=COUNT, such as trn1.32xlarge=2, of at most {MOST_NODES}")
        family = name.partition(".")[0]
        for _ in range(int(digits)):
            numbers[family] += 1
            nodes[f"{family}-{numbers[family]}"] = name
    if len(nodes) > MOST_NODES:
        raise ArgumentTypeError(f"{text!r} is {len(nodes)} nodes, expected at most {MOST_NODES}")
    return nodes


def _in_second_shell(action: str) -> Run:
    """An action on a running playground. Its module is loaded when it runs."""

    def run_action(arguments: Namespace) -> int | None:
        from neuron_plugin.simulation.commands import playground_client

        status: int | None = getattr(playground_client, action)(arguments)
        return status

    return run_action


def add_flags(parser: Parser) -> None:
    """Add the flags, and the actions on a running playground."""
    default = f"{DEFAULT_NODES},{CPU_NODE}=1"
    nodes = f"instance types and how many nodes of each, {CPU_NODE}=N without Neuron (default: {default})"
    parser.add_argument("--nodes", metavar="TYPE=COUNT[,...]", type=_nodes, default=_nodes(DEFAULT_NODES), help=nodes)
    plugins = f"nodes with the real plugin; those of the others are played (default: the first {MOST_PLUGINS})"
    parser.add_argument("--plugins", metavar="N", type=count(1), default=MOST_PLUGINS, help=plugins)
    mode = "by what the nodes give their devices: a device plugin, or claims of DRA (default: device-plugin)"
    parser.add_argument("--mode", choices=("device-plugin", "dra"), default="device-plugin", help=mode)
    placement = "who places the pods of the default scheduler (default: gates)"
    parser.add_argument("--placement", choices=("gates", "extender"), default="gates", help=placement)
    room = "what is done for a pod that waits though enough is free, 5 s after it came (default: plan)"
    parser.add_argument("--make-room", choices=("off", "plan", "act"), default="plan", help=room)
    checked = "check each node with a pod before it takes others (docs/preflight.md)"
    parser.add_argument("--preflight", action="store_true", help=checked)
    where = "the playground's directory (default: neuron-playground in TMPDIR or /tmp)"
    usual = Path(tempfile.gettempdir()) / "neuron-playground"
    parser.add_argument("--directory", metavar="DIR", type=Path, default=usual, help=where)
    actions = parser.add_subparsers(title="actions, in a second shell", metavar="ACTION", dest="action")
    pods = add_command(actions, "run", _in_second_shell("run_pods"), summary="create pods and say what becomes of them")
    add_ask_flag(pods)
    files = (
        "pods, and what controllers make pods of (Deployments, StatefulSets, Jobs, JobSets, RayJobs, MPIJobs, ...), as "
        "YAML or JSON; what makes no pods is passed over; - is standard input"
    )
    pods.add_argument("-f", "--filename", metavar="FILE", help=files)
    summary = "break something on a node, or repair it"
    break_node = _in_second_shell("break_node")
    fault = add_command(actions, "fault", break_node, summary=summary)
    fault.add_argument("node", metavar="NODE", help="a node of the playground, such as trn1-1")
    kinds = add_faults(fault, break_node)
    for what, changes in NODE_FAULTS.items():
        summary = f"the node's {what}, as a whole: {', '.join(changes)}"
        kind = add_command(kinds, what, _in_second_shell("change_node"), summary=summary)
        kind.add_argument("change", choices=changes)
    for action in (pods, fault):
        action.add_argument("--directory", metavar="DIR", type=Path, default=SUPPRESS, help=where)


def run(arguments: Namespace) -> int:
    """Run the playground and print what happens, until Ctrl-C.

    Raises:
        UsageError: an unknown type, or a directory that is in use or too long.
        CommandError: the simulated cluster was not ready in time.
    """
    for instance_type in set(arguments.nodes.values()) - {CPU_NODE}:
        known_types(instance_type, flag="--nodes")
    neuron = sum(instance_type != CPU_NODE for instance_type in arguments.nodes.values())
    if not neuron:
        raise UsageError("--nodes has no node with Neuron: expected one, such as trn1.32xlarge=1")
    if arguments.mode == "dra" and neuron > arguments.plugins:
        raise UsageError(
            f"--mode dra takes {arguments.plugins} nodes at most (--plugins): others have no ResourceSlice"
        )
    ending = EndOnSignals()
    with ending, _directory(arguments.directory) as root, contextlib.suppress(asyncio.CancelledError):
        try:
            ending.run(lambda: _play(root, arguments))
        except TimeoutError as error:
            raise CommandError(f"the playground was too slow to start ({error}): is this machine very busy?") from error
    return Exit.INTERRUPTED


@contextlib.contextmanager
def _directory(path: Path) -> Iterator[Path]:
    """Create the directory, without the remains of a killed playground, and remove it at the end.

    Raises:
        UsageError: not a playground's directory, a running playground's, or its name is too long.
    """
    if (length := len(os.fsencode(path))) > LONGEST_DIRECTORY_BYTES:
        raise UsageError(f"{path} has {length} bytes, expected at most {LONGEST_DIRECTORY_BYTES}: give --directory")
    try:
        path.mkdir(mode=0o700, parents=True)
    except FileExistsError:
        status = path.lstat()
        if path.is_symlink() or status.st_uid != os.getuid() or not (path / LOCK).is_file():
            raise UsageError(f"{path} exists and is no playground: give another --directory, or remove it") from None
    with (path / LOCK).open("a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UsageError(f"a playground is up in {path}: end it, or give another --directory") from None
        try:
            for left in path.iterdir():
                if left.name != LOCK:
                    shutil.rmtree(left) if left.is_dir() else left.unlink()
            yield path
        finally:
            shutil.rmtree(path)


def is_up(path: Path) -> bool:
    """Whether a playground is up in a directory, or is being started."""
    try:
        with (path / LOCK).open("rb") as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:  # no such directory
        pass
    return False


async def _play(root: Path, arguments: Namespace) -> None:
    from neuron_plugin.simulation import PlacedBy, SimulatedCluster
    from neuron_plugin.simulation.supervisor import NodeFaults, supervise

    nodes: Mapping[str, str] = arguments.nodes
    flags: tuple[str, ...] = ("--ui", "--make-room", arguments.make_room, "--make-room-after", "5")
    if arguments.preflight:
        pod = {"containers": [{"name": "check", "image": "neuron", "command": ["nccom-test"]}]}
        preflight = {"pod": pod, "timeout": PREFLIGHT_SECONDS, "retry": PREFLIGHT_SECONDS}
        preflight |= {"group": {"command": ["all-reduce"]}, "claim-template": CHECK_CLAIM}
        (root / "extender.json").write_text(json.dumps({"preflight": preflight}))  # JSON is YAML
        flags = (*flags, "--config", str(root / "extender.json"))
    placed_by, by_claims = PlacedBy(arguments.placement), arguments.mode == "dra"
    cluster = SimulatedCluster(
        root, nodes, extender_flags=flags, placed_by=placed_by, by_claims=by_claims, plugins=arguments.plugins
    )
    cluster.api.serve_logs(cluster.log)
    cluster.api.mount(NODE_FAULTS_PATH, NodeFaults(cluster).answer)
    number = plural(len(nodes), "node")
    if played := len(cluster.played) - list(nodes.values()).count(CPU_NODE):
        number += f" ({played} without a machine and a plugin of their own)"
    print(f"Starting {number}, an API server, a scheduler and the extender in {root} ...", flush=True)
    started = time.monotonic()
    async with cluster:
        (root / ".kubeconfig").touch(mode=0o600)
        cluster.api.write_kubeconfig(root / ".kubeconfig", "admin").rename(
            root / "kubeconfig"
        )  # the sign that it is up
        print(f"Ready after {time.monotonic() - started:.0f} s; Ctrl-C ends it and leaves nothing.", flush=True)
        print("\n".join(_hints(cluster)), flush=True)
        async for line in supervise(cluster):
            print(f"{time.strftime('%H:%M:%S')}  {line}", flush=True)


def _hints(cluster: SimulatedCluster) -> Iterator[str]:
    """Commands for a second shell."""
    neuron, root, worker = program(), cluster.root, cluster.worker
    where = "" if root == Path(tempfile.gettempdir()) / "neuron-playground" else f" --directory {root}"
    play = f"{neuron} playground{where}"
    yield ""
    yield f"In a browser: {cluster.health_url}/ui/"
    yield "In a second shell:"
    if cluster.by_claims:
        yield f"  {play} run -f FILE   # pods with claims and their templates: docs/dra.md"
    else:
        yield f"  {play} run --ask neuron=4 --ask neuron=13   # or: {play} run -f POD.YAML"
    yield f"  {play} fault {worker.name} device 5 gone"
    yield f"  {neuron} devices --config {worker.config}"
    yield f"  {neuron} doctor --config {worker.config}"
    yield f"  {neuron} decisions --server 127.0.0.1:{worker.health_port}"
    yield f"  {neuron} explain pod-2 --kubeconfig {root / 'kubeconfig'}"
    if shutil.which("kubectl"):
        yield f"  export KUBECONFIG={root / 'kubeconfig'}; kubectl get pods,nodes"
    yield ""
