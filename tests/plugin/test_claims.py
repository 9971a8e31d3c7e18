"""Which CDI devices containers get for their claims, and when a claim has to wait."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from neuron_plugin.allocation import NeuronPod, NodeInventory, PodUid
from neuron_plugin.allocation.claims import ClaimResult, NeuronClaim, PodClaim
from neuron_plugin.allocation.rejection import INVALID_REQUEST
from neuron_plugin.allocation.ultraserver import UltraServerPlace
from neuron_plugin.kubelet.dra_service import ClaimReference
from neuron_plugin.kubelet.dra_state import DraState, PreparedClaim
from neuron_plugin.plugin.claims import (
    ClaimPreparer,
    ClaimSource,
    NotNumberedError,
    PrepareTimes,
    cdi_devices,
    health_of,
    held_by_others,
)
from neuron_plugin.plugin.container import CDI_VARIABLES_FILE_NAME, ContainerStyle, core_windows
from neuron_plugin.plugin.counters import Counters
from neuron_plugin.plugin.inputs import HoldDown, claim_allocations
from neuron_plugin.plugin.node import LocalNode, NodeOptions
from neuron_plugin.plugin.settings import Mode, Numbering, PluginSettings
from neuron_plugin.plugin.snapshot import Snapshot, derive
from neuron_plugin.topology import CoreMask
from tests.plugin.desk import FakeCgroups
from tests.plugin.world import INF2, MACHINES, TRN2, FakeClock, inputs, inventory, moment, pod, ref, uid_of
from tests.support.model_kubelet import checkpoint_file
from tests.support.stories import rows

INSIDE = ContainerStyle(Numbering.CONTAINER)
AS_HOST = ContainerStyle(Numbering.HOST)
Uses = Mapping[str, tuple[tuple[str, str], ...]]


def claiming(name: str, uses: Uses) -> NeuronPod:
    """A pod with a claim for each key, which has the same name in the pod and in its namespace."""
    claims = tuple(PodClaim(claim, claim, users) for claim, users in uses.items())
    return replace(pod(name), claims=claims)


def claim(name: str, *devices: str, request: str = "r", **fields: Any) -> NeuronClaim:
    results = tuple(ClaimResult(request, "worker-1-neuron", device) for device in devices)
    fields.setdefault("reserved_for", (uid_of("a"),))
    return NeuronClaim(f"uid-{name}", "default", name, allocated=True, results=results, **fields)


def names(
    one: NeuronPod, *claims: NeuronClaim, style: ContainerStyle = INSIDE, node: NodeInventory | None = None
) -> dict[str, tuple[str, ...]]:
    """The CDI devices of each device, by its name."""
    snapshot = derive(inputs(one, node=node))
    known = {("default", each.name): each for each in claims}
    return {part[1].device: found for part, found in cdi_devices([one], known, style, snapshot).items()}


TWO_NUMBERS = "container one .*container two"
NUMBERED = rows(f"""
    over all claims of a container: x@main=9 y@main=4,5 => 4: 4-0, 5: 5-1, 9: 9-2
    as the host counts: host x@main=9 y@main=4,5 => 4: 4-4, 5: 5-5, 9: 9-9
    each container counts for itself: x@one=9 y@two=4 => 4: 4-0, 9: 9-0
    a device that would need two numbers: x@one@two=9 y@two=4 => !{TWO_NUMBERS}
    one that has the same in both: x@one@two=4 y@two=9 => 4: 4-0, 9: 9-1
    a claim that no container names: x=9 => 9: 9-0
    whole devices say nothing of cores: x@main=3 => 3: 3-0
    cores, as the container counts them: x@main=3-cores-6-7 => 3-cores-6-7: 3-0 cores-0-1
    cores, as the host counts them: host x@main=3-cores-6-7 => 3-cores-6-7: 3-3 cores-6-7
    the second core of a device: x@main=3-cores-7-7 => 3-cores-7-7: 3-0 cores-1-1
    cores of several devices are one set:
        inf2 x@main=3-cores-6-7,4-cores-8-8 => 3-cores-6-7: 3-0 cores-0-2, 4-cores-8-8: 4-1
    the cores of two devices: trn2 x@main=2-cores-8-11,3-cores-12-15 => 2-cores-8-11: 2-0 cores-0-7, 3-cores-12-15: 3-1
    cores of an older version that are not aligned: trn2 x@main=3-cores-13-14 => 3-cores-13-14: 3-0 cores-1-2
    cores with a gap, which no variable can say: x@main=3-cores-6-6,5-cores-10-10 => !cores
    cores of two devices, which none can say: x@main=3-cores-7-7,4-cores-8-8 => !cores
    a device that the node does not have: x@main=16 => !neuron-16
""")
"""Claims, the containers that use them, and their devices; then the CDI devices of each, or why there are none."""


@pytest.mark.parametrize(("claims", "expected"), NUMBERED)
def test_how_devices_and_cores_are_numbered(claims: str, expected: str) -> None:
    words = claims.split()
    style = AS_HOST if words[0] == "host" else INSIDE
    node = inventory(MACHINES[words[0]]) if words[0] in MACHINES else None
    uses: dict[str, tuple[tuple[str, str], ...]] = {}
    made = []
    for who, _, devices in (word.partition("=") for word in words if "=" in word):
        name, *containers = who.split("@")
        uses[name] = tuple((container, "") for container in containers)
        made.append(claim(name, *(f"neuron-{device}" for device in devices.split(","))))
    if expected.startswith("!"):
        with pytest.raises(NotNumberedError, match=expected[1:]):
            names(claiming("a", uses), *made, style=style, node=node)
        return
    found = names(claiming("a", uses), *made, style=style, node=node)
    said = (f"{device.removeprefix('neuron-')}: {' '.join(cdi)}" for device, cdi in sorted(found.items()))
    assert ", ".join(said) == expected


def test_a_container_may_use_one_request_of_a_claim() -> None:
    shared = replace(
        claim("x", "neuron-9"), results=(ClaimResult("p", "w", "neuron-8"), ClaimResult("q", "w", "neuron-9"))
    )
    one = claiming("a", {"x": (("one", "p"), ("two", "q"))})
    assert names(one, shared) == {"neuron-8": ("8-0",), "neuron-9": ("9-0",)}


def test_the_logical_core_size_is_the_claims_or_the_nodes() -> None:
    node = inventory(TRN2, logical_core_size=2, device_name="Trainium2")
    style, one = replace(INSIDE, logical_core_size=2), claiming("a", {"x": (("main", ""),)})
    assert names(one, claim("x", "neuron-3"), style=style, node=node) == {"neuron-3": ("3-0", "lnc-2")}
    asked = claim("x", "neuron-3", "neuron-4", logical_core_size=1)
    found = names(one, asked, style=style, node=node)
    assert found == {"neuron-3": ("3-0", "lnc-1"), "neuron-4": ("4-1",)}
    with pytest.raises(NotNumberedError, match="does not have"):
        names(one, asked)
    with pytest.raises(NotNumberedError, match="whole devices"):
        names(one, claim("x", "neuron-3-cores-12-12-lnc-2", logical_core_size=1), style=style, node=node)
    both = claiming("a", {"x": (("main", ""),), "y": (("main", ""),)})
    with pytest.raises(NotNumberedError, match="different values"):
        names(both, asked, claim("y", "neuron-8"), style=style, node=node)


def test_the_first_cdi_device_of_each_device_is_its_own() -> None:
    """The kubelet shows the health of a device under its first CDI name, once for each name."""
    one = claiming("a", {"x": (("main", ""),)})
    found = names(one, claim("x", *(f"neuron-{device}" for device in range(16))))
    assert len({first for first, *_ in found.values()}) == 16


@pytest.mark.parametrize("geometry", [TRN2, INF2])
def test_every_window_of_cores_has_a_name_in_both_numberings(geometry: Any) -> None:
    for first, last in core_windows(geometry):
        start = first - first % geometry.cores_per_device
        assert (first - start, last - start) in core_windows(geometry)


# Who holds what.


def record(name: str, *devices: str, uid: str = "") -> Any:
    (one,) = claim_allocations([PodUid(uid or uid_of(name))], f"uid-{name}", name, devices)
    return one


def test_a_claim_waits_for_another_pods_devices_and_not_for_its_own() -> None:
    mine, other = claim("a", "neuron-3"), claim("b", "neuron-3")
    snapshot = derive(inputs(pod("a"), recorded=[record("a", "neuron-3")]))
    mask = mine.mask_on(snapshot.inventory.geometry, 1)
    assert held_by_others(snapshot, mine, mask) == ""
    assert held_by_others(snapshot, other, mask) == "pod default/a has neuron devices 3 by claim a"


def test_pods_of_the_device_plugin_count_too() -> None:
    snapshot = derive(moment("x app:1 | has x=3"))
    assert "pod default/x" in held_by_others(snapshot, claim("a", "neuron-3"), CoreMask(3 << 6))
    assert held_by_others(snapshot, claim("a", "neuron-4"), CoreMask(3 << 8)) == ""


def test_a_hold_down_keeps_a_claim_waiting() -> None:
    down = HoldDown(PodUid("z"), ref("z"), CoreMask(3 << 6), 0, 0, 0, 0, 9, "processes still use it")
    snapshot = derive(inputs(hold_downs=(down,)))
    assert "processes still use it" in held_by_others(snapshot, claim("a", "neuron-3"), CoreMask(3 << 6))


def test_the_health_of_each_device_and_of_what_claims_name_is_shown() -> None:
    node = inventory(unhealthy={3: "broken"})
    snapshot = derive(inputs(pod("a"), recorded=[record("a", "neuron-3-cores-6-7")], node=node))
    faults = {one.device: one.fault for one in health_of(snapshot, "worker-1")}
    assert len(faults) == 17
    assert faults["neuron-3"] == faults["neuron-3-cores-6-7"] == "neuron3: broken"
    assert faults["neuron-4"] == ""


# Prepare, from question to record.


class Files:
    """The kubelet's two files: an empty checkpoint, and the claims that a test puts there."""

    def __init__(self, *claims: PreparedClaim) -> None:
        self.claims: tuple[PreparedClaim, ...] = claims
        self.edition = 1

    def version(self) -> tuple[int, int, int]:
        return (self.edition, 0, 0)

    def read(self) -> Any:
        return DraState(self.claims, self.version())


class Desk:
    """A preparer with a node whose pods and claims a test decides."""

    def __init__(
        self,
        tmp_path: Path,
        times: PrepareTimes = PrepareTimes(poll=0.01),  # noqa: B008 - frozen
        numbering: Numbering = Numbering.HOST,
    ) -> None:
        self.files, self.alive = Files(), dict[str, bool]()
        self.clock = FakeClock()
        self.node = LocalNode(checkpoint_file(), self, NodeOptions(()), self.clock, self.files)
        self.node.see_inventory(inventory())
        self.claims: dict[tuple[str, str], NeuronClaim] = {}
        settings = PluginSettings(node_name="worker-1", mode=Mode.DRA, cdi_dir=tmp_path, numbering=numbering)
        self.preparer = ClaimPreparer(self.node, settings, ClaimSource(self._claim, self._list), Counters(), times)

    def is_populated(self, uid: str) -> bool | None:
        return self.alive.get(uid, False)

    async def _claim(self, namespace: str, name: str) -> NeuronClaim | None:
        return self.claims.get((namespace, name))

    async def _list(self) -> None:
        """The watch shows everything already."""

    def has(self, *pods: NeuronPod) -> None:
        self.node.see_pods(self.node.pods.with_list(pods, self.clock()))

    def knows(self, *claims: NeuronClaim) -> None:
        self.claims |= {(each.namespace, each.name): each for each in claims}

    def prepare(self, *claims: NeuronClaim) -> asyncio.Task[Any]:
        references = [ClaimReference(each.namespace, each.name, each.uid) for each in claims]
        return asyncio.create_task(self.preparer.prepare(references))

    @property
    def snapshot(self) -> Snapshot:
        assert self.node.snapshot is not None
        return self.node.snapshot


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return Desk(tmp_path)


async def test_a_prepared_claim_is_in_the_ledger_before_the_kubelet_has_written_it(desk: Desk) -> None:
    one = claim("x", "neuron-3")
    desk.knows(one)
    desk.has(claiming("a", {"x": (("main", ""),)}))
    answer = (await desk.prepare(one))["uid-x"]
    assert [(each.request, each.device, each.cdi_devices) for each in answer] == [
        ("r", "neuron-3", ("neuron-plugin.io/device=3-3",))
    ]
    (allocation,) = desk.snapshot.ledger.of(uid_of("a"))
    assert (allocation.claim, allocation.user, allocation.kubelet_mask) == ("x", "claim x", 0)
    assert (await desk.prepare(one))["uid-x"] == answer


async def test_a_force_deleted_pods_claim_is_waited_for_until_its_processes_are_gone(desk: Desk) -> None:
    old, new = claim("x", "neuron-3"), claim("y", "neuron-3", reserved_for=(uid_of("b"),))
    desk.knows(old, new)
    desk.has(claiming("a", {"x": (("main", ""),)}))
    await desk.prepare(old)
    desk.alive[uid_of("a")] = True
    desk.clock.now += 1
    desk.has(claiming("b", {"y": (("main", ""),)}))
    waiting = desk.prepare(new)
    await asyncio.sleep(0.3)
    assert not waiting.done()
    desk.alive[uid_of("a")] = False
    desk.clock.now += 5
    answer = await waiting
    assert [each.device for each in answer["uid-y"]] == ["neuron-3"]


async def test_the_first_snapshot_knows_which_claims_the_kubelet_has_recorded() -> None:
    files = Files(PreparedClaim("neuron.aws.com", "uid-x", "default", "x", (uid_of("a"),), ("neuron-3",)))
    node = LocalNode(checkpoint_file(), FakeCgroups(), NodeOptions(()), FakeClock(), files)
    node.see_inventory(inventory())
    assert node.snapshot is not None
    assert node.snapshot.ledger.mask_of(uid_of("a")) == inventory().geometry.device_mask(3)


async def test_a_line_that_goes_from_the_kubelets_file_ends_nothing(desk: Desk) -> None:
    one = claim("x", "neuron-3")
    desk.knows(one)
    desk.has(claiming("a", {"x": (("main", ""),)}))
    desk.files.claims = (PreparedClaim("neuron.aws.com", "uid-x", "default", "x", (uid_of("a"),), ("neuron-3",)),)
    desk.files.edition += 1
    desk.node.look_at_claims()
    assert desk.snapshot.ledger.used_mask
    desk.files.claims = ()
    desk.files.edition += 1
    desk.node.look_at_claims()
    assert desk.snapshot.ledger.used_mask
    desk.clock.now += 1
    desk.has()
    assert not desk.snapshot.ledger.used_mask


async def test_pods_that_share_a_claim_do_not_wait_for_each_other_and_keep_it_when_it_is_given_up_twice(
    desk: Desk,
) -> None:
    one = claim("x", "neuron-3", reserved_for=(uid_of("a"), uid_of("b")))
    desk.knows(one)
    desk.has(claiming("a", {"x": (("main", ""),)}), claiming("b", {"x": (("main", ""),)}))
    await desk.prepare(one)
    assert [each.device for each in (await desk.prepare(one))["uid-x"]] == ["neuron-3"]
    await desk.preparer.unprepare([ClaimReference(one.namespace, one.name, one.uid)])
    holders = desk.snapshot.ledger.by_pod.keys()
    assert holders == {uid_of("a"), uid_of("b")}, "the kubelet counts pods, not which: kubernetes#140212"


async def test_what_a_started_pod_has_counts_where_the_kubelet_has_lost_its_file(desk: Desk) -> None:
    one = claim("x", "neuron-3")
    desk.has(replace(claiming("a", {"x": (("main", ""),)}), started=True))
    for known in ({}, {("default", "x"): replace(one, reserved_for=(uid_of("b"),))}):
        desk.node.see_claims(known)
        assert not desk.snapshot.ledger.used_mask
    desk.node.see_claims({("default", "x"): one})
    assert desk.snapshot.ledger.mask_of(uid_of("a")) == inventory().geometry.device_mask(3)


async def test_a_claim_that_only_kube_scheduler_can_allocate_is_prepared(desk: Desk) -> None:
    one = claim("x", "neuron-3", requests=replace(INVALID_REQUEST, detail="it has alternatives"))
    desk.knows(one)
    desk.has(claiming("a", {"x": (("main", ""),)}))
    assert [each.device for each in (await desk.prepare(one))["uid-x"]] == ["neuron-3"]


async def test_a_pod_with_a_second_claim_is_numbered_with_what_was_prepared_for_another(tmp_path: Path) -> None:
    """The kubelet asks only for the second one: what it has of the first goes to the container as it is."""
    desk = Desk(tmp_path, PrepareTimes(wait=0.05, poll=0.01), Numbering.CONTAINER)
    shared = claim("x", "neuron-4", reserved_for=(uid_of("a"), uid_of("b")))
    own = claim("y", "neuron-2", reserved_for=(uid_of("b"),))
    desk.knows(shared, own)
    desk.has(claiming("a", {"x": (("main", ""),)}), claiming("b", {"x": (("main", ""),), "y": (("main", ""),)}))
    assert "neuron-4 would have other numbers" in (await desk.prepare(own))["uid-y"]
    after = claim("y", "neuron-5", reserved_for=(uid_of("b"),))
    desk.knows(after)
    (answer,) = (await desk.prepare(after))["uid-y"]
    assert answer.cdi_devices == ("neuron-plugin.io/device=5-1",)


async def test_a_claim_that_cannot_be_given_says_why_at_the_deadline(tmp_path: Path) -> None:
    desk = Desk(tmp_path, PrepareTimes(wait=0.05, poll=0.01))
    one = claim("x", "neuron-3")
    desk.has(claiming("a", {"x": (("main", ""),)}))
    assert "could not be read" in (await desk.prepare(one))["uid-x"]
    desk.knows(replace(one, uid="other"))
    assert "made again" in (await desk.prepare(one))["uid-x"]
    desk.knows(replace(one, results=()))
    assert "no device of neuron.aws.com" in (await desk.prepare(one))["uid-x"]
    desk.knows(replace(one, results=(ClaimResult("r", "worker-2-neuron", "neuron-3"),)))
    assert "of pool worker-2-neuron, expected worker-1-neuron" in (await desk.prepare(one))["uid-x"]
    desk.knows(replace(one, fault="its logicalNeuronCore is 3, expected 1 or 2"))
    assert "logicalNeuronCore is 3" in (await desk.prepare(one))["uid-x"]
    desk.knows(replace(one, reserved_for=(PodUid("nobody"),)))
    assert "no pod of claim default/x" in (await desk.prepare(one))["uid-x"]
    desk.node.see_inventory(inventory(present=(0, 1, 2)))
    desk.knows(one)
    assert "3 are not there" in (await desk.prepare(one))["uid-x"]


# UltraServers.

ULTRASERVER = {"mode": "1,2,4", "serverId4": "u1", "nodeId4": "3"}
PLACE = UltraServerPlace(4, 7, "train-0.train.ml.svc")


async def test_a_pod_with_claims_is_told_its_place_by_a_device_of_its_own(desk: Desk, tmp_path: Path) -> None:
    desk.node.see_inventory(inventory(ultraserver=ULTRASERVER))
    one, two = claim("x", "neuron-3"), claim("y", "neuron-4")
    desk.knows(one, two)
    desk.has(replace(claiming("a", {"x": (("main", ""),), "y": (("main", ""),)}), ultraserver=PLACE))
    answer = await desk.prepare(one, two)
    name = f"ultraserver-{uid_of('a')}"
    devices = [device for parts in answer.values() for part in parts for device in part.cdi_devices]
    assert sorted(devices) == [f"neuron-plugin.io/device={text}" for text in ("3-3", "4-4", name)]
    (said,) = json.loads((tmp_path / CDI_VARIABLES_FILE_NAME).read_bytes())["devices"]
    assert said["name"] == name
    assert set(said["containerEdits"]["env"]) == {f"{key}={text}" for key, text in PLACE.variables(ULTRASERVER).items()}


def test_a_claim_that_pods_share_tells_none_of_them() -> None:
    one = replace(claiming("a", {"x": (("main", ""),)}), ultraserver=PLACE)
    node, own = inventory(ultraserver=ULTRASERVER), claim("x", "neuron-3")
    shared = replace(own, reserved_for=(uid_of("a"), uid_of("b")))
    assert names(one, own, node=node) == {"neuron-3": ("3-0", f"ultraserver-{uid_of('a')}")}
    assert names(one, shared, node=node) == {"neuron-3": ("3-0",)}


async def test_the_variables_of_pods_stay_while_no_pod_is_known(desk: Desk, tmp_path: Path) -> None:
    """A container that starts again needs the device that its pod was prepared with."""
    desk.node.see_inventory(inventory(ultraserver=ULTRASERVER))
    one, two = claim("x", "neuron-3"), claim("y", "neuron-4", reserved_for=(uid_of("b"),))
    desk.knows(one, two)
    desk.has(replace(claiming("a", {"x": (("main", ""),)}), ultraserver=PLACE))
    await desk.prepare(one)
    before = (tmp_path / CDI_VARIABLES_FILE_NAME).read_bytes()
    desk.clock.now += 1
    desk.has(claiming("b", {"y": (("main", ""),)}))
    await desk.prepare(two)
    assert (tmp_path / CDI_VARIABLES_FILE_NAME).read_bytes() == before
