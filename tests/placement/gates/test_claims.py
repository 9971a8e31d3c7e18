"""Claims of gated pods are allocated with the pod's place, completed by whoever leads, and never given twice."""

from __future__ import annotations

from functools import partial
from typing import Any

import msgspec
import pytest

from neuron_plugin.allocation import PodUid
from neuron_plugin.allocation.event_reasons import EventReason
from neuron_plugin.allocation.keys import GATE
from neuron_plugin.cluster import KubernetesApi
from neuron_plugin.cluster.claims import RESOURCE_CLAIMS as CLAIM_RECORDS
from neuron_plugin.cluster.claims import neuron_claim
from neuron_plugin.cluster.pods import PODS as POD_RECORDS
from neuron_plugin.placement.claims import ClaimedPods, ClaimWriter
from neuron_plugin.placement.context import Times
from neuron_plugin.placement.gates.ungate import release_gated
from neuron_plugin.placement.informers import keep_pod, machines_of, show_pod
from neuron_plugin.placement.state import AssumedPod
from neuron_plugin.placement.writer import NotSentError
from neuron_plugin.simulation.api_server_kinds import (
    CLAIMS,
    PODS,
    RESOURCE_CLAIMS,
    RESOURCE_SLICES,
    STORAGE_CLASSES,
    VOLUMES,
    AnyJson,
)
from tests.placement.gates.bench import GatesBench
from tests.simulation.dra import DRIVER, claim_spec, devices_of, exactly, linked, node_slice
from tests.support.api_server import Fault, Match, StandInApiServer
from tests.support.manifests import node_manifest
from tests.support.world import show_kept

TIMES = Times()

FINALIZER = "resource.kubernetes.io/delete-protection"
STATUS = Match(method="PATCH", path="/status")


class ClaimsBench(GatesBench):
    """A replica that allocates claims. Pods and claims are seen at once."""

    def __init__(self, server: StandInApiServer, api: KubernetesApi) -> None:
        super().__init__(server, api, release_when_full="auto")
        self.joined = ClaimedPods(DRIVER, partial(show_pod, self.state))
        self.writer.claims = ClaimWriter(api, DRIVER, self.joined.claims, self.context.unix_ns)
        self._seen: dict[str, Any] = {}

    def sync(self) -> None:
        """The watches show what the server has."""
        show_kept(self.world, self.server)
        self.joined.see_machines(machines_of(self.state, DRIVER))
        records = [CLAIM_RECORDS.decode(msgspec.json.encode(one)) for one in self.server.objects(RESOURCE_CLAIMS)]
        claims = {(one.namespace, one.name): neuron_claim(one, DRIVER) for one in records}
        for key in {*claims, *self.joined.claims}:
            self.joined.put_claim(key, claims.get(key))
        pods = {one["metadata"]["uid"]: one for one in self.server.objects(PODS)}
        for uid in {*pods, *self._seen}:
            found = keep_pod(POD_RECORDS.decode(msgspec.json.encode(pods[uid])), claims=True) if uid in pods else None
            self.joined.put_pod(uid, self._seen.pop(uid, None), found)
            if found:
                self._seen[uid] = found

    def claim(self, name: str, spec: AnyJson | None = None) -> AnyJson:
        """A claim without an allocation; for one device by default."""
        made = {"metadata": {"name": name}, "spec": spec or claim_spec(exactly())}
        return self.server.create(RESOURCE_CLAIMS, made, "default")

    def claiming(self, name: str, *claims: str, **described: Any) -> AnyJson:
        """A gated pod that uses claims of these names."""
        uses = [{"name": one, "resourceClaimName": one} for one in claims]
        container = {"name": "main", "resources": {"claims": [{"name": one} for one in claims]}}
        spec = {"resourceClaims": uses, "containers": [container], **described.pop("spec", {})}
        return self.pod(name, spec=spec, containers=[container], **described)

    def devices(self, claim: str) -> list[str]:
        return devices_of(self.server.get(RESOURCE_CLAIMS, claim, "default"))

    def reserve(self, claim: str, *pods: str) -> None:
        """kube-scheduler reserves a claim for pods."""
        uses = [{"resource": "pods", "name": pod, "uid": self.of(pod)["metadata"]["uid"]} for pod in pods]
        self.server.patch_status(RESOURCE_CLAIMS, claim, {"reservedFor": uses}, "default")
        self.sync()


@pytest.fixture
def bench(server: StandInApiServer, api: KubernetesApi) -> ClaimsBench:
    made = ClaimsBench(server, api)
    made.node("a", claim_driver=DRIVER)
    return made


async def test_a_term_that_ends_between_two_claims_of_a_pod_leaves_the_second(bench: ClaimsBench) -> None:
    for name in ("c", "d"):
        bench.claim(name)
    pod = bench.state.pods[bench.claiming("train", "c", "d")["metadata"]["uid"]]
    node, placement = bench.state.scene().best(pod) or ("", ())
    assumed, asked = bench.writer.assumed_at(pod, node, placement), list[str]()
    assert isinstance(assumed, AssumedPod)
    assert bench.writer.claims

    def check() -> None:
        asked.append(node)
        if len(asked) > 1:
            raise NotSentError("another replica leads")

    with pytest.raises(NotSentError):
        await bench.writer.claims.allocate(pod, node, assumed.claims, timeout_seconds=1.0, check=check)
    assert (len(bench.devices("c")), bench.devices("d")) == (1, [])


async def test_a_claim_is_allocated_before_its_pod_is_handed_over(bench: ClaimsBench) -> None:
    bench.claim("c", linked(4))
    bench.claiming("train", "c")
    await bench.step()
    assert bench.devices("c") in [[f"neuron-{4 * row + column}" for column in range(4)] for row in range(4)]
    made = bench.server.get(RESOURCE_CLAIMS, "c", "default")
    assert made["metadata"]["finalizers"] == [FINALIZER]
    allocation = made["status"]["allocation"]
    assert allocation["allocationTimestamp"] == "2001-09-09T01:46:40Z"
    pin = [{"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["a"]}]}]
    assert allocation["nodeSelector"]["nodeSelectorTerms"] == bench.terms("train") == pin
    assert {one["pool"] for one in allocation["devices"]["results"]} == {"a-neuron"}
    assert bench.gates("train") == []
    assert bench.place("train") == "a"


async def test_pods_share_no_device_and_cores_share_one(bench: ClaimsBench) -> None:
    for name, spec in {
        "eight": linked(8),
        "four": linked(4),
        "two": claim_spec({"name": "cores", "exactly": {"deviceClassName": "neuroncore", "count": 2}}),
        "core": claim_spec({"name": "cores", "exactly": {"deviceClassName": "neuroncore"}}),
        "other": claim_spec({"name": "cores", "exactly": {"deviceClassName": "neuroncore"}}),
    }.items():
        bench.claim(name, spec)
        bench.claiming(name, name)
    await bench.place_all()
    whole = [device for name in ("eight", "four") for device in bench.devices(name)]
    assert len(set(whole)) == 12
    (two,), (core,), (other,) = bench.devices("two"), bench.devices("core"), bench.devices("other")
    assert len({two, core, other}) == 3
    assert core.partition("-cores")[0] == other.partition("-cores")[0]
    assert not {one.partition("-cores")[0] for one in (two, core)} & set(whole)


async def test_all_devices_of_a_node_and_one_that_a_selector_names(bench: ClaimsBench) -> None:
    by_id = 'device.attributes["neuron.aws.com"].deviceId == 5'
    bench.claim("five", claim_spec(exactly(selectors=[{"cel": {"expression": by_id}}])))
    bench.claim("all", claim_spec(exactly(allocationMode="All")))
    bench.claiming("five", "five")
    await bench.step()
    assert bench.devices("five") == ["neuron-5"]
    bench.claiming("all", "all")
    await bench.step()
    assert bench.devices("all") == []
    bench.node("b", claim_driver=DRIVER)
    await bench.step()
    assert bench.devices("all") == [f"neuron-{device}" for device in range(16)]


def inf2(bench: ClaimsBench, name: str) -> None:
    bench.server.create_node(manifest := node_manifest(name, "inf2.48xlarge", claim_driver=DRIVER))
    bench.world.show_node(manifest)


async def test_a_claim_gets_no_device_that_lacks_an_attribute_it_asks_for(bench: ClaimsBench) -> None:
    """A template for linked devices of a Trn, and one that names a row of it."""
    inf2(bench, "inferentia")
    bench.claim("held", claim_spec(exactly(allocationMode="All")))
    bench.claiming("held", "held")
    await bench.step()
    assert bench.place("held") == "a"
    row = 'device.attributes["neuron.aws.com"].topology4_id == 1'
    by_row = [{"cel": {"expression": row}}]
    for name, spec in {"linked": linked(4), "row": claim_spec(exactly(count=4, selectors=by_row))}.items():
        bench.claim(name, spec)
        bench.claiming(name, name)
    await bench.place_all()
    assert (bench.devices("linked"), bench.devices("row")) == ([], [])
    bench.node("b", claim_driver=DRIVER)
    await bench.place_all()
    assert bench.devices("row") == [f"neuron-{device}" for device in range(4, 8)]
    assert (bench.place("linked"), len(bench.devices("linked"))) == ("b", 4)


async def test_each_request_of_a_claim_keeps_to_its_own_selector(bench: ClaimsBench) -> None:
    def device(number: int) -> AnyJson:
        text = f'device.attributes["neuron.aws.com"].deviceId == {number}'
        return exactly(f"n{number}", selectors=[{"cel": {"expression": text}}])

    bench.claim("c", claim_spec(device(9), device(2)))
    bench.claiming("train", "c")
    await bench.step()
    assert bench.devices("c") == ["neuron-9", "neuron-2"]


async def test_all_devices_of_an_instance_type_are_all_that_it_has(bench: ClaimsBench) -> None:
    inf2(bench, "inferentia")
    by_type = 'device.attributes["neuron.aws.com"].instanceType == "inf2.48xlarge"'
    bench.claim("c", claim_spec(exactly(allocationMode="All", selectors=[{"cel": {"expression": by_type}}])))
    bench.claiming("train", "c")
    await bench.place_all()
    assert (bench.place("train"), len(bench.devices("c"))) == ("inferentia", 12)
    (term,) = bench.terms("train")
    assert list(term) == ["matchFields"]


async def test_a_pod_with_a_claim_of_its_own_goes_where_the_one_is_that_it_shares(bench: ClaimsBench) -> None:
    bench.claim("shared")
    bench.claiming("first", "shared")
    await bench.step()
    bench.node("b", claim_driver=DRIVER)
    bench.reserve("shared", "first")
    bench.claim("own", linked(8))
    bench.claiming("second", "own", "shared")
    await bench.place_all()
    assert (bench.place("second"), bench.gates("second")) == ("a", [])
    assert len(bench.terms("second")[0]["matchFields"]) == 1


async def test_a_pod_with_two_claims_gets_both_on_one_node(bench: ClaimsBench) -> None:
    bench.claim("x", linked(8))
    bench.claim("y", linked(8))
    bench.claiming("train", "x", "y")
    await bench.step()
    assert sorted([*bench.devices("x"), *bench.devices("y")]) == sorted(f"neuron-{device}" for device in range(16))


async def test_nodes_of_the_device_plugin_take_no_claims_and_the_reverse(bench: ClaimsBench) -> None:
    bench.node("counted")
    bench.claim("c")
    bench.claiming("by-claim", "c")
    bench.pod("by-count")
    await bench.place_all()
    assert (bench.place("by-claim"), bench.place("by-count")) == ("a", "counted")


async def test_a_pod_waits_until_its_claim_was_made(bench: ClaimsBench) -> None:
    bench.claiming("train", "c")
    await bench.step()
    assert bench.gates("train") == [GATE]
    bench.claim("c")
    await bench.step()
    assert bench.gates("train") == []


async def test_a_pod_whose_claim_nobody_makes_says_so_until_it_is_there(bench: ClaimsBench) -> None:
    bench.claiming("train", "nic")
    for _ in range(3):
        await bench.look(after=TIMES.again)
    ((reason, note),) = bench.events("train")
    assert reason == EventReason.WAITING
    assert "waits for the ResourceClaim nic, which does not exist" in note
    assert bench.gates("train") == [GATE]
    bench.claim("nic")
    await bench.place_all()
    assert bench.gates("train") == []
    assert len(bench.devices("nic")) == 1


async def test_a_lost_answer_to_the_pods_patch_is_completed_by_the_claims(bench: ClaimsBench) -> None:
    bench.claim("c")
    bench.claiming("train", "c")
    bench.server.fail(Fault(Match(method="PATCH", path="/pods/"), status=409, times=1))
    await bench.step()
    had = bench.devices("c")
    assert (len(had), bench.gates("train")) == (1, [GATE])
    assert bench.record("train").promised == "a"
    bench.server.patch_pod("default", "train", {"metadata": {"labels": {"touched": "yes"}}})
    await bench.place_all()
    assert (bench.devices("c"), bench.gates("train")) == (had, [])


@pytest.mark.parametrize("late", ["answer", "watch"])
async def test_devices_of_a_claim_that_may_be_allocated_are_kept_until_the_watch_shows_it(
    bench: ClaimsBench, late: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.claim("c", claim_spec(exactly(allocationMode="All")))
    bench.claiming("train", "c")
    bench.sync()
    bench.server.fail(Fault(match=STATUS, lose_answer=True))
    with monkeypatch.context() as patched:
        patched.setattr(bench, "sync", lambda: None)
        await bench.step()
        await bench.step(after=TIMES.landing + 1)
        await bench.writer.settle()
    assert bench.state.nodes["a"].used_mask
    if late == "watch":
        bench.claiming("other", "d")
        bench.claim("d", linked(4))
    await bench.place_all()
    assert len(bench.devices("c")) == 16
    assert bench.gates("train") == []


async def test_another_leader_completes_what_was_allocated(bench: ClaimsBench, api: KubernetesApi) -> None:
    bench.claim("c")
    bench.claiming("train", "c")
    bench.server.fail(Fault(Match(method="PATCH", path="/pods/"), status=409, times=1))
    await bench.step()
    had = bench.devices("c")
    successor = ClaimsBench(bench.server, api)
    for name in ("b", "a"):
        successor.node(name, claim_driver=DRIVER)
    await successor.place_all()
    assert (successor.devices("c"), successor.gates("train")) == (had, [])
    assert successor.place("train") == "a"


async def test_of_two_claims_with_the_same_devices_one_pod_is_let_go(bench: ClaimsBench) -> None:
    bench.claim("c", claim_spec(exactly(allocationMode="All")))
    bench.claiming("one", "c")
    await bench.step()
    allocation = bench.server.get(RESOURCE_CLAIMS, "c", "default")["status"]["allocation"]
    bench.claim("d", claim_spec(exactly(allocationMode="All")))
    bench.claiming("two", "d")
    bench.server.patch_status(RESOURCE_CLAIMS, "d", {"allocation": allocation}, "default")
    await bench.step()
    assert bench.gates("one") == []
    assert bench.gates("two") == [GATE]


async def test_a_refused_allocation_is_tried_again_later(bench: ClaimsBench) -> None:
    bench.claim("c")
    bench.claiming("train", "c")
    bench.server.fail(Fault(STATUS, status=409, times=1))
    await bench.step()
    assert (bench.devices("c"), bench.gates("train")) == ([], [GATE])
    await bench.step(after=60)
    assert len(bench.devices("c")) == 1
    assert bench.gates("train") == []


async def test_a_claim_that_is_allocated_as_it_should_be_is_not_written_again_when_another_was_refused(
    bench: ClaimsBench,
) -> None:
    for name in ("one", "two"):
        bench.claim(name)
    bench.claiming("train", "one", "two")
    bench.server.fail(Fault(Match(method="PATCH", path="/two/status$"), status=403))
    await bench.step()
    had = bench.devices("one")
    assert had
    assert not bench.devices("two")
    for _ in range(3):
        await bench.step(after=TIMES.refused + 1)
    assert bench.devices("one") == had
    assert bench.devices("two") not in ([], had)
    assert bench.gates("train") == []
    assert sum(seen.method == "PATCH" and seen.path.endswith("/one/status") for seen in bench.server.requests) == 1


async def test_a_shared_claim_is_allocated_once_and_its_pods_follow_it(bench: ClaimsBench) -> None:
    bench.node("b", claim_driver=DRIVER)
    bench.claim("c")
    bench.claiming("first", "c")
    await bench.step()
    had, where = bench.devices("c"), bench.place("first")
    bench.reserve("c", "first")
    bench.claiming("second", "c")
    await bench.place_all()
    assert (bench.devices("c"), bench.place("second"), bench.gates("second")) == (had, where, [])
    assert not any(info.closed for info in bench.state.nodes.values())


async def test_what_a_shared_claim_holds_is_nobody_elses_after_its_first_pod_ended(bench: ClaimsBench) -> None:
    for name, count in (("shared", 4), ("other", 4)):
        bench.claim(name, linked(count))
    for name in ("first", "second"):
        bench.claiming(name, "shared")
        await bench.place_all()
    for name in ("first", "second"):
        bench.server.bind("default", name, node="a")
    bench.reserve("shared", "first", "second")
    bench.server.delete_pod("default", "first", grace_seconds=0)
    bench.sync()
    bench.claiming("third", "other")
    await bench.place_all()
    assert len({*bench.devices("shared"), *bench.devices("other")}) == 8
    bench.reserve("shared", "second")
    assert bench.state.nodes["a"].closed is None
    assert len(bench.state.nodes["a"].ledger.of(PodUid(bench.of("second")["metadata"]["uid"]))) == 1


async def test_pods_of_a_claim_that_is_reserved_for_none_of_them_yet_keep_it(bench: ClaimsBench) -> None:
    bench.claim("shared", linked(4))
    for name in ("first", "second"):
        bench.claiming(name, "shared")
    await bench.place_all()
    had = bench.devices("shared")
    await bench.look()
    assert (bench.devices("shared"), bench.gates("first"), bench.gates("second")) == (had, [], [])
    assert bench.state.nodes["a"].void == ()


async def test_a_group_of_claims_is_placed_whole_or_not_at_all(bench: ClaimsBench) -> None:
    for number in range(3):
        bench.claim(f"c{number}", linked(8))
        bench.claiming(f"train-{number}", f"c{number}", group="g", size=3)
    await bench.place_all()
    assert [bench.devices(f"c{number}") for number in range(3)] == [[], [], []]
    bench.node("b", claim_driver=DRIVER)
    await bench.place_all()
    assert [len(bench.devices(f"c{number}")) for number in range(3)] == [8, 8, 8]
    assert [bench.gates(f"train-{number}") for number in range(3)] == [[], [], []]


async def test_a_claim_that_cannot_be_judged_keeps_its_gate_and_says_why(bench: ClaimsBench) -> None:
    bench.claim("c", claim_spec(exactly(selectors=[{"cel": {"expression": "true || false"}}])))
    bench.claiming("train", "c")
    await bench.look()
    await bench.look(after=5)
    assert bench.gates("train") == [GATE]
    assert any("expected" in note for _, note in bench.events("train"))


async def test_each_pod_that_is_refused_hears_of_its_own_claim(bench: ClaimsBench) -> None:
    either = {"name": "chips", "firstAvailable": [{"name": "four", "deviceClassName": DRIVER, "count": 4}]}
    bench.claim("of-a", claim_spec(either))
    bench.claim("of-b", claim_spec(exactly(adminAccess=True)))
    for name in ("a", "b", "c"):
        bench.claiming(f"pod-{name}", f"of-{name}")
    for _ in range(3):
        await bench.look(after=TIMES.again)
    for name, word in {"a": "firstAvailable", "b": "admin access", "c": "does not exist"}.items():
        ((_, note),) = bench.events(f"pod-{name}")
        assert f"of-{name}" in note
        assert word in note


async def test_a_gated_pod_with_claims_of_others_is_released_plainly(bench: ClaimsBench) -> None:
    bench.claim("gpu", claim_spec(exactly(deviceClassName="gpu.example.com")))
    bench.claiming("train", "gpu")
    await bench.place_all()
    assert (bench.gates("train"), bench.place("train"), bench.devices("gpu")) == ([], "", [])
    assert [reason for reason, _ in bench.events("train")] == [EventReason.RELEASED_PLAINLY]


async def test_a_full_cluster_keeps_pods_with_claims_gated(bench: ClaimsBench) -> None:
    """A scheduler could do nothing with them: a taint keeps its own choice off."""
    bench.upkeep._release_when_full = 1.0
    bench.claim("one", claim_spec(exactly(allocationMode="All")))
    bench.claim("two", claim_spec(exactly(allocationMode="All")))
    bench.claiming("one", "one")
    await bench.step()
    bench.claiming("two", "two")
    for _ in range(3):
        await bench.look(after=10)
    assert bench.gates("two") == [GATE]


async def test_a_pod_that_asks_by_a_claim_and_lacks_links_says_so(bench: ClaimsBench) -> None:
    for device in set(range(16)) - {0, 2, 8, 10}:
        by_id = f'device.attributes["neuron.aws.com"].deviceId == {device}'
        bench.claim(f"c{device}", claim_spec(exactly(selectors=[{"cel": {"expression": by_id}}])))
        bench.claiming(f"small-{device}", f"c{device}")
    await bench.place_all()
    bench.claim("row", linked(4))
    bench.claiming("train", "row")
    for _ in range(3):
        await bench.look(after=TIMES.again)
    ((_, note),) = bench.events("train")
    assert "has 4 of 16 devices free, but no linked set of 4" in note


async def test_a_claim_that_is_reserved_for_somebody_is_not_freed(bench: ClaimsBench) -> None:
    for name in ("held", "unused"):
        bench.claim(name)
    bench.claiming("train", "held", "unused")
    await bench.step()
    bench.reserve("held", "train")
    (pod,) = bench.state.pods.values()
    assert bench.writer.claims
    await bench.writer.claims.free(pod, timeout_seconds=5.0)
    assert bench.devices("held")
    assert bench.devices("unused") == []
    bench.sync()
    written = len(bench.server.requests)
    await bench.writer.claims.free(pod, timeout_seconds=5.0)
    assert len(bench.server.requests) == written


@pytest.mark.parametrize("fault", [None, Fault(match=STATUS, status=500)], ids=["at once", "at the next look"])
async def test_a_void_placement_gives_its_claim_back_if_the_pod_is_made_again(
    bench: ClaimsBench, fault: Fault | None
) -> None:
    bench.claim("c")
    bench.claiming("train", "c", owner="ReplicaSet/train")
    await bench.step()
    (device,) = bench.devices("c")
    bench.node("a", claim_driver=DRIVER, unhealthy={int(device.rpartition("-")[2]): "broken"})
    if fault:
        bench.server.fail(fault)
        await bench.look()
        assert (bench.devices("c"), bench.place("train")) == ([device], "a")
    await bench.look()
    assert bench.devices("c") == []
    assert not bench.server.objects(PODS)


async def test_a_released_pod_that_nobody_makes_again_keeps_its_claims_and_is_told(bench: ClaimsBench) -> None:
    """No scheduler would allocate them again; with them it runs once what is in its way has gone."""
    bench.claim("c")
    bench.claiming("train", "c")
    await bench.step()
    (device,) = bench.devices("c")
    bench.node("a", claim_driver=DRIVER, unhealthy={int(device.rpartition("-")[2]): "broken"})
    for _ in range(3):
        await bench.look(after=1)
    ((reason, note),) = bench.events("train")
    assert reason == EventReason.PLACEMENT_FAILED
    assert "It keeps its claims" in note
    assert (bench.devices("c"), bench.place("train")) == ([device], "a")


async def test_a_pod_that_could_not_be_deleted_after_its_claim_was_freed_is_deleted_later(bench: ClaimsBench) -> None:
    bench.claim("c")
    bench.claiming("train", "c", owner="ReplicaSet/train")
    await bench.step()
    bench.server.delete_node("a")
    bench.state.remove_node("a", bench.state.nodes["a"].node.uid)
    bench.server.fail(Fault(Match(method="DELETE", path="/pods/train$"), status=409))  # its scheduler wrote on it
    await bench.look()
    assert (bench.devices("c"), len(bench.server.objects(PODS))) == ([], 1)
    bench.unschedulable("train")
    for _ in range(2):
        await bench.look(after=TIMES.stuck)
    assert not bench.server.objects(PODS)


async def test_a_stuck_pod_that_nobody_makes_again_keeps_its_claims_and_is_told_now_and_then(
    bench: ClaimsBench,
) -> None:
    bench.claim("c")
    bench.claiming("train", "c")
    await bench.step()
    had = bench.devices("c")
    bench.unschedulable("train")
    for _ in range(4):
        await bench.look(after=TIMES.stuck)
    assert [reason for reason, _ in bench.events("train")] == [EventReason.PLACEMENT_FAILED]
    assert (bench.devices("c"), bench.place("train")) == (had, "a")
    await bench.look(after=TIMES.avoid + TIMES.stuck)
    assert len(bench.events("train")) == 2


# Pods of which it cannot be judged where they may go.

VOLUME = {"volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "not-bound-yet"}}]}


@pytest.mark.parametrize("group", ["", "g"])
async def test_a_pod_with_claims_that_cannot_be_judged_keeps_its_gate_and_says_why(
    bench: ClaimsBench, group: str
) -> None:
    local = {"provisioner": "kubernetes.io/no-provisioner", "volumeBindingMode": "WaitForFirstConsumer"}
    bench.server.create(STORAGE_CLASSES, {"metadata": {"name": "local"}, **local}, "")
    waits = {"metadata": {"name": "not-bound-yet"}, "spec": {"storageClassName": "local"}}
    bench.server.create(CLAIMS, waits, "default")
    bench.claim("c", linked(4))
    bench.claiming("train", "c", spec=VOLUME, group=group, size=1)
    for _ in range(8):
        await bench.look(after=TIMES.tick)
    assert (bench.gates("train"), bench.devices("c")) == ([GATE], [])
    ((reason, note),) = bench.events("train")
    assert reason == EventReason.WAITING
    assert "volume" in note
    assert "only the placement controller allocates its claims" in note


async def test_a_pod_with_claims_is_placed_once_its_volume_is_there(bench: ClaimsBench) -> None:
    bench.claim("c")
    bench.claiming("train", "c", spec=VOLUME)
    await bench.look(after=5)
    bench.server.create(VOLUMES, {"metadata": {"name": "disk"}, "spec": {}}, "")
    made = {"metadata": {"name": "not-bound-yet"}, "spec": {"volumeName": "disk"}}
    bench.server.create(CLAIMS, made, "default")
    await bench.place_all()
    assert (bench.gates("train"), len(bench.devices("c"))) == ([], 1)


def keeps_off(app: str) -> AnyJson:
    term = {"labelSelector": {"matchLabels": {"app": app}}, "topologyKey": "kubernetes.io/hostname"}
    return {"affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}}


async def test_a_pod_with_claims_goes_where_no_other_pod_keeps_it_off(bench: ClaimsBench) -> None:
    """Pods that ask for the same and have other labels are no reason for each other to wait."""
    for name in ("a", "b"):
        bench.node(name, claim_driver=DRIVER)
        labels = {"metadata": {"labels": {"kubernetes.io/hostname": name}}}
        bench.world.show_node(bench.server.patch_node(name, labels))
    bench.pod("jealous", gates=(), node="a", spec=keeps_off("web"), containers=[{"name": "main"}])
    for name, app in (("first", "web"), ("second", "web"), ("third", "other")):
        bench.claim(name, linked(8))
        bench.claiming(name, name, labels={"app": app})
    await bench.place_all()
    assert [bench.place(name) for name in ("first", "second")] == ["b", "b"]
    assert bench.place("third") == "a"
    for name, app in (("fourth", "web"), ("fifth", "other")):
        bench.claim(name, linked(8))
        bench.claiming(name, name, labels={"app": app})
    for _ in range(3):
        await bench.look(after=TIMES.again)
    assert (bench.gates("fourth"), bench.place("fifth")) == ([GATE], "a")


@pytest.mark.parametrize("rule", ["spread", "anti-affinity"])
async def test_pods_with_claims_keep_to_the_rules_among_them_and_wait_where_these_cannot_be_met(
    bench: ClaimsBench, rule: str
) -> None:
    """enhancements#5069: they were let go without an allocation, and waited for ever on empty nodes."""
    bench.node("b", claim_driver=DRIVER)
    for name in ("a", "b"):
        bench.change_node(name, {"metadata": {"labels": {"kubernetes.io/hostname": name}}})
    selector = {"labelSelector": {"matchLabels": {"app": "s"}}, "topologyKey": "kubernetes.io/hostname"}
    spread = {"topologySpreadConstraints": [{**selector, "maxSkew": 1, "whenUnsatisfiable": "DoNotSchedule"}]}
    names = ["first", "second", "third"]
    for name in names:
        bench.claim(name, claim_spec(exactly(count=4)))
        bench.claiming(name, name, labels={"app": "s"}, spec=spread if rule == "spread" else keeps_off("s"))
    for _ in range(3):
        await bench.look(after=TIMES.again)
    assert {bench.place(name) for name in names[:2]} == {"a", "b"}
    assert [len(bench.devices(name)) for name in names[:2]] == [4, 4]
    waits = rule == "anti-affinity"
    assert (bench.gates("third"), bool(bench.events("third"))) == ([GATE] if waits else [], waits)


async def test_a_pod_with_claims_that_others_keep_off_everywhere_says_so(bench: ClaimsBench) -> None:
    bench.world.show_node(bench.server.patch_node("a", {"metadata": {"labels": {"kubernetes.io/hostname": "a"}}}))
    bench.pod("jealous", gates=(), node="a", spec=keeps_off("web"), containers=[{"name": "main"}])
    bench.claim("c")
    bench.claiming("train", "c", labels={"app": "web"})
    for _ in range(3):
        await bench.look(after=TIMES.again)
    assert bench.gates("train") == [GATE]
    assert any("the anti-affinity of another pod" in note for _, note in bench.events("train"))


# By hand.


async def test_a_pod_whose_claims_no_scheduler_could_allocate_keeps_its_gate_when_pods_are_released_by_hand(
    bench: ClaimsBench,
) -> None:
    for name, spec in {
        "ours": claim_spec(),
        "unread": claim_spec({"name": "r", "firstAvailable": [{"name": "s", "deviceClassName": DRIVER}]}),
        "gpu": claim_spec(exactly(deviceClassName="gpu.example.com")),
    }.items():
        bench.claim(name, spec)
        bench.claiming(name, name)
    bench.claiming("without", "not-made")
    bench.pod("by-count")
    bench.server.create(RESOURCE_SLICES, node_slice(placed=True), "")
    released, refused = await release_gated(bench.api, None)
    assert sorted(released) == ["default/by-count", "default/gpu"]
    assert sorted(refused) == ["default/ours", "default/unread", "default/without"]
    assert "its ResourceClaim ours is not allocated" in refused["default/ours"]
    bench.server.create(RESOURCE_SLICES, node_slice("n2"), "")
    released, refused = await release_gated(bench.api, None)
    assert (len(released), refused) == (3, {})


async def test_a_pod_whose_claims_are_allocated_is_released_by_hand(bench: ClaimsBench) -> None:
    bench.claim("c")
    bench.claiming("train", "c")
    bench.server.fail(Fault(Match(method="PATCH", path="/pods/"), status=409, times=1))
    await bench.step()
    bench.server.create(RESOURCE_SLICES, node_slice(placed=True), "")
    assert await release_gated(bench.api, None) == (["default/train"], {})
    assert len(bench.devices("c")) == 1


async def test_without_the_right_to_look_at_slices_a_pod_with_claims_is_not_released_by_hand(
    bench: ClaimsBench,
) -> None:
    bench.claiming("train", "c")
    bench.server.fail(Fault(Match(path="/resourceslices$"), status=403))
    released, refused = await release_gated(bench.api, None)
    assert (released, list(refused)) == ([], ["default/train"])
    bench.server.fail(Fault(Match(path="/resourceslices$"), status=404))
    assert await release_gated(bench.api, None) == (["default/train"], {})
