from __future__ import annotations

from dataclasses import replace

import pytest

from neuron_plugin.allocation import Resource
from neuron_plugin.allocation.claims import PLACED_TAINT, UNHEALTHY_TAINT
from neuron_plugin.inspection.facts import Daemon, Facts, SocketSeen
from neuron_plugin.inspection.findings import Unknown
from neuron_plugin.kubelet.dra_state import PreparedClaim
from neuron_plugin.kubelet.socket_watch import endpoint_path
from tests.inspection.cases import (
    DIRECTORY,
    Cases,
    Spoil,
    as_it_is,
    expect,
    facts_of,
    is_fine,
    rows,
    socket_path,
    with_cluster,
    with_kubelet,
)
from tests.inspection.doubles import MakeNode

DRIVER, NEURON = "neuron.aws.com", Resource.NEURON.value
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


def claims(**daemon: object) -> Spoil:
    return lambda well: by_claims(well, **daemon)


def kubelet(**changes: object) -> Spoil:
    return lambda well: with_kubelet(by_claims(well), **changes)


def cluster(**changes: object) -> Spoil:
    return lambda well: with_cluster(by_claims(well), **changes)


OURS = SocketSeen(STANDING, served=True)
THEIRS = SocketSeen(STANDING.with_name(f"{DRIVER}-1b4e28ba-reg.sock"), served=True)
FOUND: Cases = {
    "plugin": {
        "a driver that does not answer": (
            kubelet(plugins=(replace(OURS, fault="no answer within 2 s"),)),
            "problem: no answer within 2 s",
        ),
        "no driver": (kubelet(plugins=()), "problem: does not run here"),
        "both ways on one node": (
            lambda well: with_kubelet(well, plugins=(*well.kubelet.plugins, OURS)),
            "problem: both by count and by claims",
        ),
    },
    "registration": {
        "a driver that the kubelet does not follow": (
            claims(registered=False),
            f"problem: does not follow the driver {DRIVER}",
        ),
        "a driver of which nobody can say that": (claims(registered=Unknown("no daemon answers")), "unchecked: "),
        "devices that are offered by count, too": (
            kubelet(allocatable={NEURON: ("0",), Resource.NEURONCORE.value: ()}),
            f"problem: the kubelet offers {NEURON}, though",
        ),
    },
    "claims": {
        "a node by count": (as_it_is, "ok"),
        "a file of claims that cannot be read": (kubelet(prepared=Unknown("unknown shape")), "problem: unknown shape"),
        "claims on a node that offers devices by count": (
            lambda well: with_kubelet(well, prepared=(claim("1"),)),
            "warning: default/chips",
        ),
        "no CDI file": (
            claims(cdi=Unknown("there is no CDI file /c", "see the log")),
            "problem: there is no CDI file /c",
        ),
        "a CDI file without some devices": (
            claims(cdi=CDI - {"3-0", "3-1", "3-2", "3-3"}),
            "problem: lacks devices 3 ",
        ),
    },
    "slice": {
        "a node by count": (as_it_is, "ok"),
        "no slice": (cluster(slice=None), "problem: no ResourceSlice"),
        "a slice with a device too many": (
            cluster(slice={**OFFERED, "neuron-16": frozenset()}),
            "problem: this machine differ by neuron-1",
        ),
        "a slice of another machine": (
            cluster(slice={"neuron-0": frozenset()}),
            "problem: this machine differ by neuron-1",
        ),
        "taints that the server has dropped where claims are placed": (
            claims(placed_claims=True),
            f"problem: {PLACED_TAINT} ~ DRADeviceTaints",
        ),
    },
    "holders": {
        "one device by two claims": (
            kubelet(prepared=(claim("1"), claim("2", "others"))),
            "problem: uid/1 by claim chips and uid/2 by claim others both hold device 3",
        ),
        "one device by a claim that is shared": (kubelet(prepared=(replace(claim("1"), pod_uids=("1", "2")),)), "ok"),
        "devices of a claim that are not linked": (
            kubelet(prepared=(replace(claim("1"), devices=("neuron-0", "neuron-9")),)),
            "warning: devicegroupN_id",
        ),
    },
    "vendor-plugin": {
        "the vendor's driver beside ours, though both have one name": (
            kubelet(plugins=(OURS, THEIRS)),
            f"problem: {THEIRS.name}",
        )
    },
}


@pytest.mark.parametrize(("name", "change", "expected"), rows(FOUND))
def test_what_is_found(well: Facts, name: str, change: Spoil, expected: str) -> None:
    expect(name, change(well), expected)


def test_a_sick_device_without_a_taint_is_a_warning(make_node: MakeNode) -> None:
    node = make_node("trn1.32xlarge")
    node.set_ecc(5, memory=1)
    facts = by_claims(facts_of(node))
    expect("slice", facts, "warning: devices 5 ")
    tainted = {**OFFERED, "neuron-5": frozenset({UNHEALTHY_TAINT})}
    assert is_fine("slice", with_cluster(facts, slice=tainted))


def test_a_resource_s_socket_is_no_drivers(well: Facts) -> None:
    assert well.driver_sockets == []
    assert socket_path(Resource.NEURON).name.startswith("neuron-plugin.neuron.")
    assert by_claims(well).we_serve
