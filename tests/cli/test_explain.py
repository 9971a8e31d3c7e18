from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from aiohttp import web

from neuron_plugin.allocation import Resource
from neuron_plugin.allocation.keys import PREFIX
from neuron_plugin.monitor.pages import inspection_routes
from neuron_plugin.placement.leadership import Readiness
from neuron_plugin.simulation.api_server_kinds import NODES, PODS
from tests.cli.doubles import Background, Cli
from tests.support.api_server import StandInApiServer
from tests.support.manifests import node_manifest, pod_manifest
from tests.support.world import World

DEVICE = Resource.NEURON


@pytest.fixture
def server(empty_server: StandInApiServer) -> StandInApiServer:
    """A cluster of two nodes, one of them taken."""
    empty_server.create_node(node_manifest("free", "trn1.32xlarge"))
    empty_server.create_node(node_manifest("taken", "trn1.32xlarge"))
    devices = ",".join(str(device) for device in range(16))
    empty_server.create_pod(pod_manifest("holder", DEVICE, 16, node="taken", annotations={"NEURON_DEVS": devices}))
    empty_server.create_pod(pod_manifest("new", DEVICE, 4))
    empty_server.create_pod(pod_manifest("plain", DEVICE, 0))
    return empty_server


@pytest.fixture
def extender_url(extender: tuple[World, str]) -> str:
    world, url = extender
    world.node("free", "trn1.32xlarge")
    world.pod("new", DEVICE, 4)
    return url


@pytest.fixture
def extender(background: Background) -> Iterator[tuple[World, str]]:
    world = World()
    app = web.Application()
    app.add_routes(inspection_routes(world.state, Readiness({})))
    runner = web.AppRunner(app)

    async def start() -> str:
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        return f"http://127.0.0.1:{runner.addresses[0][1]}"

    yield world, background.do(start())
    background.do(runner.cleanup())


def test_what_other_pods_leave_of_cpu_and_ports_and_where_a_volume_is_are_looked_at(
    cli: Cli, background: Background, kubeconfig: Path, server: StandInApiServer
) -> None:
    def container(cpu: str) -> dict[str, object]:
        return {"name": "main", "resources": {"requests": {"cpu": cpu}}, "ports": [{"hostPort": 80}]}

    async def fill() -> None:
        for node in ("free", "taken"):
            server.patch_status(NODES, node, {"allocatable": {"cpu": "4"}})
        server.create_pod({"metadata": {"name": "web"}, "spec": {"nodeName": "free", "containers": [container("3")]}})
        asking = pod_manifest("asking", DEVICE, 4)
        asking["spec"]["containers"][0] |= {"ports": [{"hostPort": 80}]}
        asking["spec"]["containers"][0]["resources"]["requests"] = {"cpu": "2"}
        server.create_pod(asking)
        with_volume = pod_manifest("with-volume", DEVICE, 4)
        with_volume["spec"]["volumes"] = [{"name": "data", "persistentVolumeClaim": {"claimName": "absent"}}]
        server.create_pod(with_volume)

    background.do(fill())

    found = json.loads(cli("explain", "asking", "--kubeconfig", kubeconfig, "-o", "json").out)
    assert {node["node"]: node["reasons"] for node in found["nodes"]} == {
        "free": ["has 1 of cpu left, the pod asks for 2", "has host port 80/TCP in use"],
        "taken": ["has 0 of 16 devices free"],
    }
    text = cli("explain", "with-volume", "--kubeconfig", kubeconfig).out
    assert "PersistentVolumeClaim absent does not exist.\n" in text


def test_an_extender_and_a_look_at_the_api_server_say_the_same(
    cli: Cli, background: Background, kubeconfig: Path, server: StandInApiServer, extender: tuple[World, str]
) -> None:
    world, url = extender

    async def fill() -> None:
        server.patch_node("free", {"spec": {"taints": [{"key": "team", "value": "ml", "effect": "NoSchedule"}]}})
        server.patch_status(NODES, "free", {"allocatable": {"cpu": "4"}})
        odd = {f"{PREFIX}placement": "spraed"}
        server.create_pod(pod_manifest("typo", DEVICE, 4, annotations=odd))
        gated = pod_manifest("gated", DEVICE, 4)
        gated["spec"]["schedulingGates"] = [{"name": "kueue.x-k8s.io/admission"}]
        server.create_pod(gated)
        server.create_pod(
            {
                "metadata": {"name": "web", "namespace": "default"},
                "spec": {
                    "nodeName": "free",
                    "containers": [{"name": "main", "resources": {"requests": {"cpu": "4"}}}],
                },
            }
        )
        greedy = pod_manifest("greedy", DEVICE, 4)
        greedy["spec"]["containers"][0]["resources"]["requests"] = {"cpu": "1"}
        server.create_pod(greedy)
        for node in server.objects(NODES):
            world.show_node(node)
        for pod in server.objects(PODS):
            world.show(pod)

    background.do(fill())
    for name, text in (
        ("greedy", "has 0 of cpu left, the pod asks for 1"),
        ("new", "has the taint team=ml:NoSchedule, which the pod does not tolerate"),
        ("typo", "Annotation neuron-plugin.io/placement is 'spraed', expected pack or spread"),
        ("gated", "Waits for its scheduling gate to be lifted: kueue.x-k8s.io/admission"),
        ("holder", "It was assigned main: devices 0-15"),
    ):
        looked = cli("explain", name, "--kubeconfig", kubeconfig)
        assert text in looked.out
        assert cli("explain", name, "--extender", url).out == looked.out


def test_a_running_extender_is_asked(cli: Cli, extender_url: str) -> None:
    text = cli("explain", "new", "--extender", extender_url)
    as_json = cli("explain", "new", "--extender", f"{extender_url}/", "-o", "json")
    as_yaml = cli("explain", "new", "--extender", extender_url, "-o", "yaml")

    assert "free: fits, would get main: devices 0-3" in text.out
    found = json.loads(as_json.out)
    assert (found["version"], found["nodes"][0]["fits"]) == (1, True)
    assert yaml.safe_load(as_yaml.out) == found
    asked = cli("explain", "new", "--extender", extender_url, "--node", "free", "-o", "json")
    assert [node["node"] for node in json.loads(asked.out)["nodes"]] == ["free"]


def test_an_unknown_pod_is_reported_in_the_extenders_words(cli: Cli, extender_url: str) -> None:
    outcome = cli("explain", "ghost", "--extender", extender_url)

    assert outcome.status == 1
    assert "no live pod default/ghost asks for Neuron: there is default/new" in outcome.err
