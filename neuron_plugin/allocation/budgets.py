"""How many evictions PodDisruptionBudgets allow at a time: a forecast, since the API server has the last word."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from neuron_plugin.allocation.node_rules import PodLabels, Requirement
from neuron_plugin.allocation.pod import NeuronPod


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

    def text(self, victims: Collection[NeuronPod]) -> str:
        """How the budget limits the eviction of these pods, which are its own and more than it allows to evict now."""
        allows = f"{self.allowed} disruption{'s' * (self.allowed != 1)}"
        needed = f"{len(victims)} {'is' if len(victims) == 1 else 'are'} needed"
        return f"PodDisruptionBudget {self.namespace}/{self.name} allows {allows} now, {needed}"

    @staticmethod
    def protect(budgets: Iterable[Budget], pod: NeuronPod) -> bool:
        """Whether budgets never allow to evict a pod: one never allows a disruption, or several budgets select it."""
        own = [budget for budget in budgets if budget.is_for(pod.labels)]
        blocked = any(budget.is_used_by(pod) and not (budget.allowed or budget.recovers) for budget in own)
        return blocked or len(own) > 1

    @staticmethod
    def beyond(budgets: Iterable[Budget], victims: Collection[NeuronPod]) -> dict[Budget, list[NeuronPod]]:
        """The budgets that allow fewer disruptions now than evicting these pods takes, with the pods that use them."""
        used = {budget: [victim for victim in victims if budget.is_used_by(victim)] for budget in budgets}
        return {budget: pods for budget, pods in used.items() if len(pods) > budget.allowed}
