from __future__ import annotations

import msgspec

from neuron_plugin.cluster import LEASES, Lease
from neuron_plugin.extender.staleness import PluginLeases, keep_plugin_lease


def lease(name: str, version: int, *, holder: str = "node", seconds: int = 40) -> Lease:
    spec = {"holderIdentity": holder, "leaseDurationSeconds": seconds}
    return LEASES.decode(
        msgspec.json.encode({"metadata": {"name": name, "uid": name, "resourceVersion": str(version)}, "spec": spec})
    )


def test_e07_a_lease_that_is_not_renewed_for_its_duration_makes_its_node_stale() -> None:
    leases = PluginLeases()
    leases.changed("u", lease("neuron-plugin-a", 1), 0.0)

    assert leases.stale(39.9) == frozenset()
    assert leases.stale(40.0) == {"a"}

    leases.changed("u", lease("neuron-plugin-a", 2), 50.0)
    assert leases.stale(60.0) == frozenset()


def test_e07_seeing_the_same_version_again_is_no_renewal() -> None:
    leases = PluginLeases()
    leases.changed("u", lease("neuron-plugin-a", 1), 0.0)
    leases.changed("u", lease("neuron-plugin-a", 1), 30.0)

    assert leases.stale(41.0) == {"a"}


def test_a_lease_that_was_given_up_is_stale_and_one_that_is_gone_is_not_judged() -> None:
    leases = PluginLeases()
    leases.changed("u", lease("neuron-plugin-a", 1, holder=""), 0.0)
    assert leases.stale(0.0) == {"a"}

    leases.changed("u", None, 1.0)
    assert leases.stale(100.0) == frozenset()


def test_leases_of_others_are_not_kept() -> None:
    assert keep_plugin_lease(lease("kube-scheduler", 1)) is None
    assert keep_plugin_lease(lease("neuron-plugin-a", 1)) is not None
