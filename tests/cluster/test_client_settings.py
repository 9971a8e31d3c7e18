"""Credentials, certificates, proxies and kubeconfigs."""

from __future__ import annotations

import asyncio
import json
import ssl
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import trustme

from neuron_plugin.backoff import Clock
from neuron_plugin.cluster import credentials
from neuron_plugin.cluster.api import ApiRequest, ConnectionSettingsError, UnreachableError
from neuron_plugin.cluster.client import ClientTimes, Kubeconfig, KubernetesApi, _environment_proxy, connect
from neuron_plugin.cluster.credentials import (
    EXEC_VERSIONS,
    TOKEN_SECONDS,
    CredentialsError,
    Overrides,
    of_kubeconfig,
)
from tests.cluster.raw import saying
from tests.support.api_server import StandInApiServer

PODS = ApiRequest("GET", "/api/v1/pods")
WATCH = ApiRequest("GET", "/api/v1/pods", {"watch": "true", "resourceVersion": "1", "allowWatchBookmarks": "true"})
FIRST, SECOND = "first", "second"
"""Tokens: the server's and the client's at the start, and what the server wants later."""


class FakeTime:
    """A clock that stands until it is moved."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def changed(kubeconfig: Path, user: dict[str, object] | None = None, /, **cluster: object) -> Path:
    """Rewrite a kubeconfig so that its user has these credentials and no other, and its cluster these settings."""
    content = json.loads(kubeconfig.read_text())
    content["users"][0]["user"] = content["users"][0]["user"] if user is None else user
    content["clusters"][0]["cluster"] |= cluster
    kubeconfig.write_text(json.dumps(content))
    return kubeconfig


async def status(api: KubernetesApi) -> int:
    return (await api.request(PODS, timeout_seconds=5)).status


@dataclass
class Connected:
    """A server, and a client that read the server's kubeconfig."""

    server: StandInApiServer
    kubeconfig: Path
    api: KubernetesApi

    async def status(self) -> int:
        return await status(self.api)

    def rotate(self, *, written: bool) -> None:
        """Another token is wanted, and the kubeconfig has it."""
        self.server.rotate(token=SECOND)
        if written:
            self.server.write_kubeconfig(self.kubeconfig)


Connecting = Callable[..., AbstractAsyncContextManager[Connected]]


@pytest.fixture
def connected(tmp_path: Path) -> Connecting:
    """A server with these options, and a client; ``user`` is whose credentials the client's kubeconfig has."""

    @asynccontextmanager
    async def connecting(
        user: dict[str, object] | None = None, clock: Clock | None = None, **options: Any
    ) -> AsyncIterator[Connected]:
        async with StandInApiServer(**options) as server:
            kubeconfig = changed(server.write_kubeconfig(tmp_path / "kubeconfig"), user)
            async with await connect(kubeconfig, clock=clock or Clock()) as api:
                yield Connected(server, kubeconfig, api)

    return connecting


# Tokens.


@pytest.mark.parametrize(("user", "expected"), [(None, 200), ({"token": "guess"}, 401)])
async def test_the_token_goes_out(connected: Connecting, user: dict[str, object] | None, expected: int) -> None:
    async with connected(user, token=FIRST) as client:
        assert await client.status() == expected


async def test_a_new_token_is_read_when_the_old_one_is_refused(connected: Connecting) -> None:
    async with connected(token=FIRST) as client:
        assert await client.status() == 200
        client.rotate(written=True)
        assert await client.status() == 200
        async with client.api.stream(WATCH, silence_seconds=5):
            pass


async def test_refused_credentials_are_not_read_again_all_the_time(connected: Connecting) -> None:
    time = FakeTime()
    async with connected(token=FIRST, clock=Clock(now=time)) as client:
        client.rotate(written=False)
        assert [await client.status() for _ in range(5)] == [401] * 5
        assert len(client.server.requests) == 6, "the first was tried again with what the file said"
        client.rotate(written=True)
        assert await client.status() == 401
        time.now += 10
        assert await client.status() == 200


async def test_calls_refused_at_the_same_time_read_the_credentials_once(connected: Connecting) -> None:
    async with connected(token=FIRST, clock=Clock(now=lambda: 0.0)) as client:
        client.rotate(written=True)
        answers = await asyncio.gather(*(client.status() for _ in range(8)))
        assert answers == [200] * 8, "once: the clock stands still"


async def test_a_watch_on_credentials_that_were_replaced_ends(connected: Connecting) -> None:
    """The reflector opens it again; so that old connections do not pile up."""
    async with connected(token=FIRST) as client, client.api.stream(WATCH, silence_seconds=5) as lines:
        client.rotate(written=True)
        assert await client.status() == 200
        with pytest.raises(UnreachableError):
            await anext(lines)


async def test_a_kubeconfig_that_vanished_leaves_the_refusal(
    connected: Connecting, caplog: pytest.LogCaptureFixture
) -> None:
    async with connected(token=FIRST) as client:
        client.rotate(written=False)
        client.kubeconfig.unlink()
        assert await client.status() == 401
    assert caplog.messages == ["credentials for the API server cannot be loaded again"], "and no word of the library"


async def test_a_token_file_is_read_and_comes_before_a_token(connected: Connecting, tmp_path: Path) -> None:
    (tmp_path / "token").write_text(f"{FIRST}\n")
    async with connected({"tokenFile": "token", "token": "old"}, token=FIRST) as client:
        assert await client.status() == 200


# Exec plugins.


def exec_plugin(script: str, **fields: object) -> dict[str, object]:
    """A user whose credentials a program prints."""
    plugin = {"apiVersion": EXEC_VERSIONS[0], "command": sys.executable, "args": ["-c", script], **fields}
    return {"exec": plugin}


async def test_the_token_of_an_exec_plugin_goes_out(connected: Connecting) -> None:
    version = "client.authentication.k8s.io/v1"
    credential = {"kind": "ExecCredential", "apiVersion": version, "status": {"token": FIRST}}
    user = exec_plugin(f"print({json.dumps(credential)!r})", apiVersion=version, interactiveMode="Never")
    async with connected(user, token=FIRST) as client:
        assert await client.status() == 200


async def test_an_exec_plugin_is_asked_again_when_what_it_gave_has_expired(
    connected: Connecting, tmp_path: Path
) -> None:
    """Before a request is refused: each answer says how long it is good for."""
    script = (
        f"import json, pathlib; file = pathlib.Path({str(tmp_path / 'asked')!r})\n"
        "asked = file.read_text() if file.exists() else ''; file.write_text(asked + 'x')\n"
        "when = '2100-01-01T00:00:00Z' if asked else '2000-01-01T00:00:00Z'\n"
        "print(json.dumps({'status': {'token': 'first' if asked else 'old', 'expirationTimestamp': when}}))"
    )
    async with connected(exec_plugin(script), token=FIRST) as client:
        assert [await client.status() for _ in range(2)] == [200, 200]
        assert len(client.server.requests) == 2, "none was refused"
    assert (tmp_path / "asked").read_text() == "xx"


async def test_an_exec_plugin_learns_what_it_is_asked_for(connected: Connecting) -> None:
    script = (
        "import json, os; asked = json.loads(os.environ['KUBERNETES_EXEC_INFO'])\n"
        "token = f\"{asked['kind']} {asked['spec']['cluster']['server'][:4]} {os.environ['ROLE']}\"\n"
        "print(json.dumps({'status': {'token': token.replace(' ', '-')}}))"
    )
    asked, token = (
        exec_plugin(script, provideClusterInfo=True, env=[{"name": "ROLE", "value": "reader"}]),
        "-http-reader",
    )
    async with connected(asked, token=f"ExecCredential{token}") as client:
        assert await client.status() == 200


# Certificates.


def tls_of(authority: trustme.CA, name: str = "127.0.0.1") -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert(name).configure_cert(context)
    return context


def pem(authority: trustme.CA) -> str:
    return authority.cert_pem.bytes().decode()


@pytest.fixture
def authority() -> trustme.CA:
    return trustme.CA()


async def test_a_client_certificate_is_shown_to_a_server_that_wants_one(
    connected: Connecting, authority: trustme.CA, tmp_path: Path
) -> None:
    context = tls_of(authority)
    context.verify_mode = ssl.CERT_REQUIRED
    authority.configure_trust(context)
    issued = authority.issue_cert("client@example.org")
    issued.cert_chain_pems[0].write_to_path(tmp_path / "tls.crt")
    issued.private_key_pem.write_to_path(tmp_path / "tls.key")
    shown = {"client-certificate": str(tmp_path / "tls.crt"), "client-key": str(tmp_path / "tls.key")}
    async with connected(tls=context, ca=pem(authority)) as client:
        with pytest.raises(UnreachableError):
            await client.status()
        async with await connect(changed(client.kubeconfig, dict(shown))) as api:
            assert await status(api) == 200


async def test_a_rotated_ca_is_read_when_the_handshake_fails(connected: Connecting, authority: trustme.CA) -> None:
    new = trustme.CA()
    async with connected(tls=tls_of(authority), ca=pem(authority)) as client:
        assert await client.status() == 200
        await client.server.stop()
        client.server.rotate(tls=tls_of(new), ca=pem(new))
        await client.server.start()
        client.server.write_kubeconfig(client.kubeconfig)
        assert await client.status() == 200


async def test_a_new_certificate_of_the_same_ca_needs_nothing(connected: Connecting, authority: trustme.CA) -> None:
    async with connected(tls=tls_of(authority), ca=pem(authority)) as client:
        await client.server.stop()
        client.server.rotate(tls=tls_of(authority))
        await client.server.start()
        client.kubeconfig.unlink()
        assert await client.status() == 200


async def test_a_server_that_is_not_trusted_is_unreachable(connected: Connecting, authority: trustme.CA) -> None:
    async with connected(tls=tls_of(trustme.CA()), ca=pem(authority)) as client:
        for _ in range(2):
            with pytest.raises(UnreachableError, match="certificate verify failed") as raised:
                await client.status()
            assert not raised.value.may_have_arrived
            assert "ssl:" not in str(raised.value), "what aiohttp calls its settings"


async def test_the_name_in_the_servers_certificate_may_be_another_than_its_address(
    connected: Connecting, authority: trustme.CA
) -> None:
    async with connected(tls=tls_of(authority, "api.example"), ca=pem(authority)) as client:
        with pytest.raises(UnreachableError, match="certificate verify failed"):
            await client.status()
        for more in ({"tls-server-name": "api.example"}, {"insecure-skip-tls-verify": True}):
            client.server.write_kubeconfig(client.kubeconfig)
            async with await connect(changed(client.kubeconfig, **more)) as api:
                assert await status(api) == 200


# In a pod.


@pytest.fixture
def service_account(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, authority: trustme.CA) -> Path:
    """The files that the kubelet mounts into a pod, and where it says that the API server is."""
    monkeypatch.setattr("neuron_plugin.cluster.credentials.SERVICE_ACCOUNT", tmp_path)
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "127.0.0.1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "1")
    (tmp_path / "token").write_text(FIRST)
    (tmp_path / "ca.crt").write_text(pem(authority))
    return tmp_path


@pytest.mark.parametrize(("later", "requests"), [(0.0, 3), (TOKEN_SECONDS, 2)])
async def test_in_a_pod_the_token_is_read_again_when_it_is_refused_and_before_it_expires(
    service_account: Path, monkeypatch: pytest.MonkeyPatch, authority: trustme.CA, later: float, requests: int
) -> None:
    async with StandInApiServer(token=FIRST, tls=tls_of(authority), ca=pem(authority)) as server:
        monkeypatch.setenv("KUBERNETES_SERVICE_PORT", server.url.rpartition(":")[2])
        time = FakeTime()
        async with await connect(None, clock=Clock(now=time)) as api:
            assert await status(api) == 200
            (service_account / "token").write_text(SECOND)
            server.rotate(token=SECOND)
            time.now += later
            assert await status(api) == 200
            assert len(server.requests) == requests


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("", r"token file .* is empty; is the service account's volume"),
        (None, r"No such file .* is the service account's volume mounted"),
    ],
)
async def test_in_a_pod_a_token_that_is_gone_is_an_error_of_its_own(
    service_account: Path, content: str | None, said: str
) -> None:
    async with await connect(None) as api:
        (service_account / "token").unlink()
        if content is not None:
            (service_account / "token").write_text(content)
        with pytest.raises(ConnectionSettingsError, match=said):
            await status(api)


async def test_outside_of_a_pod_and_without_a_kubeconfig_there_is_an_error_that_says_what_to_do(
    service_account: Path,
) -> None:
    (service_account / "token").unlink()
    with pytest.raises(
        ConnectionSettingsError, match=r"the pod's service account: .*; expected to run in a pod, or a kub"
    ):
        await connect(None)


# Kubeconfigs that are of no use.


async def test_a_missing_kubeconfig_is_an_error_that_names_it(tmp_path: Path) -> None:
    with pytest.raises(ConnectionSettingsError, match=r"nowhere: No such file or directory: .*; expected a kubeconfig"):
        await connect(tmp_path / "nowhere")


WITHOUT_ITS_CLUSTER = """
current-context: x
contexts: [{name: x, context: {cluster: y}}]
clusters: [{name: z, cluster: {server: https://z}}]
"""


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("", "no current-context is set"),
        ("[]", "Expected `object`, got `array`"),
        ("{", "expected the node content, but found '<stream end>'"),
        ("current-context: x", "there is no context 'x', only none"),
        ("\x00", "special characters are not allowed"),
        ('{"current-context": "x", "contexts": [{"name": "x"}], "clusters": []}', "missing required field `context`"),
        (WITHOUT_ITS_CLUSTER, "there is no cluster 'y', only 'z'"),
    ],
)
async def test_a_useless_kubeconfig_is_an_error_that_names_it_and_what_is_wrong_in_words(
    tmp_path: Path, content: str, said: str
) -> None:
    kubeconfig = tmp_path / "kubeconfig"
    kubeconfig.write_text(content)
    with pytest.raises(ConnectionSettingsError, match="expected a kubeconfig") as raised:
        await connect(kubeconfig)
    assert str(raised.value).startswith(f"API server settings from {kubeconfig}: ")
    assert said in str(raised.value)
    assert str(raised.value).endswith("; expected a kubeconfig that kubectl accepts: fix it, or give another")
    for spelled_for_python in ("Error(", "Exception(", " object at ", "\n"):
        assert spelled_for_python not in str(raised.value)


async def test_a_kubeconfig_whose_exec_plugin_waits_for_input_is_an_error_that_names_it(tmp_path: Path) -> None:
    kubeconfig = changed(
        StandInApiServer().write_kubeconfig(tmp_path / "kubeconfig"), exec_plugin("import time; time.sleep(60)")
    )
    with pytest.raises(ConnectionSettingsError, match=r"kubeconfig: not loaded within 0\.05 s; does its exec plugin"):
        async with asyncio.timeout(5):
            await connect(kubeconfig, times=ClientTimes(loading=0.05))


@pytest.mark.parametrize(
    ("user", "said"),
    [
        (exec_plugin("import sys; sys.exit('log in first')"), r"ended with status 1: log in first"),
        (exec_plugin("print('hello')"), r"gave no ExecCredential: JSON is malformed"),
        (
            exec_plugin("", apiVersion="v9"),
            r"apiVersion of exec is 'v9', expected client\.authentication\.k8s\.io/v1 or",
        ),
        (exec_plugin("", command="/nowhere/aws"), r"No such file or directory: /nowhere/aws"),
        ({"auth-provider": {"name": "gcp"}}, r"auth-provider, which kubectl does not know since 1\.26"),
        ({"client-certificate-data": "%"}, r"not base64"),
        ({"client-certificate": "/nowhere/tls.crt"}, r"No such file or directory: /nowhere/tls\.crt"),
    ],
)
async def test_credentials_that_cannot_be_had_are_an_error_that_says_why(
    tmp_path: Path, user: dict[str, object], said: str
) -> None:
    kubeconfig = changed(StandInApiServer().write_kubeconfig(tmp_path / "kubeconfig"), user)
    with pytest.raises(ConnectionSettingsError, match=said):
        await connect(kubeconfig)


# Proxies.

PROXY = "http://proxy.example:3128"
BY_ADDRESS = "https://172.20.0.1:443"
BY_NAME = "https://abc.gr7.eu-west-1.eks.amazonaws.com:443"


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """One that names no proxy, whatever the machine's own does."""
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    return monkeypatch


@pytest.mark.parametrize(
    ("named", "url", "expected"),
    [
        ({}, BY_ADDRESS, None),
        ({"HTTPS_PROXY": PROXY}, BY_NAME, PROXY),
        ({"HTTPS_PROXY": PROXY}, "http://api.example", None),
        ({"https_proxy": "proxy.example:3128"}, BY_NAME, PROXY),
    ],
)
def test_each_scheme_has_the_proxy_that_the_environment_names(
    environment: pytest.MonkeyPatch, named: dict[str, str], url: str, expected: str | None
) -> None:
    for name, value in named.items():
        environment.setenv(name, value)
    assert _environment_proxy(url) == expected


@pytest.mark.parametrize(
    ("no_proxy", "url", "expected"),
    [
        ("*", BY_ADDRESS, None),
        ("172.20.0.1", BY_ADDRESS, None),
        ("172.20.0.1:443", BY_ADDRESS, None),
        (".eks.amazonaws.com", BY_NAME, None),
        ("EKS.amazonaws.com", BY_NAME, None),
        ("abc.gr7.eu-west-1.eks.amazonaws.com", BY_NAME, None),
        ("", "https://127.0.0.1:6443", None),
        ("", "https://[::1]:6443", None),
        ("", "https://localhost:6443", None),
        ("", BY_ADDRESS, PROXY),
        ("172.21.0.0/16,10.0.0.0/8,.svc,,", BY_ADDRESS, PROXY),
        ("172.20.0.1:8443", BY_ADDRESS, PROXY),
        ("amazonaws.org,s.amazonaws.com", BY_NAME, PROXY),
    ],
)
def test_only_what_no_proxy_means_is_called_directly(
    environment: pytest.MonkeyPatch, no_proxy: str, url: str, expected: str | None
) -> None:
    environment.setenv("HTTPS_PROXY", PROXY)
    environment.setenv("NO_PROXY", no_proxy)
    assert _environment_proxy(url) == expected


# Which connections the client opens. The simulated server plays the proxy: a request to a proxy has the same path.


def kubeconfig_behind_a_proxy(path: Path, **more: object) -> Path:
    return changed(StandInApiServer().write_kubeconfig(path), server="http://api.example", **more)


async def test_a_proxy_that_the_environment_names_is_used(
    server: StandInApiServer, tmp_path: Path, environment: pytest.MonkeyPatch
) -> None:
    environment.setenv("http_proxy", server.url)
    async with await connect(kubeconfig_behind_a_proxy(tmp_path / "kubeconfig")) as api:
        assert await status(api) == 200


@pytest.mark.usefixtures("service_account")
async def test_in_a_pod_no_proxy_is_used(environment: pytest.MonkeyPatch) -> None:
    environment.setenv("HTTPS_PROXY", "http://127.0.0.1:9")
    environment.setenv("KUBERNETES_SERVICE_HOST", "172.20.0.1")
    async with await connect(None) as api:
        assert api._client.proxy is None


async def test_the_kubeconfigs_own_proxy_comes_first(
    server: StandInApiServer, tmp_path: Path, environment: pytest.MonkeyPatch
) -> None:
    environment.setenv("http_proxy", server.url)
    no_server = {"proxy-url": "http://127.0.0.1:9"}
    async with await connect(kubeconfig_behind_a_proxy(tmp_path / "kubeconfig", **no_server)) as api:
        with pytest.raises(UnreachableError, match=r"127\.0\.0\.1:9") as raised:
            await status(api)
    assert not raised.value.may_have_arrived


@pytest.mark.parametrize("proxy", ["", "http://127.0.0.1:9"])
async def test_a_netrc_of_the_machine_stands_in_no_tokens_way(
    connected: Connecting, tmp_path: Path, environment: pytest.MonkeyPatch, proxy: str
) -> None:
    (tmp_path / "netrc").write_text("default login another password anything\n")
    environment.setenv("NETRC", str(tmp_path / "netrc"))
    environment.setenv("http_proxy", proxy)
    async with connected(token=FIRST) as client:
        assert await client.status() == 200


# What comes before a kubeconfig.

TWO = """
current-context: one
clusters:
- {name: one, cluster: {server: "https://one", certificate-authority: ca.crt, tls-server-name: name}}
- {name: two, cluster: {server: "http://two/"}}
- {name: unsafe, cluster: {server: "https://unsafe", insecure-skip-tls-verify: true}}
users:
- {name: plain, user: {token: t1}}
- {name: by file, user: {tokenFile: token}}
- {name: by certificate, user: {client-certificate-data: b2xk, client-key-data: b2xk}}
- {name: acting, user: {token: t2, as: anna, as-uid: u1, as-groups: [g1, g2], as-user-extra: {Reason: [why]}}}
contexts:
- {name: one, context: {cluster: one, user: plain, namespace: ml}}
- {name: two, context: {cluster: two, user: acting}}
- {name: nowhere, context: {cluster: ""}}
"""
ANNA = (
    ("Impersonate-User", "anna"),
    ("Impersonate-Uid", "u1"),
    ("Impersonate-Group", "g1"),
    ("Impersonate-Group", "g2"),
    ("Impersonate-Extra-reason", "why"),
)


PLAIN: dict[str, object] = {"server": "https://one", "name": "name", "verified": True, "authorization": "Bearer t1"}
PLAIN |= {"token_file": None, "acts_as": ()}
BEN = (("Impersonate-User", "ben"), ("Impersonate-Group", "g"))
OVERRIDES: dict[str, tuple[Overrides, dict[str, object]]] = {
    "nothing": (Overrides(), {}),
    "another context": (
        Overrides("two"),
        {"server": "http://two", "name": "", "authorization": "Bearer t2", "acts_as": ANNA},
    ),
    "another cluster": (Overrides(cluster="two"), {"server": "http://two", "name": ""}),
    "another user": (Overrides(user="acting"), {"authorization": "Bearer t2", "acts_as": ANNA}),
    "a server has the name in its address": (
        Overrides(of_cluster={"server": "https://three"}),
        {"server": "https://three", "name": ""},
    ),
    "a server with a name": (
        Overrides(of_cluster={"server": "https://three", "tls_server_name": "three.example"}),
        {"server": "https://three", "name": "three.example"},
    ),
    "no check of the server": (Overrides(of_cluster={"insecure_skip_tls_verify": True}), {"verified": False}),
    "a CA where none was checked": (
        Overrides(cluster="unsafe", of_cluster={"certificate_authority": "ca.crt"}),
        {"server": "https://unsafe", "name": ""},
    ),
    "a token": (Overrides(of_user={"token": "t3"}), {"authorization": "Bearer t3"}),
    "a token in place of a file": (Overrides(user="by file", of_user={"token": "t3"}), {"authorization": "Bearer t3"}),
    "as somebody": (Overrides(of_user={"as_": "ben", "as_groups": ("g",)}), {"acts_as": BEN}),
}
"""What is given, and in what that differs from what is in the kubeconfig."""


@pytest.fixture
def two(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A kubeconfig of several of each, beside whose CA we stand."""
    monkeypatch.chdir(tmp_path)
    trustme.CA().cert_pem.write_to_path(str(tmp_path / "ca.crt"))
    (tmp_path / "kubeconfig").write_text(TWO)
    return tmp_path / "kubeconfig"


@pytest.mark.parametrize(("overrides", "expected"), OVERRIDES.values(), ids=OVERRIDES)
async def test_what_is_given_comes_before_the_kubeconfig(
    two: Path, overrides: Overrides, expected: dict[str, object]
) -> None:
    found = await of_kubeconfig([two], overrides)
    assert PLAIN | expected == {
        "server": found.server,
        "name": found.tls_server_name,
        "verified": found.tls is None or found.tls.verify_mode is ssl.CERT_REQUIRED,
        "authorization": found.authorization,
        "token_file": found.token_file,
        "acts_as": found.acts_as,
    }


async def test_a_certificate_takes_the_place_of_what_stands_in_the_kubeconfig(
    two: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded = list[tuple[bytes, bytes]]()
    monkeypatch.setattr(credentials, "_load", lambda _, *pair: loaded.append(pair))
    given = {"client_certificate": "tls.crt", "client_key": "tls.key"}
    for file in given.values():
        (two.parent / file).write_text(file)
    await of_kubeconfig([two], Overrides(user="by certificate"))
    await of_kubeconfig([two], Overrides(user="by certificate", of_user=given))
    assert loaded == [(b"old", b"old"), (b"tls.crt", b"tls.key")]


async def test_a_context_without_a_cluster_is_an_error_unless_a_server_is_given(two: Path) -> None:
    with pytest.raises(CredentialsError, match="there is no cluster '', only 'one', 'two', 'unsafe'"):
        await of_kubeconfig([two], Overrides("nowhere"))
    assert (await of_kubeconfig([two], Overrides("nowhere", of_cluster={"server": "http://x"}))).server == "http://x"


async def test_a_server_alone_needs_no_kubeconfig() -> None:
    assert (await of_kubeconfig([], Overrides(of_cluster={"server": "http://three"}))).server == "http://three"
    with pytest.raises(CredentialsError, match="no current-context is set"):
        await of_kubeconfig([])
    unread = {"server": "https://x", "certificate_authority": "nowhere.crt"}
    with pytest.raises(ConnectionSettingsError, match=r"from the command line: .*nowhere.crt"):
        await connect(Kubeconfig((), Overrides(of_cluster=unread)))


async def test_groups_to_act_as_need_a_user(tmp_path: Path) -> None:
    (tmp_path / "kubeconfig").write_text(TWO)
    with pytest.raises(CredentialsError, match="no user to act as"):
        await of_kubeconfig([tmp_path / "kubeconfig"], Overrides("two", of_user={"as_": ""}))


async def test_each_request_says_as_whom_it_is_made(tmp_path: Path) -> None:
    heads = list[str]()

    async with saying(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}", tmp_path, heads=heads):
        raw = Kubeconfig((tmp_path / "raw",), Overrides(of_user={"as_": "anna", "as_groups": ("g1", "g2")}))
        async with await connect(raw) as api:
            assert (await api.request(PODS, timeout_seconds=5)).status == 200
    said = [line for line in heads[0].splitlines() if line.startswith("Impersonate")]
    assert said == ["Impersonate-User: anna", "Impersonate-Group: g1", "Impersonate-Group: g2"]
