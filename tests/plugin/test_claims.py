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
from neuron_plugin.allocation.claims import DRA_DRIVER, ClaimResult, NeuronClaim, PodClaim
from neuron_plugin.allocation.pod import PodLife
from neuron_plugin.allocation.rejection import INVALID_REQUEST
from neuron_plugin.allocation.ultraserver import UltraServerPlace
from neuron_plugin.kubelet.dra_service import ClaimReference, PreparedDevice
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
from neuron_plugin.plugin.metrics import new_counts
from neuron_plugin.plugin.node import LocalNode, NodeOptions
from neuron_plugin.plugin.settings import Mode, Numbering, PluginSettings
from neuron_plugin.plugin.snapshot import Snapshot, derive
from tests.plugin.desk import FakeCgroups
from tests.plugin.world import INF2, MACHINES, TRN2, FakeClock, inputs, inventory, moment, pod, uid_of, who_has
from tests.support.model_kubelet import checkpoint_file
from tests.support.stories import Scene, rows

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


def test_a_claim_waits_for_what_others_have_or_is_held_down_and_not_for_its_own() -> None:
    for text, one, waits_for in (
        ("a | prepared a=neuron-3", "a", ""),
        ("a | prepared a=neuron-3", "b", "pod default/a has neuron devices 3 by claim a-devices"),
        ("x app:1 | has x=3", "a", "pod default/x"),
        ("x app:1 | has x=4", "a", ""),
        ("rests 3", "a", "why"),
    ):
        snapshot = derive(moment(text))
        mine = replace(claim(one, "neuron-3"), uid="claim-uid" if one == "a" else "other")
        found = held_by_others(snapshot, mine, mine.mask_on(snapshot.inventory.geometry, 1))
        assert waits_for in found
        assert bool(waits_for) == bool(found)


def test_the_health_of_each_device_and_of_what_claims_name_is_shown() -> None:
    snapshot = derive(moment("a | prepared a=neuron-3-cores-6-7 | broken 3"))
    faults = {one.device: one.fault for one in health_of(snapshot, "worker-1")}
    assert len(faults) == 17
    assert faults["neuron-3"] == faults["neuron-3-cores-6-7"] == "neuron3: sick"
    assert faults["neuron-4"] == ""


# Prepare, from question to record.


class Files:
    """The kubelet's two files: an empty checkpoint, and the claims that a test puts there."""

    def __init__(self) -> None:
        self.claims: tuple[PreparedClaim, ...] = ()
        self.edition = 1

    def version(self) -> tuple[int, int, int]:
        return (self.edition, 0, 0)

    def read(self) -> Any:
        return DraState(self.claims, self.version())


def said_of(text: str) -> NeuronClaim:
    """``x=3`` or ``x=3@a@b``: a claim with a device, and the pods for which it is reserved (a)."""
    said, *users = text.split("@")
    name, _, number = said.partition("=")
    return claim(name, f"neuron-{number}", reserved_for=tuple(map(uid_of, users or "a")))


class Desk(Scene):
    """A preparer with a node whose pods and claims a test decides."""

    def __init__(self, directory: Path, numbering: Numbering = Numbering.HOST, wait: float = 5.0) -> None:
        self.files, self.cgroups, self.clock = Files(), FakeCgroups(), FakeClock()
        self.node = LocalNode(checkpoint_file(), self.cgroups, NodeOptions(()), self.clock, self.files)
        self.known: dict[tuple[str, str], NeuronClaim] = {}
        settings = PluginSettings(node_name="worker-1", mode=Mode.DRA, cdi_dir=directory, numbering=numbering)
        source, times = ClaimSource(self._claim, self._list), PrepareTimes(wait=wait, poll=0.01)
        self.preparer = ClaimPreparer(self.node, settings, source, new_counts(), times)
        self.node.see_inventory(inventory())

    async def _claim(self, namespace: str, name: str) -> NeuronClaim | None:
        return self.known.get((namespace, name))

    async def _list(self) -> None:
        """The watch shows everything already."""

    @property
    def snapshot(self) -> Snapshot:
        assert self.node.snapshot is not None
        return self.node.snapshot

    # What there is.

    def knows(self, text: str) -> None:
        """The API server has these claims."""
        self.see(*map(said_of, text.split()))

    def see(self, *claims: NeuronClaim) -> None:
        self.known |= {(each.namespace, each.name): each for each in claims}

    def pods(self, text: str = "") -> None:
        """``pods a:x b:x,y started``: a LIST shows these pods and the claims that their containers use."""
        words = text.split()
        made = []
        for name, _, uses in (word.partition(":") for word in words if ":" in word):
            made.append(claiming(name, dict.fromkeys(uses.split(","), (("main", ""),))))
        self.show(*(replace(one, life=PodLife(started="started" in words)) for one in made))

    def show(self, *pods: NeuronPod) -> None:
        self.clock.now += 1
        self.node.see_pods(self.node.pods.with_list(pods, self.clock()))

    def file(self, text: str = "") -> None:
        """The kubelet has recorded these claims."""
        self.files.claims = tuple(
            PreparedClaim(DRA_DRIVER, one.uid, "default", one.name, one.reserved_for, (one.results[0].device,))
            for one in map(said_of, text.split())
        )
        self.files.edition += 1
        self.node.look_at_claims()

    def reads(self, text: str) -> None:
        """The daemon has read these claims of its pods."""
        self.node.see_claims({("default", one.name): one for one in map(said_of, text.split())})

    def alive(self, name: str) -> None:
        self.cgroups.alive = {uid_of(name)}

    def dead(self) -> None:
        self.cgroups.alive = set()
        self.clock.now += 5

    # What the kubelet asks, and what follows.

    async def prepare(self, name: str, expected: str) -> Any:
        """``prepare x -> 3-3``: the CDI devices of a claim, or ``!`` and a part of why there are none."""
        answer = (await self.preparer.prepare([ClaimReference("default", name, f"uid-{name}")]))[f"uid-{name}"]
        if expected.startswith("!"):
            assert isinstance(answer, str)
            assert expected[1:] in answer
        else:
            assert not isinstance(answer, str), answer
            names = [device.rpartition("=")[2] for each in answer for device in each.cdi_devices]
            assert sorted(names) == expected.split()
        return answer

    async def unprepare(self, name: str) -> None:
        await self.preparer.unprepare([ClaimReference("default", name, f"uid-{name}")])

    def later(self, text: str) -> None:
        seconds, verb = text.split(" ")
        asyncio.get_running_loop().call_later(float(seconds), getattr(self, verb))

    def has(self, expected: str) -> None:
        assert who_has(self.snapshot) == expected.replace("-", "")


STORIES = rows("""
    a prepared claim is in the ledger before the kubelet has written it:
        knows x=3; pods a:x; prepare x -> 3-3; has a=3; prepare x -> 3-3
    a force-deleted pod's claim is waited for until its processes are gone:
        knows x=3 y=3@b; pods a:x; prepare x -> 3-3; alive a; pods b:y; later 0.3 dead; prepare y -> 3-3; took 0.3-2
    a line that goes from the kubelet's file ends nothing:
        knows x=3; pods a:x; file x=3; has a=3; file; has a=3; pods; has -
    # The kubelet counts pods, not which: kubernetes#140212.
    pods that share a claim do not wait for each other and keep it when it is given up twice:
        knows x=3@a@b; pods a:x b:x; prepare x -> 3-3; prepare x -> 3-3; unprepare x; has a=3 b=3
    what a started pod has counts where the kubelet has lost its file:
        pods a:x started; has -; reads x=3@b; has -; reads x=3; has a=3
""")


@pytest.mark.parametrize("steps", STORIES)
async def test_what_claims_get_and_who_has_it(tmp_path: Path, steps: str) -> None:
    await Desk(tmp_path).play(steps)


async def test_a_prepared_claim_names_its_request_device_and_user(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    await desk.play("knows x=3; pods a:x")
    (found,) = await desk.prepare("x", "3-3")
    assert (found.request, found.device, found.cdi_devices) == ("r", "neuron-3", ("neuron-plugin.io/device=3-3",))
    (allocation,) = desk.snapshot.ledger.of(uid_of("a"))
    assert (allocation.claim, allocation.user, allocation.kubelet_mask) == ("x", "claim x", 0)


def test_the_first_snapshot_knows_which_claims_the_kubelet_has_recorded(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    desk.files.claims = (PreparedClaim(DRA_DRIVER, "uid-x", "default", "x", (uid_of("a"),), ("neuron-3",)),)
    node = LocalNode(checkpoint_file(), FakeCgroups(), NodeOptions(()), FakeClock(), desk.files)
    node.see_inventory(inventory())
    assert node.snapshot
    assert who_has(node.snapshot) == "a=3"


async def test_a_claim_that_only_kube_scheduler_can_allocate_is_prepared(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    desk.see(claim("x", "neuron-3", requests=replace(INVALID_REQUEST, detail="it has alternatives")))
    await desk.play("pods a:x; prepare x -> 3-3")


async def test_a_pod_with_a_second_claim_is_numbered_with_what_was_prepared_for_another(tmp_path: Path) -> None:
    """The kubelet asks only for the second one: what it has of the first goes to the container as it is."""
    desk = Desk(tmp_path, Numbering.CONTAINER, wait=0.05)
    await desk.play(
        "knows x=4@a@b y=2@b; pods a:x b:x,y; prepare y -> !neuron-4 would have other numbers; "
        "knows y=5@b; prepare y -> 5-1"
    )


async def test_a_claim_that_cannot_be_given_says_why_at_the_deadline(tmp_path: Path) -> None:
    desk, one = Desk(tmp_path, wait=0.05), said_of("x=3")
    await desk.play("pods a:x; prepare x -> !could not be read")
    for known, why in (
        (replace(one, uid="other"), "made again"),
        (replace(one, results=()), "no device of neuron.aws.com"),
        (
            replace(one, results=(ClaimResult("r", "worker-2-neuron", "neuron-3"),)),
            "of pool worker-2-neuron, expected worker-1-neuron",
        ),
        (replace(one, fault="its logicalNeuronCore is 3, expected 1 or 2"), "logicalNeuronCore is 3"),
        (replace(one, reserved_for=(PodUid("nobody"),)), "no pod of claim default/x"),
    ):
        desk.see(known)
        await desk.prepare("x", f"!{why}")
    desk.node.see_inventory(inventory(present=(0, 1, 2)))
    await desk.play("knows x=3; prepare x -> !3 are not there")


# UltraServers.

ULTRASERVER = {"mode": "1,2,4", "serverId4": "u1", "nodeId4": "3"}
PLACE = UltraServerPlace(4, 7, "train-0.train.ml.svc")
USES_X = claiming("a", {"x": (("main", ""),)})


async def test_a_pod_with_claims_is_told_its_place_by_a_device_of_its_own(tmp_path: Path) -> None:
    desk, name = Desk(tmp_path), f"ultraserver-{uid_of('a')}"
    desk.node.see_inventory(inventory(ultraserver=ULTRASERVER))
    desk.knows("x=3 y=4")
    desk.show(replace(claiming("a", {"x": (("main", ""),), "y": (("main", ""),)}), ultraserver=PLACE))
    answers = await desk.preparer.prepare([ClaimReference("default", each, f"uid-{each}") for each in "xy"])
    given = [device for parts in answers.values() for device in parts]
    given = [device for parts in answers.values() for device in parts]
    devices = [name for one in given if isinstance(one, PreparedDevice) for name in one.cdi_devices]
    assert sorted(devices) == [f"neuron-plugin.io/device={text}" for text in ("3-3", "4-4", name)]
    (said,) = json.loads((tmp_path / CDI_VARIABLES_FILE_NAME).read_bytes())["devices"]
    assert said["name"] == name
    assert set(said["containerEdits"]["env"]) == {f"{key}={text}" for key, text in PLACE.variables(ULTRASERVER).items()}


def test_a_claim_that_pods_share_tells_none_of_them() -> None:
    one, node = replace(USES_X, ultraserver=PLACE), inventory(ultraserver=ULTRASERVER)
    assert names(one, said_of("x=3"), node=node) == {"neuron-3": ("3-0", f"ultraserver-{uid_of('a')}")}
    assert names(one, said_of("x=3@a@b"), node=node) == {"neuron-3": ("3-0",)}


async def test_the_variables_of_pods_stay_while_no_pod_is_known(tmp_path: Path) -> None:
    """A container that starts again needs the device that its pod was prepared with."""
    desk = Desk(tmp_path)
    desk.node.see_inventory(inventory(ultraserver=ULTRASERVER))
    desk.knows("x=3 y=4@b")
    desk.show(replace(USES_X, ultraserver=PLACE))
    await desk.prepare("x", f"3-3 ultraserver-{uid_of('a')}")
    before = (tmp_path / CDI_VARIABLES_FILE_NAME).read_bytes()
    await desk.play("pods b:y; prepare y -> 4-4")
    assert (tmp_path / CDI_VARIABLES_FILE_NAME).read_bytes() == before
