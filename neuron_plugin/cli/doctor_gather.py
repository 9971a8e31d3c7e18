"""Everything ``doctor`` looks at, gathered once. All effects are here and in the ``doctor_gather_*`` modules."""

from __future__ import annotations

import asyncio
import os
import platform
import time
from argparse import Namespace
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from neuron_plugin.cli import machine
from neuron_plugin.cli.doctor import DEVICE_PLUGINS
from neuron_plugin.cli.doctor_facts import Cluster, Daemon, DeviceUsers, Facts, Host, Kubelet, Unknown
from neuron_plugin.cli.doctor_gather_cluster import gather_cluster
from neuron_plugin.cli.doctor_gather_daemon import gather_daemon, with_settings
from neuron_plugin.cli.doctor_gather_host import gather_host
from neuron_plugin.cli.doctor_gather_kubelet import gather_kubelet
from neuron_plugin.cli.doctor_gather_users import gather_users
from neuron_plugin.plugin.health.look import judge_once
from neuron_plugin.plugin.health.memory import Memory


def gather(arguments: Namespace, environ: Mapping[str, str]) -> Facts:
    """Look at the machine, ask the kubelet, the plugins and the API server.

    Raises:
        CommandError: --root is no directory, or --instance-type is unknown.
        SettingsError: --instance-types cannot be used.
    """
    root: Path | None = arguments.root
    daemon = gather_daemon(arguments, environ)
    arguments = with_settings(arguments, daemon.settings)
    seen = _judged(machine.look(arguments), daemon)
    host = gather_host(root, seen.paths, in_pod="KUBERNETES_SERVICE_HOST" in environ)
    # A loop of its own leaves the thread's loop, if it has one, as it is.
    with asyncio.Runner(loop_factory=asyncio.new_event_loop) as runner:
        kubelet, cluster = runner.run(_ask(arguments, environ, simulated=host.simulated))
    users = _look_at_users(host, seen.paths.dev, _proc(root, daemon.settings.proc))
    return Facts(seen, host, kubelet, cluster, users, time.time_ns(), daemon)


def _judged(seen: machine.Machine, daemon: Daemon) -> machine.Machine:
    """The machine as this node's daemon would judge it."""
    memory = daemon.memory if isinstance(daemon.memory, Memory) else Memory()
    return replace(seen, verdicts=judge_once(seen.inventory, daemon.settings.health, memory))


async def _ask(
    arguments: Namespace, environ: Mapping[str, str], *, simulated: bool
) -> tuple[Kubelet, Cluster | Unknown]:
    given: Path | None = arguments.kubelet_dir
    directory = given or (arguments.root or Path("/")) / DEVICE_PLUGINS
    kubelet, cluster = await asyncio.gather(
        gather_kubelet(
            directory, machine.pod_resources_socket_of(arguments), expected=given is not None or not simulated
        ),
        _ask_cluster(arguments, environ),
        return_exceptions=True,
    )
    if isinstance(kubelet, BaseException):
        trouble = _unforeseen(kubelet)
        kubelet = Kubelet(directory, trouble=trouble, allocatable=trouble, pods=trouble)
    return kubelet, _unforeseen(cluster) if isinstance(cluster, BaseException) else cluster


async def _ask_cluster(arguments: Namespace, environ: Mapping[str, str]) -> Cluster | Unknown:
    """The API server is asked where we were told how to reach it, or run in a pod of this node."""
    kubeconfig: Path | None = arguments.kubeconfig
    in_pod = "KUBERNETES_SERVICE_HOST" in environ and arguments.root is None
    if kubeconfig is None and not in_pod:
        return Unknown("no API server is known", "give --kubeconfig (and --node-name)")
    node_name = arguments.node_name or environ.get("NODE_NAME") or platform.node().lower()
    return await gather_cluster(kubeconfig, node_name)


def _look_at_users(host: Host, dev: Path, proc: Path) -> DeviceUsers | Unknown:
    try:
        return gather_users(_node_paths(host, dev), proc)
    except Exception as error:  # noqa: BLE001 - on a broken node the rest is wanted most
        return _unforeseen(error)


def _unforeseen(error: BaseException) -> Unknown:
    """What one source stumbled over must not hide what the others tell."""
    if not isinstance(error, Exception):
        raise error
    return Unknown(f"looking failed itself ({error!r})", "please report it")


def _node_paths(host: Host, dev: Path) -> dict[int, Path]:
    nodes = () if isinstance(host.nodes, Unknown) else host.nodes
    return {node.device: dev / f"neuron{node.device}" for node in nodes}


def _proc(root: Path | None, told: Path) -> Path:
    """The host's /proc where it is mounted: with the host, or where the daemon is told to look; else this machine's."""
    mounted = root / "proc" if root else told
    return mounted if os.path.isdir(mounted) else Path("/proc")  # noqa: PTH112 - Path.is_dir raises on EACCES
