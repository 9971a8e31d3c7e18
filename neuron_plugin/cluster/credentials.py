"""The API server's address, its CA and our credentials, from a kubeconfig or a pod's service account.

Kubeconfigs are read as kubectl reads them (client-go, ``tools/clientcmd``): several merged files, the current context,
files relative to them, and exec plugins. A plugin's answer is used until it expires or is refused. Flags of a command
line override them. Settings that kubectl no longer knows (the ``auth-provider`` of a user) are refused.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import os
import ssl
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import TypeVar
from urllib.parse import quote, urlsplit

import msgspec

SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
"""The directory in a pod where the kubelet mounts token and CA."""
TOKEN_SECONDS = 60.0
"""How long a token is used before its file is read again. The kubelet replaces it long before it expires."""
EXEC_VERSIONS = ("client.authentication.k8s.io/v1", "client.authentication.k8s.io/v1beta1")


class CredentialsError(Exception):
    """Settings that cannot be used; the text names the part and the reason."""


class _Part(msgspec.Struct, rename="kebab"):
    pass


class _Cluster(_Part):
    server: str
    certificate_authority: str = ""
    certificate_authority_data: str = ""
    insecure_skip_tls_verify: bool = False
    tls_server_name: str = ""
    proxy_url: str = ""


class _Variable(msgspec.Struct, frozen=True):
    name: str
    value: str


class _Exec(msgspec.Struct, rename="camel"):
    command: str
    api_version: str
    args: tuple[str, ...] | None = None
    env: tuple[_Variable, ...] | None = None
    provide_cluster_info: bool = False


class _User(_Part):
    token: str = ""
    token_file: str = msgspec.field(default="", name="tokenFile")
    username: str = ""
    password: str = ""
    client_certificate: str = ""
    client_certificate_data: str = ""
    client_key: str = ""
    client_key_data: str = ""
    exec: _Exec | None = None
    auth_provider: object = None
    as_: str = msgspec.field(default="", name="as")
    as_uid: str = ""
    as_groups: tuple[str, ...] | None = None
    as_user_extra: dict[str, tuple[str, ...]] | None = None


class _Context(_Part):
    cluster: str
    user: str = ""
    namespace: str = ""


class _NamedCluster(_Part):
    name: str
    cluster: _Cluster


class _NamedUser(_Part):
    name: str
    user: _User = msgspec.field(default_factory=_User)


class _NamedContext(_Part):
    name: str
    context: _Context


class _Kubeconfig(_Part):
    contexts: tuple[_NamedContext, ...] | None = None
    clusters: tuple[_NamedCluster, ...] | None = None
    current_context: str | None = None
    users: tuple[_NamedUser, ...] | None = None

    def context(self, overrides: Overrides) -> _Context:
        """The selected context; an empty one if there is no current context, but a cluster or server is given."""
        name = overrides.context or self.current_context or ""
        if not name and (overrides.cluster or overrides.of_cluster.get("server")):
            return _Context("")
        if not name:
            raise CredentialsError("no current-context is set")
        return _named(self.contexts or (), name, "context").context

    def chosen(self, overrides: Overrides) -> tuple[_Cluster, _User]:
        """The selected cluster and user, with the overrides."""
        context, of_cluster, of_user = self.context(overrides), dict(overrides.of_cluster), dict(overrides.of_user)
        name = overrides.cluster or context.cluster
        is_named = name or "server" not in of_cluster
        cluster = _named(self.clusters or (), name, "cluster").cluster if is_named else _Cluster("")
        name = overrides.user or context.user
        user = _named(self.users or (), name, "user").user if name else _User()
        # As in client-go's DirectClientConfig: an override replaces the same kind of setting and is not merged.
        if of_cluster.get("insecure_skip_tls_verify") or "certificate_authority" in of_cluster:
            cleared = {"certificate_authority": "", "certificate_authority_data": "", "insecure_skip_tls_verify": False}
            of_cluster = cleared | of_cluster
        if "server" in of_cluster:
            of_cluster = {"tls_server_name": ""} | of_cluster
        if "token" in of_user:
            of_user = {"token_file": ""} | of_user
        of_user = {f"{part}_data": "" for part in ("client_certificate", "client_key") if part in of_user} | of_user
        return msgspec.structs.replace(cluster, **of_cluster), msgspec.structs.replace(user, **of_user)


class _ExecStatus(msgspec.Struct, frozen=True, rename="camel"):
    token: str = ""
    client_certificate_data: str = ""
    client_key_data: str = ""
    expiration_timestamp: datetime | None = None


class _ExecCredential(msgspec.Struct, frozen=True):
    status: _ExecStatus


@dataclass(frozen=True, slots=True)
class Credentials:
    """How to reach an API server.

    ``authorization`` is the header's value; ``token_file`` has a changing bearer token instead. ``proxy`` is from the
    kubeconfig. ``expires_at`` is the unix time when an exec plugin has to run again. ``acts_as`` are the headers for
    impersonation.
    """

    server: str
    tls: ssl.SSLContext | None = None
    tls_server_name: str = ""
    proxy: str = ""
    authorization: str = ""
    token_file: Path | None = None
    expires_at: float = float("inf")
    acts_as: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Overrides:
    """Settings of a command line that override a kubeconfig.

    They choose another context, cluster or user, and set fields of cluster and user by their names in a kubeconfig.
    """

    context: str = ""
    cluster: str = ""
    user: str = ""
    of_cluster: Mapping[str, object] = field(default_factory=dict)
    of_user: Mapping[str, object] = field(default_factory=dict)


NO_OVERRIDES = Overrides()


def read_token(path: Path) -> str:
    """Read a bearer token.

    Raises:
        OSError: the file cannot be read.
        CredentialsError: it is empty.
    """
    if token := path.read_text().strip():
        return token
    raise CredentialsError(f"token file {path} is empty")


def of_service_account(environ: Mapping[str, str]) -> Credentials:
    """The credentials of this pod.

    Raises:
        OSError: a file is missing. CredentialsError: this is no pod.
    """
    host, port = environ.get("KUBERNETES_SERVICE_HOST"), environ.get("KUBERNETES_SERVICE_PORT")
    if not host or not port:
        raise CredentialsError("KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT are not set")
    token_file = SERVICE_ACCOUNT / "token"
    read_token(token_file)
    tls = ssl.create_default_context(cadata=(SERVICE_ACCOUNT / "ca.crt").read_text())
    server = f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}"
    return Credentials(server, tls, token_file=token_file)


async def of_kubeconfig(paths: Sequence[Path], overrides: Overrides = NO_OVERRIDES) -> Credentials:
    """The credentials of a kubeconfig's current context, or of the overrides.

    Raises:
        OSError: a file, or a file that it names, cannot be read. CredentialsError: it is no kubeconfig, or its exec
        plugin gives nothing.
    """
    config = await asyncio.to_thread(_read, paths)
    cluster, user = config.chosen(overrides)
    if user.auth_provider is not None:
        raise CredentialsError("the user has an auth-provider, which kubectl does not know since 1.26")
    if not user.as_ and (user.as_uid or user.as_groups or user.as_user_extra):
        raise CredentialsError("a UID, groups or extra values to act as, and no user to act as")
    known = user.token or user.token_file  # kubectl always sends these
    answer = await _ask_exec_plugin(user.exec, cluster) if user.exec and not known else _ExecStatus()
    certificate, key = answer.client_certificate_data.encode(), answer.client_key_data.encode()
    if not certificate:
        certificate = _content(user.client_certificate, user.client_certificate_data)
        key = _content(user.client_key, user.client_key_data)
    authority = _content(cluster.certificate_authority, cluster.certificate_authority_data)
    return Credentials(
        server=cluster.server.rstrip("/"),
        tls=await asyncio.to_thread(_tls, cluster, authority, certificate, key),
        tls_server_name=cluster.tls_server_name,
        proxy=cluster.proxy_url,
        authorization=_authorization(user, answer),
        token_file=Path(user.token_file) if user.token_file else None,
        expires_at=answer.expiration_timestamp.timestamp() if answer.expiration_timestamp else float("inf"),
        acts_as=tuple(_acts_as(user)),
    )


def _acts_as(user: _User) -> Iterator[tuple[str, str]]:
    """The headers of client-go's ``transport.ImpersonationConfig``."""
    if user.as_:
        yield "Impersonate-User", user.as_
    if user.as_uid:
        yield "Impersonate-Uid", user.as_uid
    yield from (("Impersonate-Group", group) for group in user.as_groups or ())
    for key, values in (user.as_user_extra or {}).items():
        yield from ((f"Impersonate-Extra-{quote(key.lower(), safe='')}", value) for value in values)


def contexts_of(paths: Sequence[Path]) -> list[str]:
    """The names of a kubeconfig's contexts.

    Raises:
        OSError: a file cannot be read.
        CredentialsError: it is no kubeconfig.
    """
    return [entry.name for entry in _read(paths).contexts or ()]


def namespace_of(paths: Sequence[Path], overrides: Overrides = NO_OVERRIDES) -> str:
    """The namespace of a kubeconfig's context, or of the pod if there are no files; ``default`` if none is set.

    Raises:
        OSError: a file cannot be read.
        CredentialsError: it is no kubeconfig, or has no such context.
    """
    named = _read(paths).context(overrides).namespace if paths else (SERVICE_ACCOUNT / "namespace").read_text()
    return named.strip() or "default"


def _read(paths: Sequence[Path]) -> _Kubeconfig:
    """Merge several files. For each name, and for the current context, the first file with a value counts."""
    read = [_read_file(path, f"{path}: " if len(paths) > 1 else "") for path in paths]
    first = read[::-1]  # a later entry of a dictionary replaces one of the same name
    return _Kubeconfig(
        contexts=tuple({entry.name: entry for config in first for entry in config.contexts or ()}.values()),
        clusters=tuple({entry.name: entry for config in first for entry in config.clusters or ()}.values()),
        users=tuple({entry.name: entry for config in first for entry in config.users or ()}.values()),
        current_context=next((config.current_context for config in read if config.current_context), ""),
    )


def _read_file(path: Path, where: str) -> _Kubeconfig:
    """Read one file and make the paths in it absolute. An empty file has no settings. Errors begin with ``where``.

    Raises:
        OSError: the file cannot be read. CredentialsError: the file is no kubeconfig, or has a name twice.
    """
    import yaml

    try:
        content = yaml.safe_load(path.read_bytes())
        config = msgspec.convert({} if content is None else content, _Kubeconfig, strict=False)
    except (yaml.YAMLError, msgspec.ValidationError, UnicodeDecodeError, RecursionError) as error:
        raise CredentialsError(f"{where}{' '.join(str(error).split())}") from error
    for kind, parts in ("context", config.contexts), ("cluster", config.clusters), ("user", config.users):
        for name, number in Counter(entry.name for entry in parts or ()).items():
            if number > 1:
                raise CredentialsError(f"{where}there are {number} of the {kind} {name!r}")
    for entry in config.clusters or ():
        _resolve(path.parent, entry.cluster, "certificate_authority")
    for user in (entry.user for entry in config.users or ()):
        _resolve(path.parent, user, "client_certificate", "client_key", "token_file")
        if user.exec and "/" in user.exec.command:  # a bare name is found on the PATH
            _resolve(path.parent, user.exec, "command")
    return config


def _resolve(directory: Path, part: _Cluster | _User | _Exec, *fields: str) -> None:
    for name in fields:
        if file := getattr(part, name):
            setattr(part, name, str(directory / file))


_Named = TypeVar("_Named", _NamedCluster, _NamedUser, _NamedContext)


def _named(parts: tuple[_Named, ...], name: str, kind: str) -> _Named:
    for entry in parts:
        if entry.name == name:
            return entry
    raise CredentialsError(
        f"there is no {kind} {name!r}, only {', '.join(repr(entry.name) for entry in parts) or 'none'}"
    )


def _content(file: str, data: str) -> bytes:
    """Data in the kubeconfig override the file that it names, as in kubectl."""
    if not data:
        return Path(file).read_bytes() if file else b""
    try:
        return base64.b64decode("".join(data.split()), validate=True)  # it may span several lines
    except binascii.Error as error:
        raise CredentialsError(f"a value is not base64: {error}") from error


def _authorization(user: _User, answer: _ExecStatus) -> str:
    if token := answer.token or user.token * (not user.token_file):
        return f"Bearer {token}"
    if user.username:
        return "Basic " + base64.b64encode(f"{user.username}:{user.password}".encode()).decode()
    return ""


def _tls(cluster: _Cluster, authority: bytes, certificate: bytes, key: bytes) -> ssl.SSLContext | None:
    if urlsplit(cluster.server).scheme != "https":
        return None
    try:
        context = ssl.create_default_context(cadata=authority.decode() or None)
        if cluster.insecure_skip_tls_verify:
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        if certificate:
            _load(context, certificate, key)
    except (ssl.SSLError, ValueError) as error:
        raise CredentialsError(f"the CA or the client's certificate cannot be used: {error}") from error
    return context


def _load(context: ssl.SSLContext, certificate: bytes, key: bytes) -> None:
    """Python loads certificates only from files; this one is readable by its owner only, and deleted at once."""
    with NamedTemporaryFile(prefix="neuron-plugin-") as file:
        file.write(certificate.rstrip() + b"\n" + key)
        file.flush()
        context.load_cert_chain(file.name)


async def _ask_exec_plugin(plugin: _Exec, cluster: _Cluster) -> _ExecStatus:
    """Run the program that provides a user's credentials (``client-go/plugin/pkg/client/auth/exec``)."""
    if plugin.api_version not in EXEC_VERSIONS:
        raise CredentialsError(f"apiVersion of exec is {plugin.api_version!r}, expected {' or '.join(EXEC_VERSIONS)}")
    spec: dict[str, object] = {"interactive": False}
    if plugin.provide_cluster_info:
        spec["cluster"] = {
            "server": cluster.server,
            "certificate-authority-data": cluster.certificate_authority_data,
            "insecure-skip-tls-verify": cluster.insecure_skip_tls_verify,
            "tls-server-name": cluster.tls_server_name,
        }
    asked = {"kind": "ExecCredential", "apiVersion": plugin.api_version, "spec": spec}
    environment = {**os.environ, **{variable.name: variable.value for variable in plugin.env or ()}}
    environment["KUBERNETES_EXEC_INFO"] = msgspec.json.encode(asked).decode()
    process = await asyncio.create_subprocess_exec(
        plugin.command,
        *(plugin.args or ()),
        env=environment,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        answer, complaint = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode:
        said = " ".join(complaint.decode(errors="replace").split())
        raise CredentialsError(f"exec plugin {plugin.command} ended with status {process.returncode}: {said[:200]}")
    try:
        return msgspec.json.decode(answer, type=_ExecCredential).status
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise CredentialsError(f"exec plugin {plugin.command} gave no ExecCredential: {error}") from error
