from __future__ import annotations

import asyncio
import json
import os
import socket
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest

from neuron_plugin.allocation import NeuronPod, NodeInventory, PodReference, PodUid, Resource
from neuron_plugin.allocation.resources import ranges
from neuron_plugin.inspection import holders as module
from neuron_plugin.inspection.findings import Unknown
from neuron_plugin.inspection.holders import (
    HolderReading,
    Holders,
    PodRecords,
    ask_kubelet,
    holders_of,
    read_prepared,
    read_recorded,
)
from neuron_plugin.kubelet import CheckpointEntry
from neuron_plugin.kubelet._proto.podresources.v1.api_pb2_grpc import add_PodResourcesListerServicer_to_server
from neuron_plugin.kubelet.dra_state import API_VERSION, PreparedClaim
from neuron_plugin.kubelet_files import DRA_STATE
from neuron_plugin.plugin.container import ALLOCATION_KEY, reply_for
from neuron_plugin.plugin.settings import PluginSettings
from neuron_plugin.simulation import kubelet_pods
from neuron_plugin.simulation.kubelet_device_manager import DeviceManager
from neuron_plugin.simulation.kubelet_pods import PodResourcesService
from neuron_plugin.topology import Geometry, Topology, cores_in
from tests.inspection.cases import api_pod as decoded
from tests.inspection.doubles import Container, Pod, unknown

INF2 = NodeInventory(Geometry("inf2.24xlarge", Topology.LINE, 6, 2), tuple(range(6)))
DEVICES = "aws.amazon.com/neurondevice"
RESOURCES = {"": DEVICES, "core": "aws.amazon.com/neuroncore", "gpu": "nvidia.com/gpu"}


def api_pod(uid: str, name: str) -> NeuronPod:
    return NeuronPod(PodReference(PodUid(uid), "ml", name), ())


def containers(text: str) -> list[tuple[str, Container]]:
    """``a/x=1,2 b/y=core:9``: of a pod, or of its UID, a container and what it has."""
    words = ((word.partition("=")[0].split("/"), word.partition("=")[2].rpartition(":")) for word in text.split())
    return [(pod, Container(name, RESOURCES[kind], tuple(ids.split(",")))) for (pod, name), (kind, _, ids) in words]


def listed(text: str) -> list[Pod]:
    """What PodResources lists."""
    found = containers(text)
    return [Pod("ml", pod, tuple(one for name, one in found if name == pod)) for pod in dict(found)]


def recorded(text: str) -> list[CheckpointEntry]:
    """What the checkpoint has, by UIDs."""
    return [
        CheckpointEntry(uid, one.container, one.resource, frozenset(one.ids), {}, ()) for uid, one in containers(text)
    ]


def prepared(*uids: str, name: str = "chips", devices: tuple[str, ...] = ("neuron-2", "neuron-3")) -> PreparedClaim:
    return PreparedClaim("neuron.aws.com", "claim-uid", "ml", name, uids, devices)


def held(holders: Holders) -> str:
    """``1:ml/a/x=core:9``: the pod's UID where it has a name, too, its part, and the cores, for a resource of cores."""
    assert holders.ledger is not None
    said = []
    for one in holders.ledger.allocations:
        uid = "" if one.pod.uid in str(one.pod) else f"{one.pod.uid}:"
        kind = "core:" if one.resource is Resource.NEURONCORE else ""
        said.append(f"{uid}{one.pod}/{one.user}={kind}{ranges(cores_in(one.mask))}")
    return " ".join(sorted(said))


def derived(
    recorded: Sequence[CheckpointEntry] | Unknown,
    listed: Sequence[Any] | Unknown,
    pods: Sequence[NeuronPod] | None = None,
    *,
    prepared: Sequence[PreparedClaim] | Unknown = (),
    populated: Mapping[PodUid, bool | None] | None = None,
) -> Holders:
    """What follows from what the checkpoint, PodResources and, if it is asked, the API server say."""
    said = [part if isinstance(part, Unknown) else tuple(part) for part in (recorded, listed, prepared)]
    records: Any = dict(zip(("recorded", "pods", "prepared"), said, strict=True))
    return holders_of(INF2, PodRecords(**records, populated=populated or {}), pods)


def settings_of(kubelet_dir: Path, socket: Path) -> PluginSettings:
    return PluginSettings(kubelet_dir=kubelet_dir, pod_resources_socket=socket)


AWAY = Unknown("the kubelet is away", "wait")
UNREADABLE = Unknown("the checkpoint cannot be read")

ENDED, LIVING = "1b4e28ba-2fa1-41d2-883f-0016d3cca427", "9c5b94b1-35ad-49bb-b118-8e8fc24abf80"
NEW = f"{LIVING}=b"
BOTH = f"{ENDED}/x=1 {LIVING}/x=2"
STATIC = "0123456789abcdef"
FROM_PODS = "does not list plain init containers: the checkpoint cannot be read"
HOLDERS = {
    "ids become cores": ("list a/x=1,2 a/y=core:9 -> ml/a/x=2-5 ml/a/y=core:9", ""),
    "a plain init container": ("file 1/i=1,2 1/x=1 | list a/x=1 -> 1:ml/a/i=2-5 1:ml/a/x=2-3", ""),
    "an entry of an ended pod": ("file 1/x=1 2/x=2 | list a/x=1 -> 1:ml/a/x=2-3", ""),
    "one that the API server lacks": (f"file {BOTH} | list a/x=1 b/x=2 | server {NEW} -> {LIVING}:ml/b/x=4-5", ""),
    "a static pod that is listed no more": (f"file {STATIC}/x=1 | server ->", ""),
    "one of a kubelet that is away": (f"file {STATIC}/x=1 | away | server -> uid/{STATIC}/x=2-3", ""),
    "the API server names a pod": ("file 2/i=core:3 | server 2=idle -> 2:ml/idle/i=core:3", ""),
    "or one without an entry": ("list a/x=1 a/y=core:9 | server 1=a -> 1:ml/a/x=2-3 1:ml/a/y=core:9", ""),
    "without a checkpoint": ("torn | list a/x=core:9 -> ml/a/x=core:9", FROM_PODS),
    "without a name": ("file 1/x=core:9 | away -> uid/1/x=core:9", "named by their UIDs"),
    "a pod without Neuron": ("list a/x=gpu:GPU-1 ->", ""),
}
"""What the checkpoint, PodResources and, if it is asked, the API server say; who has what then, and what is noted."""


@pytest.mark.parametrize(("text", "note"), HOLDERS.values(), ids=HOLDERS)
def test_who_has_what(text: str, note: str) -> None:
    sources, _, expected = text.partition(" ->")
    said = {source: words for source, _, words in (part.partition(" ") for part in sources.split(" | "))}
    holders = derived(
        UNREADABLE if "torn" in said else recorded(said.get("file", "")),
        AWAY if "away" in said else listed(said.get("list", "")),
        [api_pod(*word.split("=")) for word in said["server"].split()] if "server" in said else None,
    )
    assert held(holders) == expected.strip()
    assert note in holders.note
    assert bool(holders.note) == bool(note)


FOREIGN = {
    "of another kind": ("neuron-1,2", "4-5", f"{DEVICES} 'neuron-1'"),
    "outside the machine": (
        "core:11,12,99999999999999999999",
        "core:11",
        f"{RESOURCES['core']} '12', '99999999999999999999'",
    ),
}
"""What a container holds by PodResources; which cores of the machine that is, and what is foreign."""


@pytest.mark.parametrize(("ids", "cores", "foreign"), FOREIGN.values(), ids=FOREIGN)
def test_foreign_ids_hold_nothing_and_are_reported(ids: str, cores: str, foreign: str) -> None:
    holders = derived((), listed(f"a/x={ids}"))
    assert held(holders) == f"ml/a/x={cores}"
    assert holders.foreign == (f"ml/a/x holds {foreign}",)
    assert holders.foreign[0] in holders.note


def test_unknown_is_not_the_same_as_no_holder() -> None:
    holders = derived(UNREADABLE, AWAY)
    assert (holders.ledger, holders.note) == (None, "holders are not known: the kubelet is away; wait")


def test_of_two_pods_with_the_same_ids_the_one_with_a_process_has_the_name() -> None:
    found = derived(recorded("2/x=1 1/x=1"), listed("a/x=1"), populated={PodUid("2"): True})
    assert held(found) == "2:ml/a/x=2-3"


@pytest.mark.parametrize("text", ["", "²", "-1", "0x1", " 1"])
def test_no_text_is_mistaken_for_an_id(text: str) -> None:
    holders = derived((), [Pod("ml", "a", (Container("x", DEVICES, (text,)),))])
    assert held(holders) == "ml/a/x=-"
    assert repr(text) in holders.note


def test_an_ended_pod_whose_process_lives_keeps_its_cores_from_others_as_the_plugin_does() -> None:
    both, populated = recorded(BOTH), {PodUid(ENDED): True, PodUid(LIVING): True}
    snapshot = derived(both, (), [api_pod(LIVING, "new")], populated=populated).snapshot
    assert snapshot is not None
    assert snapshot.inputs.held_down_mask == INF2.geometry.device_mask(1)
    assert not snapshot.free_mask & INF2.geometry.devices_mask((1, 2))
    unseen = derived(both, (), [api_pod(LIVING, "new")]).snapshot
    assert unseen is not None
    assert unseen.inputs.held_down_mask == 0, "where no cgroup can be seen, an old entry holds nothing down"


def test_whether_a_process_lives_is_looked_up_for_each_pod_in_the_kubelets_files(tmp_path: Path) -> None:
    pod = tmp_path / f"kubepods/pod{ENDED}"
    pod.mkdir(parents=True)
    (tmp_path / "cgroup.controllers").touch()
    (pod / "cgroup.events").write_text("populated 1\n")
    records = PodRecords(recorded=tuple(recorded(f"{ENDED}/x=1")), prepared=(prepared(LIVING),))
    assert records.with_processes(tmp_path).populated == {ENDED: True, LIVING: False}
    assert PodRecords(recorded=UNREADABLE, prepared=UNREADABLE).with_processes(tmp_path).populated == {}


def test_a_running_pod_of_which_the_kubelet_lost_its_record_has_what_it_was_assigned() -> None:
    asked = {"main": {"neurondevice": 1}}
    lost = decoded("train", asked, {"NEURON_DEVS": "3", "NEURON_ALLOCATED": "true"})
    lost = replace(lost, life=replace(lost.life, started=True))
    assert held(derived((), (), [lost])) == f"{lost.uid}:default/train/main=6-7"


def test_the_kubelet_is_asked_seldom_however_often_one_looks(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    asked: list[Path] = []
    now = [0.0]

    def ask(path: Path) -> tuple[Pod, ...] | Unknown:
        asked.append(path)
        return AWAY if len(asked) == 1 else tuple(listed(f"a/x=core:{len(asked)}"))

    monkeypatch.setattr(module, "ask_kubelet", ask)
    reading = HolderReading(settings_of(tmp_path / "none", Path("/k.sock")), seconds=10, clock=lambda: now[0])
    masks = []
    for now[0] in (0.0, 2.0, 9.9, 10.0, 12.0):
        ledger = reading.read(INF2).ledger
        masks.append(ledger.used_mask if ledger is not None else None)
    assert masks == [None, None, None, 4, 4], "what was not known is asked again, too"
    assert asked == [Path("/k.sock")] * 2


def test_the_checkpoint_is_read_or_it_is_said_why_not(tmp_path: Path) -> None:
    missing = read_recorded(tmp_path / "none")
    assert "--kubelet-dir" in unknown(missing)
    assert read_recorded(tmp_path) == (), "a kubelet that has not written yet"
    (tmp_path / "kubelet_internal_checkpoint").write_text('{"Data": {"PodDeviceEntries": null}}')
    assert read_recorded(tmp_path) == ()
    (tmp_path / "kubelet_internal_checkpoint").write_text('{"Data": {"Entries": []}}')
    unreadable = read_recorded(tmp_path)
    assert str(tmp_path / "kubelet_internal_checkpoint") in unknown(unreadable)


def test_a_container_has_the_cores_of_our_reply_and_not_the_kubelets_draw() -> None:
    given = {ALLOCATION_KEY: reply_for(INF2, "1", INF2.geometry.devices_mask((2, 3))).annotation()}
    entry = CheckpointEntry("1", "x", DEVICES, frozenset({"1", "3"}), given, ())
    assert held(derived([entry], listed("a/x=1,3"))) == "1:ml/a/x=4-7"


def test_a_missing_socket_is_reported_with_the_flag_to_use(tmp_path: Path) -> None:
    said = ask_kubelet(tmp_path / "k.sock")
    assert said == Unknown(f"no kubelet at {tmp_path}/k.sock", "if it is elsewhere, give --pod-resources-socket")


def test_a_socket_that_may_not_be_read_asks_for_root(monkeypatch: pytest.MonkeyPatch) -> None:
    def denied(_path: Path) -> os.stat_result:
        raise PermissionError

    monkeypatch.setattr("os.stat", denied)
    assert ask_kubelet(Path("/k.sock")) == Unknown("/k.sock may not be read", "run this as root")


def test_a_socket_that_is_not_served_is_unknown_holders(short_directory: Path) -> None:
    path = short_directory / "k.sock"
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as dead:
        dead.bind(str(path))
    said = ask_kubelet(path)
    assert "no kubelet answers" in unknown(said)


async def test_p85_the_cli_tells_the_holder_that_the_kubelet_tells(short_directory: Path) -> None:
    import grpc

    devices = DeviceManager(Random(0))  # noqa: S311 - of no consequence
    train = kubelet_pods.KubeletPod("uid", "ml", "train", (kubelet_pods.KubeletContainer("main"),))
    devices.record("uid", "main", DEVICES, ("3", "2"), b"")
    server = grpc.aio.server()
    add_PodResourcesListerServicer_to_server(PodResourcesService(devices, {"uid": train}), server)
    server.add_insecure_port(f"unix:{short_directory / 'k.sock'}")
    await server.start()
    try:
        reading = HolderReading(settings_of(short_directory, short_directory / "k.sock"))
        found = await asyncio.to_thread(reading.read, INF2)
    finally:
        await server.stop(None)
    assert held(found) == "ml/train/main=4-7"


# What pods have by claims.


def test_the_api_server_names_the_pod_of_a_claim() -> None:
    found = derived((), (), [api_pod("1", "train")], prepared=[prepared("1")])
    assert held(found) == "1:ml/train/claim chips=4-7"


def test_pod_resources_names_the_pods_of_a_claim_and_a_pod_that_nobody_knows_counts_by_its_uid() -> None:
    users = [Pod("ml", name, (), frozenset({"chips"})) for name in ("a", "b")]
    others = [Pod("ml", "c", (), frozenset({"gpus"})), Pod("else", "a", (), frozenset({"chips"}))]
    shared = derived((), [*users, *others], prepared=[prepared("1", "2")])
    assert held(shared) == "1:ml/a/claim chips=4-7 2:ml/b/claim chips=4-7"
    forced = derived((), users, prepared=[prepared("1", "2", "3")])
    one_gone = " ".join(f"uid/{uid}/claim chips=4-7" for uid in "123")
    assert held(forced) == one_gone, "one of them was deleted by force"


def test_cores_of_a_claim_are_those_that_its_devices_name() -> None:
    found = derived((), (), prepared=[prepared("1", devices=("neuron-3-cores-7-7",))])
    assert held(found) == "uid/1/claim chips=core:7"


def test_claims_that_cannot_be_read_are_said_to_be_unknown() -> None:
    found = derived((), (), prepared=Unknown("the file is torn"))
    assert (held(found), found.note) == ("", "what pods have by claims is not known: the file is torn")


def test_the_kubelets_file_of_claims_is_read_or_it_is_said_why_not(tmp_path: Path) -> None:
    settings = settings_of(tmp_path / "device-plugins", tmp_path / "k.sock")
    assert read_prepared(settings) == ()
    claim = {
        "ClaimUID": "claim-uid",
        "ClaimName": "chips",
        "Namespace": "ml",
        "PodUIDs": {"1": {}},
        "DriverState": {"neuron.aws.com": {"Devices": [{"DeviceName": "neuron-2"}, {"DeviceName": "neuron-3"}]}},
    }
    data = json.dumps({"apiVersion": API_VERSION, "ClaimInfoStateList": [claim]})
    (tmp_path / DRA_STATE).write_text(json.dumps({"Data": data, "Checksum": 1}), encoding="utf-8")
    assert read_prepared(settings) == (prepared("1"),)
    (tmp_path / DRA_STATE).write_text("{", encoding="utf-8")
    unread = read_prepared(settings)
    assert str(tmp_path / DRA_STATE) in unknown(unread)
