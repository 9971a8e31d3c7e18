"""What commands print, as kept files: a line that is typed, and below it all that a person sees then.

A file of ``transcripts/`` is a scene. What stands before its first heading happens before each of its parts, and a part
is a test. In it

    % pod new neuron=4 on=trn-1      does something to the cluster or machine: a method of ``Scene``
    $ pods --node trn-1              is typed; the lines below are what it prints
    ! neuron-plugin: there is ...    on standard error
    [1]                              and the exit status, if it is not 0
    $ pods -o json | totals.pods     of a document one value, with * for each item of a list

``…`` in an expected line stands for any text, as a line of its own for any lines; columns are compared as they are.
With ``TRANSCRIPTS=write`` in the environment what is printed goes into the files where it differs: read it then.
"""

from __future__ import annotations

import base64
import json
import os
import re
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from neuron_plugin.allocation import Resource
from neuron_plugin.allocation.keys import INVENTORY_KEY, MOVABLE_KEY
from neuron_plugin.placement.account import write_account
from neuron_plugin.placement.device_hours import CONFIG_MAP
from neuron_plugin.simulation import SimulatedNode, api_server_kinds
from tests.cli.cases import NODES, PODS, ten_days
from tests.cli.doubles import Cli, Daemon, Hold
from tests.inspection.doubles import MakeNode
from tests.support.api_server import Budget, StandInApiServer, limit_disruptions
from tests.support.manifests import container, gated_manifest, node_manifest, pod_manifest

FILES = sorted((Path(__file__).parent / "transcripts").glob("*.txt"))
WRITE = os.environ.get("TRANSCRIPTS") == "write"
RESOURCES = {resource.short_name: resource for resource in Resource}


@dataclass(frozen=True)
class Part:
    """One heading of a file, and what stands before the first."""

    file: Path
    title: str
    before: str
    text: str


def parts() -> list[Any]:
    found = []
    for file in FILES:
        before, *texts = re.split(r"^## ", file.read_text(encoding="utf-8"), flags=re.MULTILINE)
        for title, _, text in (each.partition("\n") for each in texts):
            found.append(pytest.param(Part(file, title, before, text), id=f"{file.stem}: {title}"))
    return found


def steps(text: str) -> list[tuple[str, list[str]]]:
    """Each line that does something, with the lines that are expected to follow."""
    found = [step.rstrip().splitlines() for step in re.split(r"^(?=[$%] )", text, flags=re.MULTILINE)]
    return [(step[0], step[1:]) for step in found if step and step[0].startswith(("$", "%"))]


@pytest.mark.parametrize("part", parts())
def test_what_is_typed_prints_what_is_kept(part: Part, scene: Scene) -> None:
    for first, expected in steps(part.before):
        scene.do(first, expected)
    printed = [(first, expected, scene.do(first, expected)) for first, expected in steps(part.text)]
    if WRITE:
        text = "".join(f"{line}\n" for first, _, lines in printed for line in (first, *lines))
        whole = part.file.read_text(encoding="utf-8")
        whole = whole.replace(f"## {part.title}\n{part.text}", f"## {part.title}\n{text}\n")
        part.file.write_text(f"{whole.rstrip()}\n", encoding="utf-8")
        return
    for first, expected, lines in printed:
        assert lines == expected, first


class Scene:
    """A cluster or a machine, and a person at a shell there."""

    def __init__(self, request: pytest.FixtureRequest, cli: Cli, monkeypatch: pytest.MonkeyPatch, home: Path) -> None:
        self._request, self._cli, self._monkeypatch, self._home = request, cli, monkeypatch, home
        self._shown: dict[str, str] = {str(home): "HOME"}
        monkeypatch.setenv("HOME", str(home))
        for name in ("KUBECONFIG", "NODE_NAME"):
            monkeypatch.delenv(name, raising=False)

    def do(self, first: str, expected: list[str]) -> list[str]:
        """Take a step; what it printed, or what was expected where that is the same."""
        if first.startswith("%"):
            verb, _, text = first.removeprefix("% ").partition(" ")
            getattr(self, verb)(*([text] if text else []))
            return expected
        typed, _, path = first.removeprefix("$ ").partition(" | ")
        for text, name in self._shown.items():
            typed = typed.replace(name, text)
        outcome = self._cli(*shlex.split(typed))
        out = values(json.loads(outcome.out), path) if path else outcome.out.splitlines()
        lines = [*out, *(f"! {line}" for line in outcome.err.splitlines())]
        lines = [self._stable(line) for line in lines]
        lines += [f"[{outcome.status}]"] if outcome.status else []
        return expected if re.fullmatch(pattern(expected), "\n".join(lines)) else lines

    def _stable(self, line: str) -> str:
        for text, name in self._shown.items():
            line = line.replace(text, name)
        return line.rstrip()

    # A cluster.

    @property
    def server(self) -> StandInApiServer:
        found: StandInApiServer = self._request.getfixturevalue("empty_server")
        return found

    def cluster(self, which: str = "") -> None:
        """``cluster usual`` has the nodes and pods of ``cases``; a kubeconfig is where kubectl looks for it."""
        for node in NODES if which else ():
            self.server.create_node(node)
        for pod in PODS if which else ():
            self.server.create_pod(pod)
        self._shown[self.server.url] = "SERVER"
        self._monkeypatch.setenv("KUBECONFIG", str(self.server.write_kubeconfig(self._home / "kubeconfig")))

    def kubeconfig(self, text: str) -> None:
        """``kubeconfig namespace=ml`` for its context, ``kubeconfig current-context=`` without one."""
        file = self._home / "kubeconfig"
        found = json.loads(file.read_text())
        key, _, value = text.partition("=")
        (found if key == "current-context" else found["contexts"][0]["context"])[key] = value
        file.write_text(json.dumps(found))

    def node(self, text: str) -> None:
        """``node sick inf2.xlarge missing=0 unhealthy=2:ECC disabled=3 cordoned zone=a``, its labels last.

        ``vendors``: only the vendor's plugin has described it.
        """
        name, kind, *words = text.split()
        found: dict[str, Any] = {}
        labels: dict[str, str] = {}
        for key, _, value in (word.partition("=") for word in words):
            match key:
                case "missing" | "disabled" | "held_down":
                    found[key] = [int(each) for each in value.split(",")]
                case "unhealthy":
                    found[key] = {int(each): why.replace("_", " ") for each, _, why in [value.partition(":")]}
                case "vendors":
                    found["inventory"] = False
                case "cordoned":
                    pass
                case _:
                    labels[key] = value
        manifest = node_manifest(name, kind, **found)
        manifest["metadata"]["labels"] |= labels
        self.server.create_node({**manifest, "spec": {"unschedulable": True}} if "cordoned" in words else manifest)

    def plain_node(self, name: str) -> None:
        """One that a plugin has described, and nothing else is known of."""
        self.server.create_node({"metadata": {"name": name, "annotations": {INVENTORY_KEY: "{}"}}})

    def cpu_node(self, name: str) -> None:
        """One without Neuron."""
        self.server.create_node({"metadata": {"name": name}, "status": {"allocatable": {"cpu": "8", "pods": "110"}}})

    def saved(self, name: str) -> None:
        """What ``kubectl get nodes,pods -A -o json`` prints is in a file of the person's home."""
        kinds = api_server_kinds.NODES, api_server_kinds.PODS
        items = [item for kind in kinds for item in self.server.objects(kind)]
        (self._home / name).write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": items}))

    def label(self, text: str) -> None:
        name, *labels = text.split()
        self.server.patch_node(name, {"metadata": {"labels": dict(label.split("=") for label in labels)}})

    def cordon(self, name: str) -> None:
        self.server.patch_node(name, {"spec": {"unschedulable": True}})

    def pod(self, text: str) -> None:
        """``pod ml/train neuron=4 on=trn-1 NEURON_DEVS=0,1 controller=ReplicaSet movable app=x``: its labels last."""
        path, *words = text.split()
        namespace, _, name = path.rpartition("/")
        said = {key: value for key, _, value in (word.partition("=") for word in words)}
        (short,) = said.keys() & RESOURCES.keys()
        resource, amount = RESOURCES[short], said.pop(short)
        if "gated" in said or "promised" in said:
            node, _, ids = said.pop("promised", "").partition(":")
            said.pop("gated", "")
            manifest = gated_manifest(name, resource, int(amount), promised=(node, ids))
        else:
            containers = [container("main", resource, int(amount) if amount.isdigit() else amount)]
            manifest = pod_manifest(name, containers=containers, node=said.pop("on", ""))
        metadata = manifest["metadata"]
        metadata["namespace"] = namespace or "default"
        if "movable" in said:
            metadata["annotations"][MOVABLE_KEY] = said.pop("movable") or "true"
            metadata["annotations"]["NEURON_ALLOC_TIME"] = "1700000000000000000"
        if kind := said.pop("controller", ""):
            owner = {"apiVersion": "v1", "kind": kind, "name": "owner", "uid": "owner-uid", "controller": True}
            metadata["ownerReferences"] = [owner]
        metadata["annotations"] |= {key: value for key, value in said.items() if key.isupper() or "/" in key}
        metadata["labels"] = {key: value for key, value in said.items() if key not in metadata["annotations"]}
        self.server.create_pod(manifest)

    def running(self, name: str) -> None:
        """A pod's containers run, and it is ready."""
        self.server.set_pod_status("default", name, RUNNING)

    def claim(self, text: str) -> None:
        """``claim chips worker-1-neuron reserved``: it has a device of that pool, and may be reserved for a pod."""
        name, pool, *reserved = text.split()
        results = [{"request": "r", "driver": "neuron.aws.com", "pool": pool, "device": "neuron-0"}]
        requests = [{"name": "r", "exactly": {"deviceClassName": "neuron.aws.com"}}]
        pods = [{"resource": "pods", "name": "p", "uid": "u"}] if reserved else []
        body = {"metadata": {"name": name, "namespace": "ml"}, "spec": {"devices": {"requests": requests}}}
        self.server.create(api_server_kinds.RESOURCE_CLAIMS, body, "ml")
        status = {"allocation": {"devices": {"results": results}}, "reservedFor": pods}
        self.server.patch_status(api_server_kinds.RESOURCE_CLAIMS, name, status, "ml")

    def account(self, text: str = "") -> None:
        """Device-hours are counted of ten days; ``account x`` is one that cannot be read."""
        data = base64.b64encode(text.encode() or write_account(ten_days())).decode()
        body = {"metadata": {"name": CONFIG_MAP}, "binaryData": {"account.json.gz": data}}
        self.server.create(api_server_kinds.CONFIG_MAPS, body, "kube-system")

    def gone(self, name: str) -> None:
        self.server.delete_pod("default", name, grace_seconds=0)

    def budget(self, text: str) -> None:
        """``budget app=row 0``: so many pods with these labels may be evicted."""
        labels, allowed = text.split()
        limit_disruptions(self.server, Budget("default", dict([labels.split("=")]), int(allowed)))

    def pods(self, expected: str) -> None:
        """Which there are, but those whose deletion has begun."""
        found = [pod["metadata"] for pod in self.server.objects(api_server_kinds.PODS)]
        assert sorted(one["name"] for one in found if "deletionTimestamp" not in one) == sorted(expected.split())

    def annotated(self, text: str) -> None:
        """``annotated worker-1 KEY=5,7``, or no ``=`` where a node has no such annotation."""
        name, _, expected = text.partition(" ")
        key, _, value = expected.partition("=")
        annotations = self.server.get(api_server_kinds.NODES, name)["metadata"].get("annotations", {})
        assert annotations.get(key) == (value or None)

    def daemon(self, _: str = "") -> None:
        """A plugin answers with the decisions that it keeps."""
        daemon: Daemon = self._request.getfixturevalue("daemon")
        self._shown[daemon.address] = "DAEMON"

    def env(self, text: str) -> None:
        name, _, value = text.partition("=")
        self._monkeypatch.setenv(name, value)

    # A machine.

    def machine(self, text: str) -> None:
        """``machine trn1.32xlarge missing=3 lnc=1``, where the person stands at its root."""
        kind, *words = text.split()
        given: dict[str, Any] = dict(word.split("=") for word in words)
        if "missing" in given:
            given["missing"] = [int(each) for each in given["missing"].split(",")]
        if "lnc" in given:
            given["logical_core_size"] = int(given.pop("lnc"))
        make_node: MakeNode = self._request.getfixturevalue("make_node")
        self._node: SimulatedNode = make_node(kind, **given)
        self._monkeypatch.chdir(self._node.root)
        self._shown = {str(self._node.root): "ROOT", **self._shown}

    def ecc(self, text: str) -> None:
        """``ecc 1 sram=1``."""
        device, error = text.split()
        kind, _, count = error.partition("=")
        self._node.set_ecc(int(device), **{kind: int(count)})

    def attribute(self, text: str) -> None:
        device, name, value = text.split(" ", 2)
        self._node.set_attribute(int(device), name, f"{value}\n")

    def product(self, name: str) -> None:
        """The machine says that it is of another type."""
        file = self._node.root / "sys/devices/virtual/dmi/id/product_name"
        file.chmod(0o644)
        file.write_text(f"{name}\n")

    def unload(self) -> None:
        self._node.unload_driver()

    def hold(self, text: str = "") -> None:
        """``hold train/main=neurondevice:2,3``: who has what, by the kubelet's PodResources."""
        hold: Hold = self._request.getfixturevalue("hold")
        words = (re.split("[/=:]", word) for word in text.split())
        hold(*((pod, container, resource, ids) for pod, container, resource, ids in words))


RUNNING = {
    "phase": "Running",
    "conditions": [{"type": "Ready", "status": "True"}],
    "containerStatuses": [{"name": "main", "state": {"running": {}}, "started": True}],
}


def values(document: Any, path: str) -> list[str]:
    """What stands there in a document, a line for each; ``.`` is all of it."""
    found = [document]
    for key in filter(None, path.split(".")):
        if key == "*":
            found = [item for each in found for item in (each.values() if isinstance(each, dict) else each)]
        else:
            found = [each[int(key)] if isinstance(each, list) else each[key] for each in found]
    return [each if isinstance(each, str) else json.dumps(each) for each in found]


def pattern(expected: list[str]) -> str:
    """A regular expression of the expected lines."""
    lines = [r"(?s:.*)" if line == "…" else ".*".join(map(re.escape, line.rstrip().split("…"))) for line in expected]
    return "\n".join(lines)


@pytest.fixture
def scene(request: pytest.FixtureRequest, cli: Cli, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Scene:
    return Scene(request, cli, monkeypatch, tmp_path)
