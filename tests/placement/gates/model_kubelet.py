"""The kubelets of the model: what they say of a node's Neuron resources, some time after it has changed."""

from __future__ import annotations

from collections import defaultdict
from functools import reduce
from operator import or_

from neuron_plugin.allocation import Resource
from tests.placement.gates.model_part import Part
from tests.placement.gates.model_users import requests_of
from tests.support.manifests import shipped_geometry

TRN1 = shipped_geometry("trn1.32xlarge")


class Kubelets(Part):
    """They count the ids of a resource, but for those that a pod holds under the name of another one.

    So does the plugin advertise them: ``plugin.snapshot``. What is held under the same name is counted by requests.
    """

    def tick(self) -> None:
        for name in self.model.nodes:
            if self.chance.random() < 0.1:
                self.write_status(name)

    def rest(self) -> None:
        for name in self.model.nodes:
            self.write_status(name)

    def write_status(self, name: str) -> None:
        allocatable = self.model.nodes[name]["status"]["allocatable"]
        held = defaultdict[str, int](int)
        pods = {pod["metadata"]["name"]: pod for pod in (*self.model.pods.values(), *self.model.checks.pods())}
        for _, pod, cores, bound_to in self.model.held():
            if bound_to == name:
                resource = next((one for one in Resource if one in requests_of(pods[pod])), "")
                held[resource] |= sum(1 << core for core in cores)
        counts = dict[str, str]()
        for resource in (one for one in Resource if one in allocatable):
            others = reduce(or_, (mask for other, mask in held.items() if other != resource), 0)
            counts[resource.value] = str(sum(not mask & others for mask in TRN1.masks(resource.unit)))
        if any(allocatable[key] != count for key, count in counts.items()):
            self.model.server.patch_node(name, {"status": {"allocatable": counts}}, status=True)
