"""What befalls a whole node: which deed is possible when, and what it leads to."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from neuron_plugin.cluster import ApiRequest
from neuron_plugin.simulation import SimulatedCluster, node_faults
from neuron_plugin.simulation.api_server_kinds import Refusal
from neuron_plugin.simulation.machines import NODE_FAULTS_PATH
from neuron_plugin.simulation.node_faults import NodeFaults


@pytest.fixture
def faults(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> NodeFaults:
    """Of a cluster of one node."""
    monkeypatch.setattr(node_faults, "REBOOT_SECONDS", 0)
    cluster = SimulatedCluster(tmp_path, {"cpu-1": "cpu"})
    cluster.played["cpu-1"].register()
    return NodeFaults(cluster)


async def told(faults: NodeFaults, path: str) -> str:
    response = await faults.answer(ApiRequest("POST", NODE_FAULTS_PATH + path))
    return str(msgspec.json.decode(response.body)["message"])


async def test_a_kubelet_is_stopped_and_started(faults: NodeFaults) -> None:
    assert "its kubelet is stopped" in await told(faults, "cpu-1/kubelet/stop")
    assert faults._cluster.silent_nodes() == {"cpu-1"}
    for deed in ("stop", "restart"):
        with pytest.raises(Refusal, match="the kubelet of node cpu-1 does not run"):
            await told(faults, f"cpu-1/kubelet/{deed}")
    assert "its kubelet runs again" in await told(faults, "cpu-1/kubelet/start")
    with pytest.raises(Refusal, match="the kubelet of node cpu-1 runs"):
        await told(faults, "cpu-1/kubelet/start")
    assert "its kubelet has started again" in await told(faults, "cpu-1/kubelet/restart")
    assert faults._cluster.silent_nodes() == set()


async def test_a_lost_machine_can_only_come_back_and_a_stopped_kubelet_hinders_no_reboot(faults: NodeFaults) -> None:
    assert "the machine is lost; it is not ready after 10 s" in await told(faults, "cpu-1/machine/lost")
    for deed in ("kubelet/restart", "machine/reboot", "machine/lost"):
        with pytest.raises(Refusal, match="node cpu-1 is lost"):
            await told(faults, f"cpu-1/{deed}")
    assert "the machine is back" in await told(faults, "cpu-1/machine/back")
    with pytest.raises(Refusal, match="node cpu-1 is not lost"):
        await told(faults, "cpu-1/machine/back")
    await told(faults, "cpu-1/kubelet/stop")
    assert "the machine has started again" in await told(faults, "cpu-1/machine/reboot")
    assert faults._cluster.silent_nodes() == set()


@pytest.mark.parametrize("path", ["nobody/machine/lost", "cpu-1/machine/stop", "cpu-1/kubelet", "cpu-1"])
async def test_an_unknown_node_or_deed_is_refused(faults: NodeFaults, path: str) -> None:
    with pytest.raises(Refusal) as refusal:
        await told(faults, path)
    assert refusal.value.code == 404
