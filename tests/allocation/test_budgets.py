"""What disruption budgets say of pods that may be evicted."""

from __future__ import annotations

from dataclasses import replace

import pytest

from neuron_plugin.allocation import NeuronPod
from neuron_plugin.allocation.budgets import Budget
from neuron_plugin.allocation.node_rules import pod_labels
from tests.planning.clusters import pod

NOW, LATER, NEVER = (
    Budget("ml", "now", (), allowed=1),
    Budget("ml", "later", ()),
    Budget("ml", "never", (), recovers=False),
)
ELSEWHERE = Budget("web", "never", (), recovers=False)


def running(*, ready: bool = True) -> NeuronPod:
    return replace(pod("train", "neuron=1"), running=True, ready=ready, labels=pod_labels("ml", {}))


@pytest.mark.parametrize(
    ("budgets", "protected"),
    [
        ((), False),
        ((NOW,), False),
        ((LATER,), False),
        ((NEVER,), True),
        ((NOW, LATER), True),
        ((ELSEWHERE, NOW), False),
    ],
)
def test_a_budget_that_never_allows_one_and_two_budgets_at_once_protect_a_pod(
    budgets: tuple[Budget, ...], *, protected: bool
) -> None:
    """The eviction API refuses a pod that several budgets are for (pkg/registry/core/pod/storage/eviction.go)."""
    assert Budget.protect(budgets, running()) is protected


def test_a_budget_does_not_protect_a_pod_that_does_not_count_for_it() -> None:
    assert not Budget.protect((NEVER,), running(ready=False))
