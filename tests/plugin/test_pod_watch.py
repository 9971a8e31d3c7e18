"""This node's pods, from records into the state."""

from __future__ import annotations

import asyncio
from pathlib import Path

import msgspec
import pytest

from neuron_plugin.allocation import ContainerKind
from neuron_plugin.cluster import Pod as PodRecord
from neuron_plugin.cluster import connect
from neuron_plugin.plugin.pod_watch import _take_in, neuron_pod, pod_uids, take_stock
from neuron_plugin.simulation import StandInApiServer
from tests.plugin.site import NAMESPACE, NODE, manifest
from tests.plugin.world import (
    TRN1,
    FakeReport,
    a_state,
    app,
    assignment,
    init,
    pod,
    sidecar,
)


def record(*containers: object, **metadata: object) -> PodRecord:
    made = manifest("a", "uid-a", containers)  # type: ignore[arg-type]  # ContainerSpecs
    made["metadata"] |= metadata
    return msgspec.convert(made, PodRecord)


def test_a_pod_that_asks_for_no_neuron_is_not_kept() -> None:
    assert neuron_pod(record(type(app(1))("app", ContainerKind.APP, {"cpu": "1"}))) is None


def test_a_record_gives_kinds_in_the_order_of_admission() -> None:
    found = neuron_pod(record(init(1), sidecar(1), app(2)))
    assert found is not None
    assert [(part.container, part.kind, part.count) for part in found.request] == [
        ("init", ContainerKind.INIT, 1),
        ("sidecar", ContainerKind.SIDECAR, 1),
        ("app", ContainerKind.APP, 2),
    ]


@pytest.mark.parametrize("phase", ["Succeeded", "Failed"])
def test_p59_a_terminal_pod_holds_nothing(phase: str) -> None:
    made = manifest("a", "uid-a", (app(1),)) | {"status": {"phase": phase}}
    found = neuron_pod(msgspec.convert(made, PodRecord))
    assert found is not None
    assert found.ended


def test_p66_a_pod_that_is_being_deleted_is_still_one() -> None:
    annotations = assignment(TRN1, [app(1)], [[3]])
    found = neuron_pod(record(app(1), deletionTimestamp="2026-01-01T00:00:00Z", annotations=annotations))
    assert found is not None
    assert found.decision is not None


def test_a_pod_that_came_is_taken_in_and_told_of_and_one_that_went_is_forgotten() -> None:
    state, report, came = a_state(), FakeReport(), []
    bad = pod("a", app(1), annotations={"NEURON_DEVS": "x"})
    _take_in(state, report, lambda: came.append(1), "uid-a", None, bad)
    assert list(state.pods) == ["uid-a"]
    assert report.reasons == ["InvalidNeuronRequest"]
    assert came == [1]
    _take_in(state, report, lambda: came.append(1), "uid-a", bad, None)
    assert not state.pods
    assert came == [1]


async def test_a_second_reflector_forgets_who_ended_before_it_was_there() -> None:
    class Synced:
        synced = asyncio.Event()
        values = {"uid-b": pod("b", app(1))}  # noqa: RUF012 - a stand-in for one test

    state = a_state(TRN1, pod("a", app(1)), pod("b", app(1)))
    Synced.synced.set()
    await take_stock(Synced(), state)  # type: ignore[arg-type]  # the two attributes that are read
    assert list(state.pods) == ["uid-b"]
    assert state.pods_known


async def test_p60_all_pods_of_the_node_are_called_by_the_uids_that_their_cgroups_have(tmp_path: Path) -> None:
    async with StandInApiServer() as server:
        for name in (NODE, "other"):
            server.create_node({"metadata": {"name": name}})
        static = manifest("static", "uid-mirror", ())
        static["metadata"]["annotations"] = {"kubernetes.io/config.mirror": "0f1c2d3e4a5b6c7d8e9f001122334455"}
        for pod_, node in (
            (manifest("a", "uid-a", (app(1),)), NODE),
            (manifest("monitor", "uid-monitor", ()), NODE),
            (static, NODE),
            (manifest("elsewhere", "uid-elsewhere", ()), "other"),
        ):
            server.create_pod(pod_)
            server.bind(NAMESPACE, pod_["metadata"]["name"], node=node)
        async with await connect(server.write_kubeconfig(tmp_path / "kubeconfig")) as api:
            found = await pod_uids(api, NODE, 5.0)
    assert found == {"uid-a", "uid-monitor", "uid-mirror", "0f1c2d3e4a5b6c7d8e9f001122334455"}
