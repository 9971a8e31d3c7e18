from __future__ import annotations

import json
import tarfile
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.cli.doubles import Background, Cli
from tests.inspection.doubles import MakeNode
from tests.support.api_server import StandInApiServer
from tests.support.manifests import node_manifest


def test_an_archive_of_this_node_is_written_and_its_gaps_are_named(
    cli: Cli, make_node: MakeNode, tmp_path: Path
) -> None:
    root, file = make_node("inf2.xlarge").root, tmp_path / "report.tar.gz"
    shown = cli("gather", "--root", root, "--file", file)

    assert (shown.status, shown.err) == (0, "")
    assert shown.out.splitlines()[0] == f"{file}: 6 files"
    assert "not gathered: checkpoint.json: there is no kubelet at" in shown.out
    with tarfile.open(file) as archive:
        assert {"report/doctor.json", "report/not-gathered.json"} <= set(archive.getnames())
        assert len(archive.getnames()) == 6

    again = cli("gather", "--root", root, "--file", file)
    assert (again.status, again.err) == (2, f"neuron-plugin: --file {file} exists: give a new name\n")


def test_without_a_name_the_archive_has_the_time_in_its_own(
    cli: Cli, make_node: MakeNode, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = make_node("inf2.xlarge").root
    monkeypatch.chdir(tmp_path)
    found = json.loads(cli("gather", "--root", root, "-o", "json").out)

    assert list(found) == ["version", "archive", "files", "notGathered"]
    assert (tmp_path / found["archive"]).is_file()


def test_an_archive_of_the_cluster_is_written_from_a_desk(cli: Cli, background: Background, tmp_path: Path) -> None:
    server, file = StandInApiServer(), tmp_path / "cluster.tgz"
    background.do(server.start())
    server.create_node(node_manifest("worker", "inf2.xlarge"))
    kubeconfig = server.write_kubeconfig(tmp_path / "kubeconfig")

    shown = cli("gather", "--all", "--kubeconfig", kubeconfig, "--file", file, "-o", "json")
    background.do(server.stop())

    assert shown.status == 0
    assert "nodes.json" in json.loads(shown.out)["files"]
    with tarfile.open(file) as archive:
        nodes = archive.extractfile("cluster/nodes.json")
        assert nodes
        assert [node["metadata"]["name"] for node in json.load(nodes)] == ["worker"]


@pytest.mark.parametrize(
    ("words", "complaint"),
    [(("-n", "ns"), "--namespace is for a cluster"), (("worker-1", "--all"), "--all is for the plugins of all nodes")],
)
def test_what_cannot_be_meant_together_is_refused(cli: Cli, words: Sequence[str], complaint: str) -> None:
    shown = cli("gather", *words)
    assert (shown.status, complaint in shown.err) == (2, True)
