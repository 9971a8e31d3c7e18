from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from neuron_plugin.inspection.facts import Facts
from neuron_plugin.inspection.findings import Level
from neuron_plugin.inspection.unknown import Unknown
from neuron_plugin.simulation import write_node
from tests.inspection.cases import (
    POD_UID,
    api_pod,
    ask,
    facts_of,
    holding,
    is_fine,
    the_finding,
    user,
    with_cluster,
    with_users,
)
from tests.inspection.doubles import MakeNode

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


def test_a_process_without_a_name_is_told_by_its_number(well: Facts) -> None:
    facts = with_users(held(well), replace(user(2, pod_uid=""), command=""))
    assert "process 4711 (its name is not known)" in the_finding("processes", facts).seen


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
    findings = ask(
        "processes", with_users(held(well), user(2, pod_uid=""), unseen=Unknown("hidden", "run this as root"))
    )
    assert [(finding.level, finding.checked) for finding in findings] == [(Level.NOTE, False), (Level.WARNING, True)]
    (finding,) = ask("processes", with_users(well, unseen=Unknown("hidden", "run this as root")))
    assert not finding.checked


def test_without_proc_it_is_not_checked(well: Facts) -> None:
    assert not the_finding("processes", replace(well, users=Unknown("there is no /proc", "mount it"))).checked


@pytest.fixture(scope="module")
def old(tmp_path_factory: pytest.TempPathFactory) -> Facts:
    """The last driver that knows host numbers only."""
    root = tmp_path_factory.mktemp("old") / "node"
    return facts_of(write_node(root, "inf2.24xlarge", driver_version="2.12.13.0", usage_counters=False))


def test_the_way_follows_the_driver(well: Facts, old: Facts) -> None:
    assert "from /dev/neuron0 on" in ask("numbering", well)[0].seen
    assert "by their host numbers" in ask("numbering", old)[0].seen


@pytest.mark.parametrize("inside", [{0: 5}, {0: 4, 1: 5, 2: 6, 3: 7}, {device: device for device in range(16)}])
def test_renumbered_containers_are_fine_with_a_newer_driver(well: Facts, inside: Mapping[int, int]) -> None:
    assert is_fine("numbering", with_users(well, user(*inside.values(), inside=inside)))


@pytest.mark.parametrize("inside", [{5: 5}, {0: 5, 1: 4}, {1: 4, 2: 5}, {device: 15 - device for device in range(16)}])
def test_host_numbers_are_a_problem_with_a_newer_driver(well: Facts, inside: Mapping[int, int]) -> None:
    finding = the_finding("numbering", with_users(well, user(*inside.values(), inside=inside)))
    assert finding.level is Level.PROBLEM
    assert "python train.py" in finding.seen
    assert "--numbering to auto" in finding.action


def test_host_numbers_are_right_with_an_older_driver(old: Facts) -> None:
    assert is_fine("numbering", with_users(old, user(3, inside={3: 3})))
    assert the_finding("numbering", with_users(old, user(3, inside={0: 3}))).level is Level.PROBLEM


def test_devices_that_are_not_in_a_row_are_a_warning(well: Facts) -> None:
    finding = the_finding("numbering", with_users(well, user(0, 15, inside={0: 0, 1: 15})))
    assert finding.level is Level.WARNING
    assert "host devices 0, 15, not in a row" in finding.seen


def test_cores_copied_from_another_container_are_a_problem(well: Facts) -> None:
    finding = the_finding("numbering", with_users(well, user(4, inside={0: 4}, cores="8-9")))
    assert finding.level is Level.PROBLEM
    assert "no device for core 8" in finding.seen
    assert is_fine("numbering", with_users(well, user(4, inside={0: 4}, cores="0-1")))


def test_cores_are_host_numbers_with_an_older_driver(old: Facts) -> None:
    assert is_fine("numbering", with_users(old, user(3, inside={3: 3}, cores="6,7")))
    assert "core 0" in the_finding("numbering", with_users(old, user(3, inside={3: 3}, cores="0,1"))).seen


def test_cores_that_cannot_be_read_are_a_note(well: Facts) -> None:
    facts = with_users(well, user(4, inside={0: 4}, cores="all"))
    (finding,) = ask("numbering", facts)
    assert finding.level is Level.NOTE
    assert "'all'" in finding.seen


@pytest.mark.parametrize(("pod_uid", "inside"), [("", {5: 5}), ("some-pod", None), ("some-pod", {})])
def test_processes_of_the_host_and_unseen_ones_are_passed_over(
    well: Facts, pod_uid: str, inside: Mapping[int, int] | None
) -> None:
    assert is_fine("numbering", with_users(well, user(5, pod_uid=pod_uid, inside=inside)))


def test_without_a_version_it_is_not_checked(make_node: MakeNode) -> None:
    node = make_node("trn1.2xlarge")
    Path(node.paths.sysfs / "module/neuron/version").unlink()
    assert not the_finding("numbering", facts_of(node)).checked
