from __future__ import annotations

import asyncio
import json
import ssl
import subprocess
import sys
from datetime import datetime
from typing import TYPE_CHECKING, Any

import pytest
import trustme
from hypothesis import given
from hypothesis import strategies as st

from neuron_plugin.cluster.api import ApiError, ApiRequest, ConnectionSettingsError, UnreachableError, send
from neuron_plugin.cluster.transport import KubernetesApi, connect, split_lines
from neuron_plugin.simulation.api_server import Fault, Match, StandInApiServer

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

PODS = ApiRequest("GET", "/api/v1/pods")
WATCH = ApiRequest("GET", "/api/v1/pods", {"watch": "true", "resourceVersion": "1", "allowWatchBookmarks": "true"})
MANIFEST = {"metadata": {"name": "a"}, "spec": {"containers": []}}


class FakeTime:
    """A clock that stands until it is told to go on."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def test_importing_the_room_does_not_import_the_library() -> None:
    """It takes some of the start, and the kubelet is to be served first."""
    script = (
        "import sys, pkgutil, importlib, neuron_plugin.cluster as room\n"
        "for module in pkgutil.iter_modules(room.__path__): importlib.import_module(f'{room.__name__}.{module.name}')\n"
        "print([name for name in ('kubernetes', 'aiohttp') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=30, check=True)  # noqa: S603 - our own interpreter and text
    assert done.stdout == "[]\n"


def test_connecting_imports_nothing_of_the_library_that_is_not_used(tmp_path: Path) -> None:
    """The other half of it costs seconds at start, and tens of megabytes for good."""
    StandInApiServer().write_kubeconfig(tmp_path / "kubeconfig")
    script = (
        "import asyncio, pathlib, sys\n"
        "from neuron_plugin.cluster.transport import connect\n"
        "async def main():\n"
        "    async with await connect(pathlib.Path(sys.argv[1])): pass\n"
        "asyncio.run(main())\n"
        "unused = ('kubernetes.client', 'kubernetes.aio.dynamic', 'requests', 'jsonschema')\n"
        "models = [name for name in sys.modules if name.startswith('kubernetes.aio.client.models.')]\n"
        "print([name for name in unused if name in sys.modules], models, 'kubernetes.aio.config' in sys.modules)"
    )
    command = [sys.executable, "-c", script, str(tmp_path / "kubeconfig")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True)  # noqa: S603 - as above
    assert done.stdout == "[] [] True\n"


# Requests.


async def test_a_get_returns_status_and_bytes(server: StandInApiServer, api: KubernetesApi) -> None:
    server.create_pod(MANIFEST)
    response = await api.request(PODS, timeout_seconds=5)
    assert response.status == 200
    assert json.loads(response.body)["items"][0]["metadata"]["name"] == "a"


async def test_a_refusal_is_returned_not_raised(api: KubernetesApi) -> None:
    response = await api.request(ApiRequest("GET", "/api/v1/namespaces/default/pods/none"), timeout_seconds=5)
    assert response.status == 404
    assert json.loads(response.body)["reason"] == "NotFound"


async def test_selectors_arrive_as_they_were_meant(server: StandInApiServer, api: KubernetesApi) -> None:
    query = {"labelSelector": "a in (x, y),b!=c d", "fieldSelector": "spec.nodeName=n1", "limit": "500"}
    await api.request(ApiRequest("GET", "/api/v1/pods", query), timeout_seconds=5)
    assert server.requests[-1].query == query


async def test_a_patch_goes_out_with_its_content_type_and_its_nulls(
    server: StandInApiServer, api: KubernetesApi
) -> None:
    server.create_pod({"metadata": {"name": "a", "annotations": {"old": "1"}}, "spec": {}})
    patch: dict[str, object] = {"metadata": {"annotations": {"old": None, "new": "ü"}}}
    request = ApiRequest("PATCH", "/api/v1/namespaces/default/pods/a", {}, patch, "application/merge-patch+json")
    body = await send(api, request, timeout_seconds=5)
    assert json.loads(body)["metadata"]["annotations"] == {"new": "ü"}
    assert server.requests[-1].content_type == "application/merge-patch+json"


async def test_a_slow_server_is_given_up_at_the_deadline(server: StandInApiServer, api: KubernetesApi) -> None:
    server.fail(Fault(gate=(gate := asyncio.Event())))
    with pytest.raises(UnreachableError, match=r"GET /api/v1/pods: no answer within 0\.05 s") as raised:
        await api.request(PODS, timeout_seconds=0.05)
    assert raised.value.may_have_arrived
    gate.set()


async def test_t45_a_slow_answer_holds_up_no_other(server: StandInApiServer, api: KubernetesApi) -> None:
    server.fail(Fault(Match(method="POST"), gate=(gate := asyncio.Event())))
    creation = ApiRequest("POST", "/api/v1/namespaces/default/pods", {}, dict(MANIFEST))
    slow = asyncio.create_task(api.request(creation, timeout_seconds=5), name="slow")
    assert (await api.request(PODS, timeout_seconds=1)).status == 200
    assert not slow.done()
    gate.set()
    assert (await slow).status == 201


async def test_t40_a_refused_connection_cannot_have_arrived(server: StandInApiServer, api: KubernetesApi) -> None:
    await server.stop()
    with pytest.raises(UnreachableError) as raised:
        await api.request(PODS, timeout_seconds=5)
    assert not raised.value.may_have_arrived


async def test_t40_a_lost_answer_may_have_arrived_and_has(server: StandInApiServer, api: KubernetesApi) -> None:
    server.fail(Fault(Match(method="POST"), lose_answer=True))
    creation = ApiRequest("POST", "/api/v1/namespaces/default/pods", {}, dict(MANIFEST))
    with pytest.raises(UnreachableError) as raised:
        await api.request(creation, timeout_seconds=5)
    assert raised.value.may_have_arrived
    assert (await api.request(ApiRequest("GET", "/api/v1/namespaces/default/pods/a"), timeout_seconds=5)).status == 200


async def test_a_write_is_never_sent_twice_by_itself(server: StandInApiServer, api: KubernetesApi) -> None:
    server.fail(Fault(Match(method="POST"), drop=True))
    with pytest.raises(UnreachableError):
        await api.request(ApiRequest("POST", "/api/v1/namespaces/default/pods", {}, dict(MANIFEST)), timeout_seconds=5)
    assert sum(seen.method == "POST" for seen in server.requests) == 1


async def test_being_cancelled_passes_through(server: StandInApiServer, api: KubernetesApi) -> None:
    server.fail(Fault(gate=(gate := asyncio.Event())))
    asking = asyncio.create_task(api.request(PODS, timeout_seconds=5), name="asking")
    while not server.requests:
        await asyncio.sleep(0.001)
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    gate.set()


# Streams.


async def test_a_stream_hands_out_lines_until_the_server_ends_it(server: StandInApiServer, api: KubernetesApi) -> None:
    server.create_pod(MANIFEST)
    async with api.stream(WATCH, silence_seconds=5) as lines:
        first = await anext(lines)
        server.patch_pod("default", "a", {"metadata": {"labels": {"x": "y"}}})
        second = await anext(lines)
        server.end_watches()
        assert [line async for line in lines] == []
    assert [json.loads(line)["type"] for line in (first, second)] == ["ADDED", "MODIFIED"]


async def test_an_event_larger_than_any_buffer_is_one_line(server: StandInApiServer, api: KubernetesApi) -> None:
    server.create_pod({"metadata": {"name": "a", "annotations": {"big": "x" * 3_000_000}}, "spec": {}})
    async with api.stream(WATCH, silence_seconds=5) as lines:
        assert len(await anext(lines)) > 3_000_000


async def test_a_stream_that_is_refused_raises_what_the_server_said(
    server: StandInApiServer, api: KubernetesApi
) -> None:
    server.fail(Fault(status=410))
    with pytest.raises(ApiError) as raised:
        async with api.stream(WATCH, silence_seconds=5):
            pytest.fail("it was opened")
    assert raised.value.expired


async def test_a_silent_stream_is_unreachable(server: StandInApiServer, api: KubernetesApi) -> None:
    assert server.open_watches == 0
    async with api.stream(WATCH, silence_seconds=0.05) as lines:
        with pytest.raises(UnreachableError, match="GET /api/v1/pods"):
            await anext(lines)


async def test_a_cut_stream_is_unreachable(server: StandInApiServer, api: KubernetesApi) -> None:
    server.create_pod(MANIFEST)
    async with api.stream(WATCH, silence_seconds=5) as lines:
        await anext(lines)
        server.cut_watches()
        with pytest.raises(UnreachableError):
            await anext(lines)


async def test_leaving_a_stream_closes_its_connection(server: StandInApiServer, api: KubernetesApi) -> None:
    server.create_pod(MANIFEST)
    async with api.stream(WATCH, silence_seconds=5) as lines:
        await anext(lines)
        assert server.open_watches == 1
    async with asyncio.timeout(5):
        while server.open_watches:
            server._wake_watches()
            await asyncio.sleep(0.005)


# Credentials.


async def test_the_token_goes_out(tmp_path: Path) -> None:
    async with (
        StandInApiServer(token="secret") as server,  # noqa: S106 - a stand-in's
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
        async with await connect(kubeconfig, clock=time) as api:
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
        async with await connect(kubeconfig, clock=lambda: 0.0) as api:
            server.rotate(token="second")  # noqa: S106 - as above
            server.write_kubeconfig(kubeconfig)
            answers = await asyncio.gather(*(api.request(PODS, timeout_seconds=5) for _ in range(8)))
            assert [answer.status for answer in answers] == [200] * 8, "once: the clock stands still"


async def test_an_open_watch_survives_that_its_client_is_replaced(tmp_path: Path) -> None:
    async with StandInApiServer(token="first") as server:  # noqa: S106 - as above
        kubeconfig = server.write_kubeconfig(tmp_path / "kubeconfig")
        async with await connect(kubeconfig) as api, api.stream(WATCH, silence_seconds=5) as lines:
            server.rotate(token="second")  # noqa: S106 - as above
            server.write_kubeconfig(kubeconfig)
            assert (await api.request(PODS, timeout_seconds=5)).status == 200
            server.create_pod(MANIFEST)
            assert json.loads(await anext(lines))["type"] == "ADDED"


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


async def test_a_netrc_of_the_machine_stands_in_no_tokens_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "netrc").write_text("default login somebody password anything\n")
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    async with (
        StandInApiServer(token="secret") as server,  # noqa: S106 - as above
        await connect(server.write_kubeconfig(tmp_path / "kubeconfig")) as api,
    ):
        assert (await api.request(PODS, timeout_seconds=5)).status == 200


async def test_a_proxy_that_the_environment_names_is_used(
    server: StandInApiServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")  # discard: nobody listens
    async with await connect(server.write_kubeconfig(tmp_path / "kubeconfig")) as api:
        with pytest.raises(UnreachableError, match=r"127\.0\.0\.1:9"):
            await api.request(PODS, timeout_seconds=5)


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


async def test_a_server_that_is_not_trusted_is_unreachable(tmp_path: Path) -> None:
    async with (
        StandInApiServer(tls=tls_of(trustme.CA()), ca=pem(trustme.CA())) as server,
        await connect(server.write_kubeconfig(tmp_path / "kubeconfig")) as api,
    ):
        with pytest.raises(UnreachableError, match="certificate verify failed") as raised:
            await api.request(PODS, timeout_seconds=5)
        assert not raised.value.may_have_arrived
        with pytest.raises(UnreachableError, match="certificate verify failed"):
            await api.request(PODS, timeout_seconds=5)


@pytest.fixture
def service_account(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The files that the kubelet mounts into a pod."""
    incluster = pytest.importorskip("kubernetes.aio.config.incluster_config")
    monkeypatch.setattr(incluster, "SERVICE_TOKEN_FILENAME", str(tmp_path / "token"))
    monkeypatch.setattr(incluster, "SERVICE_CERT_FILENAME", str(tmp_path / "ca.crt"))
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "127.0.0.1")
    return tmp_path


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


async def test_in_a_pod_a_token_that_became_empty_is_a_trouble_of_its_own(
    service_account: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    authority = trustme.CA()
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "1")
    (service_account / "token").write_text("first")
    (service_account / "ca.crt").write_text(pem(authority))
    async with await connect(None) as api:
        hook = api._client.api_client.configuration.refresh_api_key_hook
        (service_account / "token").write_text("")
        hook.__closure__[0].cell_contents.token_expires_at = datetime.min  # noqa: DTZ901 - as the library keeps it
        with pytest.raises(ConnectionSettingsError, match="Token file exists but empty"):
            await api.request(PODS, timeout_seconds=5)


@pytest.mark.usefixtures("service_account")
async def test_outside_of_a_pod_and_without_a_kubeconfig_there_is_an_error_that_says_what_to_do() -> None:
    with pytest.raises(
        ConnectionSettingsError, match=r"the pod's service account: .*; expected to run in a pod, or a kub"
    ):
        await connect(None)


@pytest.mark.parametrize(
    "content",
    ["", "[]", "{", "clusters: []", "\x00", '{"current-context": "x", "contexts": [{"name": "x"}]}'],
)
async def test_a_useless_kubeconfig_is_an_error_that_names_it(tmp_path: Path, content: str) -> None:
    kubeconfig = tmp_path / "kubeconfig"
    kubeconfig.write_text(content)
    with pytest.raises(ConnectionSettingsError, match="expected a kubeconfig") as raised:
        await connect(kubeconfig)
    assert str(kubeconfig) in str(raised.value)


async def test_a_kubeconfig_that_waits_for_somebody_is_an_error_that_names_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def waits(*_: object, **_named: object) -> None:
        await asyncio.Event().wait()

    (tmp_path / "kubeconfig").touch()
    monkeypatch.setattr("kubernetes.aio.config.load_kube_config", waits)
    monkeypatch.setattr("neuron_plugin.cluster.transport._LOADING_SECONDS", 0.05)
    with pytest.raises(ConnectionSettingsError, match=r"kubeconfig: not loaded within 0\.05 s; does its exec plugin"):
        async with asyncio.timeout(5):
            await connect(tmp_path / "kubeconfig")


async def test_a_missing_kubeconfig_is_an_error_that_names_it(tmp_path: Path) -> None:
    with pytest.raises(ConnectionSettingsError, match="nowhere"):
        await connect(tmp_path / "nowhere")


# Lines.


async def chunks_of(chunks: list[bytes]) -> AsyncIterator[bytes]:
    for chunk in chunks:
        yield chunk


async def lines_of(chunks: list[bytes], **options: Any) -> list[bytes]:
    return [line async for line in split_lines(chunks_of(chunks), **options)]


@given(st.lists(st.binary(max_size=6).map(lambda data: data.replace(b"a", b"\n"))))
async def test_lines_do_not_depend_on_how_the_bytes_were_cut(chunks: list[bytes]) -> None:
    assert await lines_of(chunks) == b"".join(chunks).split(b"\n")[:-1]


async def test_what_was_cut_off_in_the_middle_is_dropped() -> None:
    assert await lines_of([b"one\ntw", b"o\nthr", b"ee"]) == [b"one", b"two"]


async def test_an_endless_line_is_refused() -> None:
    with pytest.raises(ValueError, match="longer than 10 bytes"):
        await lines_of([b"1234", b"5678", b"9abc"], max_bytes=10)
    assert await lines_of([b"1234\n5678\n", b"9abc\n"], max_bytes=10) == [b"1234", b"5678", b"9abc"]
