from __future__ import annotations

import gzip
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from neuron_plugin.allocation.pod import PodReference, PodUid
from neuron_plugin.allocation.utilization import ContainerUtilization
from neuron_plugin.placement import account as account_module
from neuron_plugin.placement.account import (
    DAY,
    HOUR,
    PARTS,
    Account,
    AccountError,
    DeviceTime,
    Share,
    Split,
    read_account,
    split_devices,
    workload_of,
    write_account,
)
from tests.planning.clusters import pod
from tests.support.manifests import gated_manifest, node_manifest, pod_manifest
from tests.support.world import CORE, DEVICE, World

INF2 = "inf2.24xlarge"  # 6 devices of 2 cores


def shares_of(world: World, **percent: int) -> dict[tuple[str, str], float]:
    """Devices by workload and state; ``percent`` is how busy the pods of these names are."""
    info, pods = world.state.nodes["node"], world.state.pods
    uses = {
        uid: {"main": ContainerUtilization(percent[pod.reference.name], 0)}
        for uid, pod in pods.items()
        if pod.reference.name in percent
    }
    shares = split_devices(info, pods, uses)
    assert info.inventory
    assert sum(shares.values()) == PARTS * info.inventory.geometry.device_count
    return {(share.workload, share.state): parts / PARTS for share, parts in shares.items()}


def test_each_device_of_a_node_is_somebodys_or_free_or_not_to_be_given() -> None:
    world = World()
    world.node("node", INF2, unhealthy={2: "ECC", 3: "open", 4: "ECC"}, held_down=(3,), disabled=(5,))
    world.held("half", "node", CORE, "0")
    world.held("unmeasured", "node", CORE, "2,3")
    world.held("on-a-broken-one", "node", DEVICE, "4")
    assert shares_of(world, half=40) == {
        ("half", "busy"): 0.2,
        ("half", "idle"): 0.3,
        ("unmeasured", "unknown"): 1,
        ("on-a-broken-one", "unknown"): 1,
        ("", "free"): 0.5,
        ("", "held"): 1,
        ("", "broken"): 2,
    }


def test_what_a_pod_was_promised_and_what_is_kept_for_one_is_held_for_it() -> None:
    world = World()
    world.node("node", INF2)
    world.show(gated_manifest("promised", DEVICE, 2, promised=("node", "0,1")))
    rank = PodReference(PodUid("ml/gang#3"), "ml", "lost-worker")
    assert workload_of(rank, None) == "gang"
    assert shares_of(world) == {("promised", "held"): 2, ("", "free"): 4}


@pytest.mark.parametrize(("cordoned", "other"), [(True, "held"), (False, "unknown")])
def test_where_no_pod_is_taken_nothing_is_free(cordoned: bool, other: str) -> None:  # noqa: FBT001 - a table
    world = World()
    manifest = node_manifest("node", INF2)
    manifest["spec"] = {"unschedulable": cordoned}
    world.show_node(manifest)
    if not cordoned:
        world.show(pod_manifest("without-an-assignment", DEVICE, 1, node="node"))
    assert shares_of(world) == {("", other): 6}


def test_a_silent_plugin_measures_nothing() -> None:
    world = World()
    world.node("node", INF2)
    world.held("train", "node", DEVICE, "0")
    world.state.set_stale(frozenset({"node"}))
    assert shares_of(world, train=100) == {("train", "unknown"): 1, ("", "held"): 5}


@pytest.mark.parametrize(
    ("controller", "workload"),
    [
        ("ReplicaSet/web-7d4b9c", "web"),
        ("Job/nightly-28391235", "nightly"),
        ("Job/train-1", "train-1"),
        ("StatefulSet/db-0", "db-0"),
        ("DaemonSet/agent", "agent"),
        ("", "alone"),
    ],
)
def test_a_workload_is_what_makes_pods_again_for_every_version_and_time(controller: str, workload: str) -> None:
    made = pod("alone", "neuron=1", controller=controller)
    assert workload_of(made.reference, made) == workload


@given(st.data())
def test_the_shares_of_a_node_are_its_devices_whatever_is_on_it(data: st.DataObject) -> None:
    world, devices = World(), range(6)
    some = st.sets(st.sampled_from(devices))
    sick, disabled, held_down = data.draw(some), data.draw(some), data.draw(some)
    world.node(
        "node",
        INF2,
        unhealthy=dict.fromkeys(sick | held_down, "x"),
        held_down=tuple(held_down),
        disabled=tuple(disabled),
        missing=tuple(data.draw(st.sets(st.sampled_from(devices), max_size=2))),
    )
    percent = {}
    for number in range(data.draw(st.integers(0, 4))):
        ids = ",".join(map(str, sorted(data.draw(st.sets(st.integers(0, 11), min_size=1, max_size=4)))))
        name = f"pod{number}"
        if data.draw(st.booleans()):
            world.held(name, "node", CORE, ids)
        else:
            world.show(gated_manifest(name, CORE, len(ids.split(",")), promised=("node", ids)))
        if data.draw(st.booleans()):
            percent[name] = data.draw(st.integers(0, 100))
    shares, ledger = shares_of(world, **percent), world.state.nodes["node"].ledger
    assert all(amount > 0 for amount in shares.values())
    owned = sum(amount for (workload, _), amount in shares.items() if workload)
    assert round(owned, 6) >= ledger.used_mask.bit_count() / 2


def split(**owners: int) -> Split:
    shares = DeviceTime({Share("ml", name, "t", "busy"): parts for name, parts in owners.items()})
    return Split(shares, DeviceTime({Share("", "node", "t", "busy"): sum(owners.values())}))


def test_the_last_hours_are_answered_by_hours_and_more_by_days() -> None:
    begun = 20_000 * DAY - 5 * HOUR
    account = Account(begun, begun)
    for hour in range(50 * 24):
        account.count(split(train=7), begun + (hour + 1) * HOUR)
    account.count(split(train=7), account.until + 600)
    assert (len(account.hours), len(account.days)) == (49, 36)
    for seconds, length in ((3 * HOUR, HOUR), (7 * DAY, DAY), (100 * DAY, DAY)):
        since, amounts = account.since(seconds)
        assert since % length == 0
        assert account.until - since == min(seconds, 35 * DAY) + account.until % length
        assert sum(amounts.values()) == 7 * (account.until - since)
    since, amounts = account.since(3 * HOUR, nodes=True)
    assert (since, [*amounts]) == (account.until // DAY * DAY, [Share("", "node", "t", "busy")])


def test_of_many_workloads_the_largest_keep_their_names_and_nothing_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(account_module, "MOST_NAMED", 6)
    monkeypatch.setattr(account_module, "MOST_KEPT", 3)
    account, seen = Account(0, 0), Counter[str]()
    for hour in range(80):
        account.count(split(**{f"job{hour // 5 + number}": 1 + number for number in range(9)}), (hour + 1) * HOUR)
        seen.update({"all": 45 * HOUR})
        assert len({share.workload for share in account.totals}) <= 7
    assert all(len(amounts) <= 4 for start, amounts in account.hours.items() if start + HOUR < account.until)
    assert sum(sum(day.values()) for day in account.days.values()) == seen["all"]
    assert {sum(hour.values()) for hour in account.hours.values()} == {45 * HOUR}
    assert {share.workload for share in account.days[0]} > {"other"}


def test_of_many_namespaces_the_largest_keep_their_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(account_module, "MOST_NAMED", 6)
    account = Account(0, 0)
    shares = DeviceTime({Share(f"ns{number}", "job", "t", "busy"): number + 1 for number in range(40)})
    account.count(Split(shares, DeviceTime()), 10)
    names = {(share.namespace, share.workload) for share in account.totals}
    assert names == {*((f"ns{number}", "job") for number in range(34, 40)), ("other", "other")}
    assert sum(account.totals.values()) == 10 * sum(shares.values())


def test_devices_that_two_pods_seem_to_have_count_once_where_nobody_looked() -> None:
    world = World()
    world.node("node", INF2)
    world.held("one", "node", DEVICE, "0,1")
    world.held("two", "node", DEVICE, "1,2")
    account = Account(0, 0)
    account.count_unseen(world.state.nodes.values(), world.state.pods, 10)
    assert sum(account.totals.values()) == 60 * PARTS
    assert {share.workload: amount / PARTS for share, amount in account.totals.items()} == {
        "one": 20,
        "two": 10,
        "": 30,
    }


def test_a_counter_that_is_shown_never_gets_less_until_its_workload_is_gone_for_two_days() -> None:
    account, last = Account(0, 0), DeviceTime()
    for hour in range(120):
        account.count(split(**({"old": 3} if hour < 24 else {}), train=1), (hour + 1) * HOUR)
        assert all(account.totals[share] >= last[share] for share in account.totals)
        last = account.totals.copy()
        assert ("old" in {share.workload for share in last}) is (hour < 24 + 47)


def test_an_account_is_read_as_it_was_written_and_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    account = Account(100, 100)
    for hour in range(100):
        account.count(split(**{f"job{hour}-{number}": number + 1 for number in range(20)}), 100 + (hour + 1) * HOUR)
    assert read_account(write_account(account)) == account
    whole = sum(sum(day.values()) for day in account.days.values())
    monkeypatch.setattr(account_module, "MOST_BYTES", len(write_account(account)) // 2)
    assert len(data := write_account(account)) <= account_module.MOST_BYTES
    assert sum(sum(day.values()) for day in read_account(data).days.values()) == whole


@pytest.mark.parametrize("text", [b"", b"[]", b'{"version":2}', b'{"version":1,"names":[["a"]]}'])
def test_what_is_no_account_is_refused(text: bytes) -> None:
    for data in (gzip.compress(text), text):
        with pytest.raises(AccountError, match="the account cannot be read"):
            read_account(data)
