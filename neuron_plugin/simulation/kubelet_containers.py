"""What a container receives at its start, put together from the answers for each of its resources.

The first answer with a key wins, and the order of the answers is drawn anew at each start: two resources in one
container that set the same variable differently give it a value that flips (``dm/pod_devices.go``).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeVar

from neuron_plugin.kubelet import DeviceNode, in_numeric_order
from neuron_plugin.kubelet._proto.deviceplugin.v1beta1 import api_pb2 as pb
from neuron_plugin.simulation.kubelet_memory import Allocation
from neuron_plugin.simulation.kubelet_pods import AdmittedContainer, Container, Mount

_Key = TypeVar("_Key")
_Value = TypeVar("_Value")


def received(container: Container, allocations: Sequence[Allocation], waiting: str | None) -> AdmittedContainer:
    """Everything of ``allocations``, the earlier before the later."""
    responses = [each.response for each in allocations]
    return AdmittedContainer(
        name=container.name,
        kind=container.kind,
        ids={each.resource: tuple(in_numeric_order(each.ids)) for each in allocations},
        envs=_first_wins(item for each in responses for item in each.envs.items()),
        devices=_nodes(responses),
        mounts=_mounts(responses),
        annotations=_first_wins(item for each in responses for item in each.annotations.items()),
        cdi_devices=tuple(dict.fromkeys(device.name for each in responses for device in each.cdi_devices)),
        waiting=waiting,
    )


def _nodes(responses: Iterable[pb.ContainerAllocateResponse]) -> tuple[DeviceNode, ...]:
    nodes = (DeviceNode(each.host_path, each.container_path, each.permissions) for r in responses for each in r.devices)
    return tuple(_first_wins((node.container_path, node) for node in nodes).values())


def _mounts(responses: Iterable[pb.ContainerAllocateResponse]) -> tuple[Mount, ...]:
    mounts = (Mount(each.host_path, each.container_path, each.read_only) for r in responses for each in r.mounts)
    return tuple(_first_wins((mount.container_path, mount) for mount in mounts).values())


def _first_wins(items: Iterable[tuple[_Key, _Value]]) -> dict[_Key, _Value]:
    merged: dict[_Key, _Value] = {}
    for key, value in items:
        merged.setdefault(key, value)
    return merged
