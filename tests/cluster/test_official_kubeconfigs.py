"""Our reader of kubeconfigs agrees with the Kubernetes project's own client, on what people's files look like."""

from __future__ import annotations

import base64
import os
import ssl
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import trustme
from kubernetes import client, config
from kubernetes.config.config_exception import ConfigException

from neuron_plugin.cluster import credentials
from neuron_plugin.cluster.credentials import CredentialsError, of_kubeconfig, read_token


@dataclass(frozen=True)
class Seen:
    """What a reader makes of a file. ``authorities`` are certificates of the CA, in DER."""

    server: str
    authorization: str
    verified: bool
    authorities: frozenset[bytes]
    certificate: bytes
    key: bytes
    server_name: str
    proxy: str


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture
def files(tmp_path: Path, authority: trustme.CA) -> Path:
    """A directory as ``~/.kube``, with files that kubeconfigs name."""
    own = authority.issue_cert("client.example")
    (tmp_path / "pki").mkdir()
    (tmp_path / "pki/ca.crt").write_bytes(authority.cert_pem.bytes())
    (tmp_path / "pki/client.crt").write_bytes(own.cert_chain_pems[0].bytes())
    (tmp_path / "pki/client.key").write_bytes(own.private_key_pem.bytes())
    (tmp_path / "token").write_text("from-a-file\n")
    plugin = tmp_path / "plugin"
    plugin.write_text(
        "#!/bin/sh\n"
        'printf \'{"apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential", '
        '"status": {"token": "%s-%s"}}\' "$PREFIX" "$1"\n'
    )
    plugin.chmod(stat.S_IRWXU)
    return tmp_path


async def ours(monkeypatch: pytest.MonkeyPatch, *paths: Path) -> Seen:
    loaded = {"certificate": b"", "key": b""}
    monkeypatch.setattr(
        credentials, "_load", lambda _, certificate, key: loaded.update(certificate=certificate, key=key)
    )
    found = await of_kubeconfig(paths)
    authorization = f"Bearer {read_token(found.token_file)}" if found.token_file else found.authorization
    verified = found.tls is None or found.tls.verify_mode is ssl.CERT_REQUIRED
    authorities = frozenset(found.tls.get_ca_certs(binary_form=True) if found.tls and verified else ())
    return Seen(
        found.server,
        authorization,
        verified,
        authorities,
        loaded["certificate"].strip(),
        loaded["key"].strip(),
        found.tls_server_name,
        found.proxy,
    )


def theirs(*paths: Path) -> Seen:
    found: Any = client.Configuration()
    config.load_kube_config(config_file=os.pathsep.join(map(str, paths)), client_configuration=found)  # type: ignore[no-untyped-call]
    verified = found.verify_ssl is not False
    authorities = ssl.create_default_context(cafile=found.ssl_ca_cert) if found.ssl_ca_cert else None
    return Seen(
        found.host,
        (found.api_key.get("authorization") or found.api_key.get("BearerToken") or "").strip(),
        verified,
        frozenset(authorities.get_ca_certs(binary_form=True) if authorities and verified else ()),
        _content(found.cert_file),
        _content(found.key_file),
        found.tls_server_name or "",
        found.proxy or "",
    )


def _content(path: str | None) -> bytes:
    return Path(path).read_bytes().strip() if path else b""


WHOLE = """
apiVersion: v1
kind: Config
current-context: c
contexts: [{name: c, context: {cluster: k, user: u}}]
clusters: [{name: k, cluster: CLUSTER}]
users: [{name: u, user: USER}]
"""
SAFE = "{server: 'https://10.0.0.1:6443', certificate-authority: pki/ca.crt}"


def of_user(user: str, cluster: str = SAFE) -> str:
    return WHOLE.replace("CLUSTER", cluster).replace("USER", user)


def of_cluster(cluster: str) -> str:
    return of_user("{token: abc}", cluster)


CORPUS = {
    "a token": of_user("{token: abc}"),
    "a token with quotes and colons": of_user("{token: 'k8s:a#b=='}"),
    "a file of a token": of_user("{tokenFile: token}"),
    "basic authentication": of_user("{username: anna, password: 'x:y'}"),
    "a token and basic authentication": of_user("{token: abc, username: a, password: b}"),
    "client certificates in files": of_user(
        "{client-certificate: pki/client.crt, client-key: ./pki/../pki/client.key}"
    ),
    "data beside files": of_user(
        "{client-certificate: none, client-key: none, CERTDATA, KEYDATA}",
        "{server: 'https://h', certificate-authority: none, CADATA}",
    ),
    "an exec plugin": of_user(
        "{exec: {apiVersion: client.authentication.k8s.io/v1, command: ./plugin, args: [eks],"
        " env: [{name: PREFIX, value: aws}], interactiveMode: Never, provideClusterInfo: false}}",
    ),
    "a token before an exec plugin": of_user(
        "{token: abc, exec: {apiVersion: client.authentication.k8s.io/v1, command: ./plugin}}"
    ),
    "no user at all": of_user("{}").replace("user: u}", "user: ''}"),
    "a context without a user, and null users": """
current-context: c
contexts:
- context: {cluster: k, namespace: ml}
  name: c
clusters:
- cluster: {server: "http://127.0.0.1:8001"}
  name: k
users: null
preferences: {}
""",
    "a server with a path and a slash at its end": of_cluster(
        "{server: 'https://proxy.example/k8s/clusters/c-1/', certificate-authority: pki/ca.crt}"
    ),
    "no verification": of_cluster("{server: 'https://h', insecure-skip-tls-verify: true}"),
    "verification said": of_cluster(
        "{server: 'https://h', insecure-skip-tls-verify: no, certificate-authority: pki/ca.crt}"
    ),
    "another server name and a proxy": of_cluster(
        "{server: 'https://h', certificate-authority: pki/ca.crt, tls-server-name: api, proxy-url: 'http://p:3128'}"
    ),
    "extensions and fields of other programs": of_user(
        "{token: abc, as: admin, as-groups: [x], extensions: []}",
        "{server: 'https://h', certificate-authority: pki/ca.crt, extensions: [{name: minikube, extension: {a: 1}}]}",
    ),
    "an absolute path": of_cluster("{server: 'https://h', certificate-authority: ROOT/pki/ca.crt}"),
    "several contexts, anchors and comments": """
# made by hand
apiVersion: v1
kind: Config
clusters:
- name: one
  cluster: &one {server: "https://one", certificate-authority: pki/ca.crt}
- name: two
  cluster: {<<: *one, server: "https://two"}   # the same authority
contexts:
- {name: a, context: {cluster: one, user: x}}
- {name: "arn:aws:eks:us-west-2:111122223333:cluster/b", context: {cluster: two, user: "y:z"}}
users:
- {name: x, user: {token: one}}
- {name: "y:z", user: {token: !!str 12345}}
current-context: arn:aws:eks:us-west-2:111122223333:cluster/b
""",
    "data in a block with lines": """
current-context: c
contexts: [{name: c, context: {cluster: k, user: u}}]
clusters:
- name: k
  cluster:
    server: https://h
    certificate-authority-data: |
CALINES
users:
- name: u
  user:
    token: >-
      abc
""",
    "JSON": """{"current-context": "c", "contexts": [{"name": "c", "context": {"cluster": "k", "user": "u"}}],
 "clusters": [{"name": "k", "cluster": {"server": "https://h", "certificate-authority": "pki/ca.crt"}}],
 "users": [{"name": "u", "user": {"token": "a\\u0062c"}}]}""",
    "lines of Windows and a byte order mark": "\ufeff" + of_user("{token: abc}").replace("\n", "\r\n"),
}


def written(files: Path, text: str) -> Path:
    """A kubeconfig with the data that it names."""

    def data(name: str) -> str:
        return base64.b64encode((files / "pki" / name).read_bytes()).decode()

    lines = [data("ca.crt")[start : start + 64] for start in range(0, len(data("ca.crt")), 64)]
    text = text.replace("CADATA", f"certificate-authority-data: {data('ca.crt')}")
    text = text.replace("CERTDATA", f"client-certificate-data: {data('client.crt')}")
    text = text.replace("KEYDATA", f"client-key-data: '{data('client.key')}'")
    text = text.replace("CALINES", "\n".join(f"      {line}" for line in lines)).replace("ROOT", str(files))
    (files / "config").write_bytes(text.encode())
    return files / "config"


@pytest.mark.parametrize("text", CORPUS.values(), ids=CORPUS)
async def test_both_read_the_same(files: Path, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(files)  # the official client looks for an exec plugin where it runs
    path = written(files, text)
    assert await ours(monkeypatch, path) == theirs(path)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "current-context: c",
        WHOLE.replace("current-context: c", "current-context: d"),
        WHOLE.replace("cluster: k,", "cluster: other,"),
        of_user("{}", "{server: 'https://h', certificate-authority: pki/none}"),
        "{",
    ],
)
async def test_both_refuse_the_same(files: Path, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    path = written(files, text.replace("CLUSTER", SAFE).replace("USER", "{token: abc}"))
    with pytest.raises((CredentialsError, OSError)):
        await ours(monkeypatch, path)
    with pytest.raises((ConfigException, OSError, ValueError, Exception)):
        theirs(path)


@pytest.mark.parametrize(
    ("user", "as_kubectl"),
    [
        ("{token: abc, tokenFile: token}", "Bearer from-a-file"),
        ("{username: anna}", "Basic YW5uYTo="),
        ("{username: anna, password: ü}", "Basic YW5uYTrDvA=="),
    ],
)
async def test_where_they_differ_ours_does_as_kubectl_does(
    files: Path, user: str, as_kubectl: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """client-go: a token's file is read again and comes first; a user name is enough; texts are UTF-8."""
    path = written(files, of_user(user))
    assert (await ours(monkeypatch, path)).authorization == as_kubectl != theirs(path).authorization


async def test_a_name_that_stands_there_twice_is_refused_as_by_kubectl(
    files: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    twice = WHOLE.replace("contexts: [", "contexts: [{name: c, context: {cluster: k}}, ")
    path = written(files, twice.replace("CLUSTER", SAFE).replace("USER", "{token: abc}"))
    with pytest.raises(CredentialsError, match="there are 2 of the context 'c'"):
        await ours(monkeypatch, path)
    assert theirs(path).authorization == "", "the official client takes the first"


def _file(context: str = "", contexts: str = "", clusters: str = "", users: str = "") -> str:
    current = f"current-context: {context}\n" if context else ""
    return f"{current}contexts: [{contexts}]\nclusters: [{clusters}]\nusers: [{users}]\n"


CONTEXT, CLUSTER, USER = (
    "{name: c, context: {cluster: k, user: u}}",
    "{name: k, cluster: {server: 'https://10.0.0.1', certificate-authority: ca.crt}}",
    "{name: u, user: {tokenFile: token}}",
)
SEVERAL = {
    "each part in a file of its own": [_file("c"), _file("", CONTEXT), _file("", "", CLUSTER), _file("", "", "", USER)],
    "the first of a name counts, as a whole": [
        _file("c", CONTEXT, "{name: k, cluster: {server: 'https://first', certificate-authority: ca.crt}}", USER),
        _file("", "{name: c, context: {cluster: other}}", "{name: k, cluster: {server: x, tls-server-name: y}}"),
        _file("", "", "", "{name: u, user: {token: second}}"),
    ],
    "files are relative to the one that names them": [
        _file("c", CONTEXT),
        _file("", "", CLUSTER, "{name: u, user: {client-certificate: own.crt, client-key: own.key}}"),
    ],
    "null parts": ["current-context: c\ncontexts: null\nclusters:\n", _file("", CONTEXT, CLUSTER, USER)],
}


def several(files: Path, texts: list[str]) -> list[Path]:
    """Kubeconfigs in directories of their own, each beside files of the same names, which say different things."""
    for number, text in enumerate(texts):
        (files / str(number)).mkdir()
        (files / str(number) / "config").write_text(text)
        (files / str(number) / "token").write_text(f"of-{number}")
        for name, content in ("ca.crt", "ca.crt"), ("own.crt", "client.crt"), ("own.key", "client.key"):
            (files / str(number) / name).write_bytes((files / "pki" / content).read_bytes())
    return [files / str(number) / "config" for number in range(len(texts))]


@pytest.mark.parametrize("texts", SEVERAL.values(), ids=SEVERAL)
async def test_both_read_several_files_as_one(files: Path, texts: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    paths = several(files, texts)
    assert await ours(monkeypatch, *paths) == theirs(*paths)


@pytest.mark.parametrize("first", ["", _file("c"), _file("c", CONTEXT)], ids=["empty", "current context", "context"])
async def test_of_several_files_the_first_names_the_current_context_as_for_kubectl(
    files: Path, first: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the official client takes the last file's, and no empty file."""
    other = "{name: d, context: {cluster: k, user: v}}, {name: c, context: {cluster: k, user: u}}"
    second = _file("d", other, CLUSTER, "{name: v, user: {token: v}}, {name: u, user: {token: u}}")
    assert (
        await ours(monkeypatch, *several(files, [first, second]))
    ).authorization == f"Bearer {'u' if first else 'v'}"


async def test_of_several_files_the_one_that_cannot_be_used_is_named(
    files: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = several(files, [_file("c", CONTEXT, CLUSTER, USER), "contexts: {"])
    with pytest.raises(CredentialsError, match=f"^{paths[1]}: "):
        await ours(monkeypatch, *paths)
