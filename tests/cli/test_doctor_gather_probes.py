"""What the running daemon's pages say, as the daemon itself makes them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread

import pytest

from neuron_plugin.cli.doctor_facts import Unknown
from neuron_plugin.cli.doctor_gather_probes import held_back, silent_sources
from neuron_plugin.plugin.exposition import Metric, MetricKind, exposed
from neuron_plugin.plugin.probes import readiness
from neuron_plugin.plugin.responder import Page, text_page
from neuron_plugin.plugin.settings import PluginSettings


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


def test_a_daemon_that_does_not_answer_or_serves_no_probes_is_not_known() -> None:
    with answering(text_page("")) as port:
        pass
    for settings in (PluginSettings(health_port=port), PluginSettings(health_port=0)):
        assert isinstance(silent_sources(settings), Unknown)
        assert isinstance(held_back(settings), Unknown)
