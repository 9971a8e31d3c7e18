from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from neuron_plugin.allocation import Resource
from neuron_plugin.inspection.facts import Daemon, Facts, SocketSeen
from neuron_plugin.inspection.findings import Level
from neuron_plugin.inspection.unknown import Unknown
from tests.inspection.cases import DIRECTORY, ask, facts_of, is_fine, socket_path, the_finding, with_kubelet
from tests.inspection.doubles import MakeNode

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
    assert is_fine("plugin", with_kubelet(well, plugins=(*well.kubelet.plugins, stale)))


def test_stale_sockets_alone_do_not_pass_for_a_plugin(well: Facts) -> None:
    stale = (SocketSeen(socket_path(CORE), served=False),)
    assert the_finding("plugin", with_kubelet(well, plugins=stale)).level is Level.PROBLEM


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


FILE = Path("/etc/neuron-plugin/config.yaml")


def going_by(facts: Facts, **daemon: object) -> Facts:
    return replace(facts, daemon=Daemon(**daemon))  # type: ignore[arg-type]  # fields by name


def test_a_configuration_that_can_be_used_is_fine(well: Facts) -> None:
    assert is_fine("configuration", going_by(well, file=FILE))


def test_one_with_which_the_daemon_does_not_start_is_a_problem(well: Facts) -> None:
    finding = the_finding("configuration", going_by(well, file=FILE, trouble="f has the unknown key 'helth'"))
    assert finding.level is Level.PROBLEM
    assert "helth" in finding.seen


@pytest.mark.parametrize("daemon", [{}, {"file": FILE, "trouble": Unknown("may not be read", "run this as root")}])
def test_one_that_is_not_known_is_not_checked(well: Facts, daemon: dict[str, object]) -> None:
    assert not the_finding("configuration", going_by(well, **daemon)).checked


def test_a_memory_that_is_not_known_is_a_note(well: Facts) -> None:
    machine = replace(well.machine, memory=Unknown("health.json is not there", "wait"))
    facts = replace(going_by(well, file=FILE), machine=machine)
    assert [finding.level for finding in ask("configuration", facts)] == [Level.OK, Level.NOTE]
    assert "are told like new ones" in the_finding("configuration", facts).why


def test_a_daemon_that_hears_everything_is_fine(well: Facts) -> None:
    assert is_fine("sources", well)


def test_p70_a_source_that_does_not_work_is_a_warning_in_the_daemons_words(well: Facts) -> None:
    line = "kernel-log is not running: /dev/kmsg cannot be opened"
    finding = the_finding("sources", replace(well, daemon=Daemon(silent=(line,))))
    assert (finding.level, finding.seen) == (Level.WARNING, line)


def test_a_daemon_that_cannot_be_asked_is_not_checked(well: Facts) -> None:
    facts = replace(well, daemon=Daemon(silent=Unknown("no daemon answers", "run this in the plugin's pod")))
    assert not the_finding("sources", facts).checked
