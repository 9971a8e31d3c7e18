"""A look from a desk takes seconds only where the clocks leave a doubt."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from msgspec import convert

from neuron_plugin.cluster import Lease
from neuron_plugin.monitor.look import SKEW_SECONDS, look, silent_plugins
from neuron_plugin.simulation.api_server_kinds import LEASES
from neuron_plugin.topology import catalogue
from tests.support.api_server import StandInApiServer
from tests.support.manifests import node_manifest

NOW = 1_800_000_000.0
DURATION = 8
LONG_AGO = DURATION + SKEW_SECONDS


def at(seconds_ago: float) -> str:
    return datetime.fromtimestamp(NOW - seconds_ago, UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


def lease(name: str, seconds_ago: float | None, holder: str = "x") -> Lease:
    renewed = {} if seconds_ago is None else {"renewTime": at(seconds_ago)}
    spec = {"holderIdentity": holder, "leaseDurationSeconds": DURATION, **renewed}
    return convert({"metadata": {"name": name}, "spec": spec}, Lease)


def plugin(node: str, seconds_ago: float | None, holder: str = "x") -> Lease:
    return lease(f"neuron-plugin-{node}", seconds_ago, holder)


@pytest.mark.parametrize(
    ("leases", "silent"),
    [
        ([plugin("a", 2), plugin("b", DURATION - 1)], set()),
        ([plugin("a", 2), plugin("b", LONG_AGO + 2)], {"b"}),
        ([plugin("a", LONG_AGO), lease("kube-scheduler", 0)], {"a"}),
        ([plugin("a", 2), plugin("b", 3, holder="")], {"b"}),
        ([plugin("a", 2), plugin("b", None)], set()),
        ([], set()),
        ([lease("kube-scheduler", 10_000)], set()),
    ],
)
def test_clocks_that_agree_say_who_is_silent(leases: list[Lease], silent: set[str]) -> None:
    assert silent_plugins(leases, NOW) == frozenset(silent)


@pytest.mark.parametrize(
    "leases",
    [
        [plugin("a", DURATION)],
        [plugin("a", LONG_AGO)],
        [plugin("a", -SKEW_SECONDS - 1)],
        [plugin("a", 2), plugin("b", DURATION + 5)],
    ],
    ids=["just over", "no other clock says so", "its clock is ahead", "within what clocks may differ"],
)
def test_clocks_that_leave_a_doubt_say_nothing(leases: list[Lease]) -> None:
    assert silent_plugins(leases, NOW) is None


async def test_a_look_at_plugins_that_live_takes_one_list_of_leases_and_does_not_wait(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("time.time", lambda: NOW)
    async with StandInApiServer() as server:
        for name, seconds_ago in (("alive", 1.0), ("dead", LONG_AGO + 1)):
            server.create_node(node_manifest(name, "inf2.xlarge"))
            spec = {"holderIdentity": "x", "leaseDurationSeconds": DURATION, "renewTime": at(seconds_ago)}
            server.create(LEASES, {"metadata": {"name": f"neuron-plugin-{name}"}, "spec": spec}, "kube-system")
        state = await look(server, catalogue(), lease_namespace="kube-system")
        unjudged = await look(server, catalogue(), lease_namespace="kube-system", judge=False)

    assert {name: info.stale for name, info in state.nodes.items()} == {"alive": False, "dead": True}
    assert not any(info.stale for info in unjudged.nodes.values())
