"""Credentials, certificates, proxies and kubeconfigs."""

from __future__ import annotations

import asyncio
import json
import ssl
import sys
from pathlib import Path

import pytest
import trustme

from neuron_plugin.backoff import Clock
from neuron_plugin.cluster.api import ApiRequest, ConnectionSettingsError, UnreachableError
from neuron_plugin.cluster.client import ClientTimes, Kubeconfig, _environment_proxy, connect
from neuron_plugin.cluster.credentials import (
    EXEC_VERSIONS,
    TOKEN_SECONDS,
    CredentialsError,
    Overrides,
    of_kubeconfig,
)
from tests.cluster.raw import api_of
from tests.support.api_server import StandInApiServer

PODS = ApiRequest("GET", "/api/v1/pods")
WATCH = ApiRequest("GET", "/api/v1/pods", {"watch": "true", "resourceVersion": "1", "allowWatchBookmarks": "true"})


class FakeTime:
    """A clock that stands until it is moved."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


# Tokens.


async def test_the_token_goes_out(tmp_path: Path) -> None:
    async with (
        StandInApiServer(token="secret") as server,  # noqa: S106 - a simulated server's
        await connect(server.write_kubeconfig(tmp_path / "kubeconfig")) as api,
    ):
        assert (await api.request(PODS, timeout_seconds=5)).status == 200


async def test_a_wrong_token_is_refused(tmp_path: Path) -> None:
    async with StandInApiServer(token="secret") as server:  # noqa: S106 - as above
        kubeconfig = server.write_kubeconfig(tmp_path / "kubeconfig")
        kubeconfig.write_text(kubeconfig.read_text().replace("secret", "guess"))
        async with await connect(kubeconfig) as api:
            assert (await api.request(PODS, timeout_seconds=5)).status == 401


async def test_a_new_token_is_read_when_the_old_one_is_refused(tmp_path: Path) -> None:
    async with StandInApiServer(token="first") as server:  # noqa: S106 - as above
        kubeconfig = server.write_kubeconfig(tmp_path / "kubeconfig")
        async with await connect(kubeconfig) as api:
            assert (await api.request(PODS, timeout_seconds=5)).status == 200
            server.rotate(token="second")  # noqa: S106 - as above
            server.write_kubeconfig(kubeconfig)
            assert (await api.request(PODS, timeout_seconds=5)).status == 200
            async with api.stream(WATCH, silence_seconds=5):
                pass


async def test_refused_credentials_are_not_read_again_all_the_time(
    tmp_path: Path,
) -> None:
    time = FakeTime()
    async with StandInApiServer(token="first") as server:  # noqa: S106 - as above
        kubeconfig = server.write_kubeconfig(tmp_path / "kubeconfig")
        async with await connect(kubeconfig, clock=Clock(now=time)) as api:
            server.rotate(token="second")  # noqa: S106 - as above
            assert [(await api.request(PODS, timeout_seconds=5)).status for _ in range(5)] == [401] * 5
            assert len(server.requests) == 6, "the first was tried again with what the file said"
            server.write_kubeconfig(kubeconfig)
            assert (await api.request(PODS, timeout_seconds=5)).status == 401
            time.now += 10
            assert (await api.request(PODS, timeout_seconds=5)).status == 200


async def test_calls_refused_at_the_same_time_read_the_credentials_once(tmp_path: Path) -> None:
    async with StandInApiServer(token="first") as server:  # noqa: S106 - as above
        kubeconfig = server.write_kubeconfig(tmp_path / "kubeconfig")
        async with await connect(kubeconfig, clock=Clock(now=lambda: 0.0)) as api:
            server.rotate(token="second")  # noqa: S106 - as above
            server.write_kubeconfig(kubeconfig)
            answers = await asyncio.gather(*(api.request(PODS, timeout_seconds=5) for _ in range(8)))
            assert [answer.status for answer in answers] == [200] * 8, "once: the clock stands still"


async def test_a_watch_on_credentials_that_were_replaced_ends(tmp_path: Path) -> None:
    """The reflector opens it again; so that old connections do not pile up."""
    async with StandInApiServer(token="first") as server:  # noqa: S106 - as above
        kubeconfig = server.write_kubeconfig(tmp_path / "kubeconfig")
        async with await connect(kubeconfig) as api, api.stream(WATCH, silence_seconds=5) as lines:
            server.rotate(token="second")  # noqa: S106 - as above
            server.write_kubeconfig(kubeconfig)
            assert (await api.request(PODS, timeout_seconds=5)).status == 200
            with pytest.raises(UnreachableError):
                await anext(lines)


async def test_a_kubeconfig_that_vanished_leaves_the_refusal(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with StandInApiServer(token="first") as server:  # noqa: S106 - as above
        kubeconfig = server.write_kubeconfig(tmp_path / "kubeconfig")
        async with await connect(kubeconfig) as api:
            server.rotate(token="second")  # noqa: S106 - as above
            kubeconfig.unlink()
            assert (await api.request(PODS, timeout_seconds=5)).status == 401
    assert caplog.messages == ["credentials for the API server cannot be loaded again"], "and no word of the library"


def log_in_with(kubeconfig: Path, user: dict[str, object]) -> Path:
    """Rewrite a kubeconfig so that its user has these credentials and no other."""
    content = json.loads(kubeconfig.read_text())
    content["users"][0]["user"] = user
    kubeconfig.write_text(json.dumps(content))
    return kubeconfig


async def test_the_token_of_an_exec_plugin_goes_out(tmp_path: Path) -> None:
    version = "client.authentication.k8s.io/v1"
    credential = {"kind": "ExecCredential", "apiVersion": version, "status": {"token": "secret"}}
    plugin = {
        "apiVersion": version,
        "command": sys.executable,
        "args": ["-c", f"print({json.dumps(credential)!r})"],
        "interactiveMode": "Never",
    }
    async with StandInApiServer(token="secret") as server:  # noqa: S106 - as above
        kubeconfig = log_in_with(server.write_kubeconfig(tmp_path / "kubeconfig"), {"exec": plugin})
        async with await connect(kubeconfig) as api:
            assert (await api.request(PODS, timeout_seconds=5)).status == 200


# Certificates.


async def test_a_client_certificate_is_shown_to_a_server_that_wants_one(tmp_path: Path) -> None:
    authority = trustme.CA()
    context = tls_of(authority)
    context.verify_mode = ssl.CERT_REQUIRED
    authority.configure_trust(context)
    issued = authority.issue_cert("client@example.org")
    issued.cert_chain_pems[0].write_to_path(tmp_path / "tls.crt")
    issued.private_key_pem.write_to_path(tmp_path / "tls.key")
    shown: dict[str, object] = {
        "client-certificate": str(tmp_path / "tls.crt"),
        "client-key": str(tmp_path / "tls.key"),
    }
    async with StandInApiServer(tls=context, ca=pem(authority)) as server:
        kubeconfig = server.write_kubeconfig(tmp_path / "kubeconfig")
        async with await connect(kubeconfig) as api:
            with pytest.raises(UnreachableError):
                await api.request(PODS, timeout_seconds=5)
        async with await connect(log_in_with(kubeconfig, shown)) as api:
            assert (await api.request(PODS, timeout_seconds=5)).status == 200


def tls_of(authority: trustme.CA) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    return context


def pem(authority: trustme.CA) -> str:
    return authority.cert_pem.bytes().decode()


async def test_a_rotated_ca_is_read_when_the_handshake_fails(tmp_path: Path) -> None:
    old, new = trustme.CA(), trustme.CA()
    async with StandInApiServer(tls=tls_of(old), ca=pem(old)) as server:
        kubeconfig = server.write_kubeconfig(tmp_path / "kubeconfig")
        async with await connect(kubeconfig) as api:
            assert (await api.request(PODS, timeout_seconds=5)).status == 200
            await server.stop()
            server.rotate(tls=tls_of(new), ca=pem(new))
            await server.start()
            server.write_kubeconfig(kubeconfig)
            assert (await api.request(PODS, timeout_seconds=5)).status == 200


async def test_a_new_certificate_of_the_same_ca_needs_nothing(tmp_path: Path) -> None:
    authority = trustme.CA()
    async with (
        StandInApiServer(tls=tls_of(authority), ca=pem(authority)) as server,
        await connect(server.write_kubeconfig(tmp_path / "kubeconfig")) as api,
    ):
        await server.stop()
        server.rotate(tls=tls_of(authority))
        await server.start()
        (tmp_path / "kubeconfig").unlink()
        assert (await api.request(PODS, timeout_seconds=5)).status == 200


async def test_a_server_that_is_not_trusted_is_unreachable(tmp_path: Path) -> None:
    async with (
        StandInApiServer(tls=tls_of(trustme.CA()), ca=pem(trustme.CA())) as server,
        await connect(server.write_kubeconfig(tmp_path / "kubeconfig")) as api,
    ):
        with pytest.raises(UnreachableError, match="certificate verify failed") as raised:
            await api.request(PODS, timeout_seconds=5)
        assert not raised.value.may_have_arrived
        assert "ssl:" not in str(raised.value), "what aiohttp calls its settings"
        with pytest.raises(UnreachableError, match="certificate verify failed"):
            await api.request(PODS, timeout_seconds=5)


# Settings.


@pytest.fixture
def service_account(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The files that the kubelet mounts into a pod."""
    monkeypatch.setattr("neuron_plugin.cluster.credentials.SERVICE_ACCOUNT", tmp_path)
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "127.0.0.1")
    return tmp_path


async def test_in_a_pod_the_token_is_read_again_before_the_old_one_expires(
    service_account: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    authority = trustme.CA()
    async with StandInApiServer(token="first", tls=tls_of(authority), ca=pem(authority)) as server:  # noqa: S106 - as above
        monkeypatch.setenv("KUBERNETES_SERVICE_PORT", server.url.rpartition(":")[2])
        (service_account / "token").write_text("first")
        (service_account / "ca.crt").write_text(pem(authority))
        time = FakeTime()
        async with await connect(None, clock=Clock(now=time)) as api:
            assert (await api.request(PODS, timeout_seconds=5)).status == 200
            (service_account / "token").write_text("second")
            server.rotate(token="second")  # noqa: S106 - as above
            time.now += TOKEN_SECONDS
            assert (await api.request(PODS, timeout_seconds=5)).status == 200
            assert len(server.requests) == 2, "it was not refused first"


async def test_in_a_pod_the_service_account_is_used_and_its_new_token_read(
    service_account: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    authority = trustme.CA()
    async with StandInApiServer(token="first", tls=tls_of(authority), ca=pem(authority)) as server:  # noqa: S106 - as above
        monkeypatch.setenv("KUBERNETES_SERVICE_PORT", server.url.rpartition(":")[2])
        (service_account / "token").write_text("first")
        (service_account / "ca.crt").write_text(pem(authority))
        async with await connect(None) as api:
            assert (await api.request(PODS, timeout_seconds=5)).status == 200
            server.rotate(token="second")  # noqa: S106 - as above
            (service_account / "token").write_text("second")
            assert (await api.request(PODS, timeout_seconds=5)).status == 200


async def test_in_a_pod_a_token_that_became_empty_is_an_error_of_its_own(
    service_account: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    authority = trustme.CA()
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "1")
    (service_account / "token").write_text("first")
    (service_account / "ca.crt").write_text(pem(authority))
    async with await connect(None) as api:
        (service_account / "token").write_text("")
        with pytest.raises(ConnectionSettingsError, match=r"token file .* is empty; is the service account's volume"):
            await api.request(PODS, timeout_seconds=5)


async def test_in_a_pod_a_token_that_vanished_is_an_error_of_its_own(
    service_account: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    authority = trustme.CA()
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "1")
    (service_account / "token").write_text("first")
    (service_account / "ca.crt").write_text(pem(authority))
    async with await connect(None) as api:
        (service_account / "token").unlink()
        with pytest.raises(ConnectionSettingsError, match=r"No such file .* is the service account's volume mounted"):
            await api.request(PODS, timeout_seconds=5)


@pytest.mark.usefixtures("service_account")
async def test_outside_of_a_pod_and_without_a_kubeconfig_there_is_an_error_that_says_what_to_do() -> None:
    with pytest.raises(
        ConnectionSettingsError, match=r"the pod's service account: .*; expected to run in a pod, or a kub"
    ):
        await connect(None)


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


def exec_plugin(script: str, **fields: object) -> dict[str, object]:
    """A user whose credentials a program prints."""
    plugin = {"apiVersion": EXEC_VERSIONS[0], "command": sys.executable, "args": ["-c", script], **fields}
    return {"exec": plugin}


async def test_a_kubeconfig_whose_exec_plugin_waits_for_input_is_an_error_that_names_it(tmp_path: Path) -> None:
    kubeconfig = log_in_with(
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
    kubeconfig = log_in_with(StandInApiServer().write_kubeconfig(tmp_path / "kubeconfig"), user)
    with pytest.raises(ConnectionSettingsError, match=said):
        await connect(kubeconfig)


async def test_an_exec_plugin_is_asked_again_when_what_it_gave_has_expired(tmp_path: Path) -> None:
    """Before a request is refused: each answer says how long it is good for."""
    script = (
        f"import json, pathlib; file = pathlib.Path({str(tmp_path / 'asked')!r})\n"
        "asked = file.read_text() if file.exists() else ''; file.write_text(asked + 'x')\n"
        "when = '2100-01-01T00:00:00Z' if asked else '2000-01-01T00:00:00Z'\n"
        "print(json.dumps({'status': {'token': 'new' if asked else 'old', 'expirationTimestamp': when}}))"
    )
    async with StandInApiServer(token="new") as server:  # noqa: S106 - as above
        kubeconfig = log_in_with(server.write_kubeconfig(tmp_path / "kubeconfig"), exec_plugin(script))
        async with await connect(kubeconfig) as api:
            assert [(await api.request(PODS, timeout_seconds=5)).status for _ in range(2)] == [200, 200]
        assert len(server.requests) == 2, "none was refused"
    assert (tmp_path / "asked").read_text() == "xx"


async def test_an_exec_plugin_learns_what_it_is_asked_for(tmp_path: Path) -> None:
    script = (
        "import json, os; asked = json.loads(os.environ['KUBERNETES_EXEC_INFO'])\n"
        "token = f\"{asked['kind']} {asked['spec']['cluster']['server'][:4]} {os.environ['ROLE']}\"\n"
        "print(json.dumps({'status': {'token': token.replace(' ', '-')}}))"
    )
    asked = exec_plugin(script, provideClusterInfo=True, env=[{"name": "ROLE", "value": "reader"}])
    async with StandInApiServer(token="ExecCredential-http-reader") as server:  # noqa: S106 - as above
        kubeconfig = log_in_with(server.write_kubeconfig(tmp_path / "kubeconfig"), asked)
        async with await connect(kubeconfig) as api:
            assert (await api.request(PODS, timeout_seconds=5)).status == 200


async def test_a_token_file_is_read_and_comes_before_a_token(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("secret\n")
    async with StandInApiServer(token="secret") as server:  # noqa: S106 - as above
        user: dict[str, object] = {"tokenFile": "token", "token": "old"}
        kubeconfig = log_in_with(server.write_kubeconfig(tmp_path / "kubeconfig"), user)
        async with await connect(kubeconfig) as api:
            assert (await api.request(PODS, timeout_seconds=5)).status == 200


async def test_the_name_in_the_servers_certificate_may_be_another_than_its_address(tmp_path: Path) -> None:
    authority = trustme.CA()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("api.example").configure_cert(context)
    async with StandInApiServer(tls=context, ca=pem(authority)) as server:
        kubeconfig = server.write_kubeconfig(tmp_path / "kubeconfig")
        async with await connect(kubeconfig) as api:
            with pytest.raises(UnreachableError, match="certificate verify failed"):
                await api.request(PODS, timeout_seconds=5)
        for more in ({"tls-server-name": "api.example"}, {"insecure-skip-tls-verify": True}):
            content = json.loads(kubeconfig.read_text())
            content["clusters"][0]["cluster"] |= more
            (tmp_path / "other").write_text(json.dumps(content))
            async with await connect(tmp_path / "other") as api:
                assert (await api.request(PODS, timeout_seconds=5)).status == 200


async def test_a_missing_kubeconfig_is_an_error_that_names_it(tmp_path: Path) -> None:
    with pytest.raises(ConnectionSettingsError, match=r"nowhere: No such file or directory: .*; expected a kubeconfig"):
        await connect(tmp_path / "nowhere")


PODS = ApiRequest("GET", "/api/v1/pods")
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


def test_without_a_proxy_in_the_environment_there_is_none() -> None:
    assert _environment_proxy(BY_ADDRESS) is None


def test_each_scheme_has_its_own(environment: pytest.MonkeyPatch) -> None:
    environment.setenv("HTTPS_PROXY", PROXY)
    assert _environment_proxy(BY_NAME) == PROXY
    assert _environment_proxy("http://api.example") is None


def test_a_proxy_without_a_scheme_is_an_http_one(environment: pytest.MonkeyPatch) -> None:
    environment.setenv("https_proxy", "proxy.example:3128")
    assert _environment_proxy(BY_NAME) == PROXY


@pytest.mark.parametrize(
    ("no_proxy", "url"),
    [
        ("*", BY_ADDRESS),
        ("172.20.0.1", BY_ADDRESS),
        ("172.20.0.1:443", BY_ADDRESS),
        (".eks.amazonaws.com", BY_NAME),
        ("EKS.amazonaws.com", BY_NAME),
        ("abc.gr7.eu-west-1.eks.amazonaws.com", BY_NAME),
        ("", "https://127.0.0.1:6443"),
        ("", "https://[::1]:6443"),
        ("", "https://localhost:6443"),
    ],
)
def test_what_no_proxy_means_is_called_directly(environment: pytest.MonkeyPatch, no_proxy: str, url: str) -> None:
    environment.setenv("HTTPS_PROXY", PROXY)
    environment.setenv("NO_PROXY", no_proxy)
    assert _environment_proxy(url) is None


@pytest.mark.parametrize(
    ("no_proxy", "url"),
    [
        ("", BY_ADDRESS),
        ("172.21.0.0/16,10.0.0.0/8,.svc,,", BY_ADDRESS),
        ("172.20.0.1:8443", BY_ADDRESS),
        ("amazonaws.org,s.amazonaws.com", BY_NAME),
    ],
)
def test_what_no_proxy_does_not_mean_is_not(environment: pytest.MonkeyPatch, no_proxy: str, url: str) -> None:
    environment.setenv("HTTPS_PROXY", PROXY)
    environment.setenv("NO_PROXY", no_proxy)
    assert _environment_proxy(url) == PROXY


# Which connections the client opens. The simulated server plays the proxy: a request to a proxy has the same path.


def kubeconfig_behind_a_proxy(path: Path, **more: str) -> Path:
    content = json.loads(StandInApiServer().write_kubeconfig(path).read_text())
    content["clusters"][0]["cluster"] |= {"server": "http://api.example"} | more
    path.write_text(json.dumps(content))
    return path


async def test_a_proxy_that_the_environment_names_is_used(
    server: StandInApiServer, tmp_path: Path, environment: pytest.MonkeyPatch
) -> None:
    environment.setenv("http_proxy", server.url)
    async with await connect(kubeconfig_behind_a_proxy(tmp_path / "kubeconfig")) as api:
        assert (await api.request(PODS, timeout_seconds=5)).status == 200


async def test_in_a_pod_no_proxy_is_used(
    service_account: Path, monkeypatch: pytest.MonkeyPatch, environment: pytest.MonkeyPatch
) -> None:
    authority = trustme.CA()
    environment.setenv("HTTPS_PROXY", "http://127.0.0.1:9")
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "172.20.0.1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "443")
    (service_account / "token").write_text("first")
    (service_account / "ca.crt").write_text(pem(authority))
    async with await connect(None) as api:
        assert api._client.proxy is None


async def test_the_kubeconfigs_own_proxy_comes_first(
    server: StandInApiServer, tmp_path: Path, environment: pytest.MonkeyPatch
) -> None:
    environment.setenv("http_proxy", server.url)
    no_server = {"proxy-url": "http://127.0.0.1:9"}
    async with await connect(kubeconfig_behind_a_proxy(tmp_path / "kubeconfig", **no_server)) as api:
        with pytest.raises(UnreachableError, match=r"127\.0\.0\.1:9") as raised:
            await api.request(PODS, timeout_seconds=5)
    assert not raised.value.may_have_arrived


@pytest.mark.parametrize("proxy", ["", "http://127.0.0.1:9"])
async def test_a_netrc_of_the_machine_stands_in_no_tokens_way(
    tmp_path: Path, environment: pytest.MonkeyPatch, proxy: str
) -> None:
    (tmp_path / "netrc").write_text("default login another password anything\n")
    environment.setenv("NETRC", str(tmp_path / "netrc"))
    environment.setenv("http_proxy", proxy)
    async with (
        StandInApiServer(token="secret") as server,  # noqa: S106 - a simulated server's
        await connect(server.write_kubeconfig(tmp_path / "kubeconfig")) as api,
    ):
        assert (await api.request(PODS, timeout_seconds=5)).status == 200


# What comes before a kubeconfig.

TWO = """
current-context: one
clusters:
- {name: one, cluster: {server: "https://one", certificate-authority: ca.crt, tls-server-name: name}}
- {name: two, cluster: {server: "http://two/"}}
users:
- {name: plain, user: {token: t1}}
- {name: acting, user: {token: t2, as: anna, as-uid: u1, as-groups: [g1, g2], as-user-extra: {Reason: [why]}}}
contexts:
- {name: one, context: {cluster: one, user: plain, namespace: ml}}
- {name: two, context: {cluster: two, user: acting}}
"""
ANNA = (
    ("Impersonate-User", "anna"),
    ("Impersonate-Uid", "u1"),
    ("Impersonate-Group", "g1"),
    ("Impersonate-Group", "g2"),
    ("Impersonate-Extra-reason", "why"),
)


@pytest.mark.parametrize(
    ("overrides", "expected"),
    {
        "nothing": (Overrides(), ("https://one", "name", True, "Bearer t1", ())),
        "another context": (Overrides("two"), ("http://two", "", True, "Bearer t2", ANNA)),
        "another cluster": (Overrides(cluster="two"), ("http://two", "", True, "Bearer t1", ())),
        "another user": (Overrides(user="acting"), ("https://one", "name", True, "Bearer t2", ANNA)),
        "a server has the name in its address": (
            Overrides(of_cluster={"server": "https://three"}),
            ("https://three", "", True, "Bearer t1", ()),
        ),
        "a server with a name": (
            Overrides(of_cluster={"server": "https://three", "tls_server_name": "three.example"}),
            ("https://three", "three.example", True, "Bearer t1", ()),
        ),
        "no check of the server": (
            Overrides(of_cluster={"insecure_skip_tls_verify": True}),
            ("https://one", "name", False, "Bearer t1", ()),
        ),
        "a token": (Overrides(of_user={"token": "t3"}), ("https://one", "name", True, "Bearer t3", ())),
        "as somebody": (
            Overrides(of_user={"as_": "ben", "as_groups": ("g",)}),
            ("https://one", "name", True, "Bearer t1", (("Impersonate-User", "ben"), ("Impersonate-Group", "g"))),
        ),
    }.values(),
)
async def test_what_is_given_comes_before_the_kubeconfig(
    tmp_path: Path, overrides: Overrides, expected: tuple[object, ...]
) -> None:
    trustme.CA().cert_pem.write_to_path(str(tmp_path / "ca.crt"))
    (tmp_path / "kubeconfig").write_text(TWO)
    found = await of_kubeconfig([tmp_path / "kubeconfig"], overrides)
    verified = found.tls is None or found.tls.verify_mode is ssl.CERT_REQUIRED
    assert (found.server, found.tls_server_name, verified, found.authorization, found.acts_as) == expected


async def test_a_server_alone_needs_no_kubeconfig() -> None:
    assert (await of_kubeconfig([], Overrides(of_cluster={"server": "http://three"}))).server == "http://three"
    with pytest.raises(CredentialsError, match="no current-context is set"):
        await of_kubeconfig([])


async def test_groups_to_act_as_need_a_user(tmp_path: Path) -> None:
    (tmp_path / "kubeconfig").write_text(TWO)
    with pytest.raises(CredentialsError, match="no user to act as"):
        await of_kubeconfig([tmp_path / "kubeconfig"], Overrides("two", of_user={"as_": ""}))


async def test_each_request_says_as_whom_it_is_made(tmp_path: Path) -> None:
    heads = list[str]()

    async def answer(writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")
        await writer.drain()

    async with api_of(answer, tmp_path, heads=heads):
        raw = Kubeconfig((tmp_path / "raw",), Overrides(of_user={"as_": "anna", "as_groups": ("g1", "g2")}))
        async with await connect(raw) as api:
            assert (await api.request(PODS, timeout_seconds=5)).status == 200
    said = [line for line in heads[0].splitlines() if line.startswith("Impersonate")]
    assert said == ["Impersonate-User: anna", "Impersonate-Group: g1", "Impersonate-Group: g2"]
