from __future__ import annotations

from http import HTTPStatus
from pathlib import Path

from neuron_plugin.kubelet import Advertisement, DevicePluginServer, DirectoryWatch
from neuron_plugin.plugin.probes import Dial, liveness, readiness
from neuron_plugin.plugin.responder import Page
from tests.kubelet.fakes import FakeHandler


class Server(DevicePluginServer):
    """A registration that stands where a test says."""

    def __init__(self, resource: str, *, registered: bool = True, socket: Path | None = Path("/x.sock")) -> None:
        watch = DirectoryWatch(Path("/nowhere"))
        super().__init__(resource, FakeHandler(), Advertisement(), watch)
        self.path = socket
        if registered:
            self.registered.set()

    @property
    def socket_path(self) -> Path | None:
        return self.path


def ready(*servers: Server, found: bool = True, **silent: str) -> Page:
    return readiness(servers, found=found, silent_sources=silent)


def answering(fault: str | None = None) -> Dial:
    async def ask(_socket: Path, _seconds: float) -> str | None:
        return fault

    return ask


async def test_p78_alive_means_that_every_socket_of_ours_answers() -> None:
    page = await liveness([Server("neuron"), Server("neuroncore")], answering())
    assert (page.status, page.body) == (HTTPStatus.OK, b"ok\n")


async def test_p78_a_socket_that_does_not_answer_is_named_with_its_resource() -> None:
    async def ask(socket: Path, _seconds: float) -> str | None:
        return "Connection refused" if socket == Path("/b.sock") else None

    page = await liveness([Server("neuron"), Server("neuroncore", socket=Path("/b.sock"))], ask)
    assert page.status is HTTPStatus.SERVICE_UNAVAILABLE
    assert page.body == b"neuroncore does not answer on /b.sock: Connection refused\n"


async def test_p78_a_kubelet_or_a_device_that_is_away_is_no_reason_to_be_restarted() -> None:
    page = await liveness([Server("neuron", registered=False, socket=None)], answering("must not be asked"))
    assert page.status is HTTPStatus.OK


async def test_a_server_that_is_replaced_while_it_is_dialled_is_alive() -> None:
    server = Server("neuron")

    async def ask(_socket: Path, _seconds: float) -> str | None:
        server.path = Path("/next.sock")
        return "No such file"

    assert (await liveness([server], ask)).status is HTTPStatus.OK


def test_p78_ready_means_that_the_kubelet_follows_every_resource() -> None:
    page = ready(Server("neuron"), Server("neuroncore"))
    assert (page.status, page.body) == (HTTPStatus.OK, b"ok\n")


def test_p78_a_resource_without_its_stream_is_named_with_where_it_stands() -> None:
    page = ready(Server("neuron"), Server("neuroncore", registered=False))
    assert page.status is HTTPStatus.SERVICE_UNAVAILABLE
    assert page.body == b"neuroncore: stopped\n"


def test_without_a_device_the_reason_is_the_machine_and_not_each_resource() -> None:
    page = ready(Server("neuron", registered=False), found=False)
    assert page.status is HTTPStatus.SERVICE_UNAVAILABLE
    assert page.body == b"no Neuron device has been found: is the driver loaded?\n"


def test_p70_a_source_that_is_not_running_is_named_and_keeps_nobody_waiting() -> None:
    page = ready(Server("neuron"), kmsg="/dev/kmsg: Permission denied")
    assert page.status is HTTPStatus.OK
    assert page.body == b"ok\nkmsg is not running: /dev/kmsg: Permission denied\n"
