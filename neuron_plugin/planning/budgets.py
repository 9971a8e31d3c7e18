"""How many evictions PodDisruptionBudgets allow at a time: a forecast, since the API server has the last word."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from neuron_plugin.allocation import NeuronPod
from neuron_plugin.allocation.node_rules import PodLabels, Requirement
from neuron_plugin.wording import plural


@dataclass(frozen=True, slots=True)
class Budget:
    """A PodDisruptionBudget: the pods that it selects, and how many of them may be disrupted now.

    ``recovers``: it allows disruptions again once its pods are healthy elsewhere. ``counts_unready``: the eviction of a
    pod that is not ready uses the budget, too (unhealthyPodEvictionPolicy).
    """

    namespace: str
    name: str
    labels: tuple[Requirement, ...] | None
    allowed: int = 0
    recovers: bool = True
    counts_unready: bool = False

    def is_for(self, pod: PodLabels) -> bool:
        """Whether a pod is under this budget."""
        meant = self.labels is not None and all(requirement.is_met(pod.labels) for requirement in self.labels)
        return meant and pod.namespace == self.namespace

    def is_used_by(self, pod: NeuronPod) -> bool:
        """Whether the eviction of a pod uses the budget (pkg/registry/core/pod/storage/eviction.go)."""
        runs = pod.running and not (pod.terminating or pod.ended)
        return runs and (pod.ready or self.counts_unready) and self.is_for(pod.labels)


def is_protected(budgets: Iterable[Budget], pod: NeuronPod) -> bool:
    """Whether disruption budgets never let a pod be evicted: one allows none for good, or several are for it."""
    own = [budget for budget in budgets if budget.is_for(pod.labels)]
    blocked = any(budget.is_used_by(pod) and not (budget.allowed or budget.recovers) for budget in own)
    return blocked or len(own) > 1


def beyond_budgets(budgets: Iterable[Budget], victims: Collection[NeuronPod]) -> dict[Budget, list[NeuronPod]]:
    """The budgets that allow fewer disruptions now than evicting these pods takes, with the pods that use them."""
    used = {budget: [victim for victim in victims if budget.is_used_by(victim)] for budget in budgets}
    return {budget: pods for budget, pods in used.items() if len(pods) > budget.allowed}


def budget_text(budget: Budget, victims: Collection[NeuronPod]) -> str:
    """How a budget limits the eviction of these pods, which are its own and more than it allows to evict now."""
    allows = plural(budget.allowed, "disruption")
    needed = plural(len(victims), "is", "are")
    return f"PodDisruptionBudget {budget.namespace}/{budget.name} allows {allows} now, {needed} needed"
