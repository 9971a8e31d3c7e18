"""What the simulated kube-scheduler and kube-controller-manager do about claims, and which devices are chosen."""

from __future__ import annotations

import pytest

from neuron_plugin.simulation.api_server_kinds import CLAIM_TEMPLATES, EVENTS, PODS, RESOURCE_CLAIMS, Refusal
from neuron_plugin.simulation.resource_claims import (
    NOT_ALLOCATED,
    POD_CLAIM_KEY,
    NotAllocatedError,
    allocate,
    allocations_on,
    claim_names,
    claims_of,
    offered_devices,
    reserve,
    sync_claims,
)
from tests.simulation.dra import (
    DRIVER,
    GROUP_OF_4,
    Json,
    a_cluster,
    claim_spec,
    claims,
    device_class,
    devices_of,
    exactly,
    linked,
    node_slice,
    only_claim,
    pod,
    pod_object,
)
from tests.support.api_server import StandInApiServer
from tests.support.stories import Scene

CLASSES = {
    DRIVER: device_class(),
    "efa": device_class("efa"),
    "neuroncore": device_class(
        "neuroncore",
        f'device.driver == "{DRIVER}" && device.attributes["{DRIVER}"].?resourceType.orValue("") == "core"',
    ),
}


def chosen(spec: Json, taken: tuple[int, ...] = (), tainted: tuple[int, ...] = ()) -> list[int]:
    """The numbers of the devices for a claim on a trn1.32xlarge."""
    devices = offered_devices([node_slice(tainted=tainted), node_slice("n2")], "n1")
    busy = {(DRIVER, "n1-neuron", f"neuron-{number}") for number in taken}
    found = allocate({"spec": spec}, CLASSES, devices, busy)["results"]
    return [int(each["device"].removeprefix("neuron-")) for each in found]


def selected(expression: str) -> Json:
    return claim_spec(exactly(allocationMode="All", selectors=[{"cel": {"expression": expression}}]))


@pytest.mark.parametrize(
    ("spec", "taken", "devices"),
    [
        (claim_spec(), (), [0]),
        (claim_spec(), (0, 1), [2]),
        (claim_spec(exactly(count=3)), (1,), [0, 2, 3]),
        (linked(4), (), [0, 1, 2, 3]),
        (linked(4), (2,), [4, 5, 6, 7]),
        (linked(8), (2,), list(range(8, 16))),
        (linked(16), (), list(range(16))),
        (claim_spec(exactly(allocationMode="All")), (), list(range(16))),
        (claim_spec(exactly("a"), exactly("b", count=2)), (0,), [1, 2, 3]),
        (claim_spec(exactly("a"), exactly("b"), constraints=[{"distinctAttribute": GROUP_OF_4}]), (), [0, 4]),
        (claim_spec(exactly("a"), exactly("b"), constraints=[{"matchAttribute": GROUP_OF_4}]), (1, 2, 3), [4, 5]),
        (selected(f'device.attributes["{DRIVER}"].deviceId < 2'), (), [0, 1]),
        (selected(f'(device.driver == "{DRIVER}") && device.attributes["{DRIVER}"].deviceId >= 14'), (), [14, 15]),
    ],
)
def test_the_first_devices_that_fit_are_chosen(spec: Json, taken: tuple[int, ...], devices: list[int]) -> None:
    assert chosen(spec, taken) == devices


@pytest.mark.parametrize(
    ("spec", "taken", "text"),
    [
        (claim_spec(exactly(count=17)), (), NOT_ALLOCATED),
        (linked(4), (0, 4, 8, 12), NOT_ALLOCATED),
        (linked(8), (7, 8), NOT_ALLOCATED),
        (linked(3, 4), (0, 1, 4, 5, 8, 9, 12, 13), NOT_ALLOCATED),
        (claim_spec(exactly(allocationMode="All")), (3,), NOT_ALLOCATED),
        (claim_spec(exactly(deviceClassName="efa")), (), NOT_ALLOCATED),
        (claim_spec(exactly(deviceClassName="neuroncore")), (), NOT_ALLOCATED),
        (claim_spec(constraints=[{"matchAttribute": "example.com/rack"}]), (), NOT_ALLOCATED),
        (claim_spec(exactly(deviceClassName="gone")), (), "request neurons: device class gone does not exist"),
        (selected("device.capacity.size() > 0"), (), "the selector 'device.capacity.size() > 0' is not simulated"),
        (claim_spec({"name": "r", "firstAvailable": []}), (), "request r: alternatives are not simulated"),
    ],
)
def test_a_claim_that_does_not_fit_says_why(spec: Json, taken: tuple[int, ...], text: str) -> None:
    with pytest.raises(NotAllocatedError) as error:
        chosen(spec, taken)
    assert str(error.value) == text


def test_a_taint_keeps_claims_off_that_do_not_tolerate_it() -> None:
    assert chosen(claim_spec(), tainted=(0,)) == [1]
    tolerated = {"key": "neuron-plugin.io/unhealthy", "operator": "Exists"}
    assert chosen(claim_spec(exactly(tolerations=[tolerated])), tainted=(0,)) == [0]
    with pytest.raises(NotAllocatedError):
        chosen(claim_spec(exactly(allocationMode="All")), tainted=(0,))


def test_configuration_comes_along_that_of_the_class_first() -> None:
    opaque = {"opaque": {"driver": DRIVER, "parameters": {"kind": "NeuronConfig"}}}
    known = device_class()
    known["spec"]["config"] = [opaque]
    spec = claim_spec(config=[opaque])
    found = allocate({"spec": spec}, {DRIVER: known}, offered_devices([node_slice()], "n1"), ())
    assert found["config"] == [
        {"source": "FromClass", "requests": ["neurons"], **opaque},
        {"source": "FromClaim", **opaque},
    ]


# In a cluster.

GATE = [{"name": "example.com/gate"}]


class Cluster(Scene):
    """Two nodes by the API server's door without sockets; the steps are what users, scheduler and controller do."""

    def __init__(self) -> None:
        self.server = StandInApiServer()
        a_cluster(self.server, nodes=2)

    def share(self) -> None:
        """Create the claim ``shared``, which no pod owns."""
        self.server.create(RESOURCE_CLAIMS, {"metadata": {"name": "shared"}, "spec": claim_spec()}, "default")

    def write(self, **status: object) -> None:
        (claim,) = claims(self.server)
        self.server.change(RESOURCE_CLAIMS, claim["metadata"]["name"], {"status": status}, "default", "status")

    def allocate(self) -> None:
        """Allocate the only claim on n1, and reserve it for nobody."""
        self.write(allocation=allocations_on(self.server, claims(self.server), "n1")[0])

    def create(self, text: str) -> None:
        """``a one``: from that template; ``a shared``: with that claim; ``on NODE`` or ``gated``."""
        name, source, *where = text.split()
        spec = {"nodeName": where[1]} if where[:1] == ["on"] else {"schedulingGates": GATE} if where else {}
        made = pod(name, claim=source, **spec) if source == "shared" else pod(name, template=source, **spec)
        self.server.create_pod(made)

    def sync(self) -> None:
        sync_claims(self.server)

    def place(self, name: str) -> None:
        """Do the scheduler's part, on n1."""
        found = pod_object(self.server, name)
        made = claims_of(self.server, found)
        reserve(self.server, found, made, allocations_on(self.server, made, "n1"))
        self.server.bind("default", name, node="n1")

    def end(self, name: str) -> None:
        self.server.patch_status(PODS, name, {"phase": "Succeeded"}, "default")

    def delete(self, name: str) -> None:
        self.server.delete_pod("default", name)

    def kill(self, name: str) -> None:
        self.server.delete_pod("default", name, grace_seconds=0)

    def unshare(self) -> None:
        self.server.delete(RESOURCE_CLAIMS, "shared", "default")

    def waits(self, name: str, why: str) -> None:
        with pytest.raises(NotAllocatedError, match=why):
            claims_of(self.server, pod_object(self.server, name))

    def claims(self, expected: str) -> None:
        """Each claim by its pod or name: its devices, for whom they are reserved, and whether it is being deleted."""
        found = []
        for claim in claims(self.server):
            users = " ".join(each["name"] for each in (claim["status"].get("reservedFor") or ()))
            words = [claim["metadata"]["name"].split("-")[0], *devices_of(claim), *(["for", users] if users else [])]
            found.append(" ".join([*words, *["deleted"] * ("deletionTimestamp" in claim["metadata"])]))
        assert ", ".join(found) == expected


@pytest.fixture
def cluster() -> Cluster:
    return Cluster()


@pytest.mark.parametrize(
    "story",
    [
        pytest.param(story, id=told)
        for told, story in {
            "a pod waits for its claim to be made": "create a one; waits a -> ResourceClaim not created yet",
            "claims of one node never share a device": (
                "create a one; create b four; create c one; sync; place a; place b; place c; "
                "claims -> a neuron-0 for a, b neuron-4 neuron-5 neuron-6 neuron-7 for b, c neuron-1 for c"
            ),
            "the claim of a gated pod is made, too": "create a one gated; sync; sync; claims -> a",
            "none is made for a pod that is being deleted": "create a one on n1; delete a; sync; claims -> ",
            "an allocation that nobody has reserved yet stays": (
                "create a one gated; sync; allocate; sync; claims -> a neuron-0"
            ),
            "the claim of a pod that has ended is freed and deleted": (
                "create a one; sync; place a; sync; claims -> a neuron-0 for a; end a; sync; claims -> "
            ),
            "that of one that is being deleted stays": (
                "create a one; sync; place a; delete a; sync; claims -> a neuron-0 for a"
            ),
            "a shared claim is deallocated when its last pod has ended, and stays": (
                "share; create a shared; create b shared; place a; place b; kill a; sync; "
                "claims -> shared neuron-0 for b; kill b; sync; claims -> shared; unshare; claims -> "
            ),
            "a deleted claim is there until its last pod has ended, and no other pod gets it": (
                "share; create a shared; place a; create b shared; unshare; sync; "
                "claims -> shared neuron-0 for a deleted; waits b -> is being deleted; kill a; sync; claims -> "
            ),
            "a pod that names its node itself gets an allocated claim reserved": (
                "share; create a shared; place a; create b shared on n1; sync; claims -> shared neuron-0 for a b"
            ),
        }.items()
    ],
)
async def test_claims_are_made_allocated_and_given_up(cluster: Cluster, story: str) -> None:
    await cluster.play(story)


async def test_an_allocated_claim_is_taken_as_it_is_and_keeps_its_pod_on_its_node(cluster: Cluster) -> None:
    await cluster.play("share; create a shared")
    (on_n1,) = allocations_on(cluster.server, claims(cluster.server), "n1")
    on_n1["devices"]["results"][0]["device"] = "neuron-3-cores-6-7"
    cluster.write(allocation=on_n1)
    with pytest.raises(NotAllocatedError, match="resourceclaim not available on the node"):
        allocations_on(cluster.server, claims(cluster.server), "n2")
    await cluster.play("place a; claims -> shared neuron-3-cores-6-7 for a")


async def test_an_allocation_without_a_time_cannot_be_reserved(cluster: Cluster) -> None:
    await cluster.play("share; create a shared")
    (found,) = allocations_on(cluster.server, claims(cluster.server), "n1")
    cluster.write(allocation={key: part for key, part in found.items() if key != "allocationTimestamp"})
    with pytest.raises(Refusal, match="field is immutable"):
        cluster.place("a")


async def test_a_claim_that_is_full_keeps_new_pods_waiting(cluster: Cluster) -> None:
    await cluster.play("share; create a shared; allocate")
    users = [{"resource": "pods", "name": f"p{number}", "uid": f"u{number}"} for number in range(256)]
    cluster.write(reservedFor=users)
    await cluster.play("waits a -> resourceclaim in use")


def test_a_claim_says_whose_it_is_and_the_pod_what_it_is_called(cluster: Cluster) -> None:
    cluster.create("a one")
    cluster.sync()
    claim = only_claim(cluster.server)
    assert claim["metadata"]["name"].startswith("a-neurons-")
    assert claim["metadata"]["annotations"] == {POD_CLAIM_KEY: "neurons"}
    assert claim["metadata"]["ownerReferences"][0]["uid"] == pod_object(cluster.server)["metadata"]["uid"]
    assert claim_names(pod_object(cluster.server)) == {"neurons": claim["metadata"]["name"]}


def test_an_event_says_once_that_a_template_is_not_there(cluster: Cluster) -> None:
    server = cluster.server
    made = server.create_pod(pod(template="late"))
    for _ in range(2):
        cluster.sync()
    (event,) = server.objects(EVENTS)
    assert (event["regarding"]["uid"], event["reason"]) == (made["metadata"]["uid"], "FailedResourceClaimCreation")
    assert 'resource claim template "late": ' in event["note"]
    server.create(CLAIM_TEMPLATES, {"metadata": {"name": "late"}, "spec": {"spec": claim_spec()}}, "default")
    cluster.sync()
    assert only_claim(server)
