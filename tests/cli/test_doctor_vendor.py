from __future__ import annotations

import pytest

from neuron_plugin.cli.doctor_facts import Facts, SocketSeen, Unknown
from neuron_plugin.cli.doctor_findings import Level
from tests.cli.doctor_cases import DIRECTORY, ask, is_fine, the_finding, with_host, with_kubelet

NAMES = ["neuron-devplugin.sock", "neuroncore-devplugin.sock"]


def beside(facts: Facts, name: str, *, served: bool) -> Facts:
    return with_kubelet(facts, plugins=(*facts.kubelet.plugins, SocketSeen(DIRECTORY / name, served=served)))


def test_no_trace_of_it_is_fine(well: Facts) -> None:
    assert is_fine("vendor-plugin", well)


def test_other_device_plugins_are_nobodys_business_here(well: Facts) -> None:
    assert is_fine("vendor-plugin", beside(well, "nvidia-gpu.sock", served=True))


@pytest.mark.parametrize("name", NAMES)
def test_beside_ours_it_is_a_problem_with_the_command_that_removes_it(well: Facts, name: str) -> None:
    finding = the_finding("vendor-plugin", beside(well, name, served=True))
    assert finding.level is Level.PROBLEM
    assert name in finding.seen
    assert "delete daemonset neuron-device-plugin-daemonset" in finding.action


@pytest.mark.parametrize("served", [True, False])
def test_alone_or_left_over_it_is_a_note(well: Facts, served: bool) -> None:  # noqa: FBT001 - a case
    facts = beside(with_kubelet(well, plugins=()), NAMES[0], served=served)
    assert the_finding("vendor-plugin", facts).level is Level.NOTE


def test_its_file_of_old_is_a_note_even_where_the_kubelets_directory_is_closed(well: Facts) -> None:
    facts = with_host(well, vendor_files=("/run/infa-map.json",))
    assert "/run/infa-map.json" in the_finding("vendor-plugin", facts).seen
    findings = ask("vendor-plugin", with_kubelet(facts, trouble=Unknown("no permission")))
    assert [finding.checked for finding in findings] == [False, True]
