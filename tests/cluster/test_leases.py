from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from neuron_plugin.cluster import leases
from neuron_plugin.cluster.api import send
from neuron_plugin.cluster.kinds import LEASES
from neuron_plugin.cluster.leases import LeaseName, Sighting
from neuron_plugin.cluster.records import HOLDER_URL_KEY, ObjectReference
from neuron_plugin.simulation import api_server as stand_in

if TYPE_CHECKING:
    from neuron_plugin.cluster.records import Lease
    from neuron_plugin.cluster.transport import KubernetesApi
    from neuron_plugin.simulation import StandInApiServer

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
NAME = LeaseName("kube-system", "neuron-extender", "me")


def lease(version: str = "1", holder: str | None = "other", duration: int = 15, transitions: int = 0) -> Lease:
    spec = {"holderIdentity": holder, "leaseDurationSeconds": duration, "leaseTransitions": transitions}
    return LEASES.decode(json.dumps({"metadata": {"resourceVersion": version, "uid": "u"}, "spec": spec}).encode())


# When a lease has run out.


def test_a_lease_runs_out_when_it_was_left_alone_for_its_duration() -> None:
    sighting = Sighting()
    sighting.see(lease(), now=100.0)
    assert not sighting.expired(lease(), now=114.9)
    assert sighting.expired(lease(), now=115.0)


def test_a_renewal_starts_the_time_again() -> None:
    sighting = Sighting()
    sighting.see(lease("1"), now=100.0)
    sighting.see(lease("2"), now=110.0)
    assert not sighting.expired(lease("2"), now=120.0)


def test_seeing_the_same_state_again_is_no_renewal() -> None:
    sighting = Sighting()
    for now in (100.0, 105.0, 110.0):
        sighting.see(lease("1"), now=now)
    assert sighting.expired(lease("1"), now=115.0)


def test_a_lease_that_nobody_holds_is_free_at_once() -> None:
    sighting = Sighting()
    sighting.see(lease(holder=None), now=100.0)
    assert sighting.expired(lease(holder=None), now=100.0)


def test_the_times_inside_a_lease_do_not_matter() -> None:
    """The holder's clock may be an hour off."""
    old = LEASES.decode(
        b'{"metadata":{"resourceVersion":"1"},"spec":{"holderIdentity":"x","leaseDurationSeconds":15,'
        b'"renewTime":"1999-01-01T00:00:00.000000Z"}}'
    )
    sighting = Sighting()
    sighting.see(old, now=100.0)
    assert not sighting.expired(old, now=110.0)


# What is written.


def test_a_claim_names_the_version_it_saw() -> None:
    request = leases.claim_lease(NAME, lease("7", holder="other", transitions=4), duration_seconds=15, now=NOW)
    assert request.body == {
        "metadata": {"resourceVersion": "7", "uid": "u"},
        "spec": {
            "holderIdentity": "me",
            "leaseDurationSeconds": 15,
            "renewTime": "2026-01-02T03:04:05.000000Z",
            "acquireTime": "2026-01-02T03:04:05.000000Z",
            "leaseTransitions": 5,
        },
    }


def test_renewing_ones_own_is_no_transition() -> None:
    body = leases.claim_lease(NAME, lease("7", holder="me", transitions=4), duration_seconds=15, now=NOW).body
    assert body is not None
    spec = body["spec"]
    assert isinstance(spec, dict)
    assert "leaseTransitions" not in spec
    assert "acquireTime" not in spec


def test_a_claim_tells_where_its_holder_is_reached_in_the_same_write() -> None:
    url = "https://10.0.0.7:12345"
    named = LeaseName("kube-system", "neuron-extender", "me", url=url)
    claimed = leases.claim_lease(named, lease("7"), duration_seconds=15, now=NOW).body
    made = leases.create_lease(named, duration_seconds=15, now=NOW).body
    for body in (claimed, made):
        assert body is not None
        assert body["metadata"]["annotations"] == {HOLDER_URL_KEY: url}  # type: ignore[index]  # JSON


def test_a_holder_without_a_url_takes_the_last_ones_away() -> None:
    seen = LEASES.decode(
        b'{"metadata":{"resourceVersion":"7","annotations":{"neuron-plugin.io/holder-url":"https://gone"}},"spec":{}}'
    )
    body = leases.claim_lease(NAME, seen, duration_seconds=15, now=NOW).body
    assert body is not None
    assert body["metadata"] == {"resourceVersion": "7", "uid": "", "annotations": {HOLDER_URL_KEY: None}}


async def test_a_nodes_lease_goes_with_its_node(server: StandInApiServer, api: KubernetesApi) -> None:
    name = LeaseName("kube-system", "n1", "n1", owner=ObjectReference("Node", "n1", "uid-n1", "v1"))
    await send(api, leases.create_lease(name, duration_seconds=40, now=NOW), timeout_seconds=5)
    made = server.get(stand_in.LEASES, "n1", "kube-system")
    assert made["metadata"]["ownerReferences"] == [{"apiVersion": "v1", "kind": "Node", "name": "n1", "uid": "uid-n1"}]
    assert made["spec"]["leaseDurationSeconds"] == 40
