from __future__ import annotations

from neuron_plugin.allocation.resources import Resource
from neuron_plugin.cli.doctor_facts import Facts, SocketSeen, Unknown
from neuron_plugin.cli.doctor_findings import Level
from tests.cli.doctor_cases import DIRECTORY, ask, facts_of, is_fine, socket_path, the_finding, with_kubelet
from tests.cli.doubles import MakeNode

CORE = Resource.NEURONCORE


def test_a_socket_for_each_resource_that_answers_is_fine(well: Facts) -> None:
    assert is_fine("plugin", well)
    assert len(ask("plugin", well)) == len(Resource)


def test_a_resource_that_is_left_out_is_fine(well: Facts) -> None:
    facts = with_kubelet(well, plugins=(SocketSeen(socket_path(CORE), served=True),))
    assert is_fine("plugin", facts)


def test_no_socket_at_all_is_a_problem(well: Facts) -> None:
    finding = the_finding("plugin", with_kubelet(well, plugins=()))
    assert finding.level is Level.PROBLEM
    assert "does not run here" in finding.seen


def test_before_there_is_a_device_no_socket_is_expected(make_node: MakeNode) -> None:
    node = make_node("trn1.2xlarge")
    node.unload_driver()
    assert the_finding("plugin", with_kubelet(facts_of(node), plugins=())).level is Level.NOTE


def test_the_vendors_plugin_alone_is_a_note(well: Facts) -> None:
    vendors = (SocketSeen(DIRECTORY / "neuron-devplugin.sock", served=True),)
    assert the_finding("plugin", with_kubelet(well, plugins=vendors)).level is Level.NOTE


def test_stale_sockets_are_harmless_beside_a_live_one(well: Facts) -> None:
    stale = SocketSeen(socket_path(CORE, "00000000"), served=False)
    finding = the_finding("plugin", with_kubelet(well, plugins=(*well.kubelet.plugins, stale)))
    assert finding.level is Level.NOTE
    assert stale.name in finding.seen


def test_stale_sockets_alone_do_not_pass_for_a_plugin(well: Facts) -> None:
    stale = (SocketSeen(socket_path(CORE), served=False),)
    levels = [finding.level for finding in ask("plugin", with_kubelet(well, plugins=stale))]
    assert levels == [Level.PROBLEM, Level.NOTE]


def test_two_plugins_for_one_resource_are_a_problem(well: Facts) -> None:
    second = SocketSeen(socket_path(CORE, "ffffffff"), served=True)
    finding = the_finding("plugin", with_kubelet(well, plugins=(*well.kubelet.plugins, second)))
    assert finding.level is Level.PROBLEM
    assert f"2 plugins serve {CORE}" in finding.seen


def test_a_plugin_that_accepts_and_does_not_answer_is_a_problem(well: Facts) -> None:
    hung = SocketSeen(socket_path(CORE), served=True, fault="no answer within 2 s")
    finding = the_finding("plugin", with_kubelet(well, plugins=(hung,)))
    assert finding.level is Level.PROBLEM
    assert "no answer within 2 s" in finding.seen


def test_without_a_kubelet_or_a_look_at_it_nothing_is_checked(well: Facts) -> None:
    for facts in (
        with_kubelet(well, missing=True, plugins=()),
        with_kubelet(well, trouble=Unknown("no permission"), plugins=()),
    ):
        assert [finding.checked for finding in ask("plugin", facts)] == [False]
