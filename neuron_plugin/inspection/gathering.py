"""How ``doctor`` learns its facts from the daemon, the kubelet and the API server.

Each is asked once and under a deadline, and none hides what the others say.
"""

from __future__ import annotations

import asyncio
import os
import platform
import re
import stat
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from neuron_plugin.allocation import IdListError
from neuron_plugin.allocation.inventory import disabled_devices
from neuron_plugin.allocation.keys import DISABLE_KEY
from neuron_plugin.cluster.api import REQUEST_SECONDS
from neuron_plugin.inspection.facts import (
    OUR_SOCKETS,
    VENDOR_DRIVER,
    ClusterFacts,
    Daemon,
    Facts,
    Kubelet,
    NoSuchNode,
    SocketSeen,
    serves_claims,
)
from neuron_plugin.inspection.findings import Unknown, known_or
from neuron_plugin.inspection.holders import ask, read_files
from neuron_plugin.inspection.host import gather_host, gather_users
from neuron_plugin.inspection.machine import InspectedNode, look, node_of
from neuron_plugin.instance_file import load_catalogue
from neuron_plugin.kubelet_files import KUBELET_SOCKET
from neuron_plugin.plugin.container import CDI_FILE_NAME
from neuron_plugin.plugin.settings import Mode, PluginSettings, check, with_node_name
from neuron_plugin.settings import SettingsError, configuration_file

if TYPE_CHECKING:
    from neuron_plugin.cluster import ApiServer

IN_POD = "KUBERNETES_SERVICE_HOST"
"""The kubelet sets it in every container."""
REGISTRY = "plugins_registry"
"""Beside the directory of device plugins, made by every kubelet: drivers have the sockets there that it discovers."""

PAGE_SECONDS = 10.0
"""Shorter than for a daemon: somebody waits for the report."""
DAEMON_SECONDS = 2.0
"""How long a daemon on this node may take for a page."""

_MOST_BYTES = 64 << 20
"""Of a daemon's page."""
_EVERYWHERE = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 - where to ask a daemon that listens everywhere
_SILENT = " is not running: "
"""In the readiness page's line about a source."""
_SAMPLE = re.compile(r'^neuron_plugin_(\w+)\{\w+="([^"]+)"\} ([01])(?:\.0)?$', re.MULTILINE)
"""Of a metric with one label, which is yes or no."""


def gather(flags: Mapping[str, object], environ: Mapping[str, str]) -> Facts:
    """Everything that ``doctor`` looks at; ``flags`` as for ``node_of``.

    Raises:
        SettingsError: --root or --config does not exist, or the instance types cannot be used.
    """
    node, daemon = gather_daemon(flags, environ)
    machine = look(node.settings, environ, known_or(daemon.disabled, ()))
    host = gather_host(node.root, machine.paths, in_pod=IN_POD in environ)
    expected = flags.get("kubelet_dir") is not None or not host.simulated
    settings = with_node_name(node.settings, environ)
    name = settings.node_name or platform.node().lower()

    # A loop of its own leaves the thread's loop, if it has one, as it is.
    with asyncio.Runner(loop_factory=asyncio.new_event_loop) as runner:
        try:
            kubelet = runner.run(gather_kubelet(settings, expected=expected))
        except Exception as error:  # noqa: BLE001 - on a broken node the rest is wanted most
            kubelet = _unreadable(settings.kubelet_dir, _failed(error))
        # Pods are listed after the kubelet's files were read: one that is recorded and not listed has ended.
        cluster: ClusterFacts | Unknown = _NO_CLUSTER
        if settings.kubeconfig is not None or (node.root is None and IN_POD in environ):
            try:
                cluster = runner.run(gather_cluster(settings.kubeconfig, name, daemon.driver))
            except Exception as error:  # noqa: BLE001 - as above
                cluster = _failed(error)
    if isinstance(cluster, NoSuchNode) and not settings.node_name:
        cluster = Unknown(cluster.why, cluster.action)  # the host's name was a guess
    if isinstance(daemon.disabled, Unknown) and isinstance(cluster, ClusterFacts):
        with suppress(IdListError):
            machine = replace(machine, disabled=disabled_devices(cluster.annotations.get(DISABLE_KEY, "")))
    nodes = {file.device: machine.paths.dev / f"neuron{file.device}" for file in known_or(host.nodes, ())}
    try:
        users = gather_users(nodes, node.proc, settings.kubelet_dir / KUBELET_SOCKET)
    except Exception as error:  # noqa: BLE001 - on a broken node the rest is wanted most
        users = _failed(error)
    return Facts(machine, host, kubelet, cluster, users, time.time_ns(), daemon)


_NO_CLUSTER = Unknown("no API server is known", "give --kubeconfig (and --node-name)")


def _failed(error: Exception) -> Unknown:
    """An unforeseen error of one source, so that the others still count."""
    return Unknown(f"looking failed itself ({error!r})", "please report it")


def gather_daemon(flags: Mapping[str, object], environ: Mapping[str, str]) -> tuple[InspectedNode, Daemon]:
    """The node and its daemon; where the daemon's settings cannot be used, the defaults are taken.

    Raises:
        SettingsError: --config or --root does not exist.
    """
    file = configuration_file(flags)
    if file and not os.access(file, os.R_OK):
        unread = Unknown(f"{file} may not be read", "run this as root")
        return node_of(flags, {}, None), Daemon(file, unread).without_answer(unread)
    try:
        node = node_of(flags, environ, file)
        check(with_node_name(node.settings, environ))
        load_catalogue(node.settings.instance_types)
    except SettingsError as error:
        unknown = Unknown("the daemon's address is not known", "fix what the check 'configuration' reports first")
        return node_of(flags, {}, None), Daemon(file, str(error)).without_answer(unknown)
    if node.root:
        unknown = Unknown("the daemon of a machine given by --root is not asked", "run this on that machine")
        return node, Daemon(file).without_answer(unknown)
    settings = node.settings
    daemon = Daemon(
        file,
        resources=frozenset(entry.resource for entry in settings.resources) if file else None,
        visible_devices_env=settings.visible_devices_env,
    )
    if settings.mode is Mode.DRA:
        daemon = replace(
            daemon,
            resources=frozenset(),
            driver=settings.dra_driver,
            placed_claims=settings.placed_claims,
            cdi=read_cdi(settings.cdi_dir),
        )
    if not (port := settings.health_port):
        unknown = Unknown("the daemon serves no probes", "give it a --health-port to be asked about its sources")
        return node, daemon.without_answer(unknown)
    address, away = settings.health_address, "run this in the plugin's pod"
    pages = [page_of(address, port, path, seconds=DAEMON_SECONDS) for path in ("/readyz", "/metrics")]
    ready, metrics = (Unknown(page.why, away) if isinstance(page, Unknown) else page for page in pages)
    silent = ready if isinstance(ready, Unknown) else tuple(line for line in ready.splitlines() if _SILENT in line)
    if isinstance(metrics, Unknown):
        return node, replace(daemon.without_answer(metrics), silent=silent)
    unhealthy, registered = _devices(metrics, "device_healthy", "0"), ("registered", daemon.driver, "1")
    daemon = replace(daemon, silent=silent, unhealthy=unhealthy, disabled=_devices(metrics, "device_disabled", "1"))
    return node, replace(daemon, registered=registered in _SAMPLE.findall(metrics))


def _devices(metrics: str, name: str, value: str) -> tuple[int, ...]:
    """The devices for which the metric ``name`` has this ``value``."""
    samples = _SAMPLE.findall(metrics)
    return tuple(sorted(int(device) for found, device, has in samples if (found, has) == (name, value)))


def read_cdi(directory: Path) -> frozenset[str] | Unknown:
    """The names of the devices in the daemon's CDI file."""
    file = directory / CDI_FILE_NAME
    try:
        spec = msgspec.json.decode(file.read_bytes(), type=_CdiFile)
    except FileNotFoundError:
        return Unknown(f"there is no CDI file {file}", "see the plugin's log; compare its mount of this directory")
    except PermissionError:
        return Unknown(f"{file} may not be read", "run this as root")
    except (OSError, msgspec.DecodeError) as error:
        return Unknown(f"the CDI file {file} cannot be read: {error}", "delete it: the plugin writes it again")
    return frozenset(device.name for device in spec.devices)


class _CdiDevice(msgspec.Struct):
    name: str


class _CdiFile(msgspec.Struct):
    devices: tuple[_CdiDevice, ...]


def disabled_here(node: InspectedNode) -> tuple[int, ...]:
    """The devices that an operator has disabled, as the daemon of this machine says; none where no daemon answers."""
    settings = node.settings
    if node.root or not settings.health_port:
        return ()
    metrics = page_of(settings.health_address, settings.health_port, "/metrics", seconds=DAEMON_SECONDS)
    return () if isinstance(metrics, Unknown) else _devices(metrics, "device_disabled", "1")


def page_of(address: str, port: int, path: str, *, seconds: float = PAGE_SECONDS) -> str | Unknown:
    """The answer of the daemon at ``address`` to a GET of ``path``, ready or not."""
    import http.client

    host = _EVERYWHERE.get(address, address)
    connection = http.client.HTTPConnection(host, port, timeout=seconds)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        page = answer.read(_MOST_BYTES).decode("utf-8", "backslashreplace")
    except (OSError, UnicodeError, http.client.HTTPException) as error:  # UnicodeError: not a name of a host
        return Unknown(f"no daemon answers on {host}:{port} ({error})", f"does it run here, with --health-port {port}?")
    finally:
        connection.close()
    if answer.status in {http.HTTPStatus.OK, http.HTTPStatus.SERVICE_UNAVAILABLE}:
        return page
    return Unknown(f"{host}:{port} answers {answer.status} {answer.reason} to {path}", "is it a neuron-plugin?")


async def gather_kubelet(settings: PluginSettings, *, expected: bool, dial_seconds: float = 2.0) -> Kubelet:
    """The kubelet of these directories. Not ``expected``: its absence is normal, as on a simulated machine.

    A plugin of ours that does not answer within ``dial_seconds`` is at fault.
    """
    directory, pod_resources = settings.kubelet_dir, settings.pod_resources_socket
    try:
        sockets = [path for path in sorted(directory.iterdir()) if stat.S_ISSOCK(path.lstat().st_mode)]
    except FileNotFoundError:
        action = "if there is one elsewhere, give --kubelet-dir and --pod-resources-socket"
        kubelet = _unreadable(directory, Unknown(f"there is no kubelet at {directory}", action))
        return replace(kubelet, missing=True, unreadable=None if expected else kubelet.unreadable)
    except OSError as error:
        return _unreadable(directory, Unknown(f"{directory} cannot be listed ({error.strerror})", "run this as root"))
    from neuron_plugin.kubelet import dial, is_served
    from neuron_plugin.kubelet.dra_service import dial_driver

    async def seen(path: Path) -> SocketSeen:
        served = is_served(path)
        if not (served and path.name.startswith(OUR_SOCKETS)):
            return SocketSeen(path, served)
        ask_server = dial_driver if serves_claims(path.name) else dial
        return SocketSeen(path, served, await ask_server(path, dial_seconds) or "")

    own, registry = directory / KUBELET_SOCKET, settings.plugins_registry
    if registry == PluginSettings().plugins_registry:  # not set: it is beside, wherever that is
        registry = directory.parent / REGISTRY
    ours_or_dra = (*registry.glob(f"*{VENDOR_DRIVER}*.sock"), *registry.glob(f"{OUR_SOCKETS}*.sock"))
    plugins = [path for path in sockets if path != own] + sorted(ours_or_dra)
    files = read_files(settings).with_processes(settings.cgroup)
    return Kubelet(
        directory,
        own_socket=SocketSeen(own, is_served(own)) if own in sockets else None,
        plugins=tuple(await asyncio.gather(*map(seen, plugins))),
        registry_seen=os.access(registry, os.R_OK | os.X_OK),
        allocatable=await ask(pod_resources, lambda kubelet: kubelet.allocatable()),
        pods=await ask(pod_resources, lambda kubelet: kubelet.list()),
        recorded=files.recorded,
        prepared=files.prepared,
        populated=files.populated,
    )


def _unreadable(directory: Path, why: Unknown) -> Kubelet:
    return Kubelet(directory, unreadable=why, allocatable=why, pods=why, recorded=why)


async def gather_cluster(
    kubeconfig: Path | None, node_name: str, driver: str = "", *, within_seconds: float = 15.0
) -> ClusterFacts | Unknown:
    """The node ``node_name`` and its pods; without ``kubeconfig`` by the pod's own service account.

    With a ``driver`` also what its slices of the node have. ``within_seconds`` is for all calls to the API server, with
    the import of the HTTP client and a log-in.
    """
    if kubeconfig and not os.path.exists(kubeconfig):  # noqa: ASYNC240, PTH110 - one stat; Path.exists raises on EACCES
        return Unknown(f"there is no kubeconfig at {kubeconfig}", "give --kubeconfig, and run this as root")
    from neuron_plugin.cluster import ApiError, ApiRequest, ClusterError, Scope
    from neuron_plugin.cluster.api import send
    from neuron_plugin.cluster.client import connect
    from neuron_plugin.cluster.objects import NODES, pages
    from neuron_plugin.cluster.pods import PODS, neuron_pod

    scope = Scope(field_selector=f"spec.nodeName={node_name}")
    try:
        async with asyncio.timeout(within_seconds), await connect(kubeconfig) as api:
            answer = await send(api, ApiRequest("GET", NODES.item(node_name)), timeout_seconds=REQUEST_SECONDS)
            node, pods = NODES.decode(answer), []
            async for page in pages(api, PODS, scope, page_timeout_seconds=REQUEST_SECONDS):
                pods += [neuron_pod(record) for record in page.records]
            shown = await _slice(api, node_name, driver) if driver else None
    except ApiError as error:
        if error.missing:
            action = "give --node-name, this node's name in Kubernetes"
            return NoSuchNode(f"the API server has no node {node_name}", action)
        return Unknown(str(error), "give a --kubeconfig whose user may get nodes and list pods")
    except ClusterError as error:
        return Unknown(str(error), "see that --kubeconfig is right and the API server can be reached from here")
    except TimeoutError:
        return Unknown(f"the API server did not answer within {within_seconds:g} s", "run this again when it does")
    return ClusterFacts(node_name, node.annotations, node.allocatable, tuple(pods), shown)


async def _slice(api: ApiServer, node_name: str, driver: str) -> Mapping[str, frozenset[str]] | Unknown | None:
    """The devices of a driver's slices of the node, each with the keys of its taints; None without a slice.

    Raises:
        UnreachableError: no answer.
    """
    from neuron_plugin.cluster import ApiError, Scope
    from neuron_plugin.cluster.claims import RESOURCE_SLICES
    from neuron_plugin.cluster.objects import pages

    found, scope = [], Scope(field_selector=f"spec.nodeName={node_name}")
    try:
        async for page in pages(api, RESOURCE_SLICES, scope, page_timeout_seconds=REQUEST_SECONDS):
            found += [record.taints for record in page.records if record.driver == driver]
    except ApiError as error:
        return Unknown(str(error), "give a --kubeconfig whose user may list resourceslices")
    return {device: keys for taints in found for device, keys in taints.items()} if found else None
