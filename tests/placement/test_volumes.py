"""The volumes of pods' claims: read once where they are bound, and again soon where they are not."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from neuron_plugin.allocation import NeuronPod
from neuron_plugin.backoff import Clock
from neuron_plugin.cluster import KubernetesApi, UnreachableError
from neuron_plugin.simulation.api_server_kinds import CLAIMS, VOLUMES
from tests.support.api_server import Fault, Match, StandInApiServer
from tests.support.manifests import pod_manifest
from tests.support.world import CORE, record_of

READS = Match(method="GET", path="persistentvolume")


class Known:
    """What is known of claims, on a clock that a test moves."""

    def __init__(self, api: KubernetesApi, server: StandInApiServer) -> None:
        self.now = 0.0
        self.server = server
        self.volumes = ClaimedVolumes(api, Clock(now=lambda: self.now, sleep=self._sleep))

    async def _sleep(self, seconds: float) -> None:
        self.now += seconds

    def claim(self, name: str, volume: str = "") -> None:
        if volume:
            self.server.create(VOLUMES, {"metadata": {"name": volume}, "spec": {}}, "")
        self.server.create(CLAIMS, {"metadata": {"name": name}, "spec": {"volumeName": volume}}, "default")

    def reads(self) -> int:
        return sum("persistentvolume" in seen.path for seen in self.server.requests)


@pytest.fixture
def known(api: KubernetesApi, server: StandInApiServer) -> Known:
    return Known(api, server)


def pod_with(*claims: str) -> NeuronPod:
    manifest: dict[str, Any] = pod_manifest("train", CORE, 1)
    volumes = [{"name": name, "persistentVolumeClaim": {"claimName": name}} for name in claims]
    manifest["spec"]["volumes"] = volumes
    return record_of(manifest)


async def test_a_pod_without_claims_needs_no_read(known: Known) -> None:
    pod = pod_with()
    assert await known.volumes.read([pod]) is False
    assert known.volumes.of(pod) == ()
    assert known.volumes.are_bound(pod)
    assert known.reads() == 0


async def test_what_a_claim_is_bound_to_is_read_once_for_all_pods(known: Known) -> None:
    known.claim("data", "disk")
    pod = pod_with("data")
    assert known.volumes.of(pod) is None
    assert await known.volumes.read([pod, pod_with("data")])
    assert len(known.volumes.of(pod) or ()) == 1
    assert known.volumes.are_bound(pod)
    known.now = BOUND_SECONDS - 1
    assert await known.volumes.read([pod]) is False
    assert known.reads() == 2  # the claim and its volume


async def test_a_claim_without_a_volume_is_known_and_read_again_soon(known: Known) -> None:
    known.claim("data")
    pod = pod_with("data")
    await known.volumes.read([pod])
    assert known.volumes.of(pod) == ()
    assert known.volumes.are_known(pod)
    assert not known.volumes.are_bound(pod)
    known.now = AGAIN_SECONDS
    assert not known.volumes.are_known(pod)
    known.server.create(VOLUMES, {"metadata": {"name": "disk"}, "spec": {}}, "")
    bound = msgspec.json.encode({"metadata": {"name": "data"}, "spec": {"volumeName": "disk"}})
    known.server.fail(Fault(Match(method="GET", path="claims/data$"), body=bound))
    await known.volumes.read([pod])
    assert known.volumes.are_bound(pod)


async def test_a_claim_that_cannot_be_read_leaves_the_volumes_unknown(known: Known) -> None:
    known.claim("data", "disk")
    pod = pod_with("data", "nosuch")
    await known.volumes.read([pod])
    assert known.volumes.of(pod) is None
    assert known.volumes.are_known(pod)


async def test_a_server_that_does_not_answer_is_an_error_and_nothing_is_known(known: Known) -> None:
    known.claim("data", "disk")
    known.server.fail(Fault(READS, drop=True, times=10))
    with pytest.raises(UnreachableError):
        await known.volumes.read([pod_with("data")])
    assert not known.volumes.are_known(pod_with("data"))


async def test_one_pods_volumes_are_read_as_they_are_now(known: Known, api: KubernetesApi) -> None:
    known.claim("data", "disk")
    assert len(await volumes_of(api, pod_with("data")) or ()) == 1
    assert await volumes_of(None, pod_with("data")) is None
    assert await volumes_of(None, pod_with()) == ()
    known.server.fail(Fault(READS, drop=True, times=10))
    assert await volumes_of(api, pod_with("data")) is None
