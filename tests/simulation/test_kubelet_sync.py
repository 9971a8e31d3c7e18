"""What the simulated kubelet makes of pods whose containers end, or which are deleted while they wait."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from neuron_plugin.simulation.api_server_kinds import PODS, RESOURCE_CLAIMS
from neuron_plugin.simulation.kubelet import SimulatedKubelet
from neuron_plugin.simulation.kubelet_dra import DraManager, DraManagerTimes
from neuron_plugin.simulation.kubelet_pods import AdmittedPod, KubeletPod
from neuron_plugin.simulation.kubelet_sync import ContainerExit, PodSync
from tests.simulation.dra import DRIVER, claim_spec
from tests.support.api_server import StandInApiServer


class Once:
    """Containers that end at their first start, with ``code``."""

    code = 0

    async def run(self, pod: Any, container: str) -> ContainerExit:
        starts = pod["status"].get("containerStatuses", [{}])[0].get("restartCount", 0)
        if container == "main" and not starts:
            return ContainerExit(self.code, "the end")
        await asyncio.Event().wait()
        raise AssertionError


@pytest.fixture
async def pods(server: StandInApiServer, directory: Path) -> AsyncIterator[PodSync]:
    dra = DraManager(directory, server, "n", DraManagerTimes(retry=0.01))
    pods = PodSync(server, SimulatedKubelet(directory, dra=dra), runtime=Once())
    await pods.start()
    yield pods
    await pods.close()


async def until(server: StandInApiServer, pods: PodSync, status: object) -> None:
    """Look until the pod's phase, its restarts and its last words are these; None: until it is gone."""
    async with asyncio.timeout(10):
        while True:
            pods.look(server.objects(PODS))
            await asyncio.sleep(0.01)
            found = [pod["status"] for pod in server.objects(PODS)]
            shown = [
                (each["phase"], main["restartCount"], main["state"].get("terminated", {}).get("message"))
                for each in found
                for main in each.get("containerStatuses", ())
            ]
            if (shown[0] if shown else None) == status and (status or not found):
                return


@pytest.mark.parametrize(
    ("policy", "code", "status"),
    [
        ("Always", 0, ("Running", 1, None)),
        ("OnFailure", 0, ("Succeeded", 0, "the end")),
        ("OnFailure", 1, ("Running", 1, None)),
        ("Never", 1, ("Failed", 0, "the end")),
    ],
)
async def test_a_container_that_ends_starts_again_as_its_pod_says(
    server: StandInApiServer, pods: PodSync, monkeypatch: pytest.MonkeyPatch, policy: str, code: int, status: object
) -> None:
    monkeypatch.setattr(Once, "code", code)
    spec = {"nodeName": "n", "restartPolicy": policy, "containers": [{"name": "main"}]}
    server.create_pod({"metadata": {"name": "a"}, "spec": spec})
    await until(server, pods, status)


async def test_a_pod_that_is_deleted_while_it_waits_for_its_claim_goes(server: StandInApiServer, pods: PodSync) -> None:
    server.create(RESOURCE_CLAIMS, {"metadata": {"name": "c"}, "spec": claim_spec()}, "default")
    containers = [{"name": "main", "resources": {"claims": [{"name": "neurons"}]}}]
    claims = [{"name": "neurons", "resourceClaimName": "c"}]
    made = server.create_pod(
        {"metadata": {"name": "a"}, "spec": {"nodeName": "n", "containers": containers, "resourceClaims": claims}}
    )
    results = [{"driver": DRIVER, "request": "neurons", "pool": "p", "device": "d"}]
    user = {"resource": "pods", "name": "a", "uid": made["metadata"]["uid"]}
    status = {"allocation": {"devices": {"results": results}}, "reservedFor": [user]}
    server.change(RESOURCE_CLAIMS, "c", {"status": status}, "default", "status")
    said: list[str] = []
    pods.say = said.append
    async with asyncio.timeout(10):
        while not any("is not registered" in line for line in said):
            pods.look(server.objects(PODS))
            await asyncio.sleep(0.01)
    server.delete_pod("default", "a")
    await until(server, pods, None)
    assert said[-1] == "pod default/a: deleted"


async def test_a_pod_that_is_deleted_by_force_while_it_is_admitted_does_not_run_on(
    server: StandInApiServer, pods: PodSync, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A kubelet handles one after the other. Else a plugin would hold the pod's devices down for ever."""
    admit, begun, may_end, kubelets = SimulatedKubelet.admit, asyncio.Event(), asyncio.Event(), list[SimulatedKubelet]()

    async def slowly(self: SimulatedKubelet, pod: KubeletPod) -> AdmittedPod:
        kubelets.append(self)
        begun.set()
        await may_end.wait()
        return await admit(self, pod)

    monkeypatch.setattr(SimulatedKubelet, "admit", slowly)
    spec = {"nodeName": "n", "containers": [{"name": "main"}]}
    made = server.create_pod({"metadata": {"name": "a"}, "spec": spec})
    said: list[str] = []
    pods.say = said.append
    pods.look(server.objects(PODS))
    await begun.wait()
    server.delete_pod("default", "a", grace_seconds=0)
    pods.look(server.objects(PODS))
    may_end.set()
    async with asyncio.timeout(10):
        while not any("deleted" in line for line in said):
            await asyncio.sleep(0.01)
    assert said == ["pod default/a: main receives no device", "pod default/a: deleted"]
    assert not kubelets[0].has(made["metadata"]["uid"])
