"""From readings of the driver's counters to what a container does with its cores."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from neuron_plugin.allocation import PodUid
from neuron_plugin.allocation.utilization import ContainerUtilization, Utilization
from neuron_plugin.hardware.core_counters import CoreCounters, PhysicalCore
from neuron_plugin.plugin.snapshot import derive
from neuron_plugin.plugin.utilization import (
    WINDOW_SECONDS,
    ContainerKey,
    CoreHolders,
    Reading,
    UseByContainer,
    holders_of,
    idle_for,
    is_news,
    use_after,
    utilization_of,
)
from neuron_plugin.topology import Geometry, Topology
from tests.plugin.world import CORE, NEURON, app, entry, init, inputs, inventory, pod, ref, uid_of

KEY = ContainerKey(ref("a"), "app")
CORES = frozenset({(0, 0), (0, 1)})
BOOT = 1_795_000_000.0
"""Unix seconds at 0 of the daemon's clock."""
SECOND = 1_000_000


def reading(at: float, counts: Mapping[PhysicalCore, int | None], memory: int | None = 0) -> Reading:
    return Reading(at, BOOT + at, {core: CoreCounters(count, memory) for core, count in counts.items()})


def after(
    *readings: Reading, holders: CoreHolders | None = None, restored: Utilization | None = None
) -> UseByContainer:
    use: UseByContainer = {}
    for one in readings:
        use = use_after(use, {KEY: CORES} if holders is None else holders, one, restored or {})
    return use


def both(count: int | None) -> dict[PhysicalCore, int | None]:
    return dict.fromkeys(CORES, count)


def test_the_share_is_what_the_cores_executed_of_the_time_between_readings() -> None:
    use = after(reading(0, {(0, 0): 0, (0, 1): 0}), reading(30, {(0, 0): 30 * SECOND, (0, 1): 15 * SECOND}))
    assert use[KEY].known
    assert use[KEY].busy_share == pytest.approx(0.75)
    assert use[KEY].busy_seconds == 45


def test_one_reading_says_nothing_yet() -> None:
    use = after(reading(0, both(5)))
    assert not use[KEY].known
    assert utilization_of(use, BOOT + 1000, 300) == {}


def test_the_share_is_about_the_last_minutes() -> None:
    counts = [min(at, 600) for at in range(0, 1500, 30)]  # works for ten minutes, then stops
    use = after(*(reading(at, both(count * SECOND)) for at, count in zip(range(0, 1500, 30), counts, strict=True)))
    assert use[KEY].busy_share == 0
    assert len(use[KEY].samples) <= WINDOW_SECONDS / 30 + 2


def test_an_execution_that_ends_after_its_reading_is_at_most_the_whole_time() -> None:
    use = after(reading(0, both(0)), reading(30, both(0)), reading(31, both(60 * SECOND)))
    assert use[KEY].busy_share == 1


def test_a_container_is_idle_since_its_cores_last_executed_something() -> None:
    use = after(reading(0, both(0)), reading(30, both(7)), reading(60, both(7)), reading(360, both(7)))
    assert use[KEY].idle_seconds(BOOT + 360) == 330
    assert utilization_of(use, BOOT + 360, 331)[uid_of("a")]["app"].idle_since == 0
    assert utilization_of(use, BOOT + 360, 330)[uid_of("a")]["app"].idle_since == BOOT + 30


def test_one_busy_core_of_many_keeps_a_container_from_being_idle() -> None:
    use = after(reading(0, both(0)), reading(900, {(0, 0): 0, (0, 1): 1}))
    assert use[KEY].idle_seconds(BOOT + 900) == 0
    assert list(idle_for(use, BOOT + 900, 1)) == []


def test_a_container_that_never_worked_is_idle_since_it_is_looked_at() -> None:
    use = after(reading(100, both(4)), reading(500, both(4)))
    assert use[KEY].idle_seconds(BOOT + 500) == 400
    assert list(idle_for(use, BOOT + 500, 400)) == [KEY]


def test_a_counter_that_was_zeroed_counts_from_zero() -> None:
    use = after(reading(0, both(900 * SECOND)), reading(30, both(15 * SECOND)))
    assert use[KEY].busy_share == pytest.approx(0.5)
    assert use[KEY].idle_seconds(BOOT + 30) == 0


def test_without_the_counters_nothing_is_known_and_nothing_is_idle() -> None:
    use = after(reading(0, both(None), memory=512), reading(900, both(None), memory=512))
    assert not use[KEY].known
    assert list(idle_for(use, BOOT + 900, 1)) == []
    assert use[KEY].memory_bytes == 1024


def test_a_counter_that_cannot_be_read_for_once_ends_what_was_idle() -> None:
    use = after(
        reading(0, both(7)), reading(300, both(7)), reading(330, {(0, 0): 7, (0, 1): None}), reading(360, both(7))
    )
    assert not use[KEY].known
    use = use_after(use, {KEY: CORES}, reading(390, both(7)), {})
    assert use[KEY].idle_seconds(BOOT + 390) == 30


def test_memory_is_that_of_all_cores_and_unknown_where_one_is() -> None:
    use = after(reading(0, both(0), memory=512))
    assert use[KEY].memory_bytes == 1024
    use = after(reading(0, both(0), memory=None))
    assert use[KEY].memory_bytes is None


def test_the_next_container_on_the_same_cores_begins_anew() -> None:
    use = after(reading(0, both(0)), reading(600, both(0)))
    other = ContainerKey(ref("b"), "app")
    use = use_after(use, {other: CORES}, reading(630, both(0)), {})
    assert list(use) == [other]
    assert not use[other].known


def test_a_container_that_was_idle_before_a_restart_is_idle_since_then_if_nothing_ran_meanwhile() -> None:
    before = {uid_of("a"): {"app": ContainerUtilization(0, 0, idle_since=int(BOOT) - 5000, busy_seconds=14)}}
    still, ran = (
        after(reading(0, both(count)), reading(30, both(count)), restored=before) for count in (7 * SECOND, 9 * SECOND)
    )
    assert still[KEY].idle_seconds(BOOT + 30) == 5030
    assert ran[KEY].idle_seconds(BOOT + 30) == 30


def test_the_physical_cores_of_a_container_follow_from_its_logical_ones() -> None:
    geometry = Geometry("trn2.3xlarge", Topology.SINGLE, 1, 4)
    has = inventory(geometry, logical_core_size=2, physical_cores_per_device=8)
    recorded = entry(uid_of("a"), "app", CORE, 1, 2, node=has)
    found = holders_of(derive(inputs(pod("a", app(2, CORE)), recorded=[recorded], node=has)))
    assert found == {KEY: frozenset({(0, 2), (0, 3), (0, 4), (0, 5)})}


def test_cores_that_a_later_container_re_uses_are_that_ones() -> None:
    recorded = [entry(uid_of("a"), "init", NEURON, 0, 1), entry(uid_of("a"), "app", NEURON, 0)]
    found = holders_of(derive(inputs(pod("a", init(2), app(1)), recorded=recorded)))
    assert found[KEY] == frozenset({(0, 0), (0, 1)})
    assert found[ContainerKey(ref("a"), "init")] == frozenset({(1, 0), (1, 1)})


def of(**containers: tuple[int, int]) -> Utilization:
    return {PodUid("a"): {name: ContainerUtilization(busy, 0, since) for name, (busy, since) in containers.items()}}


@pytest.mark.parametrize(
    ("before", "now", "seconds", "is_it"),
    [
        (of(main=(50, 0)), of(main=(50, 0)), 1e6, False),
        (of(), of(main=(50, 0)), 0, True),
        (of(main=(0, 0)), of(main=(0, 77)), 0, True),
        (of(main=(0, 77)), of(main=(3, 0)), 0, True),
        (of(main=(50, 0)), of(main=(60, 0)), 299, False),
        (of(main=(50, 0)), of(main=(51, 0)), 300, True),
        (of(main=(50, 0)), of(main=(70, 0)), 59, False),
        (of(main=(50, 0)), of(main=(70, 0)), 60, True),
    ],
)
def test_what_comes_goes_falls_idle_or_works_again_is_news_at_once_and_the_rest_now_and_then(
    before: Utilization, now: Utilization, seconds: float, *, is_it: bool
) -> None:
    assert is_news(before, now, seconds) is is_it
