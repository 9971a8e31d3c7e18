"""The simulated API server under the names that most tests know it by, and budgets for pods of one label."""

from contextlib import suppress
from dataclasses import dataclass

from neuron_plugin.simulation.api_server import SimulatedApiServer as StandInApiServer
from neuron_plugin.simulation.api_server_kinds import BUDGETS, Refusal
from neuron_plugin.simulation.api_server_requests import Fault, Match

__all__ = ["Budget", "Fault", "Match", "StandInApiServer", "limit_disruptions"]


@dataclass(frozen=True, slots=True)
class Budget:
    """A PodDisruptionBudget: how many of the pods with these labels may still be evicted."""

    namespace: str
    labels: dict[str, str]
    allowed: int


def limit_disruptions(server: StandInApiServer, budget: Budget) -> None:
    """Let a disruption budget hold from now on, instead of the last one for these labels."""
    name = "-".join(budget.labels.values())
    with suppress(Refusal):
        server.delete(BUDGETS, name, budget.namespace)
    spec, status = {"selector": {"matchLabels": budget.labels}}, {"disruptionsAllowed": budget.allowed}
    server.create(BUDGETS, {"metadata": {"name": name}, "spec": spec, "status": status}, budget.namespace)
