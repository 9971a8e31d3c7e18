from __future__ import annotations

import asyncio
from collections.abc import Iterable
from pathlib import Path

import pytest

from neuron_plugin.allocation import Holding, Resource
from neuron_plugin.hardware import Process, ResetState
from neuron_plugin.kubelet import NotYetError
from neuron_plugin.plugin.counts import Counts
from neuron_plugin.plugin.device_users import DeviceUsers
from neuron_plugin.plugin.gate import StartGate
from neuron_plugin.plugin.node import NodeState
from neuron_plugin.plugin.quarantine import Quarantine, Users
from neuron_plugin.simulation import SimulatedNode, write_node
from tests.plugin.world import INF2, app, devices, machine, pod


class FakeUsers(DeviceUsers):
    """Who has a device open, by script; ``looks`` counts how often that was asked."""

    def __init__(self) -> None:
        self.opened: dict[int, tuple[Process, ...]] = {}
        self.looks = 0

    async def users(self, devices: Iterable[int]) -> Users:
        self.looks += 1
        return Users({one: self.opened.get(one, ()) for one in devices}, complete=True, moment=0.0)


class Gate:
    """A gate on an Inf2 machine where pod ``new`` has just been given devices 2 and 3."""

    def __init__(self, node: SimulatedNode, patience_seconds: float = 0.0) -> None:
        self.node = node
        self.state = NodeState(quarantine=Quarantine(30.0))
        self.state.see_machine(machine(INF2))
        self.old, self.new = pod("old", app(2)), pod("new", app(2))
        for each in (self.old, self.new):
            self.state.see_pod(each)
        self.state.confirm(self.old.pod, [Holding("app", Resource.NEURON, devices(2, 3, geometry=INF2))])
        self.users = FakeUsers()
        self.counts = Counts()
        self.gate = StartGate(
            self.state, self.users, node.paths.sysfs, counts=self.counts, patience_seconds=patience_seconds
        )

    def lose_old(self) -> None:
        self.state.lose_pod(self.old.pod.uid)
        self.state.hold(self.new.pod, Holding("app", Resource.NEURON, devices(2, 3, geometry=INF2)))

    async def start(self) -> None:
        await self.gate.pass_through(Resource.NEURON, (2, 3))


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> SimulatedNode:
    return write_node(tmp_path_factory.mktemp("machine") / "node", "inf2.48xlarge", usage_counters=False)


@pytest.fixture
def gate(node: SimulatedNode) -> Gate:
    return Gate(node)


async def test_a_container_whose_devices_nobody_uses_starts(gate: Gate) -> None:
    await gate.start()
    assert not gate.counts.starts_held


async def test_p60_a_process_of_a_vanished_pod_holds_the_container_and_is_named(gate: Gate) -> None:
    gate.lose_old()
    gate.users.opened = {3: (Process(41, "python train.py", "uid-old"),)}
    with pytest.raises(NotYetError, match=r"process 41 \(python train.py\) still has neuron3 open"):
        await gate.start()


async def test_what_a_pod_has_open_that_nobody_knows_yet_holds_nobody(gate: Gate) -> None:
    gate.users.opened = {2: (Process(41, "neuron-monitor", "uid-of-a-monitor"),)}
    gate.state.see_strangers(await gate.users.users(range(12)), ())
    assert gate.state.quarantine is not None
    assert not gate.state.quarantine.suspects, "all of the device is held"
    gate.users.opened = {5: gate.users.opened[2]}
    gate.state.see_strangers(await gate.users.users(range(12)), ())
    assert gate.state.quarantine.suspects
    await gate.gate.pass_through(Resource.NEURON, (5,))


async def test_p46_what_counts_are_the_devices_that_were_given_and_not_those_that_the_kubelet_drew(gate: Gate) -> None:
    drawn, given = devices(6, 9, geometry=INF2), devices(6, 7, geometry=INF2)
    gate.state.hold(gate.new.pod, Holding("app", Resource.NEURON, given, drawn))
    gate.users.opened = {9: (Process(41, "neuron-top"),)}
    await gate.gate.pass_through(Resource.NEURON, (6, 9))
    gate.users.opened = {7: (Process(41, "neuron-top"),)}
    with pytest.raises(NotYetError, match="neuron7"):
        await gate.gate.pass_through(Resource.NEURON, (6, 9))


async def test_where_nobody_knows_what_was_given_for_its_ids_a_container_is_judged_by_them(gate: Gate) -> None:
    gate.users.opened = {5: (Process(41, "neuron-top"),)}
    with pytest.raises(NotYetError, match="neuron5"):
        await gate.gate.pass_through(Resource.NEURON, (5,))


async def test_a_process_of_no_pod_holds_the_container(gate: Gate) -> None:
    gate.users.opened = {2: (Process(41, "neuron-top"),)}
    with pytest.raises(NotYetError, match="neuron-top"):
        await gate.start()
    assert gate.counts.starts_held_now[Resource.NEURON] == 0


@pytest.mark.parametrize("uid", ["uid-new", "uid-old", "uid-of-a-monitor"])
async def test_processes_of_live_pods_hold_nobody(gate: Gate, uid: str) -> None:
    """Its own, a neighbour's with cores of the same device, one that only watches."""
    gate.users.opened = {2: (Process(41, "python", uid),)}
    await gate.start()


async def test_a_probe_holds_nobody(gate: Gate) -> None:
    gate.users.opened = {2: (Process(41, "neuron-ls", uses=False),)}
    await gate.start()


async def test_a_reset_under_way_holds_the_container(node: SimulatedNode) -> None:
    gate = Gate(node)
    node.set_reset(3, ResetState.RESETTING)
    try:
        with pytest.raises(NotYetError, match="neuron3 is being reset"):
            await gate.start()
    finally:
        node.set_reset(3, ResetState.READY)
    await gate.start()


async def test_a_device_without_a_reset_file_holds_nobody(node: SimulatedNode) -> None:
    gate = Gate(node)
    node.remove_attribute(11, "reset")
    await gate.gate.pass_through(Resource.NEURON, (11,))


async def test_what_passes_within_the_call_is_waited_for(node: SimulatedNode) -> None:
    gate = Gate(node, patience_seconds=30.0)
    gate.users.opened = {2: (Process(41, "train"),)}
    starting = asyncio.create_task(gate.start(), name="start")
    async with asyncio.timeout(10):
        while not gate.users.looks:
            await asyncio.sleep(0.01)
        while not gate.counts.starts_held_now[Resource.NEURON]:
            await asyncio.sleep(0.01)
        assert not starting.done()
        gate.users.opened = {}
        await starting
    assert gate.counts.starts_held_now[Resource.NEURON] == 0
    assert gate.counts.starts_held[Resource.NEURON] == 1


async def test_before_any_hardware_was_seen_nobody_is_held(tmp_path: Path) -> None:
    await StartGate(NodeState(), FakeUsers(), tmp_path).pass_through(Resource.NEURONCORE, (1,))
