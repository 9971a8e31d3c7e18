"""The simulated scheduler's whole attempt, with the verb that the demo has no use for: preempt."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from neuron_plugin.simulation import ExtenderCallError
from neuron_plugin.simulation.api_server_kinds import AnyJson
from neuron_plugin.simulation.scheduler import SimulatedScheduler


@dataclass(frozen=True, slots=True)
class Placed:
    """The end of one attempt: a node, or a message."""

    node: str = ""
    message: str = ""


class StandInScheduler(SimulatedScheduler):
    """A client of one extender. Use it as an asynchronous context manager."""

    async def schedule(self, pod: AnyJson, nodes: Sequence[str]) -> Placed:
        """One scheduling attempt; of equally scored nodes the first."""
        try:
            found = await self.filter(pod, nodes)
            if not found.nodes:
                return Placed(message=found.message(len(nodes)))
            chosen = await self.best(pod, found.nodes)
            await self.bind(pod, chosen)
        except ExtenderCallError as error:
            return Placed(message=str(error))
        return Placed(node=chosen)

    async def preempt(
        self, pod: AnyJson, victims: Mapping[str, Sequence[str]], present: Mapping[str, Collection[str]]
    ) -> dict[str, list[str]]:
        """The preempt verb: victims by UID per node, in falling priority; the answer likewise.

        ``present`` are all pods of each node: of these the extender may name others than the victims
        (convertPodUIDToPod in pkg/scheduler/extender.go).

        Raises:
            ExtenderCallError: no 200, a victim that is not on its node, or a node without any.
        """
        offered = {
            node: {"Pods": [{"UID": uid} for uid in uids], "NumPDBViolations": 0} for node, uids in victims.items()
        }
        answer = await self._call("preempt", {"Pod": pod, "NodeNameToVictims": None, "NodeNameToMetaVictims": offered})
        chosen = answer.get("NodeNameToMetaVictims") or {}
        found = {node: [each["UID"] for each in entry["Pods"]] for node, entry in chosen.items()}
        for node, uids in found.items():
            if not uids:
                raise ExtenderCallError(f'expected at least one victim pod on node "{node}"')
            for uid in uids:
                if uid not in present.get(node, ()):
                    raise ExtenderCallError(
                        f"extender: {self._prefix} claims to preempt pod (UID: {uid}) on node: {node}, "
                        "but the pod is not found on that node"
                    )
        return found
