"""One state, offered under every resource name."""

from __future__ import annotations

from pathlib import Path

from neuron_plugin.allocation import Holding, Resource
from neuron_plugin.kubelet import DevicePluginServer, KubeletCounters
from neuron_plugin.plugin.node import NodeState
from neuron_plugin.plugin.offering import Offering, Route
from tests.kubelet.fakes import FakeHandler
from tests.plugin.world import CORE, DEVICE, NEURON, a_state, devices, machine, ref


def an_offering(state: NodeState, *resources: Resource) -> Offering:
    route = Route(DevicePluginServer, Path("/nowhere"), Path("/nowhere-else"))
    return Offering(state, FakeHandler(), resources, route, KubeletCounters())


def versions(offering: Offering) -> dict[Resource, int]:
    return {resource: each.latest.version for resource, each in offering._advertisements.items()}


def test_each_resource_has_its_server_and_its_own_list() -> None:
    offering = an_offering(a_state(), NEURON, CORE)
    offering.refresh()
    assert [server.resource for server in offering.servers] == [NEURON.value, CORE.value]
    listed = {resource: len(each.latest.devices) for resource, each in offering._advertisements.items()}
    assert listed == {NEURON: 16, CORE: 32}


def test_p16_nothing_is_published_when_nothing_changed() -> None:
    state = a_state()
    offering = an_offering(state, NEURON, DEVICE)
    offering.refresh()
    before = versions(offering)
    offering.refresh()
    assert versions(offering) == before


def test_p57_a_holding_is_news_under_the_other_names_in_one_edition() -> None:
    state = a_state()
    offering = an_offering(state, NEURON, DEVICE, CORE)
    offering.refresh()
    before = versions(offering)
    state.hold(ref("a"), Holding("app", NEURON, devices(0, 1, 2, 3)))
    offering.refresh()
    assert versions(offering) == {NEURON: before[NEURON], DEVICE: before[DEVICE] + 1, CORE: before[CORE] + 1}


def test_p15_before_any_hardware_is_seen_nothing_is_published() -> None:
    state = NodeState()
    offering = an_offering(state, NEURON)
    before = versions(offering)
    offering.refresh()
    assert versions(offering) == before
    state.see_machine(machine())
    offering.refresh()
    assert versions(offering) != before


async def test_p13_stopping_what_never_ran_is_harmless() -> None:
    await an_offering(a_state(), NEURON).stop()
