"""An archive holds what helps, nothing that is somebody's secret, and the reason for whatever is missing."""

from __future__ import annotations

import asyncio
import json
import stat
import tarfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from neuron_plugin.cluster import ApiRequest
from neuron_plugin.cluster.api import Response
from neuron_plugin.inspection.bug_report import BugReport, cluster_report, node_report
from neuron_plugin.inspection.findings import Unknown
from neuron_plugin.topology import catalogue
from tests.inspection.doubles import MakeNode
from tests.support.manifests import node_manifest, pod_manifest
from tests.support.scripted_server import ScriptedServer, listed


def test_a_node_s_report_reads_back_and_names_what_is_missing(make_node: MakeNode) -> None:
    found = node_report({"root": str(make_node("inf2.24xlarge").root)}, {"SECRET_OF_MINE": "x"})

    assert set(found.files) == {"versions.json", "doctor.json", "devices.json", "topology.json", "settings.yaml"}
    documents = {name: json.loads(data) for name, data in found.files.items() if name.endswith(".json")}
    assert len(documents["devices.json"]["devices"]) == 6
    assert {device["serialNumber"] for device in documents["devices.json"]["devices"]} == {"(removed)"}
    assert documents["doctor.json"]["findings"]
    assert "SECRET_OF_MINE" not in str(found.files)
    assert "there is no kubelet at" in found.missing["checkpoint.json"]
    assert "run this on that machine" in found.missing["daemon/decisions.txt"]


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("Authorization: Bearer eyJhbGciOi.abc-def_1", "Authorization: Bearer (removed)"),
        ('{"token": "abc", "pod": "p"}', '{"token": "(removed)", "pod": "p"}'),
        ("password=abc pod=p", 'password="(removed)" pod=p'),
        ("https://me:word@proxy:3128/x", "https://(removed)@proxy:3128/x"),
        ("a -----BEGIN RSA PRIVATE KEY-----\nx\n-----END RSA PRIVATE KEY----- b", "a (private key removed) b"),
        ("pod=ml/train-0 ids=2,3 node=worker-1", "pod=ml/train-0 ids=2,3 node=worker-1"),
        ("a secret set of 3 cores; https://a:1/b@c", "a secret set of 3 cores; https://a:1/b@c"),
    ],
)
def test_what_looks_like_a_credential_is_blanked_and_nothing_else(text: str, kept: str) -> None:
    report = BugReport()
    report.add("log.txt", text)
    assert report.files["log.txt"].decode() == kept


def test_an_archive_is_its_owner_s_alone_and_replaces_no_file(tmp_path: Path) -> None:
    report, path = BugReport(), tmp_path / "report.tar.gz"
    report.add("a/b.json", {"x": 1})
    report.add("c.txt", Unknown("no right", "ask for it"))
    report.write(path)

    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    with tarfile.open(path) as archive:
        assert archive.getnames() == ["report/a/b.json", "report/not-gathered.json"]
        missing = archive.extractfile("report/not-gathered.json")
        assert missing
        assert json.load(missing) == {"c.txt": "no right (ask for it)"}
    with pytest.raises(FileExistsError):
        report.write(path)


def our_pod(name: str, component: str, node: str) -> dict[str, Any]:
    labels = {"app.kubernetes.io/component": component}
    metadata = {"name": name, "namespace": "neuron", "uid": name, "labels": labels}
    return {"metadata": metadata, "spec": {"nodeName": node, "containers": []}}


NODES = [node_manifest("good", "inf2.24xlarge"), node_manifest("sick", "inf2.24xlarge", unhealthy={1: "ECC"})]
NODES[0]["metadata"]["annotations"]["someone.else/key"] = "theirs"
OURS = [
    our_pod("plugin-good", "device-plugin", "good"),
    our_pod("plugin-sick", "device-plugin", "sick"),
    our_pod("extender-1", "extender", "other"),
    our_pod("scheduler-1", "scheduler", "other"),
]
PODS = "/api/v1/namespaces/neuron/pods"
ANSWERS = {
    "/api/v1/nodes": listed(*NODES).body,
    "/api/v1/pods": listed(pod_manifest("train", node="sick")).body,
    PODS: listed(*OURS).body,
    f"{PODS}/extender-1/log": b"filter passed=0\n",
    f"{PODS}/http:extender-1:12346/proxy/metrics": b"neuron_extender_assumed_pods 0.0\n",
    f"{PODS}/http:plugin-sick:12347/proxy/readyz": b"ok\n",
}


def reported(answers: Mapping[str, bytes], *only: str) -> tuple[BugReport, ScriptedServer]:
    """The report of a server that answers these paths and refuses all others."""

    async def answer(request: ApiRequest) -> Response:
        known = answers.get(request.path)
        return Response(200, known) if known else Response(403, b'{"reason":"Forbidden","message":"not yours"}')

    server = ScriptedServer(answer)
    report = cluster_report(server, catalogue(), lease_namespace="kube-system", namespace="neuron", only=only)
    return asyncio.run(report), server


def test_a_cluster_s_report_has_nodes_pods_and_what_our_pods_say() -> None:
    found, server = reported(ANSWERS)

    assert [node["metadata"]["name"] for node in json.loads(found.files["nodes.json"])] == ["good", "sick"]
    assert "theirs" not in str(found.files)
    assert list(json.loads(found.files["annotations.json"])["good"]) == ["neuron-plugin.io/inventory"]
    assert found.files["our-pods/extender-1/log.txt"] == b"filter passed=0\n"
    assert found.files["our-pods/extender-1/metrics.txt"] == b"neuron_extender_assumed_pods 0.0\n"
    assert found.files["our-pods/plugin-sick/readyz.txt"] == b"ok\n"
    assert "403 Forbidden: not yours" in found.missing["leases.json"]
    assert "403 Forbidden: not yours" in found.missing["our-pods/plugin-good/log.txt"]
    assert "scheduler-1" not in str((found.files, found.missing))
    logs = [request.path.split("/")[-2] for request in server.requests if request.path.endswith("/log")]
    assert logs == ["extender-1", "plugin-sick", "plugin-good"]
    assert {request.method for request in server.requests} == {"GET"}


def test_only_the_plugins_of_the_nodes_that_are_asked_for() -> None:
    found, server = reported(ANSWERS, "good", "nosuch")
    logs = [request.path.split("/")[-2] for request in server.requests if request.path.endswith("/log")]
    assert logs == ["extender-1", "plugin-good"]
    assert [name for name in found.missing if name.startswith("our-pods of ")] == ["our-pods of nosuch"]


def test_without_the_right_to_see_our_pods_the_rest_is_there() -> None:
    found, _ = reported({path: answer for path, answer in ANSWERS.items() if path != PODS})
    assert "nodes.json" in found.files
    assert "not yours" in found.missing["our-pods"]
