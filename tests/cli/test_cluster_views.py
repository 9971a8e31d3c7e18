"""``nodes`` and ``pods`` from a desk: the same from the API server and from an extender, once and while watched."""

from __future__ import annotations

import json
import re
import time
from argparse import Namespace
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from neuron_plugin.allocation import PodUid
from neuron_plugin.allocation.rejection import NO_ASSIGNMENT
from neuron_plugin.allocation.utilization import ContainerUtilization
from neuron_plugin.cli.cluster_views import Views, cluster_views
from neuron_plugin.cluster.leases import LEADER_LEASE
from neuron_plugin.cluster.objects import NODES as NODE_OBJECTS
from neuron_plugin.monitor.api import Monitor
from neuron_plugin.placement.leadership import Readiness
from neuron_plugin.placement.reserves import RECORDS_KEY, ReserveRecord, write_records
from neuron_plugin.simulation.api_server_kinds import LEASES, AnyJson
from neuron_plugin.simulation.api_server_kinds import NODES as NODE_KIND
from tests.cli.cases import CORE, DEVICE, NODES, PODS
from tests.cli.doubles import Background, Cli
from tests.support.api_server import Fault, Match, StandInApiServer
from tests.support.manifests import container, gated_manifest, node_manifest, pod_manifest
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
    monitor = Monitor(world.state, Readiness({}))
    app = web.Application()
    app.add_routes(monitor.routes())
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


def test_nodes_shows_what_each_has_and_the_totals(cli: Cli, kubeconfig: Path) -> None:
    outcome = cli("nodes", "--kubeconfig", kubeconfig)

    assert (outcome.status, outcome.err) == (0, "")
    *rows, blank, totals = outcome.out.splitlines()
    assert [re.split(r" {2,}", row) for row in rows] == [
        ["NODE", "TYPE", "FREE", "FREE-DEVICES", "FREE-CORES", "UNHEALTHY", "DISABLED", "PODS", "STATE"],
        [
            "inf-1",
            "inf2.48xlarge",
            "12/12",
            "0-11",
            "24/24",
            "-",
            "-",
            "0",
            f"{NO_ASSIGNMENT.text}; pod default/stock is bound and has no assignment yet",
        ],
        ["trn-1", "trn1.32xlarge", "9/16", "6-11,13-15", "19/32", "12", "-", "2", "open"],
    ]
    assert blank == ""
    assert totals == (
        "2 nodes, 1 closed; 28 devices: 9 free, 6 allocated, 13 not available (1 of them unhealthy); "
        "19 of 56 cores free; 2 pods there, 1 waiting"
    )


def test_the_tree_shows_what_is_free_in_each_domain_of_the_network(
    cli: Cli, server: StandInApiServer, kubeconfig: Path, world: World, extender: str
) -> None:
    layer, zone = "topology.k8s.aws/network-node-layer-1", "topology.kubernetes.io/zone"
    server.create_node(node_manifest("trn-2", "trn1.32xlarge"))
    for name, labels in (("trn-1", {zone: "z", layer: "nn-1"}), ("trn-2", {zone: "z", layer: "nn-1"})):
        server.patch_node(name, {"metadata": {"labels": labels}})
    outcome = cli("nodes", "--tree", "--kubeconfig", kubeconfig)
    assert (outcome.status, outcome.err) == (0, "")
    assert [re.split(r" {2,}", row.rstrip()) for row in outcome.out.splitlines() if row] == [
        ["DOMAIN", "NODES", "WHOLE", "FREE", "STATE"],
        ["zone z", "2", "1", "25/32", "-"],
        ["", "network-node-layer-1 nn-1", "2", "1", "25/32", "-"],
        ["", "trn-1", "1", "0", "9/16", "open"],
        ["", "trn-2", "1", "1", "16/16", "open"],
        ["inf-1", "1", "0", "0/12", NO_ASSIGNMENT.text],
    ]
    domains = {"zone": "z", layer: "nn-1"}
    shown = json.loads(cli("nodes", "trn-2", "--tree", "-o", "json", "--kubeconfig", kubeconfig).out)
    assert shown["nodes"][0]["spec"]["domains"] == domains
    for node in server.objects(NODE_KIND):
        world.show_node(node)
    assert cli("nodes", "--tree", "--extender", extender).out == outcome.out
    assert cli("nodes", "web-1", "--tree", "--extender", extender).out.splitlines()[1].split()[:4] == [
        "web-1", "1", "0", "0/0",
    ]  # fmt: skip


def test_pods_shows_each_container_with_its_devices_and_cores(cli: Cli, kubeconfig: Path) -> None:
    outcome = cli("pods", "--kubeconfig", kubeconfig)

    *rows, _, totals = outcome.out.splitlines()
    assert [row.split() for row in rows] == [
        ["POD", "CONTAINER", "NODE", "REQUEST", "DEVICES", "CORES", "USE", "IDLE", "STATE"],
        ["default/assigned", "main", "trn-1", "neuroncore:2", "5", "10-11", "?", "-", "Assigned"],
        ["default/stock", "main", "inf-1", "neuron:1", "-", "-", "-", "-", "Bound"],
        ["default/train", "main", "trn-1", "neuron:4", "0-3", "0-7", "?", "-", "Allocated"],
        ["default/train", "eval", "trn-1", "neuroncore:1", "4", "8", "?", "-", "Allocated"],
        ["default/waiting", "main", "-", "neuron:8", "-", "-", "-", "-", "Waiting"],
    ]
    assert totals == "4 pods, 1 waiting, 1 allocated: 6 devices and 11 cores on 2 nodes"


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


def test_a_cordoned_node_and_devices_that_break_under_a_pod_are_named(
    cli: Cli, server: StandInApiServer, kubeconfig: Path
) -> None:
    server.create_node({**node_manifest("away", "inf2.48xlarge"), "spec": {"unschedulable": True}})
    server.create_node(node_manifest("sick", "inf2.xlarge", missing=[0]))
    server.create_pod(pod_manifest("held", DEVICE, 1, node="sick", annotations={"NEURON_DEVS": "0"}))

    nodes = cli("nodes", "away", "sick", "--kubeconfig", kubeconfig).out.splitlines()
    pods = cli("pods", "--node", "sick", "-o", "wide", "--kubeconfig", kubeconfig).out.splitlines()

    assert nodes[1].endswith("The node is cordoned")
    assert nodes[2].split()[5] == "0"
    assert nodes[-1].startswith(
        "2 nodes, 1 closed; 13 devices: 0 free, 1 allocated (1 of them unhealthy), 12 not available"
    )
    assert pods[1].endswith("Assigned: device 0 missing")


def test_gated_promised_and_plainly_released_pods_are_told_apart(
    cli: Cli, extender: str, world: World, server: StandInApiServer, kubeconfig: Path
) -> None:
    released = pod_manifest("released", DEVICE, 1)
    for pod in (gated_manifest("gated", DEVICE, 8), gated_manifest("promised", CORE, 2, promised=("trn-1", "12,13"))):
        server.create_pod(pod)
        world.show(pod)
    world.show(released)
    world.state.history.released[PodUid(released["metadata"]["uid"])] = "it has resource claims"

    rows = {row[0]: row for row in cli("pods", "--extender", extender).rows if row}
    assert rows["default/gated"][2:] == ["-", "neuron:8", "-", "-", "-", "-", "Gated"]
    assert rows["default/promised"][2:] == ["trn-1", "neuroncore:2", "6", "12-13", "-", "-", "Promised"]
    assert rows["default/released"][8:] == ["Released:", "it", "has", "resource", "claims"]
    for source in (("--extender", extender), ("--kubeconfig", kubeconfig)):
        assert "waiting (1 gated), 1 promised, 1 allocated" in cli("pods", *source).out
        node, _, summary = cli("nodes", "trn-1", *source).out.splitlines()[1:]
        assert re.split(" {2,}", node)[2:5] == ["8/16", "7-11,13-15", "17/32"], "a promise is taken"
        assert "3 pods there" in summary
        assert summary.endswith("(1 gated)")
    assert "default/promised" in cli("pods", "--node", "trn-1", "--extender", extender).out


def test_unknown_names_are_errors_that_name_what_there_is(cli: Cli, kubeconfig: Path) -> None:
    for arguments, error in (
        (("pods", "--node", "trn-2"), "there is no node trn-2: there are trn-1, inf-1"),
        (("nodes", "trn"), "there is no node trn: there are trn-1, inf-1"),
        (
            ("explain", "trian"),
            "no live pod default/trian asks for Neuron: there are default/assigned, default/stock, ",
        ),
        (("explain", "ml/train"), "no live pod ml/train asks for Neuron: there is default/train"),
        (("explain", "waiting", "--node", "nosuch"), "there is no node nosuch: there are inf-1, trn-1, web-1"),
    ):
        outcome = cli(*arguments, "--kubeconfig", kubeconfig, "--lease-namespace", "")
        assert (outcome.status, outcome.out) == (1, ""), arguments
        assert outcome.err.startswith(f"neuron-plugin: {error}")
    outcome = cli("pods", "--node", "web-1", "--kubeconfig", kubeconfig)
    assert (outcome.status, outcome.out) == (0, ""), "it is there, without such pods"
    assert outcome.err == "neuron-plugin: no live pod in namespace default on node web-1 asks for Neuron\n"


def with_metadata(manifest: dict[str, Any], **fields: object) -> dict[str, Any]:
    return {**manifest, "metadata": {**manifest["metadata"], **fields}}


def test_pods_are_those_of_the_context_s_namespace_or_of_all(
    cli: Cli, server: StandInApiServer, kubeconfig: Path
) -> None:
    server.create_pod(with_metadata(pod_manifest("other", DEVICE, 1), namespace="ml"))
    kubeconfig.write_text(kubeconfig.read_text().replace('"context":{', '"context":{"namespace":"ml",'))

    def shown(*arguments: str) -> list[str]:
        return cli("pods", *arguments, "-o", "name", "--kubeconfig", kubeconfig).out.split()

    assert shown() == ["pod/other"]
    assert shown("-n", "default") == ["pod/assigned", "pod/stock", "pod/train", "pod/waiting"]
    assert shown("-A") == [*shown("-n", "default"), "pod/other"]
    nothing = cli("pods", "-n", "nosuch", "--kubeconfig", kubeconfig)
    assert (nothing.status, nothing.out) == (0, "")
    assert "in namespace nosuch asks for Neuron; such pods are in default, ml: give -n or -A" in nothing.err


def test_pods_can_be_named(cli: Cli, server: StandInApiServer, kubeconfig: Path) -> None:
    server.create_pod(with_metadata(pod_manifest("other", DEVICE, 1), namespace="ml"))

    def shown(*words: str) -> tuple[int, str, str]:
        outcome = cli("pods", *words, "-o", "name", "--kubeconfig", kubeconfig)
        return outcome.status, outcome.out, outcome.err

    assert shown("train", "pod/stock") == (0, "pod/stock\npod/train\n", "")
    assert shown("ml/other") == shown("other", "-n", "ml") == (0, "pod/other\n", "")
    status, out, err = shown("other")
    assert (status, out, "no live pod default/other asks for Neuron: there is ml/other" in err) == (1, "", True)
    status, _, err = shown("train", "-A")
    assert (status, "give NAMESPACE/POD" in err) == (2, True)


def test_labels_that_no_pod_has_are_named(cli: Cli, kubeconfig: Path) -> None:
    nothing = cli("pods", "-l", "app=x", "--kubeconfig", kubeconfig)
    assert nothing.err == "neuron-plugin: no live pod in namespace default with labels app=x asks for Neuron\n"
    wrong = cli("pods", "-l", "app in (x", "--kubeconfig", kubeconfig)
    assert (wrong.status, "unable to parse requirement" in wrong.err) == (2, True)


def test_a_context_is_chosen_as_with_kubectl(cli: Cli, kubeconfig: Path) -> None:
    nothing = cli("nodes", "--kubeconfig", kubeconfig, "--context", "nosuch", "--lease-namespace", "")
    assert (nothing.status, "there is no context 'nosuch', only '" in nothing.err) == (2, True)
    kubeconfig.write_text(kubeconfig.read_text().replace('"current-context":"simulated",', ""))
    shown = cli("nodes", "--kubeconfig", kubeconfig, "--context", "simulated", "-o", "name", "--lease-namespace", "")
    assert shown.out == "node/inf-1\nnode/trn-1\n"


def test_kubectls_other_flags_come_before_the_kubeconfig(
    cli: Cli, kubeconfig: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    whole = json.loads(kubeconfig.read_text())
    whole["users"].append({"name": "nobody", "user": {"token": "wrong"}})
    kubeconfig.write_text(json.dumps(whole))
    source = ("--kubeconfig", kubeconfig, "--lease-namespace", "", "-o", "name")
    assert "node/trn-1" in cli("nodes", *source, "--as", "anna", "--as-group", "a", "--as-group", "b").out
    unknown = cli("nodes", *source, "--user", "ben")
    assert (unknown.status, "there is no user 'ben', only " in unknown.err) == (2, True)
    unknown = cli("nodes", *source, "--cluster", "none")
    assert (unknown.status, "there is no cluster 'none', only " in unknown.err) == (2, True)
    grouped = cli("nodes", *source, "--as-group", "a")
    assert (grouped.status, "no user to act as" in grouped.err) == (2, True)
    assert "node/trn-1" in cli("nodes", *source, "--request-timeout", "1m").out
    no_time = cli("nodes", *source, "--request-timeout", "soon")
    assert (no_time.status, "'soon' is no time: expected such as 5s, 1m or 0" in no_time.err) == (2, True)
    no_url = cli("nodes", *source, "--server", "127.0.0.1:1")
    assert (no_url.status, "--server is '127.0.0.1:1', expected it to begin with http" in no_url.err) == (2, True)
    address = whole["clusters"][0]["cluster"]["server"]
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("KUBECONFIG", raising=False)
    alone = cli("nodes", "-s", address, "--insecure-skip-tls-verify", "--lease-namespace", "", "-o", "name")
    assert "node/trn-1" in alone.out, "a server alone needs no kubeconfig"


@pytest.mark.parametrize("words", [("nodes",), ("explain", "train")])
def test_what_takes_longer_than_the_request_timeout_is_given_up(
    cli: Cli, server: StandInApiServer, kubeconfig: Path, words: tuple[str, ...]
) -> None:
    server.fail(Fault(Match("GET"), times=99, delay_seconds=600.0))
    shown = cli(*words, "--kubeconfig", kubeconfig, "--request-timeout", "200ms")
    assert (shown.status, "not all was answered within 0.2 s, the --request-timeout" in shown.err) == (1, True)


def test_rows_can_be_chosen_by_labels_ordered_by_a_field_and_shown_alone(
    cli: Cli, server: StandInApiServer, kubeconfig: Path
) -> None:
    server.create_node(with_metadata(node_manifest("inf-10", "inf2.xlarge"), labels={"zone": "a"}))
    server.create_pod(with_metadata(pod_manifest("labelled", DEVICE, 1), labels={"app": "train"}))
    source = ("--kubeconfig", kubeconfig, "--lease-namespace", "")

    names = [row[0] for row in cli("nodes", "--sort-by", ".spec.devices", "--no-headers", *source).rows]
    assert names == ["inf-10", "inf-1", "trn-1"], "rows alone, by the number of devices"
    free = cli("nodes", "--sort-by", "{.status.freeDevices}", "-o", "name", *source).out.split()
    assert free == ["node/inf-10", "node/trn-1", "node/inf-1"], "ids by how many there are: 1, 9 and 12"
    by_name = cli("nodes", "--sort-by", ".metadata.name", "-o", "name", *source).out.split()
    assert by_name == ["node/inf-1", "node/inf-10", "node/trn-1"]
    by_work = cli("pods", "-A", "--sort-by", ".spec.workSince", "-o", "name", *source)
    assert (by_work.status, "pod/labelled" in by_work.out) == (0, True), "null is a value of a field that is there"
    assert cli("nodes", "-l", "zone=a", "-o", "name", *source).out == "node/inf-10\n"
    assert cli("pods", "-l", "app in (train)", "-o", "name", *source).out == "pod/labelled\n"
    assert "waiting" in cli("nodes", "-l", "zone=a", *source).out.splitlines()[-1]
    unknown = cli("nodes", "--sort-by", ".spec.nosuch", *source)
    assert (unknown.status, "--sort-by .spec.nosuch: none of them has this field" in unknown.err) == (2, True)
    near = cli("nodes", "--sort-by", "unhealthy", *source).err
    assert "did you mean .status.unhealthyDevices or .status.unhealthySince or " in near
    both = cli("pods", "-l", "app=x", "--extender", "http://127.0.0.1:1")
    assert (both.status, "-l asks the API server" in both.err) == (2, True)


def test_a_pod_is_named_as_kubectl_prints_and_takes_it(cli: Cli, kubeconfig: Path) -> None:
    def explained(*arguments: str) -> str:
        return cli("explain", *arguments, "--kubeconfig", kubeconfig, "--lease-namespace", "").out

    assert explained("pod/waiting") == explained("waiting", "-n", "default") == explained("default/waiting") != ""


def test_no_connection_is_said_in_words(cli: Cli, kubeconfig: Path) -> None:
    text = kubeconfig.read_text()
    kubeconfig.write_text(re.sub(r"(https?)://127\.0\.0\.1:\d+", r"\1://127.0.0.1:1", text))

    outcome = cli("nodes", "--kubeconfig", kubeconfig, "--lease-namespace", "")

    assert outcome.status == 1
    assert "no connection to 127.0.0.1:1: Connect call failed" in outcome.err
    assert "ssl:" not in outcome.err
    assert "Error(" not in outcome.err


def test_a_document_has_the_monitor_apis_objects_and_the_totals(cli: Cli, extender: str) -> None:
    nodes = json.loads(cli("nodes", "--extender", extender, "-o", "json").out)
    pods = json.loads(cli("pods", "--extender", extender, "-o", "json").out)

    assert (nodes["version"], [node["kind"] for node in nodes["nodes"]]) == (1, ["NeuronNode"] * 2)
    assert nodes["totals"] == {
        "nodes": 2,
        "closed": 1,
        "devices": 28,
        "freeDevices": 9,
        "unhealthyDevices": 1,
        "cores": 56,
        "freeCores": 19,
        "pods": 2,
        "waitingPods": 1,
        "usedDevices": 6,
        "unhealthyUsedDevices": 0,
        "unavailableDevices": 13,
        "gatedPods": 0,
        "promisedPods": 0,
    }
    assert (pods["version"], [pod["kind"] for pod in pods["pods"]]) == (1, ["NeuronPod"] * 4)
    assert pods["totals"] == {
        "pods": 4,
        "waiting": 1,
        "allocated": 1,
        "nodes": 2,
        "devices": 6,
        "cores": 11,
        "gated": 0,
        "promised": 0,
        "idleDevices": 0,
    }


def test_nodes_and_pods_can_be_chosen(cli: Cli, extender: str) -> None:
    def first_column(*arguments: str) -> list[str]:
        rows = cli(*arguments, "--extender", extender).rows
        return [row[0] for row in rows[1 : rows.index([])]]

    assert first_column("nodes", "web-1", "trn-1") == ["trn-1", "web-1"]
    assert first_column("nodes", "--all") == ["inf-1", "trn-1", "web-1"]
    assert first_column("pods", "--node", "inf-1") == ["default/stock"]
    assert len(first_column("pods", "-A")) == 5


def test_a_pod_that_cannot_be_served_says_why(cli: Cli, background: Background, world: World, extender: str) -> None:
    background.do(do(lambda: world.pod("odd", containers=[container("main", CORE, "1.5")])))

    (row,) = (line for line in cli("pods", "--extender", extender).out.splitlines() if "odd" in line)

    assert row.split()[:2] == ["default/odd", "-"]
    assert "Waiting: " in row
    assert "1.5" in row


async def do(work: Callable[[], Any]) -> None:
    work()


@pytest.mark.parametrize(
    ("arguments", "text", "status"),
    [
        (lambda url: ["nodes", "ghost", "--extender", url], "there is no node ghost", 1),
        (lambda _: ["nodes", "--extender", "http://127.0.0.1:1"], "is the extender there?", 1),
        (lambda url: ["pods", "--extender", f"{url}/elsewhere"], "is it an extender?", 1),
        (lambda _: ["pods", "--extender", "localhost"], "expected it to begin with", 2),
        (lambda _: ["nodes", "--kubeconfig", "/nowhere"], "/nowhere", 2),
    ],
)
def test_what_cannot_be_shown_is_said_in_one_line(
    cli: Cli, extender: str, arguments: Callable[[str], list[str]], text: str, status: int
) -> None:
    outcome = cli(*arguments(extender))

    assert outcome.status == status
    assert text in outcome.err
    assert len(outcome.err.splitlines()) == 1


def watched(**arguments: object) -> Iterator[Views]:
    usual = {"extender": "", "kubeconfig": None, "context": "", "selector": "", "watch": True}
    usual |= {"instance_types": None, "lease_namespace": None}
    return cluster_views(Namespace(**(usual | arguments)), NODE_OBJECTS, leases=True)


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


def test_without_nodes_that_says_how_to_see_the_others(cli: Cli, background: Background, tmp_path: Path) -> None:
    server = StandInApiServer()
    background.do(server.start())
    kubeconfig = server.write_kubeconfig(tmp_path / "kubeconfig")

    outcome = cli("nodes", "--kubeconfig", kubeconfig)
    background.do(server.stop())

    assert (outcome.status, outcome.out) == (0, ""), "who counts lines counts none"
    assert outcome.err == "neuron-plugin: no node has Neuron devices; with --all the others are shown, too\n"
