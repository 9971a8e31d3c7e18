"""What the daemon goes by, from its file, its environment and its state."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread

import pytest

from neuron_plugin.allocation import Resource
from neuron_plugin.inspection.gathering.daemon import gather_daemon, held_back, silent_sources
from neuron_plugin.inspection.unknown import Unknown
from neuron_plugin.plugin.exposition import Metric, MetricKind, exposed
from neuron_plugin.plugin.probes import readiness
from neuron_plugin.plugin.responder import Page, text_page
from neuron_plugin.plugin.settings import PluginSettings
from neuron_plugin.settings import SettingsError


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "config.yaml"
    path.write_text("kubelet-dir: /k\nresources: [neuron]\nhealth: {sram-ecc: {threshold: 5}}\n")
    return path


def test_the_node_is_the_one_that_its_daemon_knows(file: Path) -> None:
    node, daemon = gather_daemon({"config": str(file)}, {"NEURON_PLUGIN_DEV": "/d"})
    assert (daemon.trouble, daemon.file, daemon.resources) == ("", file, frozenset({Resource.NEURON}))
    assert (node.settings.kubelet_dir, node.settings.dev) == (Path("/k"), Path("/d"))


@pytest.mark.parametrize(
    ("text", "trouble"),
    [
        ("helth: {}\n", "unknown key 'helth'"),
        ("lease-duration-seconds: 1\n", "one late renewal would close the node"),
        ("instance-types: /nonexistent/types.yaml\n", "cannot read /nonexistent/types.yaml"),
    ],
)
def test_settings_that_cannot_be_used_are_told_and_flags_and_defaults_stand_in(
    file: Path, text: str, trouble: str
) -> None:
    file.write_text(text)
    node, daemon = gather_daemon({"config": str(file), "sysfs": "/mine"}, {})
    assert isinstance(daemon.trouble, str)
    assert trouble in daemon.trouble
    assert node.settings == PluginSettings(sysfs=Path("/mine"))


def test_a_file_that_may_not_be_read_is_not_the_daemons_trouble(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.access", lambda *_: False)
    _, daemon = gather_daemon({"config": str(file)}, {})
    assert isinstance(daemon.trouble, Unknown)
    assert daemon.trouble.action == "run this as root"


def test_a_root_that_is_no_directory_is_nobody_else_s_trouble(file: Path) -> None:
    with pytest.raises(SettingsError, match="is no directory"):
        gather_daemon({"root": str(file)}, {})


def test_the_daemon_of_another_machine_is_not_asked(file: Path, tmp_path: Path) -> None:
    _, daemon = gather_daemon({"config": str(file), "root": str(tmp_path)}, {})
    assert isinstance(daemon.silent, Unknown)
    assert isinstance(daemon.held_back, Unknown)


@contextmanager
def answering(page: Page) -> Iterator[int]:
    """A daemon's probes on loopback; the port."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(page.status if self.path in {"/readyz", "/metrics"} else 404)
            self.end_headers()
            self.wfile.write(page.body)

        def log_message(self, *_: object) -> None:
            """Nothing to say."""

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server.server_port
        server.shutdown()
        thread.join()


@pytest.mark.parametrize("found", [True, False])
def test_p70_silent_sources_are_read_off_the_readiness_page(*, found: bool) -> None:
    silent = {"kernel-log": "/dev/kmsg cannot be opened", "uevents": "no libudev"}
    with answering(readiness([], found=found, silent_sources=silent)) as port:
        assert silent_sources(PluginSettings(health_port=port)) == (
            "kernel-log is not running: /dev/kmsg cannot be opened",
            "uevents is not running: no libudev",
        )


def test_devices_that_the_daemon_holds_back_are_read_off_the_metrics() -> None:
    metric = Metric("neuron_plugin_device_healthy", MetricKind.GAUGE, ("device",), "1 if sound")
    lines = exposed(metric, {("0",): True, ("12",): False, ("3",): False})
    with answering(text_page("\n".join(lines))) as port:
        assert held_back(PluginSettings(health_port=port)) == (3, 12)


def test_somebody_else_on_the_port_is_not_taken_for_a_daemon_that_hears_everything() -> None:
    with answering(Page(b"who are you?", HTTPStatus.NOT_FOUND)) as port:
        silent = silent_sources(PluginSettings(health_port=port))
    assert isinstance(silent, Unknown)
    assert f"127.0.0.1:{port} answers 404 Not Found to /readyz" in silent.why


def test_a_daemon_that_does_not_answer_or_serves_no_probes_is_not_known() -> None:
    with answering(text_page("")) as port:
        pass
    for settings in (PluginSettings(health_port=port), PluginSettings(health_port=0)):
        assert isinstance(silent_sources(settings), Unknown)
        assert isinstance(held_back(settings), Unknown)
