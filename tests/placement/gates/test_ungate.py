"""Gated pods are released by hand: ``neuron-plugin ungate``."""

from __future__ import annotations

import asyncio
from pathlib import Path

import msgspec
import pytest

from neuron_plugin.allocation.keys import GATE, NODE_KEY, POD_UID_KEY
from neuron_plugin.cli.main import main
from neuron_plugin.placement.gates import writes
from neuron_plugin.placement.gates.ungate import release_gated
from tests.placement.gates.bench import NEURON, GatesBench
from tests.support.api_server import Fault, Match

PATCH = Match(method="PATCH", path="/pods/")
OTHER_GATE = "kueue.x-k8s.io/admission"


async def test_all_pods_with_the_gate_are_released_and_no_others(gated: GatesBench) -> None:
    for number in range(3):
        gated.pod(f"train-{number}")
    gated.pod("queued", gates=(GATE, OTHER_GATE))
    gated.pod("others", gates=(OTHER_GATE,))
    released, refused = await release_gated(gated.api, None)
    assert sorted(released) == ["default/queued", "default/train-0", "default/train-1", "default/train-2"]
    assert not refused
    assert [gated.gates(name) for name in ("train-0", "queued", "others")] == [[], [OTHER_GATE], [OTHER_GATE]]
    assert gated.terms("train-0") == []


async def test_only_the_pods_that_were_named_are_released(gated: GatesBench) -> None:
    gated.pod("one")
    gated.pod("two")
    assert await release_gated(gated.api, ["default/two", "default/nosuch"]) == (["default/two"], {})
    assert (gated.gates("one"), gated.gates("two")) == ([GATE], [])


async def test_what_was_planned_for_a_member_goes(gated: GatesBench) -> None:
    uid = gated.pod("worker-0", NEURON, 8)["metadata"]["uid"]
    planned = {NODE_KEY: "a", POD_UID_KEY: uid, "NEURON_DEVS": "0,1,2,3,4,5,6,7"}
    gated.server.patch_pod("default", "worker-0", {"metadata": {"annotations": planned}})
    await release_gated(gated.api, ["default/worker-0"])
    assert gated.annotations("worker-0").keys().isdisjoint(writes.WRITTEN_KEYS)
    assert gated.terms("worker-0") == []


async def test_a_pod_that_changed_at_that_moment_is_read_again(gated: GatesBench) -> None:
    gated.pod("train")
    gated.server.fail(Fault(PATCH, status=409))
    assert await release_gated(gated.api, None) == (["default/train"], {})


async def test_a_refusal_is_said_of_its_pod_and_the_others_are_released(gated: GatesBench) -> None:
    gated.pod("one")
    gated.pod("two")
    gated.server.fail(Fault(Match(method="PATCH", path="/pods/one$"), status=403))
    released, refused = await release_gated(gated.api, None)
    assert released == ["default/two"]
    assert list(refused) == ["default/one"]


async def test_the_command_names_whom_it_released(
    gated: GatesBench, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kubeconfig = str(gated.server.write_kubeconfig(tmp_path / "config"))
    gated.pod("train")
    flags = ["--kubeconfig", kubeconfig]
    assert await asyncio.to_thread(main, ["ungate", "train", "nosuch", *flags]) == 1
    said = capsys.readouterr()
    assert "pod default/train is released" in said.out
    assert "pod default/nosuch is not released: it is not there, or does not have the gate" in said.err
    assert gated.gates("train") == []
    assert await asyncio.to_thread(main, ["ungate", "--all", "-o", "json", *flags]) == 0
    assert msgspec.json.decode(capsys.readouterr().out) == {"version": 1, "released": [], "refused": {}}
    gated.pod("kept")
    assert await asyncio.to_thread(main, ["ungate", "--all", "-n", "ml", *flags]) == 0
    assert gated.gates("kept") == [GATE], "of another namespace"
    gated.server.fail(Fault(PATCH, status=403))
    assert await asyncio.to_thread(main, ["ungate", "--all", *flags]) == 1
    assert "pod default/kept keeps its gate" in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [["ungate"], ["ungate", "train", "--all"]])
def test_it_is_said_whom_to_release(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 2
    assert "--all" in capsys.readouterr().err
