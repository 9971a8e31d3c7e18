from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from neuron_plugin.allocation.keys import INVENTORY_KEY
from neuron_plugin.simulation import api_server
from neuron_plugin.simulation.api_server_kinds import RESOURCE_CLAIMS
from tests.cli.doubles import Cli, Outcome
from tests.support.api_server import StandInApiServer


def uninstalled(
    cli: Cli, kubeconfig: Path, *arguments: str, claims: Iterable[dict[str, Any]] = ()
) -> tuple[Outcome, list[str]]:
    """What the command says, and which nodes are described afterwards, in a cluster with two that were."""

    async def play() -> tuple[Outcome, list[str]]:
        async with StandInApiServer() as server:
            for name in ("worker-1", "worker-2"):
                server.create_node({"metadata": {"name": name, "annotations": {INVENTORY_KEY: "{}"}}})
            for each in claims:
                server.create(RESOURCE_CLAIMS, each, "ml")
                server.patch_status(RESOURCE_CLAIMS, each["metadata"]["name"], each["status"], "ml")
            config = str(server.write_kubeconfig(kubeconfig))
            outcome = await asyncio.to_thread(cli, "uninstall-node", "--kubeconfig", config, *arguments)
            return outcome, [name for name in ("worker-1", "worker-2") if described(server, name)]

    return asyncio.run(play())


def described(server: StandInApiServer, name: str) -> bool:
    return INVENTORY_KEY in server.get(api_server.NODES, name)["metadata"].get("annotations", {})


def test_the_nodes_that_are_named_are_cleared_and_printed(cli: Cli, tmp_path: Path) -> None:
    shown, left = uninstalled(cli, tmp_path / "kubeconfig", "worker-1", "never-was")
    assert (shown.status, shown.out) == (0, "worker-1 is cleared\n")
    assert left == ["worker-2"]


def test_all_means_every_node_that_a_plugin_has_described(cli: Cli, tmp_path: Path) -> None:
    shown, left = uninstalled(cli, tmp_path / "kubeconfig", "--all")
    assert (shown.status, shown.out) == (0, "worker-1 is cleared\nworker-2 is cleared\n")
    assert left == []


def test_a_condition_that_others_write_is_not_removed(cli: Cli) -> None:
    shown = cli("uninstall-node", "worker-1", "--node-condition", "Ready")
    assert (shown.status, "the kubelet writes" in shown.err) == (2, True)


def test_where_there_is_nothing_that_is_said(cli: Cli, tmp_path: Path) -> None:
    shown, _ = uninstalled(cli, tmp_path / "kubeconfig", "never-was")
    assert (shown.status, shown.out) == (0, "nothing of the plugin's was found\n")


def test_the_cluster_is_the_one_that_kubectl_would_ask(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def play() -> Outcome:
        async with StandInApiServer() as server:
            server.create_node({"metadata": {"name": "worker-1", "annotations": {INVENTORY_KEY: "{}"}}})
            monkeypatch.setenv("KUBECONFIG", str(server.write_kubeconfig(tmp_path / "kubeconfig")))
            return await asyncio.to_thread(cli, "uninstall-node", "--all")

    shown = asyncio.run(play())
    assert (shown.status, shown.out) == (0, "worker-1 is cleared\n")


def test_a_document_says_which_nodes_were_cleared(cli: Cli, tmp_path: Path) -> None:
    shown, _ = uninstalled(cli, tmp_path / "kubeconfig", "--all", "-o", "json")
    assert json.loads(shown.out) == {"version": 1, "cleared": ["worker-1", "worker-2"], "kept": {}}
    nothing, _ = uninstalled(cli, tmp_path / "kubeconfig", "never-was", "-o", "json")
    assert json.loads(nothing.out) == {"version": 1, "cleared": [], "kept": {}}


def claim(name: str, pool: str, *, reserved: bool = True) -> dict[str, Any]:
    """A claim that has a device of a pool, and is reserved for a pod."""
    results = [{"request": "r", "driver": "neuron.aws.com", "pool": pool, "device": "neuron-0"}]
    pods = [{"resource": "pods", "name": "p", "uid": "u"}] if reserved else []
    return {
        "metadata": {"name": name, "namespace": "ml"},
        "spec": {"devices": {"requests": [{"name": "r", "exactly": {"deviceClassName": "neuron.aws.com"}}]}},
        "status": {"allocation": {"devices": {"results": results}}, "reservedFor": pods},
    }


@pytest.mark.parametrize(("flags", "status", "left"), [((), 1, ["worker-1"]), (("--force",), 0, [])])
def test_a_node_is_kept_while_pods_have_its_devices_by_claims_unless_it_is_forced(
    cli: Cli, tmp_path: Path, flags: tuple[str, ...], status: int, left: list[str]
) -> None:
    claims = [
        claim("chips", "worker-1-neuron"),
        claim("ended", "worker-2-neuron", reserved=False),
        claim("gpus", "worker-2"),
    ]
    shown, still = uninstalled(cli, tmp_path / "kubeconfig", "--all", *flags, claims=claims)
    assert (shown.status, still) == (status, left)
    assert ("worker-1 is kept: pods have its devices by claims (ml/chips)" in shown.out) == (not flags)
    assert "worker-2 is cleared" in shown.out


def test_the_downward_api_names_the_node(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NODE_NAME", "worker-2")
    shown, left = uninstalled(cli, tmp_path / "kubeconfig")
    assert (shown.out, left) == ("worker-2 is cleared\n", ["worker-1"])


@pytest.mark.parametrize(("arguments", "said"), [((), "NODE_NAME"), (("--all", "worker-1"), "exclude each other")])
def test_which_nodes_has_to_be_said_in_one_way(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], said: str
) -> None:
    monkeypatch.delenv("NODE_NAME", raising=False)
    shown = cli("uninstall-node", *arguments)
    assert (shown.status, said in shown.err) == (2, True)


def test_no_api_server_is_one_line(cli: Cli, tmp_path: Path) -> None:
    shown = cli("uninstall-node", "worker-1", "--kubeconfig", tmp_path / "none")
    assert shown.status == 2
    assert shown.err.count("\n") == 1
