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
from tests.plugin.world import inputs, inventory, moment, pod_of, ref, uid_of

KEY = ContainerKey(ref("a"), "app")
CORES = frozenset({(0, 0), (0, 1)})
BOOT = 1_795_000_000.0
"""Unix seconds at 0 of the daemon's clock."""
SECOND = 1_000_000


def both(count: int | None) -> dict[PhysicalCore, int | None]:
    return dict.fromkeys(CORES, count)


def reading(at: float, counts: Mapping[PhysicalCore, int | None], memory: int | None = 0) -> Reading:
    return Reading(at, BOOT + at, {core: CoreCounters(count, memory) for core, count in counts.items()})


def after(
    *readings: Reading, holders: CoreHolders | None = None, restored: Utilization | None = None
) -> UseByContainer:
    use: UseByContainer = {}
    for one in readings:
        use = use_after(use, {KEY: CORES} if holders is None else holders, one, restored or {})
    return use


def readings(text: str) -> list[Reading]:
    """``30=15,0``: at 30 s the two cores have executed for so long; ``?`` cannot be read."""
    made = []
    for at, counts in (word.split("=") for word in text.split()):
        values = (None if one == "?" else int(float(one) * SECOND) for one in counts.split(","))
        made.append(reading(float(at), dict(zip(sorted(CORES), values, strict=True))))
    return made


IDLE_BEFORE = {uid_of("a"): {"app": ContainerUtilization(0, 0, idle_since=int(BOOT) - 5000, busy_seconds=14)}}
WORKED = " ".join(f"{at}={min(at, 600)},{min(at, 600)}" for at in range(0, 1500, 30))
USES: dict[str, tuple[str, Utilization, str]] = {
    "the share is what the cores executed of the time": ("0=0,0 30=30,15", {}, "busy 0.75 idle 0"),
    "one reading says nothing yet": ("0=5,5", {}, "unknown"),
    "the share is about the last minutes": (WORKED, {}, "busy 0 idle 870"),
    "what ends after its reading is at most the whole time": ("0=0,0 30=0,0 31=60,60", {}, "busy 1 idle 0"),
    "idle since the cores last executed something": ("0=0,0 30=7,7 60=7,7 360=7,7", {}, "busy 0 idle 330"),
    "one busy core of many": ("0=0,0 900=0,1", {}, "busy 0 idle 0"),
    "one that never worked is idle since it is looked at": ("100=4,4 500=4,4", {}, "busy 0 idle 400"),
    "a counter that was zeroed counts from zero": ("0=900,900 30=15,15", {}, "busy 0.5 idle 0"),
    "without the counters": ("0=?,? 900=?,?", {}, "unknown"),
    "a counter that cannot be read for once": ("0=7,7 300=7,7 330=7,? 360=7,7", {}, "unknown"),
    "and after that": ("0=7,7 300=7,7 330=7,? 360=7,7 390=7,7", {}, "busy 0 idle 30"),
    "idle before a restart, and nothing ran meanwhile": ("0=7,7 30=7,7", IDLE_BEFORE, "busy 0 idle 5030"),
    "something ran": ("0=9,9 30=9,9", IDLE_BEFORE, "busy 0 idle 30"),
}
"""Readings, what the Lease said before them, and what is known after the last one."""


@pytest.mark.parametrize(("steps", "before", "expected"), USES.values(), ids=USES)
def test_how_busy_and_how_long_idle_a_container_is(steps: str, before: Utilization, expected: str) -> None:
    made = readings(steps)
    use, now = after(*made, restored=before), BOOT + made[-1].at
    one = use[KEY]
    assert one.known is (expected != "unknown")
    assert len(one.samples) <= WINDOW_SECONDS / 30 + 2
    if not one.known:
        assert utilization_of(use, now + 1000, 300) == {}
        assert list(idle_for(use, now + 1000, 1)) == []
        return
    _, share, _, idle = expected.split(" ")
    assert one.busy_share == pytest.approx(float(share), abs=0.01)
    assert one.idle_seconds(now) == float(idle)
    assert list(idle_for(use, now, float(idle) or 1)) == [KEY] * (idle != "0")
    for limit, since in ((float(idle) + 1, 0), (float(idle) or 1, idle != "0" and now - float(idle))):
        assert utilization_of(use, now, limit)[uid_of("a")]["app"].idle_since == since


def test_busy_seconds_and_memory_are_those_of_all_cores_and_memory_is_unknown_where_one_is() -> None:
    assert after(*readings("0=0,0 30=30,15"))[KEY].busy_seconds == 45
    assert after(reading(0, both(0), memory=512))[KEY].memory_bytes == 1024
    assert after(reading(0, both(None), memory=512))[KEY].memory_bytes == 1024
    assert after(reading(0, both(0), memory=None))[KEY].memory_bytes is None


def test_the_next_container_on_the_same_cores_begins_anew() -> None:
    use = after(reading(0, both(0)), reading(600, both(0)))
    other = ContainerKey(ref("b"), "app")
    use = use_after(use, {other: CORES}, reading(630, both(0)), {})
    assert list(use) == [other]
    assert not use[other].known


def test_the_physical_cores_of_a_container_follow_from_its_logical_ones() -> None:
    geometry = Geometry("trn2.3xlarge", Topology.SINGLE, 1, 4)
    has = inventory(geometry, logical_core_size=2, physical_cores_per_device=8)
    found = holders_of(derive(inputs(pod_of("a app:core:2"), recorded="a=core:1,2", node=has)))
    assert found == {KEY: frozenset({(0, 2), (0, 3), (0, 4), (0, 5)})}


def test_cores_that_a_later_container_re_uses_are_that_ones() -> None:
    found = holders_of(derive(moment("a init:2 app:1 | has a/init=0,1 a=0")))
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
