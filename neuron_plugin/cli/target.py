"""Which node, daemon or cluster a command is about, by its flags, the environment and the usual files."""

from __future__ import annotations

import os
import urllib.error
import urllib.request
from argparse import ArgumentParser, Namespace
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import TypeVar
from urllib.parse import urlencode

import msgspec

from neuron_plugin.cli.command import CommandError, UsageError, server_url
from neuron_plugin.cluster import ApiServer
from neuron_plugin.cluster.client import connect
from neuron_plugin.inspection import USUAL_FILE, InspectedNode, configuration_file, node_of
from neuron_plugin.instance_file import load_catalogue
from neuron_plugin.placement import ExtenderSettings
from neuron_plugin.plugin.settings import PluginSettings
from neuron_plugin.settings import SettingsError, description_of, load
from neuron_plugin.topology import Catalogue

HOLDERS = {
    "sysfs": "DIR",
    "dev": "DIR",
    "logical-core-file": "FILE",
    "instance-types": "FILE",
    "instance-type": "TYPE",
    "kubelet-dir": "DIR",
    "pod-resources-socket": "PATH",
}
"""Settings of the daemon that locate the devices and their holders, which are flags here, too; and their metavars."""
EVERYTHING = HOLDERS | {"kubeconfig": "FILE", "node-name": "NAME", "mode": "MODE"}

_USUAL_KUBECONFIG = "~/.kube/config"
_ANSWER_SECONDS = 10.0
"""How long the extender may take for an answer."""
_Answer = TypeVar("_Answer")


def add_node_flags(parser: ArgumentParser, settings: dict[str, str]) -> None:
    """Add ``--root``, ``--config`` and these settings of the daemon, with the daemon's own descriptions."""
    group = parser.add_argument_group(
        "which node", "A flag wins over NEURON_PLUGIN_*, that over the daemon's own file."
    )
    group.add_argument(
        "--root", metavar="DIR", help="a simulated machine, or a host mounted at DIR (default: this machine)"
    )
    usual = f"the daemon's configuration (default: {USUAL_FILE} where that is, as in the plugin's pod)"
    group.add_argument("--config", metavar="FILE", help=usual)
    fields = {field.encode_name: field for field in msgspec.structs.fields(PluginSettings)}
    for name, metavar in settings.items():
        below = f" (default: ROOT{fields[name].default})" if isinstance(fields[name].default, Path) else ""
        group.add_argument(f"--{name}", metavar=metavar, help=description_of(fields[name]) + below)


def node_from(arguments: Namespace) -> InspectedNode:
    """The node that the command line means.

    Raises:
        SettingsError: a directory or file does not exist, or settings cannot be used.
    """
    return node_of(vars(arguments), os.environ, configuration_file(vars(arguments)))


def settings_here() -> PluginSettings | ExtenderSettings:
    """Settings of the daemon of this pod or machine, by the environment and the file in the usual place.

    Plugin and extender have theirs in the same place, each in its own pods.

    Raises:
        SettingsError: the file is neither daemon's.
    """
    file = configuration_file({})
    try:
        return load(PluginSettings, {}, os.environ, file)
    except SettingsError as error:
        with suppress(SettingsError):
            return load(ExtenderSettings, {}, os.environ, file)
        raise error from None


def add_kubeconfig_flag(parser: ArgumentParser) -> None:
    """Add ``--kubeconfig``, for ``kubeconfig_of``."""
    text = f"kubeconfig (default: KUBECONFIG, {_USUAL_KUBECONFIG}, or in a pod its service account)"
    parser.add_argument("--kubeconfig", metavar="FILE", type=Path, help=text)


def add_cluster_flags(parser: ArgumentParser) -> None:
    """Add ``--extender``, and what a look at the cluster without one needs."""
    extender = "ask this extender, such as http://127.0.0.1:12346, instead of the API server"
    parser.add_argument("--extender", metavar="URL", default="", help=extender)
    add_kubeconfig_flag(parser)
    parser.add_argument("--instance-types", metavar="FILE", type=Path, help="YAML file of further instance types")
    leases = "namespace of the nodes' Leases (default: that of this pod's daemon, or kube-system); empty: do not look"
    parser.add_argument("--lease-namespace", metavar="TEXT", help=leases)


def types_from(arguments: Namespace) -> Catalogue:
    """The known instance types, with those of the user.

    Raises:
        SettingsError: the file cannot be used.
    """
    return load_catalogue(arguments.instance_types or settings_here().instance_types)


@asynccontextmanager
async def api_from(arguments: Namespace) -> AsyncIterator[tuple[ApiServer, str]]:
    """The API server that the command line means, and the namespace of the nodes' Leases.

    Raises:
        ClusterError: no connection can be made.
        UsageError: no API server is known.
    """
    here = settings_here()
    namespace = here.lease_namespace if arguments.lease_namespace is None else arguments.lease_namespace
    async with await connect(kubeconfig_of(arguments.kubeconfig or here.kubeconfig)) as api:
        yield api, namespace


def ask_extender(extender: str, path: str, query: Mapping[str, object], answer: type[_Answer]) -> _Answer:
    """What a running extender answers.

    Raises:
        CommandError: it does not answer, refuses, or answers something else.
    """
    url = server_url("--extender", extender).rstrip("/")
    texts = {key: str(value).lower() if isinstance(value, bool) else str(value) for key, value in query.items()}
    try:
        with urllib.request.urlopen(f"{url}{path}?{urlencode(texts)}", timeout=_ANSWER_SECONDS) as page:  # noqa: S310 - HTTP
            return msgspec.json.decode(page.read(), type=answer)
    except urllib.error.HTTPError as error:
        with error:
            raise CommandError(f"{url}: {error.read(500).decode(errors='replace').strip()}") from None
    except (urllib.error.URLError, TimeoutError) as error:
        why = getattr(error, "reason", error)
        raise CommandError(f"{url} does not answer: {why}; is the extender there?") from None
    except (msgspec.MsgspecError, UnicodeDecodeError):
        raise CommandError(f"{url} answers something else: is it an extender of this version?") from None


def kubeconfig_of(given: Path | None) -> Path | None:
    """The kubeconfig that was given, else the one that kubectl would use; None in a pod: its service account.

    Raises:
        UsageError: the named file does not exist, or there is none.
    """
    named = [Path(name) for name in os.environ.get("KUBECONFIG", "").split(os.pathsep) if name]
    usual = Path(os.path.expanduser(_USUAL_KUBECONFIG))  # noqa: PTH111 - Path's raises without a home
    candidates = [given] if given else named or [usual]
    for candidate in candidates:
        if candidate.exists():
            return candidate
    if given or named:
        what, paths = "--kubeconfig" if given else "KUBECONFIG", os.pathsep.join(map(str, candidates))
        raise UsageError(f"{what} is {paths}, which is not there: expected a kubeconfig")
    if "KUBERNETES_SERVICE_HOST" in os.environ:
        return None
    raise UsageError(f"no API server is known: give --kubeconfig or set KUBECONFIG; there is no {_USUAL_KUBECONFIG}")
