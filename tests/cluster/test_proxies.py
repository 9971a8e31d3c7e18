from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from neuron_plugin.cluster.api import ApiRequest, UnreachableError
from neuron_plugin.cluster.proxies import proxy_for
from neuron_plugin.cluster.transport import connect
from neuron_plugin.simulation import StandInApiServer

if TYPE_CHECKING:
    from pathlib import Path

PODS = ApiRequest("GET", "/api/v1/pods")
PROXY = "http://proxy.example:3128"
IN_A_POD = "https://172.20.0.1:443"
BY_NAME = "https://abc.gr7.eu-west-1.eks.amazonaws.com:443"


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """One that names no proxy, whatever the machine's own does."""
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    return monkeypatch


def test_without_a_proxy_in_the_environment_there_is_none() -> None:
    assert proxy_for(IN_A_POD) is None


def test_each_scheme_has_its_own(environment: pytest.MonkeyPatch) -> None:
    environment.setenv("HTTPS_PROXY", PROXY)
    assert proxy_for(BY_NAME) == PROXY
    assert proxy_for("http://api.example") is None


def test_a_proxy_without_a_scheme_is_an_http_one(environment: pytest.MonkeyPatch) -> None:
    environment.setenv("https_proxy", "proxy.example:3128")
    assert proxy_for(BY_NAME) == PROXY


@pytest.mark.parametrize(
    ("no_proxy", "url"),
    [
        ("*", IN_A_POD),
        ("172.20.0.1", IN_A_POD),
        ("localhost, 172.20.0.0/16 ,10.0.0.0/8", IN_A_POD),
        ("172.20.0.1:443", IN_A_POD),
        ("fd00::/8", "https://[fd00:10::1]:443"),
        ("[fd00:10::1]", "https://[fd00:10::1]:443"),
        ("fd00:10::1", "https://[fd00:10::1]"),
        (".eks.amazonaws.com", BY_NAME),
        ("*.eks.amazonaws.com", BY_NAME),
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
    assert proxy_for(url) is None


@pytest.mark.parametrize(
    ("no_proxy", "url"),
    [
        ("", IN_A_POD),
        ("172.21.0.0/16,10.0.0.0/8,.svc,,", IN_A_POD),
        ("172.20.0.1:8443", IN_A_POD),
        ("172.20.0.0/99", IN_A_POD),
        ("fd00::/8", IN_A_POD),
        ("amazonaws.org,s.amazonaws.com", BY_NAME),
        (".abc.gr7.eu-west-1.eks.amazonaws.com", BY_NAME),
    ],
)
def test_what_no_proxy_does_not_mean_is_not(environment: pytest.MonkeyPatch, no_proxy: str, url: str) -> None:
    environment.setenv("HTTPS_PROXY", PROXY)
    environment.setenv("NO_PROXY", no_proxy)
    assert proxy_for(url) == PROXY


# What the transport makes of it. The stand-in plays the proxy: of a request to one the path is the same.


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


async def test_the_kubeconfigs_own_proxy_comes_first(
    server: StandInApiServer, tmp_path: Path, environment: pytest.MonkeyPatch
) -> None:
    environment.setenv("http_proxy", server.url)
    nobody = {"proxy-url": "http://127.0.0.1:9"}
    async with await connect(kubeconfig_behind_a_proxy(tmp_path / "kubeconfig", **nobody)) as api:
        with pytest.raises(UnreachableError, match=r"127\.0\.0\.1:9") as raised:
            await api.request(PODS, timeout_seconds=5)
    assert not raised.value.may_have_arrived


@pytest.mark.parametrize("proxy", ["", "http://127.0.0.1:9"])
async def test_a_netrc_of_the_machine_stands_in_no_tokens_way(
    tmp_path: Path, environment: pytest.MonkeyPatch, proxy: str
) -> None:
    (tmp_path / "netrc").write_text("default login somebody password anything\n")
    environment.setenv("NETRC", str(tmp_path / "netrc"))
    environment.setenv("http_proxy", proxy)
    async with (
        StandInApiServer(token="secret") as server,  # noqa: S106 - a stand-in's
        await connect(server.write_kubeconfig(tmp_path / "kubeconfig")) as api,
    ):
        assert (await api.request(PODS, timeout_seconds=5)).status == 200
