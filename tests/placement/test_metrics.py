from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import inf

import pytest
from prometheus_client import Metric, generate_latest
from prometheus_client.registry import Collector

from neuron_plugin.metrics import Samples
from neuron_plugin.placement.extender.filter import LeadEnding
from neuron_plugin.placement.metrics import METRICS, fragmentation, new_counts, state_samples
from neuron_plugin.placement.state import AssumedPod
from tests.support.manifests import container, gated_manifest, node_manifest, pod_manifest, shipped_geometry
from tests.support.world import CORE, DEVICE, World, record_of

TRN1 = shipped_geometry("trn1.32xlarge")
NOW = 1_795_363_200.0  # 2026-11-22T16:00:00Z


def gauges(world: World) -> list[str]:
    samples = state_samples(
        world.state,
        ages={"pods": 1.5},
        unseen=2,
        under_way=3,
        leading=True,
        endings={LeadEnding.EXPIRED.value: 4},
        now=100.0,
        unix_now=NOW,
    )
    return lines_of(samples)


def lines_of(samples: Mapping[str, Samples]) -> list[str]:
    class Page(Collector):
        def collect(self) -> Iterable[Metric]:
            return METRICS.families(samples)

    return generate_latest(Page()).decode().splitlines()


def test_p79_node_series_follow_the_state_and_go_with_the_node(world: World) -> None:
    world.node("node", "trn1.32xlarge", unhealthy={15: "ECC"})
    world.held("pod", "node", DEVICE, "0,1,2,3")
    world.show_node({"metadata": {"name": "plain", "uid": "p"}})

    lines = gauges(world)

    assert 'neuron_extender_node_cores{node="node",state="free"} 22.0' in lines
    assert 'neuron_extender_node_cores{node="node",state="used"} 8.0' in lines
    assert 'neuron_extender_node_cores{node="node",state="unhealthy"} 2.0' in lines
    assert 'neuron_extender_closed_nodes{reason="no-neuron"} 1.0' in lines
    assert 'neuron_extender_watch_age_seconds{kind="pods"} 1.5' in lines
    assert "neuron_extender_cache_drift 2.0" in lines
    assert "neuron_extender_binds_under_way 3.0" in lines
    assert "neuron_extender_pods 1.0" in lines
    assert 'neuron_extender_assumptions_total{ending="expired"} 4.0' in lines
    assert "neuron_extender_assumption_age_seconds 0.0" in lines
    assert not any('node="plain"' in line for line in lines)

    world.state.remove_node("node", world.state.nodes["node"].node.uid)
    assert not any('node="node"' in line for line in gauges(world))


def test_what_pods_have_and_what_is_broken_are_two_facts_and_cores_add_up(world: World) -> None:
    world.node("node", "trn1.32xlarge", unhealthy={2: "ECC", 15: "ECC", 9: "old pod"}, missing=[3], held_down=[9])
    world.held("pod", "node", DEVICE, "0,1,2,3")
    world.held("beside", "node", CORE, "18")
    manifest = node_manifest("away", "inf2.48xlarge")
    world.show_node({**manifest, "spec": {"unschedulable": True}})

    lines = gauges(world)

    found = {
        node: {
            state: int(float(line.split()[-1]))
            for line in lines
            if (state := line.partition('state="')[2].partition('"')[0]) and f'node_cores{{node="{node}"' in line
        }
        for node in ("node", "away")
    }
    assert found["node"] == {
        "used": 5,
        "used-unhealthy": 4,
        "free": 20,
        "closed": 0,
        "unhealthy": 3,
        "disabled": 0,
        "reserved": 0,
    }
    assert sum(found["node"].values()) == 32
    assert (found["away"]["free"], found["away"]["closed"]) == (0, 24)
    assert 'neuron_extender_closed_nodes{reason="cordoned"} 1.0' in lines


def test_gated_promised_and_waiting_pods_are_counted_and_their_ages_known_by_size(world: World) -> None:
    world.node("node", "trn1.32xlarge")
    eight = pod_manifest("eight", containers=[container("a", DEVICE, 4), container("b", DEVICE, 4)])
    init = [container("a", DEVICE, 17), container("b", CORE, 1)]
    many = pod_manifest("many", containers=[container("c", CORE, 1)], init_containers=init)
    promised = gated_manifest("promised", DEVICE, 4, promised=("node", "0,1,2,3"))
    bound = pod_manifest("bound", DEVICE, 1, node="node", annotations={"NEURON_DEVS": "8"})
    for manifest, time in (
        (eight, "15:58:20"),
        (many, "15:59:59"),
        (gated_manifest("young", CORE, 2), "15:59:50"),
        (gated_manifest("old", CORE, 2), "15:59:00"),
        (promised, "15:50:00"),
        (bound, "15:50:00"),
    ):
        manifest["metadata"]["creationTimestamp"] = f"2026-11-22T{time}Z"
        world.show(manifest)

    lines = gauges(world)

    assert 'neuron_extender_gated_pods{state="waiting"} 2.0' in lines
    assert 'neuron_extender_gated_pods{state="promised"} 1.0' in lines
    assert "neuron_extender_gated_oldest_seconds 60.0" in lines
    assert [line for line in lines if line.startswith("neuron_extender_waiting_oldest_seconds")] == [
        'neuron_extender_waiting_oldest_seconds{devices="8"} 100.0',
        'neuron_extender_waiting_oldest_seconds{devices="more"} 1.0',
        'neuron_extender_waiting_oldest_seconds{devices="cores"} 60.0',
    ]
    assert 'neuron_extender_node_cores{node="node",state="used"} 10.0' in lines, "a promise is taken, too"


def test_the_age_is_that_of_the_oldest_assumption_no_bind_has_come_for(world: World) -> None:
    for name, since, until in (("bound", 10.0, inf), ("old", 40.0, 105.0), ("new", 90.0, 105.0)):
        pod = record_of(world.pod(name, DEVICE, 1))
        world.state.assume(AssumedPod(pod, (), since=since, until=until))

    assert "neuron_extender_assumption_age_seconds 60.0" in gauges(world)


@pytest.mark.parametrize(
    ("held", "expected"),
    [((), 0.0), ((0,), 1 - 8 / 15), ((0, 4, 8, 12), 1 - 1 / 12), (tuple(range(16)), 0.0), (tuple(range(15)), 0.0)],
    ids=str,
)
def test_fragmentation_is_the_share_outside_the_largest_free_set(held: tuple[int, ...], expected: float) -> None:
    assert fragmentation(TRN1, TRN1.all_mask & ~TRN1.devices_mask(held)) == pytest.approx(expected)


def test_counters_carry_the_documented_labels() -> None:
    counts = new_counts()

    counts.observe("extender_verb_seconds", "filter", seconds=0.001)
    counts.add("extender_verbs_total", "filter", "ok")
    counts.add("extender_refused_nodes_total", "not-free", count=3)
    counts.listed("pods", 10, 0.1)
    counts.interrupted("nodes", "expired", 1.0)

    lines = lines_of(counts.samples())
    for line in (
        'neuron_extender_verbs_total{result="ok",verb="filter"} 1.0',
        'neuron_extender_verb_seconds_count{verb="filter"} 1.0',
        'neuron_extender_refused_nodes_total{reason="not-free"} 3.0',
        'neuron_extender_lists_total{kind="pods"} 1.0',
        'neuron_extender_watch_restarts_total{cause="expired",kind="nodes"} 1.0',
        "neuron_extender_evictions_total 0.0",
    ):
        assert line in lines
