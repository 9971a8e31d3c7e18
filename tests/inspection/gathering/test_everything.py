from __future__ import annotations

from pathlib import Path

import pytest

from neuron_plugin.inspection.facts import Cluster, DeviceUsers, Facts, Kubelet
from neuron_plugin.inspection.gathering import everything
from neuron_plugin.inspection.gathering.everything import gather
from neuron_plugin.inspection.unknown import Unknown
from tests.inspection.doubles import MakeNode


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Path | None, str]]:
    """What the API server is asked for: kubeconfig and node."""
    calls: list[tuple[Path | None, str]] = []

    async def answer(kubeconfig: Path | None, node_name: str) -> Cluster:
        calls.append((kubeconfig, node_name))
        return Cluster(node_name)

    monkeypatch.setattr(everything, "gather_cluster", answer)
    monkeypatch.setattr("platform.node", lambda: "Host-1")
    return calls


def look(make_node: MakeNode, environ: dict[str, str] | None = None, **given: str) -> Facts:
    return gather({"root": str(make_node("trn1.2xlarge").root), **given}, environ or {})


def test_without_a_kubeconfig_no_api_server_is_asked(make_node: MakeNode, asked: list[object]) -> None:
    facts = look(make_node, {"KUBERNETES_SERVICE_HOST": "10.0.0.1"})  # another machine's files: not its cluster
    assert isinstance(facts.cluster, Unknown)
    assert "--kubeconfig" in facts.cluster.action
    assert asked == []


@pytest.mark.parametrize(
    ("given", "environ", "name"),
    [
        ({"node_name": "given"}, {"NODE_NAME": "environment"}, "given"),
        ({}, {"NODE_NAME": "environment"}, "environment"),
        ({}, {}, "host-1"),
    ],
)
def test_the_nodes_name_is_given_or_in_the_environment_or_the_hosts(
    make_node: MakeNode,
    asked: list[tuple[Path | None, str]],
    given: dict[str, str],
    environ: dict[str, str],
    name: str,
) -> None:
    facts = look(make_node, environ, kubeconfig="/k", **given)
    assert facts.cluster == Cluster(name)
    assert asked == [(Path("/k"), name)]


def test_in_a_pod_its_service_account_is_used(asked: list[tuple[Path | None, str]], make_node: MakeNode) -> None:
    paths = make_node("trn1.2xlarge").paths
    here = {"sysfs": str(paths.sysfs), "dev": str(paths.dev), "kubelet_dir": "/nonexistent"}
    gather(here, {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "NODE_NAME": "worker-1"})
    assert asked == [(None, "worker-1")]


def test_a_kubelet_is_expected_on_a_node_and_where_it_was_named(make_node: MakeNode, tmp_path: Path) -> None:
    assert look(make_node).kubelet.trouble is not None
    root = tmp_path / "node"
    assert gather({"root": str(root), "kubelet_dir": str(tmp_path / "k")}, {}).kubelet.trouble is None
    (root / "dev/.neuron-simulated").unlink()
    assert gather({"root": str(root)}, {}).kubelet.trouble is None


@pytest.mark.parametrize("source", ["gather_kubelet", "gather_cluster", "gather_users"])
def test_a_source_that_fails_itself_leaves_the_others(
    make_node: MakeNode, asked: list[object], monkeypatch: pytest.MonkeyPatch, source: str
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise ModuleNotFoundError("no such thing")

    async def fail_later(*_: object, **__: object) -> None:
        fail()

    monkeypatch.setattr(everything, source, fail if source == "gather_users" else fail_later)
    facts = look(make_node, kubeconfig="/k", node_name="worker-1")
    parts: dict[str, Kubelet | Cluster | DeviceUsers | Unknown | None] = {
        "gather_kubelet": facts.kubelet.trouble,
        "gather_cluster": facts.cluster,
        "gather_users": facts.users,
    }
    failed = parts.pop(source)
    assert isinstance(failed, Unknown)
    assert "no such thing" in failed.why
    assert not [part for part in parts.values() if isinstance(part, Unknown) and "no such thing" in part.why]
    assert asked or source == "gather_cluster"


def test_the_hosts_proc_is_used_where_the_host_is_mounted(make_node: MakeNode) -> None:
    root = make_node("trn1.2xlarge").root
    (root / "proc/2").mkdir(parents=True)
    (root / "proc/2/comm").write_text("kthreadd\n")
    assert gather({"root": str(root)}, {}).users == DeviceUsers()
