from __future__ import annotations

import asyncio
import os
import socket
from pathlib import Path

import pytest

from neuron_plugin.allocation import Resource
from neuron_plugin.inspection.holders import HolderReading, ask_kubelet, holders_of
from neuron_plugin.inspection.unknown import Unknown
from neuron_plugin.kubelet._proto.podresources.v1 import api_pb2 as pb
from neuron_plugin.kubelet._proto.podresources.v1 import api_pb2_grpc as pb_grpc
from neuron_plugin.topology import Geometry, Topology
from tests.inspection.doubles import Container, Pod

INF2 = Geometry("inf2.24xlarge", Topology.LINE, 6, 2)
CORES = "aws.amazon.com/neuroncore"
DEVICES = "aws.amazon.com/neurondevice"


def pod(name: str, *containers: tuple[str, str, str]) -> Pod:
    return Pod(
        "ml", name, tuple(Container(each, resource, tuple(ids.split(","))) for each, resource, ids in containers)
    )


def test_ids_become_cores_in_the_ledger() -> None:
    holders = holders_of(INF2, [pod("a", ("x", DEVICES, "1,2"), ("y", CORES, "9"))])
    assert holders.ledger is not None
    (holder,) = holders.ledger
    assert str(holder.pod) == "ml/a"
    assert [(each.container, each.resource, each.mask) for each in holder.holdings] == [
        ("x", Resource.NEURONDEVICE, 0b111100),
        ("y", Resource.NEURONCORE, 1 << 9),
    ]
    assert holders.note == ""


def test_pods_without_neuron_resources_hold_nothing() -> None:
    holders = holders_of(INF2, [pod("a", ("x", "nvidia.com/gpu", "GPU-1")), pod("b")])
    assert holders.ledger is not None
    assert holders.ledger.used_mask == 0
    assert list(holders.ledger) == []


def test_ids_that_are_none_of_ours_are_told() -> None:
    holders = holders_of(INF2, [pod("a", ("x", DEVICES, "neuron-1,2"))])
    assert holders.ledger is not None
    assert holders.ledger.used_mask == 0b110000
    assert "ml/a holds aws.amazon.com/neurondevice 'neuron-1'" in holders.note


@pytest.mark.parametrize("text", ["", "²", "-1", "0x1", " 1"])
def test_no_text_is_mistaken_for_an_id(text: str) -> None:
    holders = holders_of(INF2, [Pod("ml", "a", (Container("x", DEVICES, (text,)),))])
    assert holders.ledger is not None
    assert holders.ledger.used_mask == 0
    assert repr(text) in holders.note


def test_ids_outside_the_machine_hold_nothing_and_harm_nothing() -> None:
    holders = holders_of(INF2, [pod("a", ("x", CORES, "11,12,99999999999999999999"))])
    assert holders.ledger is not None
    assert holders.ledger.used_mask == 1 << 11


def test_the_kubelet_is_asked_seldom_however_often_one_looks() -> None:
    asked: list[Path] = []
    now = [0.0]

    def ask(path: Path) -> tuple[Pod, ...]:
        asked.append(path)
        return (pod("a", ("x", CORES, str(len(asked)))),)

    reading = HolderReading(Path("/k.sock"), seconds=10, ask=ask, clock=lambda: now[0])
    masks = []
    for now[0] in (0.0, 2.0, 9.9, 10.0, 12.0):
        ledger = reading.read(INF2).ledger
        masks.append(ledger.used_mask if ledger is not None else None)
    assert masks == [2, 2, 2, 4, 4]
    assert asked == [Path("/k.sock")] * 2


def test_unknown_is_not_the_same_as_nobody_and_is_asked_again() -> None:
    answers: list[Unknown | tuple[Pod, ...]] = [Unknown("the kubelet is away", "wait"), ()]
    now = [0.0]

    def ask(_path: Path) -> tuple[Pod, ...] | Unknown:
        return answers.pop(0)

    reading = HolderReading(Path("/k.sock"), seconds=10, ask=ask, clock=lambda: now[0])
    unknown = reading.read(INF2)
    now[0] = 10.0
    known = reading.read(INF2)
    assert (unknown.ledger, unknown.note) == (None, "holders are not known: the kubelet is away; wait")
    assert known.ledger is not None


def test_a_missing_socket_is_told_with_the_flag_to_use(tmp_path: Path) -> None:
    told = ask_kubelet(tmp_path / "k.sock")
    assert told == Unknown(f"no kubelet at {tmp_path}/k.sock", "if it is elsewhere, give --pod-resources-socket")


def test_a_socket_that_may_not_be_read_asks_for_root(monkeypatch: pytest.MonkeyPatch) -> None:
    def denied(_path: Path) -> os.stat_result:
        raise PermissionError

    monkeypatch.setattr("os.stat", denied)
    assert ask_kubelet(Path("/k.sock")) == Unknown("/k.sock may not be read", "run this as root")


def test_a_socket_that_nobody_serves_is_unknown_holders(short_directory: Path) -> None:
    path = short_directory / "k.sock"
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as dead:
        dead.bind(str(path))
    told = ask_kubelet(path)
    assert isinstance(told, Unknown)
    assert "no kubelet answers" in told.why


class Lister(pb_grpc.PodResourcesListerServicer):
    """A kubelet with one pod: one entry for each device, as kubelets answer."""

    async def List(  # noqa: N802 - gRPC's name
        self, _request: pb.ListPodResourcesRequest, _context: object
    ) -> pb.ListPodResourcesResponse:
        devices = [pb.ContainerDevices(resource_name=DEVICES, device_ids=[each]) for each in ("3", "2")]
        container = pb.ContainerResources(name="main", devices=devices)
        return pb.ListPodResourcesResponse(
            pod_resources=[pb.PodResources(name="train", namespace="ml", containers=[container])]
        )

    async def Get(self, _request: object, _context: object) -> pb.GetPodResourcesResponse:  # noqa: N802 - gRPC's name
        raise NotImplementedError

    async def GetAllocatableResources(  # noqa: N802 - gRPC's name
        self, _request: object, _context: object
    ) -> pb.AllocatableResourcesResponse:
        raise NotImplementedError


async def test_p85_the_cli_tells_the_holder_that_the_kubelet_tells(short_directory: Path) -> None:
    import grpc

    server = grpc.aio.server()
    pb_grpc.add_PodResourcesListerServicer_to_server(Lister(), server)
    server.add_insecure_port(f"unix:{short_directory / 'k.sock'}")
    await server.start()
    try:
        reading = HolderReading(short_directory / "k.sock")
        found = await asyncio.to_thread(reading.read, INF2)
    finally:
        await server.stop(None)
    assert found.ledger is not None
    assert [(str(each.pod), each.mask) for each in found.ledger] == [("ml/train", 0b11110000)]
