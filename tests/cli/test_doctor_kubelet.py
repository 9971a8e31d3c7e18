from __future__ import annotations

from neuron_plugin.cli.doctor_facts import Facts, SocketSeen, Unknown
from neuron_plugin.cli.doctor_findings import Level
from tests.cli.doctor_cases import DIRECTORY, is_fine, the_finding, with_kubelet

REFUSED = Unknown("may not be listed", "run this as root")


def test_a_kubelet_that_answers_is_fine(well: Facts) -> None:
    assert is_fine("kubelet", well)


def test_no_directory_is_a_problem_that_names_it(well: Facts) -> None:
    finding = the_finding("kubelet", with_kubelet(well, missing=True))
    assert finding.level is Level.PROBLEM
    assert str(DIRECTORY) in finding.seen
    assert "--kubelet-dir" in finding.action


def test_a_directory_that_may_not_be_listed_is_not_checked(well: Facts) -> None:
    facts = with_kubelet(well, trouble=REFUSED)
    for name in ("kubelet", "vendor-plugin", "dra-driver"):
        assert not the_finding(name, facts).checked


def test_no_registration_socket_is_a_problem(well: Facts) -> None:
    finding = the_finding("kubelet", with_kubelet(well, own_socket=None))
    assert finding.level is Level.PROBLEM
    assert "no kubelet.sock" in finding.seen


def test_a_registration_socket_that_nobody_serves_is_a_problem(well: Facts) -> None:
    dead = SocketSeen(DIRECTORY / "kubelet.sock", served=False)
    finding = the_finding("kubelet", with_kubelet(well, own_socket=dead))
    assert finding.level is Level.PROBLEM
    assert "nobody answers" in finding.seen


def test_a_kubelet_that_does_not_tell_holders_is_a_warning(well: Facts) -> None:
    unknown = Unknown("no answer within 3 s")
    finding = the_finding("kubelet", with_kubelet(well, allocatable=unknown, pods=unknown))
    assert finding.level is Level.WARNING
    assert "no answer within 3 s" in finding.seen
