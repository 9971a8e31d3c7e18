from __future__ import annotations

from pathlib import Path

import pytest

from neuron_plugin.allocation import Resource
from neuron_plugin.inspection.facts import Cluster
from neuron_plugin.inspection.gathering import cluster as gathering
from neuron_plugin.inspection.gathering.cluster import gather_cluster
from neuron_plugin.inspection.unknown import Unknown
from neuron_plugin.simulation import Fault, Match, StandInApiServer, node_manifest, pod_manifest

STATIC_UID = "0123456789abcdef0123456789abcdef"


async def test_the_node_and_its_pods_are_read(tmp_path: Path) -> None:
    async with StandInApiServer() as api:
        api.create_node(node_manifest("worker-1", "inf2.24xlarge"))
        api.create_pod(pod_manifest("train", Resource.NEURONDEVICE, 2, annotations={"NEURON_DEVS": "0,1"}))
        api.bind("default", "train", node="worker-1")
        mirror = {"kubernetes.io/config.mirror": STATIC_UID}
        api.create_pod(pod_manifest("static", Resource.NEURONCORE, 1, annotations=mirror, node="worker-1"))
        api.create_pod(pod_manifest("done", Resource.NEURONCORE, 1, annotations=mirror, node="worker-1"))
        api.set_pod_status("default", "done", {"phase": "Succeeded"})
        api.create_pod(pod_manifest("elsewhere", Resource.NEURONCORE, 1, node="worker-2"))
        found = await gather_cluster(api.write_kubeconfig(tmp_path / "kubeconfig"), "worker-1")
    assert isinstance(found, Cluster)
    assert found.allocatable[Resource.NEURONDEVICE.value] == "6"
    assert "neuron-plugin.io/inventory" in found.annotations
    pods = {pod.pod.name: pod for pod in found.pods}
    assert set(pods) == {"train", "static", "done"}
    assert pods["train"].neuron is not None
    assert pods["train"].neuron.decision is not None
    assert pods["static"].uids == {STATIC_UID}
    assert (pods["done"].neuron, pods["done"].uids) == (None, frozenset())


async def test_a_node_that_is_not_there_asks_for_its_name(tmp_path: Path) -> None:
    async with StandInApiServer() as api:
        found = await gather_cluster(api.write_kubeconfig(tmp_path / "kubeconfig"), "ip-10-0-0-1")
    assert isinstance(found, Unknown)
    assert "no node ip-10-0-0-1" in found.why
    assert "--node-name" in found.action


async def test_a_refusal_is_told_with_the_rights_it_takes(tmp_path: Path) -> None:
    async with StandInApiServer() as api:
        api.create_node(node_manifest("worker-1", "inf2.24xlarge"))
        api.fail(Fault(Match(path="/nodes/"), status=403))
        found = await gather_cluster(api.write_kubeconfig(tmp_path / "kubeconfig"), "worker-1")
    assert isinstance(found, Unknown)
    assert "403" in found.why
    assert "get nodes" in found.action


async def test_an_api_server_that_is_away_is_told(tmp_path: Path) -> None:
    async with StandInApiServer() as api:
        kubeconfig = api.write_kubeconfig(tmp_path / "kubeconfig")
    found = await gather_cluster(kubeconfig, "worker-1")
    assert isinstance(found, Unknown)
    assert "is the API server up" in found.why


async def test_a_kubeconfig_that_is_none_is_told(tmp_path: Path) -> None:
    found = await gather_cluster(tmp_path / "nothing", "worker-1")
    assert isinstance(found, Unknown)
    assert found.why == f"there is no kubeconfig at {tmp_path}/nothing"
    (tmp_path / "garbage").write_text("{")
    found = await gather_cluster(tmp_path / "garbage", "worker-1")
    assert isinstance(found, Unknown)
    assert "expected a kubeconfig" in found.why


async def test_an_api_server_that_hangs_is_given_up_in_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gathering, "WHOLE_SECONDS", 0.01)
    (tmp_path / "kubeconfig").touch()
    found = await gather_cluster(tmp_path / "kubeconfig", "worker-1")
    assert isinstance(found, Unknown)
