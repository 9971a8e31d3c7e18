from __future__ import annotations

from dataclasses import replace

from neuron_plugin.cli.doctor_facts import Facts, Unknown
from neuron_plugin.cli.doctor_findings import Level
from tests.cli.doctor_cases import POD_UID, api_pod, ask, holding, is_fine, the_finding, user, with_cluster, with_users

STATIC_UID = "0123456789abcdef0123456789abcdef"


def held(well: Facts) -> Facts:
    pod = api_pod("train", {"main": {"neurondevice": 1}}, {})
    return with_cluster(holding(well, ("train", "main", "neurondevice", "2")), pods=(pod,))


def test_no_process_is_fine(well: Facts) -> None:
    assert is_fine("processes", well)
    assert ask("processes", well)[0].seen == "no process has a device open"


def test_a_process_of_the_pod_that_holds_the_device_is_fine(well: Facts) -> None:
    assert is_fine("processes", with_users(held(well), user(2)))
    assert is_fine("processes", with_users(held(well), user(2), user(2)))


def test_a_static_pods_process_is_known_by_the_uid_of_its_file(well: Facts) -> None:
    facts = held(well)
    static = replace(api_pod("static", {"main": {"neurondevice": 1}}, {}), uids=frozenset({STATIC_UID}))
    assert is_fine("processes", with_users(with_cluster(facts, pods=(static,)), user(2, pod_uid=STATIC_UID)))


def test_a_process_outside_of_pods_is_a_warning(well: Facts) -> None:
    finding = the_finding("processes", with_users(held(well), user(2, 3, pod_uid="")))
    assert finding.level is Level.WARNING
    assert "process 4711 (python train.py) has devices 2-3 open and belongs to no pod" in finding.seen
    assert "kill 4711" in finding.action


def test_a_process_of_a_pod_that_has_ended_is_a_warning(well: Facts) -> None:
    finding = the_finding("processes", with_users(with_cluster(held(well), pods=()), user(2)))
    assert finding.level is Level.WARNING
    assert f"of pod {POD_UID}, which has ended" in finding.seen


def test_a_device_that_the_kubelet_gave_to_nobody_is_a_warning(well: Facts) -> None:
    finding = the_finding("processes", with_users(held(well), user(2, 7)))
    assert finding.level is Level.WARNING
    assert "device 7 open, which the kubelet gave to no pod" in finding.seen


def test_without_an_api_server_every_pod_passes_for_alive(well: Facts) -> None:
    facts = replace(held(well), cluster=Unknown("no API server is known"))
    assert is_fine("processes", with_users(facts, user(2)))


def test_what_cannot_be_seen_is_said_beside_what_is(well: Facts) -> None:
    findings = ask("processes", with_users(held(well), user(2, pod_uid=""), complete=False))
    assert [(finding.level, finding.checked) for finding in findings] == [(Level.NOTE, False), (Level.WARNING, True)]
    (finding,) = ask("processes", with_users(well, complete=False))
    assert not finding.checked


def test_without_proc_it_is_not_checked(well: Facts) -> None:
    assert not the_finding("processes", replace(well, users=Unknown("there is no /proc", "mount it"))).checked
