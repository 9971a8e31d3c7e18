"""Facts of a node on which all is well, and ways to spoil them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias

import msgspec
import pytest

from neuron_plugin.allocation import NeuronPod, NodeInventory, Resource
from neuron_plugin.allocation.inventory import write_inventory
from neuron_plugin.allocation.keys import INVENTORY_KEY
from neuron_plugin.cluster.pods import PODS, neuron_pod
from neuron_plugin.inspection.checks import CHECKS
from neuron_plugin.inspection.facts import ClusterFacts, Daemon, DeviceUser, DeviceUsers, Facts, Kubelet, SocketSeen
from neuron_plugin.inspection.findings import Finding, Level, Unknown
from neuron_plugin.inspection.host import gather_host
from neuron_plugin.inspection.machine import InspectedMachine, look, node_of
from neuron_plugin.kubelet.socket_watch import endpoint_path
from neuron_plugin.simulation import SimulatedNode
from tests.inspection.doubles import Container, Pod

Spoil: TypeAlias = Callable[[Facts], Facts]
Cases: TypeAlias = dict[str, dict[str, tuple[Spoil, str]]]
"""By check and title: what is done to a node on which all is well, and what the check finds then (``expect``)."""

DIRECTORY = Path("/var/lib/kubelet/device-plugins")
NODE = "worker-1"
POD_UID = "1b4e28ba-2fa1-41d2-883f-0016d3cca427"


def looked(node: SimulatedNode, **flags: str | None) -> InspectedMachine:
    """What a look at a simulated machine shows; ``flags`` as for ``node_of``."""
    return look(node_of({"root": str(node.root), **flags}, {}, None).settings, {})


def facts_of(node: SimulatedNode, *, instance_type: str | None = None) -> Facts:
    """What is seen of a simulated machine, with a kubelet, our plugin and an API server as they should be."""
    seen = replace(looked(node, instance_type=instance_type), memory={})
    host = gather_host(node.root, node.paths, in_pod=False)
    geometry = seen.geometry
    mask = seen.usable_mask
    allocatable = (
        {each.value: tuple(map(str, geometry.ids_of(each.unit, mask))) for each in Resource} if geometry else {}
    )
    kubelet = Kubelet(
        DIRECTORY,
        own_socket=SocketSeen(DIRECTORY / "kubelet.sock", served=True),
        plugins=tuple(SocketSeen(socket_path(resource), served=True) for resource in Resource),
        allocatable=allocatable,
        pods=(),
    )
    inventory = write_inventory(NodeInventory(geometry, seen.inventory.device_ids, {})) if geometry else ""
    cluster = ClusterFacts(
        NODE,
        annotations={INVENTORY_KEY: inventory},
        allocatable={"cpu": "128", **{name: str(len(ids)) for name, ids in allocatable.items()}},
    )
    return Facts(
        seen, host, kubelet, cluster, DeviceUsers(), daemon=Daemon(file=Path("/etc/neuron-plugin/config.yaml"))
    )


def socket_path(resource: Resource, instance: str = "0a1b2c3d") -> Path:
    return endpoint_path(DIRECTORY, resource.value, instance)


def ask(name: str, facts: Facts) -> list[Finding]:
    """What the check of that name finds."""
    (check,) = (check for check in CHECKS if check.name == name)
    return check.findings(facts)


def the_finding(name: str, facts: Facts) -> Finding:
    """The only finding of a check that is not "ok"; it must say what to do."""
    (finding,) = (finding for finding in ask(name, facts) if finding.level is not Level.OK)
    assert finding.action
    return finding


def is_fine(name: str, facts: Facts) -> bool:
    return {finding.level for finding in ask(name, facts)} == {Level.OK}


def holding(facts: Facts, *held: tuple[str, str, str, str]) -> Facts:
    """The kubelet says that these hold something: (pod, container, resource's short name, ids)."""
    pods: dict[str, list[Container]] = {}
    for pod, container, resource, ids in held:
        pods.setdefault(pod, []).append(Container(container, f"aws.amazon.com/{resource}", tuple(ids.split(","))))
    return with_kubelet(facts, pods=tuple(Pod("default", name, tuple(found)) for name, found in pods.items()))


def with_kubelet(facts: Facts, **changes: object) -> Facts:
    return replace(facts, kubelet=replace(facts.kubelet, **changes))  # type: ignore[arg-type]  # fields by name


def with_host(facts: Facts, **changes: object) -> Facts:
    return replace(facts, host=replace(facts.host, **changes))  # type: ignore[arg-type]  # fields by name


def with_cluster(facts: Facts, **changes: object) -> Facts:
    assert isinstance(facts.cluster, ClusterFacts)
    return replace(facts, cluster=replace(facts.cluster, **changes))  # type: ignore[arg-type]  # fields by name


def as_it_is(facts: Facts) -> Facts:
    return facts


def kubelet(**changes: object) -> Spoil:
    return lambda facts: with_kubelet(facts, **changes)


def host(**changes: object) -> Spoil:
    return lambda facts: with_host(facts, **changes)


def cluster(**changes: object) -> Spoil:
    return lambda facts: with_cluster(facts, **changes)


def rows(cases: Cases) -> list[Any]:
    """The check, the spoil and the expectation of each case."""
    found = [(check, title, *case) for check, titled in cases.items() for title, case in titled.items()]
    return [pytest.param(check, spoil, said, id=f"{check}: {title}") for check, title, spoil, said in found]


def api_pod(
    name: str,
    containers: Mapping[str, Mapping[str, int]],
    annotations: Mapping[str, str],
    *,
    phase: str = "Running",
    init: bool = False,
) -> NeuronPod:
    """A pod of the API server; with ``init`` its first container is a plain init container."""
    specs = [
        {"name": each, "resources": {"limits": {f"aws.amazon.com/{short}": str(n) for short, n in limits.items()}}}
        for each, limits in containers.items()
    ]
    manifest = {
        "metadata": {"name": name, "namespace": "default", "uid": POD_UID, "annotations": annotations},
        "spec": {"initContainers": specs[:1] if init else [], "containers": specs[1:] if init else specs},
        "status": {"phase": phase},
    }
    return neuron_pod(PODS.decode(msgspec.json.encode(manifest)))


def user(*devices: int, pod_uid: str = POD_UID) -> DeviceUser:
    return DeviceUser(4711, "python train.py", devices, pod_uid)


def with_users(facts: Facts, *users: DeviceUser, hidden: Unknown | None = None) -> Facts:
    return replace(facts, users=DeviceUsers(users, hidden))


def expect(name: str, facts: Facts, expected: str) -> None:
    """Hold what a check finds against ``problem: parts ~ of its texts | note: ...``, ``unchecked: ...`` or ``ok``."""
    findings = ask(name, facts)
    wrong = [finding for finding in findings if finding.level is not Level.OK]
    if expected.startswith("ok"):
        assert not wrong
        assert expected.removeprefix("ok").removeprefix(": ") in findings[0].seen
        return
    for finding, said in zip(wrong, expected.split(" | "), strict=True):
        level, _, parts = said.partition(": ")
        assert level == (finding.level.value if finding.checked else "unchecked")
        assert finding.action or not finding.checked
        for part in parts.split(" ~ "):
            assert part in f"{finding.seen}\n{finding.why}\n{finding.action}"
