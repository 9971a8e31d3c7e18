"""The playground survives whatever its clients and machines do: seeded, some seconds here, ``SURVIVAL_SECONDS`` of it
with ``nox -s soak``.

Pods that can be meant and such as cannot, edits, evictions, deletions by force, cordons, broken devices, killed
daemons, bytes that are no request. Afterwards everything is repaired, and a pod has to get its devices as on the first
day.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
import time
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any

import aiohttp
import msgspec
import pytest

from neuron_plugin.allocation.resources import parse_ids
from neuron_plugin.cli.main import main
from tests.support.playground import Playground

SECONDS = float(os.environ.get("SURVIVAL_SECONDS", "4"))
SEED = int(os.environ.get("SURVIVAL_SEED", "0"))
SETTLED_SECONDS = 90.0
NODES = {"trn1-1": 1, "inf2-1": 6}
"""Names, and how many devices they have."""
TYPES = "trn1.2xlarge=1,inf2.24xlarge=1"
PODS = "/api/v1/namespaces/default/pods"
BUDGETS = "/apis/policy/v1/namespaces/default/poddisruptionbudgets"
LEASES = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases"
JSON, MERGE = "application/json", "application/merge-patch+json"
STRATEGIC = "application/strategic-merge-patch+json"
KUBECTL = (
    *("get pods,nodes,pdb", "get events", "describe pods", "describe nodes", "delete pods --all --wait=false"),
    *("label pods --all a=b --overwrite", "annotate nodes --all x=y --overwrite", "run by-kubectl --image=x"),
    *("cordon {node}", "uncordon {node}", "taint nodes {node} a=b:NoSchedule --overwrite", "delete node {node}"),
    *("drain {node} --force --timeout=1s", "delete pods -l a=b --force --grace-period=0"),
)
COUNTS: tuple[Any, ...] = (1, 1, 2, 4, 6, 13, "1", "2", "1k", 0, -1, 1.5, "many", None, [1], 10**21)
MAIN = {"name": "main", "resources": {"limits": {"aws.amazon.com/neuron": 1}}}
SPECS: tuple[Any, ...] = (
    *({"schedulingGates": [{"name": name}]} for name in ("quota", 1)),
    *({"schedulerName": name} for name in ("neuron-scheduler", "nobody", 7)),
    *({"nodeName": name} for name in (*NODES, "nowhere", [1])),
    *({"nodeSelector": labels} for labels in ({"node.kubernetes.io/instance-type": "inf2.24xlarge"}, {"a": 1})),
    {"containers": [MAIN, MAIN | {"name": "other"}]},
    {"containers": 7},
    {"containers": [1]},
    {"containers": [{}]},
    *({"priority": number} for number in (10, -5, "x")),
    {"tolerations": [{"operator": "Exists"}]},
    {"initContainers": [MAIN | {"name": "init"}]},
    {"affinity": {"podAntiAffinity": {}}},
    {"volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "none"}}]},
)
ANNOTATIONS: tuple[dict[str, str], ...] = (
    {"neuron-plugin.io/placement": "spraed"},
    {"neuron-plugin.io/memory": "30000"},
    {"neuron-plugin.io/allow-devices": "9-3"},
    *({"neuron-plugin.io/group": "g", "neuron-plugin.io/group-size": size} for size in ("2", "x")),
    {"neuron-plugin.io/device-name": "inf2"},
    {"NEURON_DEVS": "0,1"},
)
EDITS: tuple[Any, ...] = (
    *({"metadata": {"labels": {"app": label}}} for label in ("a", None, 1)),
    {"metadata": {"annotations": {"neuron-plugin.io/movable": "true"}}},
    {"metadata": {"resourceVersion": "1"}},
    {"spec": {"schedulingGates": [{"$patch": "delete", "name": "quota"}]}},
    {"spec": {"schedulingGates": []}},
    {"spec": {"containers": [{"name": "main", "image": "new", "resources": {"limits": {"cpu": 1}}}]}},
    {"spec": {"containers": 7}},
    {"spec": None},
    *({"status": {"phase": phase}} for phase in ("Failed", "Succeeded", 1)),
    {"status": {"conditions": [{"type": "Ready"}]}},
    {"status": {"conditions": [{}]}},
    {"status": {"conditions": [1]}},
    7,
)
NODE_EDITS: tuple[Any, ...] = (
    *({"spec": {"unschedulable": value}} for value in (True, None, "x")),
    *({"spec": {"taints": taints}} for taints in ([{"key": "a", "value": "b", "effect": "NoSchedule"}], None, [1])),
    *({"metadata": {"labels": {"x": value}}} for value in ("y", None, 1)),
    *({"metadata": {"annotations": {"neuron-plugin.io/disable": ids}}} for ids in ("0", "x", None)),
)
SELECTORS: tuple[Any, ...] = ({"matchLabels": {"app": "a"}}, {}, None, 7, {"matchExpressions": [1]})
NONSENSE = (b"", b"{", b"[]", b"7", b"k8s\0\x0a\x7f", b"k8s\0", b'{"target": 7}')


class Mischief:
    """A client of the playground with a seed, and a hand at its machines."""

    def __init__(self, up: Playground, seed: int) -> None:
        self.chance = Random(seed)  # noqa: S311
        self.up = up
        config = msgspec.json.decode((up.directory / "kubeconfig").read_bytes())
        self.session = aiohttp.ClientSession(config["clusters"][0]["cluster"]["server"])

    async def ask(self, method: str, path: str, body: Any = None, kind: str = JSON, **query: Any) -> tuple[int, Any]:
        """One request; an answer that is no JSON is none that the server meant."""
        data = body if isinstance(body, bytes) else msgspec.json.encode(body) if body is not None else None
        headers = {"Content-Type": kind}
        async with self.session.request(method, path, data=data, headers=headers, params=query) as answer:
            found = await answer.read()
            assert answer.status != 500, f"{method} {path} {body}: {found!r}"  # the server's own fault
            return answer.status, msgspec.json.decode(found) if found else None

    async def one_of(self, path: str) -> str:
        """The path of an object, or of one that is not there."""
        return f"{path}/{self.chance.choice(await self.names(path) or ['p1'])}"

    async def names(self, path: str) -> list[str]:
        _, listed = await self.ask("GET", path)
        return [each["metadata"]["name"] for each in listed["items"]]

    async def step(self) -> None:
        deeds = {self.create: 10, self.edit: 6, self.end: 4, self.touch_node: 2, self.write_budget: 1}
        deeds |= {self.send_nonsense: 2, self.watch_and_leave: 2}
        await self.chance.choices([*deeds], [*deeds.values()])[0]()
        if self.chance.random() < 0.05:
            self.chance.choice((self.break_device, self.kill_daemon, self.run_kubectl))()
        assert self.up.process.poll() is None, self.up.printed()[-3000:]

    async def create(self) -> None:
        chance = self.chance
        resource = chance.choice(("neuron", "neurondevice", "neuroncore", "neuroncore", "nueron"))
        resources: Any = {"limits": {f"aws.amazon.com/{resource}": chance.choice(COUNTS)}}
        if chance.random() < 0.2:
            resources["requests"] = {"cpu": chance.choice(("1", "500", 2, "x"))}
        spec: Any = {"containers": [{"name": "main", "resources": resources}]}
        if chance.random() < 0.5:
            spec |= chance.choice(SPECS)
        metadata: Any = {"name": f"p{chance.randrange(30)}", "labels": {"app": chance.choice("ab")}}
        if chance.random() < 0.3:
            metadata["annotations"] = chance.choice(ANNOTATIONS)
        await self.ask("POST", PODS, {"metadata": metadata, "spec": spec, "status": chance.choice(({}, 1))})

    async def edit(self) -> None:
        path = await self.one_of(PODS) + self.chance.choice(("", "", "/status"))
        await self.ask("PATCH", path, self.chance.choice(EDITS), self.chance.choice((MERGE, STRATEGIC, JSON)))

    async def end(self) -> None:
        path = await self.one_of(self.chance.choice((PODS, PODS, PODS, LEASES)))
        match self.chance.randrange(3):
            case 0:
                await self.ask("DELETE", path)
            case 1:
                await self.ask("DELETE", path, gracePeriodSeconds="0")
            case _:
                await self.ask("POST", f"{path}/eviction", {"metadata": {"name": path.rpartition("/")[2]}})

    async def touch_node(self) -> None:
        path = f"/api/v1/nodes/{self.chance.choice(list(NODES))}"
        if self.chance.random() < 0.1:
            await self.ask("DELETE", path)
        else:
            await self.ask("PATCH", path, self.chance.choice(NODE_EDITS), MERGE)

    async def write_budget(self) -> None:
        field, least = (
            self.chance.choice(("minAvailable", "maxUnavailable")),
            self.chance.choice((0, 1, "50%", "x", [1])),
        )
        spec: Any = self.chance.choice((7, *({field: least, "selector": selector} for selector in SELECTORS)))
        await self.ask("DELETE", f"{BUDGETS}/one")
        await self.ask("POST", BUDGETS, {"metadata": {"name": "one"}, "spec": spec})

    async def send_nonsense(self) -> None:
        chance = self.chance
        path = chance.choice((PODS, f"{PODS}/p1", f"{PODS}/p1/binding", f"{PODS}/p1/eviction", "/api/v1/nodes", "/x"))
        kind = chance.choice((JSON, MERGE, "application/vnd.kubernetes.protobuf", "text/plain"))
        await self.ask(chance.choice(("POST", "PUT", "PATCH", "DELETE")), path, chance.choice(NONSENSE), kind)

    async def watch_and_leave(self) -> None:
        with suppress(TimeoutError):
            timeout = aiohttp.ClientTimeout(total=0.05)
            query = {"watch": "true", "resourceVersion": self.chance.choice(("", "0", "1", "999999999"))}
            async with self.session.get("/api/v1/pods", params=query, timeout=timeout) as answer:
                await answer.content.readline()

    def break_device(self) -> None:
        node, devices = self.chance.choice(list(NODES.items()))
        self.fault(node, "device", str(self.chance.randrange(devices)), self.chance.choice(("gone", "back")))

    def fault(self, node: str, *words: str) -> None:
        main(["simulate", "fault", str(self.up.directory / node), *words])  # what is gone or back already is refused

    def kill_daemon(self) -> None:
        """One of the processes that know the playground's directory, but not itself."""
        daemons = []
        for each in Path("/proc").iterdir():
            with suppress(OSError):
                if each.name.isdigit() and str(self.up.directory).encode() in (each / "cmdline").read_bytes():
                    daemons.append(int(each.name))
        if daemons := [pid for pid in daemons if pid != self.up.process.pid]:
            os.kill(self.chance.choice(daemons), self.chance.choice((signal.SIGKILL, signal.SIGTERM)))

    def run_kubectl(self) -> None:
        if shutil.which("kubectl"):
            line = self.chance.choice(KUBECTL).format(node=self.chance.choice(list(NODES)))
            command = ["kubectl", f"--kubeconfig={self.up.directory / 'kubeconfig'}", *line.split()]
            with suppress(subprocess.TimeoutExpired):
                subprocess.run(command, capture_output=True, check=False, timeout=10)  # noqa: S603

    async def repair(self) -> None:
        """Undo everything, and see every device given out again."""
        for path in (PODS, BUDGETS):
            for name in await self.names(path):
                await self.ask("DELETE", f"{path}/{name}", gracePeriodSeconds="0")
        for node, devices in NODES.items():
            for device in range(devices):
                self.fault(node, "device", str(device), "back")
        clean = {"annotations": {"neuron-plugin.io/disable": None}}
        ends, left = time.monotonic() + SETTLED_SECONDS, dict(NODES)
        while left:
            for node, devices in list(left.items()):
                change = {"metadata": clean, "spec": {"unschedulable": None, "taints": None}}
                await self.ask("PATCH", f"/api/v1/nodes/{node}", change, MERGE)
                containers = [{"name": "main", "resources": {"limits": {"aws.amazon.com/neuron": devices}}}]
                spec = {"containers": containers, "nodeSelector": {"kubernetes.io/hostname": node}}
                await self.ask("POST", PODS, {"metadata": {"name": f"last-{node}"}, "spec": spec})
                _, pod = await self.ask("GET", f"{PODS}/last-{node}")
                assert pod["status"]["phase"] != "Failed", pod["status"]
                if pod["status"]["phase"] == "Running":
                    assert len(parse_ids(pod["metadata"]["annotations"]["NEURON_DEVS"])) == devices
                    del left[node]
            assert time.monotonic() < ends, (left, self.up.printed()[-3000:])
            assert self.up.process.poll() is None, self.up.printed()[-3000:]
            await asyncio.sleep(0.2)


@pytest.mark.timeout(SECONDS + 300)
async def test_the_playground_survives_its_clients_and_its_machines(capsys: pytest.CaptureFixture[str]) -> None:
    with Playground("--nodes", TYPES) as up:
        mischief = Mischief(up, SEED)
        async with mischief.session:
            ends = time.monotonic() + SECONDS
            while time.monotonic() < ends:
                await mischief.step()
            await mischief.repair()
        printed = up.printed()
    capsys.readouterr()  # what simulate fault says
    for word in ("Traceback", "cannot be handled"):
        assert word not in printed, printed[printed.index(word) :][:4000]
