"""All that is known of a node or pod, from a cluster alone."""

from __future__ import annotations

from pathlib import Path

from tests.cli.cases import DEVICE
from tests.cli.doubles import Cli
from tests.support.api_server import StandInApiServer
from tests.support.manifests import node_manifest, pod_manifest


def test_a_node_is_described_with_health_links_holders_and_pods(cli: Cli, kubeconfig: Path) -> None:
    shown = cli("describe", "node", "trn-1", "--kubeconfig", kubeconfig, "--lease-namespace", "")

    assert (shown.status, shown.err) == (0, "")
    lines = shown.out.splitlines()
    assert "Node:      trn-1" in lines
    assert "State:     open" in lines
    assert "Devices:   6 allocated, 9 free, 1 unhealthy" in lines
    assert any(line.startswith("12 ") and "unhealthy" in line and line.endswith("ECC") for line in lines)
    assert "  │ BB   │  │ BB   │  │ BB   │  │ BB   │" in lines, "links and holders are drawn"
    assert any(line.startswith("default/assigned") and line.endswith("Assigned") for line in lines)
    assert lines[-1] == "no events"


def test_a_pod_is_described_with_what_it_has_and_what_is_wrong(
    cli: Cli, server: StandInApiServer, kubeconfig: Path
) -> None:
    server.create_node(node_manifest("sick", "inf2.xlarge", missing=[0]))
    server.create_pod(pod_manifest("held", DEVICE, 1, node="sick", annotations={"NEURON_DEVS": "0"}))

    out = cli("describe", "pod", "held", "--kubeconfig", kubeconfig, "--lease-namespace", "").out

    assert "default/held" in out
    assert "What is wrong: device 0 missing" in out
    assert "sick:\n" in out
    assert "A  default/held: main device 0" in out


def test_a_pod_that_waits_is_described_with_the_reason(cli: Cli, kubeconfig: Path) -> None:
    out = cli("describe", "pod", "pod/waiting", "--kubeconfig", kubeconfig, "--lease-namespace", "").out

    assert "default/waiting asks for main: 8 aws.amazon.com/neuron" in out
    assert "inf-1: " in out, "the answer of each node"


def test_a_node_of_which_nothing_is_known_is_described_all_the_same(cli: Cli, kubeconfig: Path) -> None:
    shown = cli("describe", "no/web-1", "--kubeconfig", kubeconfig, "--lease-namespace", "")

    assert (shown.status, shown.err) == (0, "")
    assert shown.out == "Node:      web-1\nState:     The node has no Neuron devices\n\nno events\n"


def test_what_is_not_there_is_named_with_what_there_is(cli: Cli, kubeconfig: Path) -> None:
    for words, said in (
        (("node", "trn"), "there is no node trn: there are trn-1, inf-1"),
        (("pod", "trian"), "no live pod default/trian asks for Neuron"),
    ):
        shown = cli("describe", *words, "--kubeconfig", kubeconfig, "--lease-namespace", "")
        assert (shown.status, shown.out) == (1, "")
        assert said in shown.err
