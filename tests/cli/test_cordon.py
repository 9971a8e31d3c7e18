"""``neuron-plugin cordon`` and ``uncordon``."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

from neuron_plugin.allocation.keys import DISABLE_KEY
from neuron_plugin.simulation.api_server_kinds import NODES
from tests.cli.doubles import Cli, Outcome
from tests.support.api_server import StandInApiServer


def changed(cli: Cli, kubeconfig: Path, *commands: tuple[str, ...]) -> tuple[list[Outcome], str | None]:
    """What the commands say one after the other, and the annotation in the end."""

    async def play() -> tuple[list[Outcome], str | None]:
        async with StandInApiServer() as server:
            server.create_node({"metadata": {"name": "worker-1"}})
            config = str(server.write_kubeconfig(kubeconfig))
            said = [await asyncio.to_thread(cli, *words, "--kubeconfig", config) for words in commands]
            return said, server.get(NODES, "worker-1")["metadata"].get("annotations", {}).get(DISABLE_KEY)

    return asyncio.run(play())


def test_devices_are_disabled_and_enabled_and_what_is_disabled_now_is_said(cli: Cli, tmp_path: Path) -> None:
    said, left = changed(
        cli,
        tmp_path / "kubeconfig",
        ("cordon", "worker-1", "5-7"),
        ("uncordon", "worker-1", "6"),
        ("cordon", "worker-1", "5"),
    )
    assert [each.out for each in said] == [
        "node worker-1: devices 5-7 disabled; disabled now: 5-7 (pods that have them keep them)\n",
        "node worker-1: device 6 enabled; disabled now: 5,7 (pods that have them keep them)\n",
        "node worker-1: nothing to change; disabled now: 5,7 (pods that have them keep them)\n",
    ]
    assert left == "5,7"


def test_without_devices_uncordon_enables_all(cli: Cli, tmp_path: Path) -> None:
    said, left = changed(cli, tmp_path / "kubeconfig", ("cordon", "worker-1", "5,7"), ("uncordon", "worker-1"))
    assert said[1].out == "node worker-1: devices 5,7 enabled; no device is disabled now\n"
    assert left is None


def test_a_document_says_what_was_and_what_is_disabled(cli: Cli, tmp_path: Path) -> None:
    said, _ = changed(
        cli, tmp_path / "kubeconfig", ("cordon", "worker-1", "5"), ("cordon", "worker-1", "7", "-o", "json")
    )
    assert json.loads(said[1].out) == {"version": 1, "node": "worker-1", "disabledBefore": [5], "disabled": [5, 7]}


def test_what_is_no_list_of_ids_is_a_wrong_argument(cli: Cli) -> None:
    shown = cli("cordon", "worker-1", "neuron5")
    assert (shown.status, "'neuron5' is no id" in shown.err) == (2, True)


def test_a_node_that_is_not_there_is_named(cli: Cli, tmp_path: Path) -> None:
    (said,), _ = changed(cli, tmp_path / "kubeconfig", ("cordon", "wroker-1", "5"))
    assert said.status == 1
    assert said.err == "neuron-plugin: there is no node wroker-1: see 'kubectl get nodes' for the names\n"
