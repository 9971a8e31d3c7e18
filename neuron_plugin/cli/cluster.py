"""The cluster of a command, by kubectl's own flags, and the ways to read its state.

Each flag is defined here once, with kubectl's name, short form and meaning; a command lists its flags by name.
"""

from __future__ import annotations

import asyncio
import os
import re
from argparse import SUPPRESS, ArgumentParser, ArgumentTypeError, Namespace
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from contextlib import asynccontextmanager, suppress
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from neuron_plugin import settings
from neuron_plugin.allocation import NodeInfo, NodeInventory, Rejection
from neuron_plugin.cli.command import CommandError, UsageError, no_such, server_url
from neuron_plugin.cluster import ApiError, ApiRequest, ApiResource, ApiServer, ClusterError, Scope, UnreachableError
from neuron_plugin.cluster.api import PAGE_SECONDS, ConnectionSettingsError, send
from neuron_plugin.cluster.client import Kubeconfig, Source, connect
from neuron_plugin.cluster.credentials import CredentialsError, Overrides, namespace_of
from neuron_plugin.cluster.leases import LEADER_LEASE
from neuron_plugin.cluster.objects import LEASES, pages
from neuron_plugin.instance_file import load_catalogue
from neuron_plugin.monitor.look import look
from neuron_plugin.placement import ExtenderSettings
from neuron_plugin.placement.state import ClusterState
from neuron_plugin.topology import Catalogue

if TYPE_CHECKING:
    from neuron_plugin.plugin.settings import PluginSettings

_USUAL_KUBECONFIG = "~/.kube/config"
_ANSWER_SECONDS = 10.0
"""The deadline of a request to the extender."""
_Answer = TypeVar("_Answer")
_Found = TypeVar("_Found")

_FLAGS: Mapping[str, tuple[tuple[str, ...], Mapping[str, Any]]] = {
    "namespace": (
        ("-n", "--namespace"),
        {
            "metavar": "NAMESPACE",
            "default": "",
            "help": "the namespace (default: the context's; plan, usage: all)",
        },
    ),
    "all_namespaces": (("-A", "--all-namespaces"), {"action": "store_true", "help": "all namespaces"}),
    "selector": (
        ("-l", "--selector"),
        {"metavar": "LABELS", "default": "", "help": "only those with these labels, such as app=train,tier!=test"},
    ),
    "sort_by": (
        ("--sort-by",),
        {"metavar": "PATH", "default": "", "help": "in the order of a field of -o json, such as .status.phase"},
    ),
    "no_headers": (("--no-headers",), {"action": "store_true", "help": "rows alone: no headers, no totals"}),
    "watch": (
        ("-w", "--watch"),
        {"action": "store_true", "help": "print again after each change, until Ctrl-C; JSON one document a line"},
    ),
    "context": (
        ("--context",),
        {"metavar": "CONTEXT", "default": "", "help": "context of the kubeconfig (default: the current one)"},
    ),
    "kubeconfig": (
        ("--kubeconfig",),
        {
            "metavar": "FILE",
            "type": Path,
            "help": f"kubeconfig (default: KUBECONFIG, {_USUAL_KUBECONFIG}, or in a pod its service account)",
        },
    ),
    "extender": (
        ("--extender",),
        {
            "metavar": "URL",
            "default": "",
            "help": "ask this extender, such as http://127.0.0.1:12346, instead of the API server",
        },
    ),
    "instance_types": (
        ("--instance-types",),
        {"metavar": "FILE", "type": Path, "help": "YAML file of further instance types"},
    ),
    "lease_namespace": (
        ("--lease-namespace",),
        {
            "metavar": "TEXT",
            "help": "namespace of the nodes' Leases (default: that of this pod's daemon, or the one that has the "
            "leader's Lease, else kube-system); empty: do not look",
        },
    ),
}
SERVER = ("context", "kubeconfig")
"""Flags of every command that asks the API server. Such a command also has the flags in ``_OVERRIDES``."""
_OVERRIDES: Mapping[tuple[str, ...], tuple[str, str]] = {
    ("--cluster",): ("", "cluster"),
    ("--user",): ("", "user"),
    ("-s", "--server"): ("of_cluster", "server"),
    ("--certificate-authority",): ("of_cluster", "certificate_authority"),
    ("--insecure-skip-tls-verify",): ("of_cluster", "insecure_skip_tls_verify"),
    ("--tls-server-name",): ("of_cluster", "tls_server_name"),
    ("--token",): ("of_user", "token"),
    ("--client-certificate",): ("of_user", "client_certificate"),
    ("--client-key",): ("of_user", "client_key"),
    ("--as",): ("of_user", "as_"),
    ("--as-group",): ("of_user", "as_groups"),
    ("--as-uid",): ("of_user", "as_uid"),
}
"""The flags of ``kubectl options`` that override the kubeconfig, with their part and field in ``Overrides``."""
_ACTIONS = {"as_groups": "append", "insecure_skip_tls_verify": "store_true"}
_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
LOOK = (*SERVER, "instance_types", "lease_namespace")
"""Flags of every command that computes the state of the cluster."""
ROWS = ("sort_by", "no_headers")
"""Flags of every command that prints a table."""
LIST = ("namespace", "all_namespaces", "selector", *ROWS, "watch", "extender")
"""Flags of a command that lists objects, besides ``LOOK``."""


def add_cluster_flags(parser: ArgumentParser, *names: str) -> None:
    """Add the flags of these names, in the order of the table."""
    takes_all = "context" in names
    others = ", also --cluster, --user, --as, --server, --token and their like (kubectl options)"
    group = parser.add_argument_group("which cluster", f"As for kubectl{others * takes_all}.")
    for name, (strings, keywords) in _FLAGS.items():
        if name in names:
            group.add_argument(*strings, **keywords)
    if takes_all:
        group.add_argument("--request-timeout", type=_seconds, default=None, help=SUPPRESS)
    for strings, (part, name) in _OVERRIDES.items() if takes_all else ():
        group.add_argument(
            *strings, dest=_place_of(part, name), action=_ACTIONS.get(name, "store"), default=None, help=SUPPRESS
        )


def _seconds(text: str) -> float | None:
    """A time in the form of kubectl's ``--request-timeout``, such as 5s or 5; None for 0, which means no limit.

    Raises:
        ArgumentTypeError: the text is no time.
    """
    found = re.fullmatch(r"(\d+)(ms|s|m|h)?", text)
    if not found:
        raise ArgumentTypeError(f"{text!r} is no time: expected such as 5s, 1m or 0")
    return int(found[1]) * _UNITS[found[2] or "s"] or None


@asynccontextmanager
async def request_timeout(arguments: Namespace) -> AsyncIterator[None]:
    """End the requests to the API server in this block after ``--request-timeout``.

    Raises:
        CommandError: they have taken longer.
    """
    seconds = getattr(arguments, "request_timeout", None)
    try:
        async with asyncio.timeout(seconds) as deadline:
            yield
    except TimeoutError:
        if not deadline.expired():
            raise
        raise CommandError(f"not all was answered within {seconds:g} s, the --request-timeout") from None


def _place_of(part: str, name: str) -> str:
    """The attribute of the parsed arguments for one of ``_OVERRIDES``."""
    return f"kubectl_{part}_{name}"


def _overrides_from(arguments: Namespace) -> Overrides:
    """The settings in the command line that override the kubeconfig."""
    chosen, of_cluster, of_user = dict[str, str](), dict[str, Any](), dict[str, Any]()
    parts = {"": chosen, "of_cluster": of_cluster, "of_user": of_user}
    for part, name in _OVERRIDES.values():
        if (value := getattr(arguments, _place_of(part, name), None)) is not None:
            parts[part][name] = tuple(value) if isinstance(value, list) else value
    if server := of_cluster.get("server"):
        of_cluster["server"] = server_url("--server", server)
    return Overrides(arguments.context, **chosen, of_cluster=of_cluster, of_user=of_user)


def node_name(text: str) -> str:
    """The name of a node, given as NODE or node/NODE, the form of ``-o name``."""
    return text.removeprefix("node/")


def add_node_argument(parser: ArgumentParser) -> None:
    """Add ``NODE``, for commands that otherwise inspect this machine."""
    where = "a node of the cluster (default: this machine)"
    parser.add_argument("node", metavar="NODE", nargs="?", type=node_name, help=where)


def _settings() -> PluginSettings | ExtenderSettings:
    """Settings of the daemon in whose pod this runs; outside of such a pod the defaults.

    They are imported only in such a pod, because the settings take as long to import as everything else here.
    """
    if _is_in_daemon_s_pod():
        from neuron_plugin.cli.target import settings_here

        return settings_here()
    return ExtenderSettings()


def _is_in_daemon_s_pod() -> bool:
    has_settings = any(name.startswith(settings.ENVIRONMENT_PREFIX) for name in os.environ)
    return has_settings or os.path.lexists(settings.USUAL_FILE)


def source_from(arguments: Namespace) -> Source:
    """The API server of the command line, as an argument for ``connect``.

    Raises:
        UsageError: none is known, or there is no kubeconfig for a flag that needs one.
    """
    overrides = _overrides_from(arguments)
    try:
        paths = kubeconfig_of(arguments.kubeconfig or _settings().kubeconfig)
    except UsageError:
        if arguments.kubeconfig or "server" not in overrides.of_cluster:
            raise
        paths = ()
    if paths or "server" in overrides.of_cluster:
        return Kubeconfig(paths, overrides)
    places = {"--context": "context"} | {flags[-1]: _place_of(*place) for flags, place in _OVERRIDES.items()}
    if given := [flag for flag, place in places.items() if getattr(arguments, place, None)]:
        raise UsageError(f"{', '.join(given)}: a pod's service account is used as it is, give --kubeconfig")
    return None


def kubeconfig_of(given: Path | str | None) -> tuple[Path, ...]:
    """The given kubeconfig, else kubectl's default files; empty in a pod, which uses its service account.

    Missing files of ``KUBECONFIG`` are left out.

    Raises:
        UsageError: the named file does not exist, or there is none.
    """
    named = [Path(name) for name in os.environ.get("KUBECONFIG", "").split(os.pathsep) if name]
    usual = Path(os.path.expanduser(_USUAL_KUBECONFIG))  # noqa: PTH111 - Path's raises without a home
    candidates = [Path(given)] if given else named or [usual]
    if there := tuple(candidate for candidate in candidates if candidate.exists()):
        return there
    if given or named:
        what, paths = "--kubeconfig" if given else "KUBECONFIG", os.pathsep.join(map(str, candidates))
        raise UsageError(f"{what} is {paths}, which is not there: expected a kubeconfig")
    if "KUBERNETES_SERVICE_HOST" in os.environ:
        return ()
    raise UsageError(f"no API server is known: give --kubeconfig or set KUBECONFIG; there is no {_USUAL_KUBECONFIG}")


def namespace_from(arguments: Namespace) -> str:
    """The given namespace, else the namespace of the context; with an extender there is no context.

    Raises:
        UsageError: the kubeconfig cannot be used.
    """
    if arguments.namespace:
        return str(arguments.namespace)
    try:
        source = source_from(arguments)
        return namespace_of(*source) if isinstance(source, Kubeconfig) else namespace_of(())
    except (OSError, CredentialsError) as error:
        if arguments.kubeconfig or arguments.context:
            raise UsageError(f"the context's namespace cannot be read: {error}") from None
    except UsageError:
        if not getattr(arguments, "extender", ""):
            raise
    return "default"


def pod_from(arguments: Namespace, text: str) -> tuple[str, str]:
    """Namespace and name of a pod, given as POD, pod/POD (the form of ``-o name``) or NAMESPACE/POD.

    Raises:
        UsageError: the text has another form.
    """
    namespace, _, name = text.rpartition("/")
    if not name or "/" in namespace:
        raise UsageError(f"the pod is {text!r}, expected POD or NAMESPACE/POD")
    if namespace in {"", "pod", "pods"}:
        return namespace_from(arguments), name
    return namespace, name


def types_from(arguments: Namespace) -> Catalogue:
    """The known instance types, with the user's types.

    Raises:
        SettingsError: the file cannot be used.
    """
    return load_catalogue(arguments.instance_types or _settings().instance_types)


async def lease_namespace_of(api: ApiServer, arguments: Namespace) -> str:
    """The namespace of the nodes' Leases: the given one, that of this pod's daemon, or that of the leader's Lease."""
    if (given := getattr(arguments, "lease_namespace", None)) is not None:
        return str(given)
    usual, found = _settings().lease_namespace, list[str]()
    if not _is_in_daemon_s_pod():
        own = Scope(field_selector=f"metadata.name={LEADER_LEASE}")
        with suppress(ApiError):  # without the right to read Leases of all namespaces
            async for page in pages(api, LEASES, own, page_timeout_seconds=PAGE_SECONDS):
                found += [lease.namespace for lease in page.records]
    return min(found) if found and usual not in found else usual


def ask_cluster(arguments: Namespace, work: Callable[[ApiServer], Coroutine[Any, Any, _Found]]) -> _Found:
    """The result of ``work`` with the API server of the command line.

    Raises:
        CommandError: the API server refused, or did not answer.
        UsageError: no API server is known.
    """
    source = source_from(arguments)

    async def asked() -> _Found:
        async with request_timeout(arguments), await connect(source) as api:
            return await work(api)

    try:
        return asyncio.run(asked())
    except ClusterError as error:
        raise failure(error) from None


def failure(error: ClusterError, extender: str = "") -> CommandError:
    """The error of a command: a ``UsageError`` if the kubeconfig is unusable or a selector is malformed (400)."""
    if extender and isinstance(error, UnreachableError):
        return CommandError(f"{extender} does not answer: {error.cause}; is the extender there?")
    if extender:
        return CommandError(f"{extender}: {error}; is it an extender?")
    unusable = isinstance(error, ConnectionSettingsError) or getattr(error, "status", 0) == HTTPStatus.BAD_REQUEST
    return (UsageError if unusable else CommandError)(str(error))


async def list_labelled(api: ApiServer, kind: ApiResource[Any], selector: str) -> list[Any]:
    """The objects of a kind with these labels. The API server compares them: it knows all forms of selectors."""
    listed = pages(api, kind, Scope(label_selector=selector), page_timeout_seconds=PAGE_SECONDS)
    return [record async for page in listed for record in page.records]


def state_reader(
    arguments: Namespace, *, judge: bool = True
) -> Callable[[ApiServer], Coroutine[Any, Any, ClusterState]]:
    """Reads the state of the cluster as an extender would at its start; ``judge``: plugins are judged by their Leases.

    Raises:
        SettingsError: the file of instance types cannot be used.
    """
    types = types_from(arguments)

    async def read_state(api: ApiServer) -> ClusterState:
        return await look(api, types, lease_namespace=await lease_namespace_of(api, arguments), judge=judge)

    return read_state


def cluster_state(arguments: Namespace, *, judge: bool = True) -> ClusterState:
    """Read the state of the cluster once.

    Raises:
        CommandError: the API server refused, or did not answer.
    """
    return ask_cluster(arguments, state_reader(arguments, judge=judge))


def node_in(state: ClusterState, name: str) -> NodeInfo:
    """A node of the cluster.

    Raises:
        CommandError: there is no such node.
    """
    if info := state.nodes.get(name):
        return info
    raise no_such("node", name, (known.name for known in state.nodes.values() if known.inventory))


def published(arguments: Namespace) -> tuple[ClusterState, NodeInfo, NodeInventory]:
    """The cluster, the requested node, and the inventory that the node's plugin has published.

    Raises:
        CommandError: there is no such node, or its devices are not known.
        UsageError: a machine is given, too.
    """
    if arguments.root:
        raise UsageError(f"{arguments.node} is a node of the cluster, and --root a machine here: give one of the two")
    state = cluster_state(arguments, judge=False)
    info = node_in(state, arguments.node)
    if isinstance(info.node.inventory, Rejection):
        raise CommandError(f"node {info.name}: {info.node.inventory}")
    return state, info, info.node.inventory


def ask_extender(extender: str, path: str, query: Mapping[str, object], answer: type[_Answer]) -> _Answer:
    """The answer of a running extender.

    Raises:
        CommandError: the extender does not answer, refuses, or its answer cannot be read.
    """
    url = server_url("--extender", extender)
    texts = {key: str(value).lower() if isinstance(value, bool) else str(value) for key, value in query.items()}

    async def asked() -> bytes:
        async with await connect(url) as api:
            return await send(api, ApiRequest("GET", path, texts), timeout_seconds=_ANSWER_SECONDS)

    try:
        return msgspec.json.decode(asyncio.run(asked()), type=answer)
    except ApiError as error:
        raise CommandError(f"{url}: {error.message.strip() or error}") from None
    except ClusterError as error:
        raise failure(error, url) from None
    except (msgspec.MsgspecError, UnicodeDecodeError):
        raise CommandError(f"{url} answers something else: is it an extender of this version?") from None
