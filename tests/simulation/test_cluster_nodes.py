"""Nodes without a machine: they have what their type has, and their pods run with what was chosen, or with the best."""

from __future__ import annotations

from typing import Any

import pytest

from neuron_plugin.allocation.inventory import read_inventory
from neuron_plugin.allocation.keys import INVENTORY_KEY
from neuron_plugin.cluster.leases import LEASE_PREFIX
from neuron_plugin.simulation.api_server import SimulatedApiServer
from neuron_plugin.simulation.api_server_kinds import LEASES, NODES, PODS
from neuron_plugin.simulation.cluster_nodes import RENEW_SECONDS, PlayedNode


@pytest.fixture
def api() -> SimulatedApiServer:
    return SimulatedApiServer()


def played(api: SimulatedApiServer) -> PlayedNode:
    node = PlayedNode(api, "a", "trn1.32xlarge", 0)
    node.register()
    return node


def bound(api: SimulatedApiServer, name: str, count: int, **annotations: str) -> None:
    limits = {"aws.amazon.com/neuron": str(count)} if count else {}
    api.create_pod(
        {"metadata": {"name": name}, "spec": {"containers": [{"name": "m", "resources": {"limits": limits}}]}}
    )
    api.bind("default", name, node="a", annotations=annotations)


def looked(api: SimulatedApiServer, node: PlayedNode) -> dict[str, Any]:
    """The pods by name once the node has looked at them."""
    node.look(api.objects(PODS))
    return {pod["metadata"]["name"]: pod for pod in api.objects(PODS)}


def inventory(api: SimulatedApiServer) -> Any:
    return read_inventory(api.get(NODES, "a")["metadata"]["annotations"][INVENTORY_KEY])


def test_a_node_has_its_devices_at_once_and_a_cpu_node_none(api: SimulatedApiServer) -> None:
    played(api)
    status = api.get(NODES, "a")["status"]
    counts = [status["allocatable"][f"aws.amazon.com/{name}"] for name in ("neuron", "neurondevice", "neuroncore")]
    assert counts == ["16", "16", "32"]
    assert inventory(api).geometry.device_count == 16
    PlayedNode(api, "c", "cpu", 0).register()
    plain = api.get(NODES, "c")
    assert "aws.amazon.com/neuron" not in plain["status"]["capacity"]
    assert "annotations" not in plain["metadata"]


def test_a_pod_runs_with_its_assignment_or_with_the_best_of_what_is_free(api: SimulatedApiServer) -> None:
    node = played(api)
    bound(api, "assigned", 4, NEURON_DEVS="0,1,2,3", NEURON_ALLOC_TIME="1", NEURON_ALLOCATED="false")
    bound(api, "other", 4)
    bound(api, "plain", 0)
    pods = looked(api, node)
    assert {pod["status"]["phase"] for pod in pods.values()} == {"Running"}
    assert {pods[name]["metadata"]["annotations"]["NEURON_ALLOCATED"] for name in ("assigned", "other")} == {"true"}
    assert pods["assigned"]["metadata"]["annotations"]["NEURON_DEVS"] == "0,1,2,3"
    given = pods["other"]["metadata"]["annotations"]["NEURON_DEVS"].split(",")
    assert len(given) == 4
    assert set(given).isdisjoint("0123")


def test_a_pod_that_finds_too_little_fails_as_at_a_kubelet(api: SimulatedApiServer) -> None:
    node = played(api)
    bound(api, "a-whole", 16)
    bound(api, "more", 1)
    status = looked(api, node)["more"]["status"]
    assert (status["phase"], status["reason"]) == ("Failed", "UnexpectedAdmissionError")
    assert status["message"] == "No free Neuron device"


def test_a_deleted_pod_ends_and_the_node_says_that_it_has_vanished(api: SimulatedApiServer) -> None:
    node = played(api)
    bound(api, "a-pod", 1)
    uid = looked(api, node)["a-pod"]["metadata"]["uid"]
    api.delete_pod("default", "a-pod")
    assert looked(api, node) == {}
    assert inventory(api).vanished_pods == (uid,)


def test_a_lost_object_is_made_again_and_the_lease_renewed(api: SimulatedApiServer) -> None:
    node = played(api)
    node.upkeep(100.0)
    (lease,) = api.objects(LEASES)
    assert (lease["metadata"]["name"], lease["spec"]["holderIdentity"]) == (f"{LEASE_PREFIX}a", "a")
    version = lease["metadata"]["resourceVersion"]
    node.upkeep(100.0 + RENEW_SECONDS - 1)
    assert api.objects(LEASES)[0]["metadata"]["resourceVersion"] == version
    api.delete_node("a")
    node.upkeep(100.0 + RENEW_SECONDS)
    assert api.objects(LEASES)[0]["metadata"]["resourceVersion"] != version
    assert inventory(api).geometry.device_count == 16


async def test_a_node_that_is_silent_does_nothing_until_it_is_back(api: SimulatedApiServer) -> None:
    node = played(api)
    await node.power_off()
    bound(api, "late", 1)
    assert looked(api, node)["late"]["status"]["phase"] == "Pending"
    api.delete_node("a")
    node.upkeep(100.0)
    assert api.objects(NODES) == []
    played(api)
    await node.power_on()
    assert api.get(PODS, "late", "default")["status"]["phase"] == "Running"
