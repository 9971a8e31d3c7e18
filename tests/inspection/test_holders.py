from __future__ import annotations

import asyncio
import json
import os
import socket
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest

from neuron_plugin.allocation import NeuronPod, NodeInventory, PodReference, PodUid
from neuron_plugin.inspection import holders as module
from neuron_plugin.inspection.findings import Unknown
from neuron_plugin.inspection.holders import (
    HolderReading,
    Holders,
    ask_kubelet,
    holders_of,
    read_populated,
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
from neuron_plugin.topology import Geometry, Topology
from tests.inspection.cases import api_pod as decoded
from tests.inspection.doubles import Container, Pod

INF2 = NodeInventory(Geometry("inf2.24xlarge", Topology.LINE, 6, 2), tuple(range(6)))
CORES = "aws.amazon.com/neuroncore"
DEVICES = "aws.amazon.com/neurondevice"


def pod(name: str, *containers: tuple[str, str, str]) -> Pod:
    return Pod(
        "ml", name, tuple(Container(each, resource, tuple(ids.split(","))) for each, resource, ids in containers)
    )


def api_pod(uid: str, name: str, **fields: Any) -> NeuronPod:
    return NeuronPod(PodReference(PodUid(uid), "ml", name), (), **fields)


def record(uid: str, container: str, resource: str, ids: str) -> CheckpointEntry:
    return CheckpointEntry(uid, container, resource, frozenset(ids.split(",")), {}, ())


def held(holders: Holders) -> list[tuple[str, str, str, int]]:
    assert holders.ledger is not None
    return [(str(each.pod), each.container, each.resource.value, each.mask) for each in holders.ledger.allocations]


def settings_of(kubelet_dir: Path, socket: Path) -> PluginSettings:
    return PluginSettings(kubelet_dir=kubelet_dir, pod_resources_socket=socket)


AWAY = Unknown("the kubelet is away", "wait")
UNREADABLE = Unknown("the checkpoint cannot be read")


def test_ids_become_cores_in_the_ledger() -> None:
    holders = holders_of(INF2, (), [pod("a", ("x", DEVICES, "1,2"), ("y", CORES, "9"))])
    assert held(holders) == [("ml/a", "x", DEVICES, 0b111100), ("ml/a", "y", CORES, 1 << 9)]
    assert holders.note == ""


def test_the_checkpoint_adds_plain_init_containers_under_the_name_that_pod_resources_knows() -> None:
    recorded = [record("1", "init", DEVICES, "1,2"), record("1", "x", DEVICES, "1")]
    holders = holders_of(INF2, recorded, [pod("a", ("x", DEVICES, "1"))])
    assert sorted(held(holders)) == [("ml/a", "init", DEVICES, 0b111100), ("ml/a", "x", DEVICES, 0b001100)]
    assert holders.ledger is not None
    assert set(holders.ledger.by_pod) == {"1"}, "one pod, by its UID"


def test_an_entry_of_an_ended_pod_is_left_out() -> None:
    recorded = [record("1", "x", DEVICES, "1"), record("2", "x", DEVICES, "2")]
    assert [each[0] for each in held(holders_of(INF2, recorded, [pod("a", ("x", DEVICES, "1"))]))] == ["ml/a"]


ENDED, LIVING = "1b4e28ba-2fa1-41d2-883f-0016d3cca427", "9c5b94b1-35ad-49bb-b118-8e8fc24abf80"


def test_an_entry_of_a_pod_that_the_api_server_lacks_is_left_out_though_the_kubelet_lists_it() -> None:
    recorded = [record(ENDED, "x", DEVICES, "1"), record(LIVING, "x", DEVICES, "2")]
    listed = [pod("old", ("x", DEVICES, "1")), pod("new", ("x", DEVICES, "2"))]
    found = holders_of(INF2, recorded, listed, [api_pod(LIVING, "new")])
    assert [pod for pod, *_ in held(found)] == ["ml/new"]


def test_an_ended_pod_whose_process_lives_keeps_its_cores_from_others_as_the_plugin_does() -> None:
    recorded = [record(ENDED, "x", DEVICES, "1"), record(LIVING, "x", DEVICES, "2")]
    populated = {PodUid(ENDED): True, PodUid(LIVING): True}
    snapshot = holders_of(INF2, recorded, (), [api_pod(LIVING, "new")], populated=populated).snapshot
    assert snapshot is not None
    assert snapshot.inputs.held_down_mask == INF2.geometry.device_mask(1)
    assert not snapshot.free_mask & INF2.geometry.devices_mask((1, 2))
    unseen = holders_of(INF2, recorded, (), [api_pod(LIVING, "new")]).snapshot
    assert unseen is not None
    assert unseen.inputs.held_down_mask == 0, "where no cgroup can be seen, an old entry holds nothing down"


def test_whether_a_process_lives_is_looked_up_for_each_pod_in_the_kubelets_files(tmp_path: Path) -> None:
    pod = tmp_path / f"kubepods/pod{ENDED}"
    pod.mkdir(parents=True)
    (tmp_path / "cgroup.controllers").touch()
    (pod / "cgroup.events").write_text("populated 1\n")
    assert read_populated(tmp_path, [record(ENDED, "x", DEVICES, "1")], [prepared(LIVING)]) == {
        ENDED: True,
        LIVING: False,
    }
    assert read_populated(tmp_path, UNREADABLE, UNREADABLE) == {}


def test_a_static_pod_counts_until_the_kubelet_lists_it_no_more() -> None:
    recorded = [record("0123456789abcdef", "x", DEVICES, "1")]
    assert held(holders_of(INF2, recorded, (), [])) == []
    away = holders_of(INF2, recorded, AWAY, [])
    assert held(away) == [("uid/0123456789abcdef", "x", DEVICES, 0b1100)]


def test_a_running_pod_of_which_the_kubelet_lost_its_record_has_what_it_was_assigned() -> None:
    containers = {"main": {"neurondevice": 1}}
    lost = replace(decoded("train", containers, {"NEURON_DEVS": "3", "NEURON_ALLOCATED": "true"}), started=True)
    assert held(holders_of(INF2, (), (), [lost])) == [("default/train", "main", DEVICES, 0b11000000)]


def test_of_two_pods_with_the_same_ids_the_one_with_a_process_has_the_name() -> None:
    recorded = [record("2", "x", DEVICES, "1"), record("1", "x", DEVICES, "1")]
    found = holders_of(INF2, recorded, [pod("a", ("x", DEVICES, "1"))], populated={PodUid("2"): True})
    assert found.ledger is not None
    assert set(found.ledger.by_pod) == {"2"}


def test_the_api_server_names_a_pod_of_which_only_the_checkpoint_knows() -> None:
    found = holders_of(INF2, [record("2", "init", CORES, "3")], [], [api_pod("2", "init-only")])
    assert held(found) == [("ml/init-only", "init", CORES, 8)]


def test_where_the_checkpoint_has_no_entry_pod_resources_is_taken() -> None:
    listed = [pod("a", ("x", DEVICES, "1"), ("y", CORES, "9"))]
    assert len(held(holders_of(INF2, [], listed))) == 2
    holders = holders_of(INF2, [], listed, [api_pod("1", "a")])
    assert holders.ledger is not None
    assert set(holders.ledger.by_pod) == {"1"}, "under the UID that the API server knows"


def test_without_the_checkpoint_pod_resources_is_taken_and_that_is_said() -> None:
    holders = holders_of(INF2, UNREADABLE, [pod("a", ("x", CORES, "9"))])
    assert held(holders) == [("ml/a", "x", CORES, 1 << 9)]
    assert "does not list plain init containers: the checkpoint cannot be read" in holders.note


def test_without_any_name_pods_are_named_by_their_uids_and_that_is_said() -> None:
    holders = holders_of(INF2, [record("1", "x", CORES, "9")], AWAY)
    assert held(holders) == [("uid/1", "x", CORES, 1 << 9)]
    assert "named by their UIDs" in holders.note


def test_unknown_is_not_the_same_as_no_holder() -> None:
    holders = holders_of(INF2, UNREADABLE, AWAY)
    assert (holders.ledger, holders.note) == (None, "holders are not known: the kubelet is away; wait")


def test_pods_without_neuron_resources_hold_nothing() -> None:
    assert held(holders_of(INF2, (), [pod("a", ("x", "nvidia.com/gpu", "GPU-1")), pod("b")])) == []


def test_foreign_ids_are_reported() -> None:
    holders = holders_of(INF2, (), [pod("a", ("x", DEVICES, "neuron-1,2"))])
    assert held(holders) == [("ml/a", "x", DEVICES, 0b110000)]
    assert holders.foreign == ("ml/a/x holds aws.amazon.com/neurondevice 'neuron-1'",)
    assert holders.foreign[0] in holders.note


@pytest.mark.parametrize("text", ["", "²", "-1", "0x1", " 1"])
def test_no_text_is_mistaken_for_an_id(text: str) -> None:
    holders = holders_of(INF2, (), [Pod("ml", "a", (Container("x", DEVICES, (text,)),))])
    assert held(holders) == [("ml/a", "x", DEVICES, 0)]
    assert repr(text) in holders.note


def test_ids_outside_the_machine_hold_nothing_and_harm_nothing() -> None:
    assert held(holders_of(INF2, (), [pod("a", ("x", CORES, "11,12,99999999999999999999"))]))[0][3] == 1 << 11


def test_the_kubelet_is_asked_seldom_however_often_one_looks(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    asked: list[Path] = []
    now = [0.0]

    def ask(path: Path) -> tuple[Pod, ...] | Unknown:
        asked.append(path)
        return AWAY if len(asked) == 1 else (pod("a", ("x", CORES, str(len(asked)))),)

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
    assert isinstance(missing, Unknown)
    assert "--kubelet-dir" in missing.action
    assert read_recorded(tmp_path) == (), "a kubelet that has not written yet"
    (tmp_path / "kubelet_internal_checkpoint").write_text('{"Data": {"PodDeviceEntries": null}}')
    assert read_recorded(tmp_path) == ()
    (tmp_path / "kubelet_internal_checkpoint").write_text('{"Data": {"Entries": []}}')
    unreadable = read_recorded(tmp_path)
    assert isinstance(unreadable, Unknown)
    assert str(tmp_path / "kubelet_internal_checkpoint") in unreadable.why


def test_a_container_has_the_cores_of_our_reply_and_not_the_kubelets_draw() -> None:
    given = {ALLOCATION_KEY: reply_for(INF2, "1", INF2.geometry.devices_mask((2, 3))).annotation()}
    entry = CheckpointEntry("1", "x", DEVICES, frozenset({"1", "3"}), given, ())
    holders = holders_of(INF2, [entry], [pod("a", ("x", DEVICES, "1,3"))])
    assert held(holders) == [("ml/a", "x", DEVICES, 0b11110000)]


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
    assert isinstance(said, Unknown)
    assert "no kubelet answers" in said.why


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
    assert held(found) == [("ml/train", "main", DEVICES, 0b11110000)]


# ---- claims


def prepared(*uids: str, name: str = "chips", devices: tuple[str, ...] = ("neuron-2", "neuron-3")) -> PreparedClaim:
    return PreparedClaim("neuron.aws.com", "claim-uid", "ml", name, uids, devices)


def by_claims(holders: Holders) -> list[tuple[str, str, int]]:
    assert holders.ledger is not None
    return [(str(each.pod), each.user, each.mask) for each in holders.ledger.allocations]


def test_the_api_server_names_the_pod_of_a_claim() -> None:
    found = holders_of(INF2, (), (), [api_pod("1", "train")], prepared=[prepared("1")])
    assert by_claims(found) == [("ml/train", "claim chips", 0b11110000)]


def test_pod_resources_names_the_pods_of_a_claim_and_a_pod_that_nobody_knows_counts_by_its_uid() -> None:
    users = [Pod("ml", name, (), frozenset({"chips"})) for name in ("a", "b")]
    others = [Pod("ml", "c", (), frozenset({"gpus"})), Pod("else", "a", (), frozenset({"chips"}))]
    shared = holders_of(INF2, (), [*users, *others], prepared=[prepared("1", "2")])
    assert [pod for pod, *_ in by_claims(shared)] == ["ml/a", "ml/b"]
    forced = holders_of(INF2, (), users, prepared=[prepared("1", "2", "3")])
    assert [pod for pod, *_ in by_claims(forced)] == ["uid/1", "uid/2", "uid/3"], "one of them was deleted by force"


def test_cores_of_a_claim_are_those_that_its_devices_name() -> None:
    found = holders_of(INF2, (), (), prepared=[prepared("1", devices=("neuron-3-cores-7-7",))])
    assert by_claims(found) == [("uid/1", "claim chips", 1 << 7)]


def test_claims_that_cannot_be_read_are_said_to_be_unknown() -> None:
    found = holders_of(INF2, (), (), prepared=Unknown("the file is torn"))
    assert (by_claims(found), found.note) == ([], "what pods have by claims is not known: the file is torn")


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
    assert isinstance(unread, Unknown)
    assert str(tmp_path / DRA_STATE) in unread.why
