"""``nodes`` and ``pods`` from a desk: the same from the API server and from an extender, once and while watched."""

from __future__ import annotations

import re
import time
from argparse import Namespace
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from neuron_plugin.allocation import PodUid
from neuron_plugin.allocation.utilization import ContainerUtilization
from neuron_plugin.cli.cluster_views import Views, cluster_views
from neuron_plugin.cluster.leases import LEADER_LEASE
from neuron_plugin.cluster.objects import NODES as NODE_OBJECTS
from neuron_plugin.monitor.api import Monitor
from neuron_plugin.monitor.pages import inspection_routes
from neuron_plugin.placement.leadership import Readiness
from neuron_plugin.placement.reserves import RECORDS_KEY, ReserveRecord, write_records
from neuron_plugin.simulation.api_server_kinds import LEASES, AnyJson
from neuron_plugin.simulation.api_server_kinds import NODES as NODE_KIND
from tests.cli.cases import CORE, DEVICE, NODES, PODS
from tests.cli.doubles import Background, Cli
from tests.support.api_server import Fault, Match, StandInApiServer
from tests.support.manifests import container, gated_manifest, pod_manifest
from tests.support.world import World


@pytest.fixture
def world() -> World:
    world = World(version=1000)
    for node in NODES:
        world.show_node(node)
    for pod in PODS:
        world.show(pod)
    return world


@pytest.fixture
def extender(background: Background, world: World) -> Iterator[str]:
    ready = Readiness({})
    monitor, app = Monitor(world.state, ready), web.Application()
    app.add_routes([*monitor.routes(), *inspection_routes(world.state, ready)])
    runner = web.AppRunner(app)

    async def start() -> str:
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        return f"http://127.0.0.1:{runner.addresses[0][1]}"

    async def stop() -> None:
        monitor.stop()
        await runner.cleanup()

    yield background.do(start())
    background.do(stop())


def test_pods_shows_how_much_each_container_uses_its_cores_and_for_how_long_it_is_idle(
    cli: Cli, world: World, extender: str
) -> None:
    used = {
        "main": ContainerUtilization(73, 48 * 2**30),
        "eval": ContainerUtilization(0, 2**29, idle_since=int(time.time()) - 7500),
    }
    world.state.see_utilization("trn-1", {PodUid(PODS[0]["metadata"]["uid"]): used})

    outcome = cli("pods", "--extender", extender, "-o", "wide")
    rows = {tuple(row[:2]): row for row in outcome.rows if row}
    assert rows["default/train", "main"][6:8] == ["73%", "-"]
    assert rows["default/train", "eval"][6:8] == ["0%", "2h5m"]
    assert "48.0Gi" in rows["default/train", "main"]
    assert outcome.out.splitlines()[-1].endswith("cores on 2 nodes, 1 device idle")
    nodes = {row[0]: row for row in cli("nodes", "--extender", extender, "-o", "wide").rows if row}
    assert nodes["trn-1"][nodes["NODE"].index("IDLE")] == "4"


@pytest.mark.parametrize("command", ["nodes", "pods"])
@pytest.mark.parametrize("form", ["text", "wide", "json", "yaml"])
def test_an_extender_says_the_same_as_the_api_server(
    cli: Cli, kubeconfig: Path, extender: str, command: str, form: str
) -> None:
    from_server = cli(command, "--kubeconfig", kubeconfig, "-o", form)
    from_extender = cli(command, "--extender", f"{extender}/", "-o", form)

    assert from_server.status == from_extender.status == 0
    assert comparable(from_extender.out) == comparable(from_server.out)


def comparable(text: str) -> str:
    """Without what two servers count or make up by themselves."""
    return re.sub(r"(?m)^.*(resourceVersion|uid|created\b).*\n|\"uid\": .*", "", text)


@pytest.mark.parametrize("words", [("nodes",), ("explain", "train")])
def test_what_takes_longer_than_the_request_timeout_is_given_up(
    cli: Cli, server: StandInApiServer, kubeconfig: Path, words: tuple[str, ...]
) -> None:
    server.fail(Fault(Match("GET"), times=99, delay_seconds=600.0))
    shown = cli(*words, "--kubeconfig", kubeconfig, "--request-timeout", "200ms")
    assert (shown.status, "not all was answered within 0.2 s, the --request-timeout" in shown.err) == (1, True)


def test_an_extender_shows_the_same_tree(
    cli: Cli, server: StandInApiServer, kubeconfig: Path, world: World, extender: str
) -> None:
    labels = {"topology.kubernetes.io/zone": "z", "topology.k8s.aws/network-node-layer-1": "nn-1"}
    server.patch_node("trn-1", {"metadata": {"labels": labels}})
    for node in server.objects(NODE_KIND):
        world.show_node(node)
    tree = cli("nodes", "--tree", "--kubeconfig", kubeconfig).out
    assert "\n    trn-1" in tree
    assert cli("nodes", "--tree", "--extender", extender).out == tree
    assert cli("nodes", "web-1", "--tree", "--extender", extender).rows[1][:4] == ["web-1", "1", "0", "0/0"]


def test_an_extender_knows_what_became_of_pods(cli: Cli, extender: str, world: World) -> None:
    released = pod_manifest("released", DEVICE, 1)
    for pod in (gated_manifest("gated", DEVICE, 8), gated_manifest("promised", CORE, 2, promised=("trn-1", "12,13"))):
        world.show(pod)
    world.show(released)
    world.pod("odd", containers=[container("main", CORE, "1.5")])
    world.state.history.released[PodUid(released["metadata"]["uid"])] = "it has resource claims"

    shown = cli("pods", "--extender", extender)
    rows = {row[0]: row for row in shown.rows if row}
    assert rows["default/gated"][2:9] == ["-", "neuron:8", "-", "-", "-", "-", "Gated:"]
    assert rows["default/promised"][2:] == ["trn-1", "neuroncore:2", "6", "12-13", "-", "-", "Promised"]
    assert rows["default/released"][8:] == ["Released:", "it", "has", "resource", "claims"]
    assert (rows["default/odd"][8], "'1.5'" in shown.out) == ("Waiting:", True), "the reason why it cannot be served"
    assert "waiting (1 gated), 1 promised, 1 allocated" in shown.out
    assert "default/promised" in cli("pods", "--node", "trn-1", "--extender", extender).out
    summary = cli("nodes", "trn-1", "--extender", extender).out.splitlines()[-1]
    assert ("8 free" in summary, "3 pods there" in summary, summary.endswith("(1 gated)")) == (True, True, True)


def test_an_extender_that_is_none_and_a_node_that_it_does_not_know(cli: Cli, extender: str) -> None:
    for words, said in (
        (("nodes", "ghost", "--extender", extender), "there is no node ghost"),
        (("pods", "--extender", f"{extender}/elsewhere"), "is it an extender?"),
    ):
        outcome = cli(*words)
        assert (outcome.status, said in outcome.err, outcome.err.count("\n")) == (1, True, 1)


async def do(work: Callable[[], Any]) -> None:
    work()


def watched(**arguments: object) -> Iterator[Views]:
    usual = {"extender": "", "kubeconfig": None, "context": "", "selector": "", "watch": True}
    usual |= {"instance_types": None, "lease_namespace": None}
    return cluster_views(Namespace(**(usual | arguments)), NODE_OBJECTS)


def waiting(views: Views) -> list[str]:
    return [pod.name for pod in views.pods if pod.status.phase == "Waiting"]


def test_a_watch_of_an_extender_goes_on_with_each_change(background: Background, world: World, extender: str) -> None:
    views = watched(extender=extender)
    assert waiting(next(views)) == ["waiting"]

    background.do(do(lambda: world.pod("another", DEVICE, 1)))
    assert waiting(next(views)) == ["another", "waiting"]

    background.do(do(lambda: world.gone(PODS[3])))
    assert waiting(next(views)) == ["another"]
    views.close()  # type: ignore[attr-defined]  # it is a generator


def test_the_first_view_of_a_watch_has_the_renewals(
    background: Background, server: StandInApiServer, kubeconfig: Path
) -> None:
    lease = {"metadata": {"name": "neuron-plugin-trn-1"}, "spec": {"renewTime": "2026-11-22T16:00:00.000000Z"}}
    background.do(do(lambda: server.create(LEASES, lease, "kube-system")))

    views = watched(kubeconfig=kubeconfig, lease_namespace="kube-system")

    found = {node.name: node.status.last_renewal for node in next(views).nodes}
    assert found["trn-1"] == "2026-11-22T16:00:00.000000Z"
    views.close()  # type: ignore[attr-defined]  # it is a generator


def test_a_watch_of_an_api_server_goes_on_with_each_change(
    background: Background, server: StandInApiServer, kubeconfig: Path
) -> None:
    views = watched(kubeconfig=kubeconfig, lease_namespace="")
    assert waiting(next(views)) == ["waiting"]

    background.do(do(lambda: server.create_pod(pod_manifest("another", DEVICE, 1))))
    assert waiting(next(views)) == ["another", "waiting"]
    views.close()  # type: ignore[attr-defined]  # it is a generator


def kept_by_leader(cores: str, holder: str = "one") -> AnyJson:
    """The leader's Lease, by which cores of trn-1 are reserved."""
    record = ReserveRecord("default/serve/0#1", "default", "serve/0 rank 1", "trn-1", cores, group="default/serve/0")
    says = {RECORDS_KEY: write_records([record] if cores else [])}
    return {"metadata": {"name": LEADER_LEASE, "annotations": says}, "spec": {"holderIdentity": holder}}


def test_what_the_leader_has_reserved_is_nobody_else_s_in_the_eyes_of_every_command(
    cli: Cli, server: StandInApiServer, kubeconfig: Path
) -> None:
    source = ("--kubeconfig", kubeconfig)
    server.create_pod(pod_manifest("small", DEVICE, 1))
    assert "trn-1: fits" in cli("explain", "small", *source).out
    server.create(LEASES, kept_by_leader("12-31"), "kube-system")
    shown = cli("nodes", *source).out
    assert "open; cores 12-31 reserved for default/serve/0 rank 1" in shown
    assert "1 has 0 of 16 devices free" in cli("explain", "small", *source).out
    assert "Reserved" in cli("describe", "node", "trn-1", *source).out
    assert re.search(r"small +neuron=1 +fits", cli("plan", *source).out) is None
    server.change(LEASES, LEADER_LEASE, {"spec": {"holderIdentity": ""}}, "kube-system")
    assert "trn-1: fits" in cli("explain", "small", *source).out, "nobody keeps it"


@pytest.mark.parametrize(
    ("namespaces", "status", "is_seen"),
    [(["neuron"], 200, True), (["kube-system", "another"], 200, True), (["neuron"], 403, False)],
)
def test_the_leases_are_found_where_the_leader_s_is(
    cli: Cli, server: StandInApiServer, kubeconfig: Path, namespaces: list[str], status: int, *, is_seen: bool
) -> None:
    for number, namespace in enumerate(namespaces):
        server.create(LEASES, kept_by_leader("" if number else "12-31"), namespace)
    if status != 200:
        server.fail(Fault(Match(path="/coordination.k8s.io/v1/leases$"), status=status))
    assert ("reserved for default/serve/0 rank 1" in cli("nodes", "--kubeconfig", kubeconfig).out) is is_seen
    elsewhere = cli("nodes", "--kubeconfig", kubeconfig, "--lease-namespace", "elsewhere")
    assert "reserved for" not in elsewhere.out


def test_a_watch_goes_on_when_the_leader_reserves_something(
    background: Background, server: StandInApiServer, kubeconfig: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("neuron_plugin.cli.cluster_views.LEADER_SECONDS", 0.1)
    background.do(do(lambda: server.create(LEASES, kept_by_leader(""), "kube-system")))
    views = watched(kubeconfig=kubeconfig, lease_namespace="kube-system")
    reserved = {node.name: node.status.reserved for node in next(views).nodes}
    assert reserved["trn-1"] == ()
    background.do(do(lambda: server.change(LEASES, LEADER_LEASE, kept_by_leader("12-31"), "kube-system")))
    (kept,) = {node.name: node.status.reserved for node in next(views).nodes}["trn-1"]
    assert (kept.pod, kept.cores) == ("default/serve/0 rank 1", tuple(range(12, 32)))
    views.close()  # type: ignore[attr-defined]  # it is a generator
