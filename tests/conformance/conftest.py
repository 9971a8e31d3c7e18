"""Which node the suite runs against.

By default a stand-in kubelet, in memory and seconds (``make test``). On a node of a cluster, as root, nothing else
offering Neuron there::

    pytest tests/conformance --kubelet-dir /var/lib/kubelet/device-plugins --kubeconfig admin.conf --node-name NODE \\
        --kubelet-restart-command 'systemctl restart kubelet' \\
        --kubelet-stop-command 'systemctl stop kubelet' --kubelet-start-command 'systemctl start kubelet' --slow

``--mode dra`` runs the cases of claims instead, where the API server has ``resource.k8s.io/v1`` and
kube-controller-manager runs.

Without the commands the tests that restart or stop the kubelet are skipped, without ``--slow`` those that wait out its
five minutes. The kubeconfig has to be allowed to read nodes, and to create, read and delete pods in ``default``.
"""

from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.conformance.node import Node
from tests.conformance.preflight import UnusableNodeError
from tests.conformance.real import RealNode, RealOptions
from tests.conformance.stand_in import StandInNode

REAL_SECONDS = 900
_MEMORY = Path("/dev/shm")  # noqa: S108 - a private directory in it; a simulated machine is many small files


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("conformance", "the kubelet to run the conformance suite against")
    kubelet = "/var/lib/kubelet"
    group.addoption("--kubelet-dir", type=Path, help="its device plugin directory; makes the suite use a real kubelet")
    group.addoption("--plugins-registry", type=Path, default=Path(kubelet, "plugins_registry"))
    group.addoption("--pod-resources-socket", type=Path, default=Path(kubelet, "pod-resources/kubelet.sock"))
    group.addoption("--kubeconfig", type=Path, help="of its API server")
    group.addoption("--node-name", help="its node's name in Kubernetes")
    group.addoption("--pod-image", default="busybox:1.35", help="an image with sh, env, grep and sed")
    group.addoption("--cdi-dir", type=Path, default=Path("/var/run/cdi"), help="where its runtime looks for CDI files")
    group.addoption("--kubelet-restart-command", default="", help="restarts the kubelet and leaves containers alone")
    group.addoption("--kubelet-stop-command", default="")
    group.addoption("--kubelet-start-command", default="")
    group.addoption(
        "--openable-device",
        type=Path,
        default=Path("/dev/cpu_dma_latency"),
        help="a character device that can be opened and nobody has open; it stands for one with a driver",
    )
    group.addoption(
        "--spoil-checkpoint",
        action="store_true",
        help="also make the kubelet's device checkpoint unreadable, which costs all pods of the node their record",
    )
    group.addoption("--mode", choices=("device-plugin", "dra"), default="device-plugin", help="which cases to run")
    group.addoption("--clusters", type=int, default=10, help="random clusters in which places are compared")
    group.addoption("--losses", type=int, default=6, help="how often nodes of a group are lost together")
    group.addoption("--slow", action="store_true", help="wait out the kubelet's five minutes of grace, too")


def real_options(config: pytest.Config) -> RealOptions | None:
    """None without ``--kubelet-dir``, and where the whole test suite runs: pytest then knows none of the options."""
    kubelet_dir = config.getoption("--kubelet-dir", default=None)
    if kubelet_dir is None:
        return None
    kubeconfig, node_name = config.getoption("--kubeconfig"), config.getoption("--node-name")
    if not kubeconfig or not node_name:
        raise pytest.UsageError("--kubelet-dir needs --kubeconfig and --node-name")
    return RealOptions(
        kubelet_dir=kubelet_dir,
        plugins_registry=config.getoption("--plugins-registry"),
        pod_resources_socket=config.getoption("--pod-resources-socket"),
        kubeconfig=kubeconfig,
        node_name=node_name,
        pod_image=config.getoption("--pod-image"),
        cdi_dir=config.getoption("--cdi-dir"),
        openable_device=config.getoption("--openable-device"),
        spoils_checkpoint=config.getoption("--spoil-checkpoint"),
        restart_command=config.getoption("--kubelet-restart-command"),
        stop_command=config.getoption("--kubelet-stop-command"),
        start_command=config.getoption("--kubelet-start-command"),
        slow=config.getoption("--slow"),
        dra=config.getoption("--mode") == "dra",
    )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    options = real_options(config)
    for item in items if options else ():
        item.add_marker(pytest.mark.timeout(REAL_SECONDS))
        if options and options.dra and item.path.name != "test_dra.py":
            item.add_marker(pytest.mark.skip("needs --mode device-plugin"))


def _memory() -> Path | None:
    return _MEMORY if _MEMORY.is_dir() else None


@pytest.fixture
async def node(request: pytest.FixtureRequest) -> AsyncIterator[Node]:
    """A node without a plugin yet."""
    options = real_options(request.config)
    with tempfile.TemporaryDirectory(prefix="np-", dir=None if options else _memory()) as root:
        if options:
            try:
                async with RealNode.running(Path(root), options) as real:
                    yield real
            except UnusableNodeError as error:
                pytest.exit(f"the conformance suite cannot run here: {error}", returncode=pytest.ExitCode.USAGE_ERROR)
        else:
            async with StandInNode.running(Path(root)) as stand_in:
                yield stand_in
