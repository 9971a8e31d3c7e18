"""The files of one archive for a bug report: what a node shows, or what a cluster shows from a desk.

The reader of the report should not have to ask for more, and its sender should have nothing to hide. No Secret, no
environment, no annotation or label but our own is read; what looks like a credential or is a serial number is blanked.
Names of nodes, namespaces and pods stay, because nothing can be understood without them. A part that is missing is
named with the reason, and does not keep others out.
"""

from __future__ import annotations

import io
import json
import os
import platform
import re
import tarfile
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from neuron_plugin.allocation.keys import INVENTORY_KEY
from neuron_plugin.build import build
from neuron_plugin.cluster import ApiRequest, ApiServer, ClusterError, Node, Pod, Scope
from neuron_plugin.cluster.api import send
from neuron_plugin.cluster.leases import LEASE_PREFIX
from neuron_plugin.cluster.objects import LEASES, NODES, pages
from neuron_plugin.cluster.pods import PODS
from neuron_plugin.inspection.checks import CHECKS, examine
from neuron_plugin.inspection.findings import Unknown, report_of
from neuron_plugin.inspection.gathering import gather, gather_daemon, page_of
from neuron_plugin.inspection.reports import machine_report, shown_machine, topology_report
from neuron_plugin.monitor.look import look
from neuron_plugin.monitor.views import node_view, pod_view
from neuron_plugin.placement import ExtenderSettings
from neuron_plugin.plugin.settings import PluginSettings
from neuron_plugin.settings import as_yaml
from neuron_plugin.topology import Catalogue

MOST_PODS = 20
"""Pods of ours whose log and pages are asked for: every extender, and plugins of nodes with something wrong first."""
LOG_LINES = 3_000
"""The last ones of each container."""
PAGE_SECONDS = 20.0
"""Shorter than for a daemon: somebody waits for the report."""
PAGES = ("/readyz?verbose", "/metrics", "/decisions")
OUR_KEYS = ("neuron-plugin.io/", "NEURON_", "AWS_NEURON_")

_PORTS = {"device-plugin": PluginSettings().health_port, "extender": ExtenderSettings().health_port}
_SECRET_KEY = rb'"?(?:token|password|secret|serialNumber|serial_number)"?'
_BLANKED = (
    (re.compile(rb"(?i)\b(bearer|basic)\s+[\w.~+/=-]{8,}"), rb"\1 (removed)"),
    (re.compile(rb"(?i)(" + _SECRET_KEY + rb"\s*[:=]\s*)" + rb'"?[^\s",}]+"?'), rb'\1"(removed)"'),
    (re.compile(rb"://[^/\s:@]+:[^/\s@]+@"), b"://(removed)@"),
    (re.compile(rb"-----BEGIN ([A-Z ]*PRIVATE KEY)-----.*?-----END \1-----", re.DOTALL), b"(private key removed)"),
)


MISSING = "not-gathered.json"
"""The file of an archive that says what could not be had, and why."""


@dataclass(slots=True)
class BugReport:
    """Files by name, and by name why others are not there."""

    files: dict[str, bytes] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)

    def add(self, name: str, content: object) -> None:
        """Add a text, bytes, or plain values as JSON; an ``Unknown`` is missing."""
        if isinstance(content, Unknown):
            self.missing[name] = " ".join(filter(None, [content.why, content.action and f"({content.action})"]))
            return
        data = content.encode() if isinstance(content, str) else content
        if not isinstance(data, bytes):
            data = msgspec.json.format(msgspec.json.encode(data, enc_hook=str), indent=2) + b"\n"
        for pattern, replacement in _BLANKED:
            data = pattern.sub(replacement, data)
        self.files[name] = data

    @property
    def names(self) -> list[str]:
        """The files of the archive: also the one that says what is not there."""
        return sorted([*self.files, MISSING])

    def write(self, path: Path) -> None:
        """Write the archive; only its owner may read it.

        Raises:
            OSError: the file exists, or cannot be written.
        """
        top = path.name.removesuffix(".gz").removesuffix(".tar").removesuffix(".tgz")
        listed = {**self.files, MISSING: json.dumps(self.missing, indent=2).encode() + b"\n"}
        path.touch(mode=0o600, exist_ok=False)
        with tarfile.open(path, "w:gz") as archive:
            for name, data in sorted(listed.items()):
                entry = tarfile.TarInfo(f"{top}/{name}")
                entry.size, entry.mtime, entry.mode = len(data), int(time.time()), 0o600
                archive.addfile(entry, io.BytesIO(data))


def versions() -> dict[str, str]:
    """The build that made the report, and its system."""
    return build()._asdict() | {"system": platform.platform(), "architecture": platform.machine()}


def node_report(flags: Mapping[str, object], environ: Mapping[str, str]) -> BugReport:
    """The report of this node, or of the one that ``flags`` mean; as for ``gather``."""
    gathered = BugReport()
    facts, (node, daemon) = gather(flags, environ), gather_daemon(flags, environ)
    machine, holders = facts.machine, facts.holders
    gathered.add("versions.json", versions())
    gathered.add("doctor.json", report_of(examine(facts, CHECKS), as_root=os.geteuid() == 0))
    report = machine_report(machine, holders, facts.users)
    gathered.add("devices.json", report)
    if shown := shown_machine(machine, holders):
        gathered.add("topology.json", topology_report(shown, report))
    gathered.add("settings.yaml", as_yaml(node.settings))
    gathered.add("checkpoint.json", facts.kubelet.recorded)
    gathered.add("pod-resources.json", facts.kubelet.pods)
    if isinstance(facts.cluster, Unknown):
        gathered.add("node.json", facts.cluster)
    else:
        ours = {key: text for key, text in facts.cluster.annotations.items() if key.startswith(OUR_KEYS)}
        gathered.add("node.json", {"name": facts.cluster.node_name, "annotations": ours})
    for page in PAGES:
        name = f"daemon{page.partition('?')[0]}.txt"
        if isinstance(daemon.silent, Unknown):
            gathered.add(name, daemon.silent)
        else:
            gathered.add(name, page_of(node.settings.health_address, node.settings.health_port, page))
    gathered.add("log.txt", Unknown("a daemon's log is the kubelet's", "kubectl logs, or gather with --cluster"))
    return gathered


async def cluster_report(
    api: ApiServer, types: Catalogue, *, lease_namespace: str, namespace: str, only: Collection[str] = ()
) -> BugReport:
    """The report of a cluster: nodes, Neuron pods, and our own pods with their logs and pages.

    ``namespace`` is where our pods are; with ``only``, plugins of these nodes alone.

    Raises:
        ClusterError: nodes and pods cannot be listed.
    """
    gathered = BugReport()
    gathered.add("versions.json", versions())
    state = await look(api, types, lease_namespace=lease_namespace)
    views = [node_view(state, info) for info in state.nodes.values()]
    gathered.add("nodes.json", views)
    gathered.add("pods.json", [pod_view(state, pod) for pod in state.pods.values()])
    problems = {view.name for view in views if not view.status.open or view.status.unhealthy_devices}
    nodes: dict[str, Node] = {}
    async for page in pages(api, NODES, page_timeout_seconds=PAGE_SECONDS):
        nodes |= {node.name: node for node in page.records if INVENTORY_KEY in node.annotations}
    annotations = {
        name: {key: text for key, text in (*node.annotations.items(), *node.labels.items()) if key.startswith(OUR_KEYS)}
        for name, node in sorted(nodes.items())
    }
    gathered.add("annotations.json", annotations)
    try:
        leases = []
        async for listed in pages(api, LEASES, Scope(lease_namespace), page_timeout_seconds=PAGE_SECONDS):
            named = (lease for lease in listed.records if lease.name.startswith(LEASE_PREFIX) or "neuron" in lease.name)
            leases += [{"name": lease.name, "holder": lease.holder, "renewed": lease.renewed_at} for lease in named]
        gathered.add("leases.json", leases)
    except ClusterError as error:
        gathered.add("leases.json", Unknown(str(error)))
    try:
        selector = {"labelSelector": "app.kubernetes.io/name=neuron-plugin"}
        request = ApiRequest("GET", PODS.collection(namespace), selector)
        ours = PODS.decode_page(await send(api, request, timeout_seconds=PAGE_SECONDS)).records
    except ClusterError as error:
        gathered.add("our-pods", Unknown(str(error)))
        return gathered
    plugins = [pod for pod in ours if _component(pod) == "device-plugin" and (not only or pod.node_name in only)]
    for name in sorted({*only} - {pod.node_name for pod in plugins}):
        gathered.add(f"our-pods of {name}", Unknown("there is no such node, or no pod of the plugin on it"))
    plugins.sort(key=lambda pod: (pod.node_name not in problems, pod.node_name))
    chosen = [*(pod for pod in ours if _component(pod) == "extender"), *plugins][:MOST_PODS]
    for pod in chosen:
        base, folder = PODS.item(pod.name, namespace), f"our-pods/{pod.name}"
        log = ApiRequest("GET", f"{base}/log", {"tailLines": str(LOG_LINES), "timestamps": "true"})
        requests = {"log.txt": log}
        for path in PAGES:
            plain, _, query = path.partition("?")
            proxied = PODS.item(f"http:{pod.name}:{_PORTS[_component(pod)]}", namespace)
            requests[f"{plain[1:]}.txt"] = ApiRequest("GET", f"{proxied}/proxy{plain}", {query: ""} if query else {})
        for name, request in requests.items():
            try:
                gathered.add(f"{folder}/{name}", await send(api, request, timeout_seconds=PAGE_SECONDS))
            except ClusterError as error:
                gathered.add(f"{folder}/{name}", Unknown(str(error)))
    return gathered


def _component(pod: Pod) -> str:
    return pod.labels.get("app.kubernetes.io/component", "")
