from __future__ import annotations

import os
import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from neuron_plugin.kubelet.sockets import (
    LONGEST_PATH_BYTES,
    EndpointError,
    clear_strays,
    endpoint_path,
    endpoint_prefix,
    identity_of,
    is_served,
    require_vacant,
    server_pid,
)
from tests.kubelet.fakes import CORE, DEVICE

KUBELET = Path("/var/lib/kubelet/device-plugins")


@contextmanager
def listening(path: Path, backlog: int = 1) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as server:
        server.bind(str(path))
        server.listen(backlog)
        yield server


def dead_socket(path: Path) -> Path:
    with listening(path):
        pass
    return path


def test_a_socket_has_an_identity_and_nothing_else_has(directory: Path) -> None:
    (directory / "file").touch()
    assert identity_of(directory / "file") is None
    assert identity_of(directory / "absent") is None
    assert identity_of(directory) is None
    assert identity_of(dead_socket(directory / "s")) is not None


def test_a_socket_made_anew_is_another_one_even_with_the_same_inode(directory: Path) -> None:
    first = identity_of(dead_socket(directory / "s"))
    (directory / "s").unlink()
    second = identity_of(dead_socket(directory / "s"))
    assert first != second


def test_a_symbolic_link_to_a_socket_is_not_a_socket(directory: Path) -> None:
    (directory / "link").symlink_to(dead_socket(directory / "s"))
    assert identity_of(directory / "link") is None


def test_only_a_listening_socket_is_served(directory: Path) -> None:
    assert not is_served(dead_socket(directory / "dead"))
    assert not is_served(directory / "absent")
    with listening(directory / "live"):
        assert is_served(directory / "live")


def test_a_path_that_cannot_be_looked_at_for_want_of_descriptors_is_no_dead_socket(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stray = dead_socket(endpoint_path(directory, CORE, "old"))

    def none_left(*_: object) -> None:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr("neuron_plugin.kubelet.sockets._probe", none_left)
    with pytest.raises(OSError, match="Too many open files"):
        clear_strays(directory, CORE)
    assert stray.exists()


def test_the_process_behind_a_socket_is_known(directory: Path) -> None:
    with listening(directory / "live"):
        assert server_pid(directory / "live") == os.getpid()
    assert server_pid(directory / "live") is None
    assert server_pid(directory / "absent") is None


def test_a_process_outside_of_our_pid_namespace_is_not_known(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class FromOutside(socket.socket):
        def getsockopt(self, *_: object) -> bytes:  # type: ignore[override]  # the one form that is used
            return struct.pack("3i", 0, 0, 0)

    monkeypatch.setattr("neuron_plugin.kubelet.sockets._probe", lambda: FromOutside(socket.AF_UNIX))
    with listening(directory / "live"):
        assert server_pid(directory / "live") is None


def test_a_server_too_busy_to_accept_is_still_a_server(directory: Path) -> None:
    with listening(directory / "busy", backlog=0):
        clients = [socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) for _ in range(4)]
        for client in clients:
            client.setblocking(False)  # noqa: FBT003 - the socket's own signature
            client.connect_ex(str(directory / "busy"))
        assert is_served(directory / "busy")
        for client in clients:
            client.close()


def test_p3_a_socket_that_we_may_not_connect_to_counts_as_served(directory: Path) -> None:
    """Root without the capability to override modes, as in the chart, sees this of another user's plugin."""
    directory.chmod(0o755)
    with listening(endpoint_path(directory, CORE, "other")) as server:
        path = Path(server.getsockname())
        path.chmod(0)
        with nobodys_rights():
            assert is_served(path)
            with pytest.raises(EndpointError, match="served by another process"):
                clear_strays(directory, CORE)


@contextmanager
def nobodys_rights() -> Iterator[None]:
    before = os.geteuid()
    os.seteuid(65534 if before == 0 else before)
    try:
        yield
    finally:
        os.seteuid(before)


def test_p4_the_longest_resource_name_fits_the_kubelets_directory() -> None:
    resource = f"{'d' * 245}.example/{'n' * 63}"
    assert len(os.fsencode(endpoint_path(KUBELET, resource, "89abcdef"))) <= LONGEST_PATH_BYTES


@given(st.sets(st.text(min_size=1), min_size=2, max_size=2))
def test_p4_distinct_names_never_share_a_path(names: set[str]) -> None:
    one, other = names
    assert endpoint_path(KUBELET, one, "t") != endpoint_path(KUBELET, other, "t")


@given(st.text())
def test_p1_the_endpoint_is_a_bare_file_name_whatever_the_resource(resource: str) -> None:
    assert endpoint_path(KUBELET, resource, "t").parent == KUBELET


def test_equal_names_in_two_domains_are_told_apart() -> None:
    assert endpoint_prefix("aws.amazon.com/neuron") != endpoint_prefix("example.com/neuron")


def test_p4_one_byte_more_than_the_longest_path_is_refused() -> None:
    spare = LONGEST_PATH_BYTES - len(os.fsencode(endpoint_path(Path("/d"), CORE, "t")))
    assert len(os.fsencode(endpoint_path(Path("/d" + "d" * spare), CORE, "t"))) == LONGEST_PATH_BYTES
    with pytest.raises(EndpointError, match="has 108 bytes, expected at most 107"):
        endpoint_path(Path("/d" + "d" * spare + "d"), CORE, "t")


def test_a_directory_too_long_for_any_socket_is_named_with_its_length() -> None:
    with pytest.raises(EndpointError, match=r"has 1\d\d bytes, expected at most 107"):
        endpoint_path(Path("/" + "x" * 100), CORE, "t")


def test_p3_strays_of_a_dead_server_are_removed(directory: Path) -> None:
    stray = dead_socket(endpoint_path(directory, CORE, "old"))
    clear_strays(directory, CORE)
    assert not stray.exists()


def test_p3_a_live_server_of_another_process_is_never_removed(directory: Path) -> None:
    path = endpoint_path(directory, CORE, "other")
    dead = dead_socket(endpoint_path(directory, CORE, "dead"))
    with listening(path), pytest.raises(EndpointError, match=f"{path} is served by another process"):
        clear_strays(directory, CORE)
    assert dead.exists()


def test_p3_files_of_others_are_left_alone(directory: Path) -> None:
    others = [
        dead_socket(directory / "kubelet.sock"),
        dead_socket(endpoint_path(directory, DEVICE, "old")),
        endpoint_path(directory, CORE, "file"),
    ]
    others[-1].touch()
    clear_strays(directory, CORE)
    assert all(path.exists() for path in others)


def test_p3_a_regular_file_at_our_path_is_a_clear_error(directory: Path) -> None:
    (directory / "s").write_text("precious")
    with pytest.raises(EndpointError, match="exists and is not a socket"):
        require_vacant(directory / "s")
    assert (directory / "s").read_text() == "precious"


def test_p3_a_live_socket_at_our_path_is_a_clear_error(directory: Path) -> None:
    with listening(directory / "s"), pytest.raises(EndpointError, match="served by another process"):
        require_vacant(directory / "s")


def test_p3_a_dead_socket_at_our_path_makes_way(directory: Path) -> None:
    require_vacant(dead_socket(directory / "s"))
    assert not (directory / "s").exists()
    require_vacant(directory / "s")
