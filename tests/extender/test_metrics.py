from __future__ import annotations

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from neuron_plugin.build import build
from neuron_plugin.extender.metrics import ExtenderMetrics, StateCollector, fragmentation
from neuron_plugin.simulation import shipped_geometry
from tests.extender.world import DEVICE, World

TRN1 = shipped_geometry("trn1.32xlarge")


@pytest.fixture
def registry(world: World) -> CollectorRegistry:
    registry = CollectorRegistry()
    registry.register(
        StateCollector(
            world.state, ages={"pods": lambda: 1.5}, drift=lambda: 2, under_way=lambda: 3, leading=lambda: True
        )
    )
    return registry


def text_of(registry: CollectorRegistry) -> list[str]:
    return generate_latest(registry).decode().splitlines()


def test_p79_node_series_follow_the_state_and_go_with_the_node(world: World, registry: CollectorRegistry) -> None:
    world.node("node", "trn1.32xlarge", unhealthy={15: "ECC"})
    world.held("pod", "node", DEVICE, "0,1,2,3")
    world.show_node({"metadata": {"name": "plain", "uid": "p"}})

    lines = text_of(registry)

    assert 'neuron_extender_node_cores{node="node",state="free"} 22.0' in lines
    assert 'neuron_extender_node_cores{node="node",state="used"} 8.0' in lines
    assert 'neuron_extender_node_cores{node="node",state="unhealthy"} 2.0' in lines
    assert 'neuron_extender_closed_nodes{reason="no-neuron"} 1.0' in lines
    assert 'neuron_extender_watch_age_seconds{kind="pods"} 1.5' in lines
    assert "neuron_extender_cache_drift 2.0" in lines
    assert "neuron_extender_binds_under_way 3.0" in lines
    assert "neuron_extender_pods 1.0" in lines
    assert not any('node="plain"' in line for line in lines)

    world.state.remove_node("node", world.state.nodes["node"].node.uid)
    assert not any('node="node"' in line for line in text_of(registry))


@pytest.mark.parametrize(
    ("held", "expected"),
    [((), 0.0), ((0,), 1 - 8 / 15), ((0, 4, 8, 12), 1 - 1 / 12), (tuple(range(16)), 0.0), (tuple(range(15)), 0.0)],
    ids=str,
)
def test_fragmentation_is_the_share_outside_the_largest_free_set(held: tuple[int, ...], expected: float) -> None:
    assert fragmentation(TRN1, TRN1.all_mask & ~TRN1.devices_mask(held)) == pytest.approx(expected)


def test_the_build_is_told_under_the_same_name_as_by_the_plugin() -> None:
    registry = CollectorRegistry()
    ExtenderMetrics(registry)
    (line,) = (line for line in text_of(registry) if line.startswith("neuron_plugin_build_info{"))
    assert line.endswith("} 1.0")
    assert [f'{name}="{value}"' in line for name, value in build()._asdict().items()] == [True] * 4


def test_counters_carry_the_documented_labels() -> None:
    registry = CollectorRegistry()
    metrics = ExtenderMetrics(registry)

    metrics.answered("filter", 0.001, ok=True)
    metrics.answered("bind", 0.001, ok=False)
    metrics.refused({"not-free": 3})
    metrics.bound("bound")
    metrics.unclear("no-assignment")
    metrics.listed("pods", 10, 0.1)
    metrics.interrupted("nodes", "expired", 1.0)

    lines = text_of(registry)
    for line in (
        'neuron_extender_verbs_total{result="ok",verb="filter"} 1.0',
        'neuron_extender_verbs_total{result="error",verb="bind"} 1.0',
        'neuron_extender_verb_seconds_count{verb="filter"} 1.0',
        'neuron_extender_refused_nodes_total{reason="not-free"} 3.0',
        'neuron_extender_binds_total{ending="bound"} 1.0',
        'neuron_extender_unclear_assignments_total{reason="no-assignment"} 1.0',
        'neuron_extender_lists_total{kind="pods"} 1.0',
        'neuron_extender_watch_restarts_total{cause="expired",kind="nodes"} 1.0',
    ):
        assert line in lines
