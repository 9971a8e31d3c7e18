"""Objects of Dynamic Resource Allocation for tests of what is simulated."""

from __future__ import annotations

from typing import Any

from neuron_plugin.simulation.api_server import SimulatedApiServer
from neuron_plugin.simulation.api_server_kinds import (
    CLAIM_TEMPLATES,
    DEVICE_CLASSES,
    PODS,
    RESOURCE_CLAIMS,
    RESOURCE_SLICES,
)
from neuron_plugin.topology.device_groups import device_groups

Json = dict[str, Any]

DRIVER = "neuron.aws.com"
GROUP_OF_4 = "resource.aws.com/devicegroup4_id"
FINALIZER = "resource.kubernetes.io/delete-protection"
CLAIMS = "/apis/resource.k8s.io/v1/namespaces/default/resourceclaims"
SLICES = "/apis/resource.k8s.io/v1/resourceslices"
USER = {"resource": "pods", "name": "a", "uid": "uid-a"}


def exactly(name: str = "neurons", **parts: Any) -> Json:
    return {"name": name, "exactly": {"deviceClassName": DRIVER, **parts}}


def claim_spec(*requests: Json, **parts: Any) -> Json:
    return {"devices": {"requests": list(requests or (exactly(),)), **parts}}


def claim(name: str = "c", **metadata: Any) -> Json:
    return {"metadata": {"name": name, **metadata}, "spec": claim_spec()}


def allocation(device: str = "neuron-0", **parts: Any) -> Json:
    result = {"request": "neurons", "driver": DRIVER, "pool": "n1-neuron", "device": device}
    term = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n1"]}]}
    return {"allocation": {"devices": {"results": [result]}, "nodeSelector": {"nodeSelectorTerms": [term]}, **parts}}


def linked(count: int, size: int = 0) -> Json:
    """A claim as AWS's templates for linked devices have it."""
    constraint = {"requests": ["neurons"], "matchAttribute": f"resource.aws.com/devicegroup{size or count}_id"}
    return claim_spec(exactly(count=count), constraints=[constraint])


def device_class(name: str = DRIVER, expression: str = "") -> Json:
    text = expression or f'device.driver == "{name}"'
    return {"metadata": {"name": name}, "spec": {"selectors": [{"cel": {"expression": text}}]}}


def node_slice(
    node: str = "n1", count: int = 16, tainted: tuple[int, ...] = (), driver: str = DRIVER, *, placed: bool = False
) -> Json:
    """``tainted`` devices are not healthy; ``placed``: the placement controller allocates."""
    groups = device_groups("trn1.32xlarge")
    taints = [{"key": "neuron-plugin.io/unhealthy", "effect": "NoSchedule"}]
    always = [{"key": "neuron-plugin.io/placed-by-gates", "effect": "NoSchedule"}] * placed
    devices = [
        {
            "name": f"neuron-{number}",
            "attributes": {
                f"{DRIVER}/deviceId": {"int": number},
                "resourceType": {"string": "neuron_device"},
                **{f"resource.aws.com/devicegroup{size}_id": {"string": at} for size, at in groups[number].items()},
            },
            "taints": always + (taints if number in tainted else []),
        }
        for number in range(count)
    ]
    pool = {"name": f"{node}-neuron", "generation": 1, "resourceSliceCount": 1}
    return {
        "metadata": {"name": f"{node}-{driver}"},
        "spec": {"driver": driver, "nodeName": node, "pool": pool, "devices": devices},
    }


def pod(name: str = "a", template: str = "", claim: str = "", **spec: Any) -> Json:
    """A pod of one container that uses one claim, called ``neurons``, of this name or from this template."""
    source = {"resourceClaimTemplateName": template} if template else {"resourceClaimName": claim}
    container = {"name": "app", "resources": {"claims": [{"name": "neurons"}]}}
    return {
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"containers": [container], "resourceClaims": [{"name": "neurons", **source}], **spec},
    }


def a_cluster(api: SimulatedApiServer, nodes: int = 1) -> None:
    """Nodes with slices, the class, and templates ``one``, ``four`` and ``all``."""
    api.create(DEVICE_CLASSES, device_class(), "")
    for number in range(1, nodes + 1):
        api.create_node({"metadata": {"name": f"n{number}"}})
        api.create(RESOURCE_SLICES, node_slice(f"n{number}"), "")
    specs = {"one": claim_spec(), "four": linked(4), "all": claim_spec(exactly(allocationMode="All"))}
    for name, spec in specs.items():
        api.create(CLAIM_TEMPLATES, {"metadata": {"name": name}, "spec": {"spec": spec}}, "default")


def devices_of(claim: Json) -> list[str]:
    allocation = (claim.get("status") or {}).get("allocation") or {"devices": {"results": []}}
    return [each["device"] for each in allocation["devices"]["results"]]


def claims(api: SimulatedApiServer) -> list[Json]:
    return api.objects(RESOURCE_CLAIMS)


def only_claim(api: SimulatedApiServer) -> Json:
    (found,) = claims(api)
    return found


def pod_object(api: SimulatedApiServer, name: str = "a") -> Json:
    return api.get(PODS, name, "default")
