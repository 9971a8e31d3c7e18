from __future__ import annotations

from dataclasses import replace

import pytest

from neuron_plugin.allocation import Resource
from neuron_plugin.allocation.claims import PLACED_TAINT, UNHEALTHY_TAINT
from neuron_plugin.inspection.facts import Daemon, Facts, SocketSeen
from neuron_plugin.inspection.findings import Level, Unknown
from neuron_plugin.kubelet.dra_state import PreparedClaim
from neuron_plugin.kubelet.socket_watch import endpoint_path
from tests.inspection.cases import (
    DIRECTORY,
    ask,
    facts_of,
    is_fine,
    socket_path,
    the_finding,
    with_cluster,
    with_kubelet,
)
from tests.inspection.doubles import MakeNode

DRIVER = "neuron.aws.com"
STANDING = endpoint_path(DIRECTORY.parent / "plugins_registry", DRIVER, "standing")
CDI = frozenset(f"{host}-{inside}" for host in range(16) for inside in range(host + 1))
OFFERED = {f"neuron-{number}": frozenset[str]() for number in range(16)}
PLACED = dict.fromkeys(OFFERED, frozenset({PLACED_TAINT}))


def claim(pod_uid: str, name: str = "chips", device: str = "neuron-3") -> PreparedClaim:
    return PreparedClaim(DRIVER, f"uid-of-{name}", "default", name, (pod_uid,), (device,))


def by_claims(well: Facts, **daemon: object) -> Facts:
    """The same node, which offers its devices by claims."""
    facts = with_cluster(
        with_kubelet(well, plugins=(SocketSeen(STANDING, served=True),), allocatable={}), slice=OFFERED
    )
    said = Daemon(well.daemon.file, driver=DRIVER, cdi=CDI, registered=True)
    return replace(facts, daemon=replace(said, **daemon))  # type: ignore[arg-type]  # fields by name


@pytest.mark.parametrize("name", ["plugin", "registration", "claims", "slice", "vendor-plugin", "holders"])
def test_a_node_that_offers_claims_as_it_should_is_fine(well: Facts, name: str) -> None:
    assert is_fine(name, by_claims(well))
    assert is_fine(name, with_cluster(by_claims(well, placed_claims=True), slice=PLACED))


@pytest.mark.parametrize("name", ["claims", "slice"])
def test_a_node_that_offers_devices_by_count_needs_neither(well: Facts, name: str) -> None:
    assert is_fine(name, well)


def test_a_driver_that_does_not_answer_is_a_problem(well: Facts) -> None:
    silent = SocketSeen(STANDING, served=True, fault="no answer within 2 s")
    finding = the_finding("plugin", with_kubelet(by_claims(well), plugins=(silent,)))
    assert (finding.level, "no answer within 2 s" in finding.seen) == (Level.PROBLEM, True)


def test_no_driver_here_is_a_problem(well: Facts) -> None:
    assert "does not run here" in the_finding("plugin", with_kubelet(by_claims(well), plugins=())).seen


def test_both_ways_on_one_node_are_a_problem(well: Facts) -> None:
    both = (*well.kubelet.plugins, SocketSeen(STANDING, served=True))
    assert "both by count and by claims" in the_finding("plugin", with_kubelet(well, plugins=both)).seen


def test_a_driver_that_the_kubelet_does_not_follow_is_a_problem(well: Facts) -> None:
    assert f"does not follow the driver {DRIVER}" in the_finding("registration", by_claims(well, registered=False)).seen
    (unasked,) = ask("registration", by_claims(well, registered=Unknown("no daemon answers")))
    assert not unasked.checked


def test_devices_that_are_offered_by_count_too_are_a_problem(well: Facts) -> None:
    facts = with_kubelet(by_claims(well), allocatable={Resource.NEURON.value: ("0",), Resource.NEURONCORE.value: ()})
    assert f"the kubelet offers {Resource.NEURON}, though" in the_finding("registration", facts).seen


def test_a_file_of_claims_that_cannot_be_read_is_a_problem(well: Facts) -> None:
    finding = the_finding("claims", with_kubelet(by_claims(well), prepared=Unknown("unknown shape")))
    assert (finding.level, "unknown shape" in finding.seen) == (Level.PROBLEM, True)


def test_claims_on_a_node_that_offers_devices_by_count_are_a_warning(well: Facts) -> None:
    finding = the_finding("claims", with_kubelet(well, prepared=(claim("1"),)))
    assert (finding.level, "default/chips" in finding.seen) == (Level.WARNING, True)


@pytest.mark.parametrize(
    ("names", "words"),
    [
        (Unknown("there is no CDI file /c", "see the log"), "there is no CDI file /c"),
        (CDI - {"3-0", "3-1", "3-2", "3-3"}, "lacks devices 3 "),
    ],
)
def test_a_cdi_file_without_the_devices_is_a_problem(well: Facts, names: object, words: str) -> None:
    finding = the_finding("claims", by_claims(well, cdi=names))
    assert (finding.level, words in finding.seen) == (Level.PROBLEM, True)


def test_a_node_without_its_slice_is_a_problem(well: Facts) -> None:
    assert "no ResourceSlice" in the_finding("slice", with_cluster(by_claims(well), slice=None)).seen


@pytest.mark.parametrize("shown", [{**OFFERED, "neuron-16": frozenset()}, {"neuron-0": frozenset()}])
def test_a_slice_of_another_machine_is_a_problem(well: Facts, shown: object) -> None:
    assert "this machine differ by neuron-1" in the_finding("slice", with_cluster(by_claims(well), slice=shown)).seen


def test_taints_that_the_server_has_dropped_are_a_problem_where_claims_are_placed(well: Facts) -> None:
    finding = the_finding("slice", by_claims(well, placed_claims=True))
    assert (finding.level, PLACED_TAINT in finding.seen) == (Level.PROBLEM, True)
    assert "DRADeviceTaints" in finding.action


def test_a_sick_device_without_a_taint_is_a_warning(make_node: MakeNode) -> None:
    node = make_node("trn1.32xlarge")
    node.set_ecc(5, memory=1)
    facts = by_claims(facts_of(node))
    finding = the_finding("slice", facts)
    assert (finding.level, finding.seen[:10]) == (Level.WARNING, "devices 5 ")
    tainted = {**OFFERED, "neuron-5": frozenset({UNHEALTHY_TAINT})}
    assert is_fine("slice", with_cluster(facts, slice=tainted))


def test_one_device_by_two_claims_is_a_problem_and_by_a_shared_one_is_not(well: Facts) -> None:
    twice = with_kubelet(by_claims(well), prepared=(claim("1"), claim("2", "others")))
    assert "uid/1 by claim chips and uid/2 by claim others both hold device 3" in the_finding("holders", twice).seen
    shared = replace(claim("1"), pod_uids=("1", "2"))
    assert is_fine("holders", with_kubelet(by_claims(well), prepared=(shared,)))


def test_devices_of_a_claim_that_are_not_linked_are_a_warning(well: Facts) -> None:
    unlinked = replace(claim("1"), devices=("neuron-0", "neuron-9"))
    finding = the_finding("holders", with_kubelet(by_claims(well), prepared=(unlinked,)))
    assert (finding.level, "devicegroupN_id" in finding.action) == (Level.WARNING, True)


def test_the_vendors_driver_beside_ours_is_a_problem_though_both_have_one_name(well: Facts) -> None:
    theirs = SocketSeen(STANDING.with_name(f"{DRIVER}-1b4e28ba-reg.sock"), served=True)
    finding = the_finding(
        "vendor-plugin", with_kubelet(by_claims(well), plugins=(SocketSeen(STANDING, served=True), theirs))
    )
    assert (finding.level, theirs.name in finding.seen, STANDING.name in finding.seen) == (Level.PROBLEM, True, False)


def test_a_resource_s_socket_is_no_drivers(well: Facts) -> None:
    assert well.driver_sockets == []
    assert socket_path(Resource.NEURON).name.startswith("neuron-plugin.neuron.")
    assert by_claims(well).we_serve
