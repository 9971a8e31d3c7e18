"""What the daemon goes by, from its file, its environment and its state."""

from __future__ import annotations

import asyncio
import shutil
import socket
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, Gauge, generate_latest

from neuron_plugin.allocation import Assignment, Resource
from neuron_plugin.allocation.claims import DRA_DRIVER, UNHEALTHY_TAINT
from neuron_plugin.allocation.keys import DISABLE_KEY
from neuron_plugin.http_server import ProbeAnswer, probe_text
from neuron_plugin.inspection import gathering as everything
from neuron_plugin.inspection.facts import ClusterFacts, Daemon, DeviceUser, DeviceUsers, Facts, Kubelet, NoSuchNode
from neuron_plugin.inspection.findings import Unknown
from neuron_plugin.inspection.gathering import disabled_here, gather, gather_cluster, gather_daemon, gather_kubelet
from neuron_plugin.inspection.holders import ask
from neuron_plugin.kubelet.socket_watch import endpoint_path
from neuron_plugin.plugin.settings import PluginSettings
from neuron_plugin.settings import SettingsError
from neuron_plugin.simulation.api_server_kinds import RESOURCE_SLICES
from tests.inspection.doubles import MakeNode, unknown
from tests.simulation.dra import node_slice
from tests.support.api_server import Fault, Match, StandInApiServer
from tests.support.kubelet import StandInKubelet
from tests.support.manifests import node_manifest, pod_manifest


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Path | None, str]]:
    """What the API server is asked for: kubeconfig and node."""
    calls: list[tuple[Path | None, str]] = []

    async def answer(kubeconfig: Path | None, node_name: str, _driver: str) -> ClusterFacts:
        calls.append((kubeconfig, node_name))
        return ClusterFacts(node_name)

    monkeypatch.setattr(everything, "gather_cluster", answer)
    monkeypatch.setattr("platform.node", lambda: "Host-1")
    return calls


def look(make_node: MakeNode, environ: dict[str, str] | None = None, **given: str) -> Facts:
    return gather({"root": str(make_node("trn1.2xlarge").root), **given}, environ or {})


def test_without_a_kubeconfig_no_api_server_is_asked(make_node: MakeNode, asked: list[object]) -> None:
    facts = look(make_node, {"KUBERNETES_SERVICE_HOST": "10.0.0.1"})  # another machine's files: not its cluster
    assert "--kubeconfig" in unknown(facts.cluster)
    assert asked == []


@pytest.mark.parametrize(
    ("given", "environ", "name"),
    [
        ({"node_name": "given"}, {"NODE_NAME": "environment"}, "given"),
        ({}, {"NODE_NAME": "environment"}, "environment"),
        ({}, {}, "host-1"),
    ],
)
def test_the_nodes_name_is_given_or_in_the_environment_or_the_hosts(
    make_node: MakeNode, asked: list[tuple[Path | None, str]], given: dict[str, str], environ: dict[str, str], name: str
) -> None:
    facts = look(make_node, environ, kubeconfig="/k", **given)
    assert facts.cluster == ClusterFacts(name)
    assert asked == [(Path("/k"), name)]


def test_in_the_pod_of_a_driver_the_settings_are_those_that_its_daemon_takes(
    make_node: MakeNode, asked: list[tuple[Path | None, str]]
) -> None:
    environ = {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "NODE_NAME": "worker-1", "NEURON_PLUGIN_MODE": "dra"}
    paths = make_node("trn1.2xlarge").paths
    here = {"sysfs": str(paths.sysfs), "dev": str(paths.dev), "kubelet_dir": "/nonexistent", "cdi_dir": "/nonexistent"}
    facts = gather(here, environ)
    assert "there is no CDI file /nonexistent/" in unknown(facts.daemon.cdi)
    assert facts.daemon.fault == ""
    assert facts.daemon.driver == "neuron.aws.com"
    assert asked == [(None, "worker-1")]


@pytest.mark.parametrize(("name", "is_fault"), [("wroker-1", True), ("", False)])
def test_a_node_that_is_not_there_is_a_fault_only_where_its_name_was_given(
    make_node: MakeNode, monkeypatch: pytest.MonkeyPatch, name: str, *, is_fault: bool
) -> None:
    async def answer(*_: object) -> Unknown:
        return NoSuchNode("the API server has no node")

    monkeypatch.setattr(everything, "gather_cluster", answer)
    cluster = look(make_node, {}, kubeconfig="/k", **({"node_name": name} if name else {})).cluster
    assert isinstance(cluster, Unknown)
    assert isinstance(cluster, NoSuchNode) == is_fault


def test_devices_that_the_node_disables_are_known_where_the_daemon_is_not_asked(
    make_node: MakeNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def answer(_: object, node_name: str, _driver: str) -> ClusterFacts:
        return ClusterFacts(node_name, {DISABLE_KEY: "0"})

    monkeypatch.setattr(everything, "gather_cluster", answer)
    assert look(make_node, {}, kubeconfig="/k").machine.disabled == (0,)


def test_a_kubelet_is_expected_on_a_node_and_where_it_was_named(make_node: MakeNode, tmp_path: Path) -> None:
    assert look(make_node).kubelet.unreadable is not None
    root = tmp_path / "node"
    assert gather({"root": str(root), "kubelet_dir": str(tmp_path / "k")}, {}).kubelet.unreadable is None
    (root / "dev/.neuron-simulated").unlink()
    assert gather({"root": str(root)}, {}).kubelet.unreadable is None


@pytest.mark.parametrize("source", ["gather_kubelet", "gather_cluster", "gather_users"])
def test_a_source_that_fails_itself_leaves_the_others(
    make_node: MakeNode, asked: list[object], monkeypatch: pytest.MonkeyPatch, source: str
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise ModuleNotFoundError("no such thing")

    async def fail_later(*_: object, **__: object) -> None:
        fail()

    monkeypatch.setattr(everything, source, fail if source == "gather_users" else fail_later)
    facts = look(make_node, kubeconfig="/k", node_name="worker-1")
    parts: dict[str, Kubelet | ClusterFacts | DeviceUsers | Unknown | None] = {
        "gather_kubelet": facts.kubelet.unreadable,
        "gather_cluster": facts.cluster,
        "gather_users": facts.users,
    }
    failed = parts.pop(source)
    assert "no such thing" in unknown(failed)
    assert not [part for part in parts.values() if isinstance(part, Unknown) and "no such thing" in part.why]
    assert asked or source == "gather_cluster"


def test_pods_are_listed_after_the_kubelets_files_were_read_so_that_one_that_is_not_listed_has_ended(
    make_node: MakeNode, asked: list[object], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    listed_before = []

    async def kubelet(settings: PluginSettings, *, expected: bool) -> Kubelet:  # noqa: ARG001 - as gather_kubelet
        await asyncio.sleep(0.01)
        listed_before.extend(asked)
        return Kubelet(settings.kubelet_dir)

    monkeypatch.setattr(everything, "gather_kubelet", kubelet)
    look(make_node, kubeconfig=str(tmp_path / "kubeconfig"))
    assert (len(asked), listed_before) == (1, [])


def test_the_hosts_proc_is_used_where_the_host_is_mounted(make_node: MakeNode) -> None:
    root = make_node("trn1.2xlarge").root
    (root / "proc/2").mkdir(parents=True)
    (root / "proc/2/comm").write_text("kthreadd\n")
    (root / "proc/7/fd").mkdir(parents=True)
    (root / "proc/7/fd/3").symlink_to(root / "dev/neuron0")
    assert gather({"root": str(root)}, {}).users == DeviceUsers((DeviceUser(7, "", (0,), ""),))


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "config.yaml"
    path.write_text("kubelet-dir: /k\nresources: [neuron]\nhealth: {sram-ecc: {threshold: 5}}\n")
    return path


def test_the_node_is_the_one_that_its_daemon_knows(file: Path) -> None:
    node, daemon = gather_daemon({"config": str(file)}, {"NEURON_PLUGIN_DEV": "/d"})
    assert (daemon.fault, daemon.file, daemon.resources) == ("", file, frozenset({Resource.NEURON}))
    assert (node.settings.kubelet_dir, node.settings.dev) == (Path("/k"), Path("/d"))


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("helth: {}\n", "unknown key 'helth'"),
        ("lease-duration-seconds: 1\n", "one late renewal would close the node"),
        ("instance-types: /nonexistent/types.yaml\n", "cannot read /nonexistent/types.yaml"),
    ],
)
def test_settings_that_cannot_be_used_are_reported_and_flags_and_defaults_are_taken(
    file: Path, text: str, fault: str
) -> None:
    file.write_text(text)
    node, daemon = gather_daemon({"config": str(file), "sysfs": "/mine"}, {})
    assert isinstance(daemon.fault, str)
    assert fault in daemon.fault
    assert node.settings == PluginSettings(sysfs=Path("/mine"))


def test_a_file_that_may_not_be_read_is_not_the_daemons_fault(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.access", lambda *_: False)
    _, daemon = gather_daemon({"config": str(file)}, {})
    assert isinstance(daemon.fault, Unknown)
    assert daemon.fault.action == "run this as root"


def test_a_root_that_is_no_directory_is_an_error_of_the_command_line(file: Path) -> None:
    with pytest.raises(SettingsError, match="is no directory"):
        gather_daemon({"root": str(file)}, {})


def test_the_daemon_of_another_machine_is_not_asked(file: Path, tmp_path: Path) -> None:
    _, daemon = gather_daemon({"config": str(file), "root": str(tmp_path)}, {})
    assert isinstance(daemon.silent, Unknown)
    assert isinstance(daemon.unhealthy, Unknown)


@contextmanager
def answering(body: str, status: int = HTTPStatus.OK) -> Iterator[int]:
    """A daemon's probes on loopback; the port."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status if self.path in {"/readyz", "/metrics"} else 404)
            self.end_headers()
            self.wfile.write(body.encode())

        def log_message(self, *_: object) -> None:
            """Nothing to say."""

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server.server_port
        server.shutdown()
        thread.join()


def asked_on(port: int) -> Daemon:
    """What the daemon with this port for probes says of itself."""
    return gather_daemon({}, {"NEURON_PLUGIN_HEALTH_PORT": str(port)})[1]


@pytest.mark.parametrize("failing", ["", "neuron: waiting for kubelet.sock"])
def test_p70_silent_sources_are_read_off_the_readiness_page(failing: str) -> None:
    notes = ("kernel-log is not running: /dev/kmsg cannot be opened", "uevents is not running: no libudev")
    body, passes = probe_text(ProbeAnswer({"neuron": failing}, notes))
    with answering(body, HTTPStatus.OK if passes else HTTPStatus.SERVICE_UNAVAILABLE) as port:
        assert asked_on(port).silent == (
            "kernel-log is not running: /dev/kmsg cannot be opened",
            "uevents is not running: no libudev",
        )


def test_devices_that_the_daemon_holds_back_are_read_off_the_metrics() -> None:
    registry = CollectorRegistry()
    metric = Gauge("neuron_plugin_device_healthy", "1 if healthy", ["device"], registry=registry)
    for device, healthy in (("0", 1), ("12", 0), ("3", 0)):
        metric.labels(device).set(healthy)
    disabled = Gauge("neuron_plugin_device_disabled", "1 if disabled", ["device"], registry=registry)
    for device, value in (("0", 0), ("12", 1), ("5", 1)):
        disabled.labels(device).set(value)
    with answering(generate_latest(registry).decode()) as port:
        assert asked_on(port).unhealthy == (3, 12)
        assert asked_on(port).disabled == (5, 12)
        node, _ = gather_daemon({}, {"NEURON_PLUGIN_HEALTH_PORT": str(port)})
        assert disabled_here(node) == (5, 12)
    assert disabled_here(node) == (), "no daemon answers"


def test_somebody_else_on_the_port_is_not_taken_for_a_daemon_that_hears_everything() -> None:
    with answering("who are you?", HTTPStatus.NOT_FOUND) as port:
        silent = asked_on(port).silent
    assert f"127.0.0.1:{port} answers 404 Not Found to /readyz" in unknown(silent)


def test_a_daemon_that_does_not_answer_or_serves_no_probes_is_not_known() -> None:
    with answering("") as port:
        pass
    for daemon in (asked_on(port), asked_on(0)):
        assert isinstance(daemon.silent, Unknown)
        assert isinstance(daemon.unhealthy, Unknown)


@pytest.fixture
def kubelet_root() -> Iterator[Path]:
    """/var/lib/kubelet, on a path that leaves room for the names of sockets."""
    root = Path(tempfile.mkdtemp())
    for name in ("device-plugins", "pod-resources", "plugins_registry"):
        (root / name).mkdir(parents=True)
    yield root
    shutil.rmtree(root)


def listening(path: Path) -> socket.socket:
    server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    server.bind(str(path))
    server.listen()
    return server


def dead(path: Path) -> None:
    listening(path).close()


async def seen(root: Path, *, expected: bool = True, dial_seconds: float = 2.0, **settings: Any) -> Kubelet:
    """The kubelet whose directory this is; nobody answers for PodResources unless it is said where."""
    places = {"kubelet_dir": root / "device-plugins", "pod_resources_socket": root / "nothing", **settings}
    return await gather_kubelet(PluginSettings(**places), expected=expected, dial_seconds=dial_seconds)


async def test_a_kubelet_that_is_not_there_is_expected_or_not(tmp_path: Path) -> None:
    on_a_node = await seen(tmp_path)
    assert (on_a_node.missing, on_a_node.unreadable) == (True, None)
    simulated = await seen(tmp_path, expected=False)
    assert simulated.unreadable == simulated.allocatable == simulated.pods
    assert "--kubelet-dir" in unknown(simulated.unreadable)


async def test_something_that_is_no_directory_is_reported(tmp_path: Path) -> None:
    (tmp_path / "device-plugins").touch()
    found = await seen(tmp_path)
    assert found.unreadable is not None
    assert "cannot be listed" in found.unreadable.why


async def test_sockets_are_found_with_whether_they_are_served(kubelet_root: Path) -> None:
    directory, registry = kubelet_root / "device-plugins", kubelet_root / "plugins_registry"
    dead(directory / "kubelet.sock")
    dead(directory / "neuroncore-devplugin.sock")
    (directory / "kubelet_internal_checkpoint").touch()
    dead(kubelet_root / "plugins_registry/ebs.csi.aws.com-reg.sock")
    with listening(directory / "neuron-devplugin.sock"), listening(registry / "neuron.aws.com-reg.sock"):
        found = await seen(kubelet_root)
    assert found.own_socket is not None
    assert not found.own_socket.served
    assert {each.name: each.served for each in found.plugins} == {
        "neuron-devplugin.sock": True,
        "neuroncore-devplugin.sock": False,
        "neuron.aws.com-reg.sock": True,
    }
    assert found.registry_seen
    assert "--pod-resources-socket" in unknown(found.pods)


async def test_drivers_are_looked_for_where_the_settings_say(kubelet_root: Path) -> None:
    registry = kubelet_root / "elsewhere"
    registry.mkdir()
    with listening(registry / "neuron.aws.com-reg.sock"):
        found = await seen(kubelet_root, plugins_registry=registry)
    assert [each.name for each in found.plugins] == ["neuron.aws.com-reg.sock"]


async def test_volumes_that_drivers_have_mounted_are_not_searched(kubelet_root: Path) -> None:
    """A file system of millions of files, or one whose server is gone, would hold up the doctor for ever."""
    volume = kubelet_root / "plugins/kubernetes.io/csi/efs/globalmount/neuron.aws.com"
    volume.mkdir(parents=True)
    dead(volume / "x.sock")
    found = await seen(kubelet_root)
    assert found.plugins == ()


async def test_a_directory_of_drivers_that_is_not_mounted_is_known_to_be_unseen(kubelet_root: Path) -> None:
    (kubelet_root / "plugins_registry").rmdir()
    found = await seen(kubelet_root)
    assert not found.registry_seen


async def test_a_plugin_of_ours_that_accepts_and_never_answers_is_given_up_in_time(kubelet_root: Path) -> None:
    directory = kubelet_root / "device-plugins"
    with listening(endpoint_path(directory, Resource.NEURONCORE.value, "0")):
        async with asyncio.timeout(5):
            found = await seen(kubelet_root, dial_seconds=0.2)
    (plugin,) = found.plugins
    assert plugin.served
    assert "0.2 s" in plugin.fault


async def test_a_pod_resources_socket_that_hangs_is_given_up_in_time(kubelet_root: Path) -> None:
    socket = kubelet_root / "pod-resources/kubelet.sock"
    with listening(socket):
        async with asyncio.timeout(5):
            pods = await ask(socket, lambda kubelet: kubelet.list(), deadline_seconds=0.2)
    assert "DEADLINE_EXCEEDED" in unknown(pods)


async def test_a_kubelet_without_plugins_offers_nothing_and_has_no_holders(kubelet_root: Path) -> None:
    async with StandInKubelet(kubelet_root / "device-plugins", kubelet_root / "pod-resources"):
        found = await seen(kubelet_root, pod_resources_socket=kubelet_root / "pod-resources/kubelet.sock")
    assert found.own_socket is not None
    assert found.own_socket.served
    assert (found.plugins, found.allocatable, found.pods) == ((), {}, ())


STATIC_UID = "0123456789abcdef0123456789abcdef"


async def test_the_node_and_its_pods_are_read(tmp_path: Path) -> None:
    async with StandInApiServer() as api:
        api.create_node(node_manifest("worker-1", "inf2.24xlarge"))
        api.create_pod(pod_manifest("train", Resource.NEURONDEVICE, 2, annotations={"NEURON_DEVS": "0,1"}))
        api.bind("default", "train", node="worker-1")
        mirror = {"kubernetes.io/config.hash": STATIC_UID}
        api.create_pod(pod_manifest("static", Resource.NEURONCORE, 1, annotations=mirror, node="worker-1"))
        api.create_pod(pod_manifest("done", Resource.NEURONCORE, 1, annotations=mirror, node="worker-1"))
        api.set_pod_status("default", "done", {"phase": "Succeeded"})
        api.create_pod(pod_manifest("elsewhere", Resource.NEURONCORE, 1, node="worker-2"))
        found = await gather_cluster(api.write_kubeconfig(tmp_path / "kubeconfig"), "worker-1")
    assert isinstance(found, ClusterFacts)
    assert found.allocatable[Resource.NEURONDEVICE.value] == "6"
    assert "neuron-plugin.io/inventory" in found.annotations
    pods = {pod.reference.name: pod for pod in found.pods}
    assert set(pods) == {"train", "static", "done"}
    assert isinstance(pods["train"].assignment, Assignment)
    assert pods["static"].kubelet_uid == STATIC_UID
    assert [name for name, pod in pods.items() if pod.ended] == ["done"]


async def test_the_devices_of_a_drivers_slices_are_read_with_their_taints(tmp_path: Path) -> None:
    async with StandInApiServer() as api:
        api.create_node({"metadata": {"name": "worker-1"}})
        kubeconfig = api.write_kubeconfig(tmp_path / "kubeconfig")

        async def shown(driver: str = DRA_DRIVER) -> object:
            found = await gather_cluster(kubeconfig, "worker-1", driver)
            assert isinstance(found, ClusterFacts)
            return found.slice

        assert await shown() is None
        api.create(RESOURCE_SLICES, node_slice("worker-1", 2, tainted=(1,)), "")
        assert await shown() == {"neuron-0": frozenset(), "neuron-1": frozenset({UNHEALTHY_TAINT})}
        assert await shown("efa.networking.k8s.aws") is None
        api.fail(Fault(Match(path="/resourceslices"), status=403))
        refused = await shown()
        assert "list resourceslices" in unknown(refused)


@pytest.mark.parametrize(
    ("node", "status", "why", "action"),
    [("ip-10-0-0-1", 0, "no node ip-10-0-0-1", "--node-name"), ("worker-1", 403, "403", "get nodes")],
    ids=["no such node", "no right"],
)
async def test_what_the_api_server_does_not_tell_is_reported_with_what_it_takes(
    tmp_path: Path, node: str, status: int, why: str, action: str
) -> None:
    async with StandInApiServer() as api:
        api.create_node(node_manifest("worker-1", "inf2.24xlarge"))
        if status:
            api.fail(Fault(Match(path="/nodes/"), status=status))
        kubeconfig = api.write_kubeconfig(tmp_path / "kubeconfig")
        found = await gather_cluster(kubeconfig, node)
    assert why in unknown(found)
    assert action in unknown(found)
    away = await gather_cluster(kubeconfig, node)
    assert "is the API server up" in unknown(away)


async def test_a_kubeconfig_that_is_none_is_reported(tmp_path: Path) -> None:
    found = await gather_cluster(tmp_path / "nothing", "worker-1")
    assert isinstance(found, Unknown)
    assert found.why == f"there is no kubeconfig at {tmp_path}/nothing"
    (tmp_path / "garbage").write_text("{")
    found = await gather_cluster(tmp_path / "garbage", "worker-1")
    assert "expected a kubeconfig" in unknown(found)


async def test_an_api_server_that_hangs_is_given_up_in_time(tmp_path: Path) -> None:
    (tmp_path / "kubeconfig").touch()
    found = await gather_cluster(tmp_path / "kubeconfig", "worker-1", within_seconds=0.01)
    assert isinstance(found, Unknown)
