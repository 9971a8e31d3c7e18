"""What each part of the model answers; by itself a part does nothing and finds nothing wrong."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from neuron_plugin.allocation import NeuronPod
    from neuron_plugin.cluster import ApiRequest
    from neuron_plugin.simulation.api_server_kinds import AnyJson, Target
    from tests.placement.gates.model import Model
    from tests.placement.gates.model_replica import Replica

EPOCH = 1_800_000_000
"""When the model's clock began, in unix seconds."""


class Part:
    """One subject: what happens there, and what has to hold."""

    def __init__(self, model: Model) -> None:
        self.model = model
        self.chance = model.chance

    def act(self) -> None:
        """One thing happens."""

    def tick(self) -> None:
        """A moment has passed."""

    def dress(self, manifest: AnyJson) -> None:
        """A pod is about to be made."""

    def chosen(self, replica: Replica, pod: NeuronPod, node: str) -> None:
        """A replica has chosen a node for a pod."""

    def sent(self, replica: Replica, request: ApiRequest) -> None:
        """A replica sends a request, which may be lost."""

    def asked(self, sender: Replica, request: ApiRequest, target: Target) -> None:
        """The API server is about to do what it was asked."""

    def done(self, request: ApiRequest, target: Target, before: AnyJson | None) -> None:
        """The API server has done it; ``before`` is the user's pod that it was about."""

    def check(self) -> None:
        """What has to hold after every step."""

    def calm(self) -> None:
        """Nothing goes wrong any more."""

    def rest(self) -> None:
        """A second without trouble has passed."""

    def finish(self) -> None:
        """What has to hold once all have had time."""
