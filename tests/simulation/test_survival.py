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
from collections.abc import Callable
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
MERGE = "application/merge-patch+json"
STRATEGIC = "application/strategic-merge-patch+json"
KUBECTL = (
    "get pods,nodes,pdb",
    "get events",
    "describe pods",
    "describe nodes",
    "label pods --all a=b --overwrite",
    "annotate nodes --all x=y --overwrite",
    "cordon {node}",
    "uncordon {node}",
    "taint nodes {node} a=b:NoSchedule --overwrite",
    "drain {node} --force --timeout=1s",
    "delete pods --all --wait=false",
    "delete pods -l a=b --force --grace-period=0",
    "delete node {node}",
    "run by-kubectl --image=x",
)


class Mischief:
    """A client of the playground with a seed, and a hand at its machines."""

    def __init__(self, up: Playground, seed: int) -> None:
        self.chance = Random(seed)  # noqa: S311
        self.up = up
        self.steps = 0
        config = msgspec.json.decode((up.directory / "kubeconfig").read_bytes())
        self.session = aiohttp.ClientSession(config["clusters"][0]["cluster"]["server"])

    async def ask(self, method: str, path: str, body: Any = None, **options: Any) -> tuple[int, Any]:
        """One request; an answer that is no JSON is none that the server meant."""
        kind = {"Content-Type": options.pop("content_type", "application/json")}
        data = body if isinstance(body, bytes) else msgspec.json.encode(body) if body is not None else None
        async with self.session.request(method, path, data=data, headers=kind, params=options) as answer:
            found = await answer.read()
            assert answer.status != 500, f"{method} {path} {body}: {found!r}"  # the server's own fault
            return answer.status, msgspec.json.decode(found) if found else None

    async def names(self, path: str) -> list[str]:
        _, listed = await self.ask("GET", path)
        return [each["metadata"]["name"] for each in listed["items"]]

    async def step(self) -> None:
        self.steps += 1
        deeds: list[tuple[int, Callable[[], Any]]] = [
            (10, self.create),
            (6, self.edit),
            (4, self.end),
            (2, self.touch_node),
            (1, self.write_budget),
            (2, self.send_nonsense),
            (2, self.watch_and_leave),
            (1, self.delete_lease),
        ]
        (deed,) = self.chance.choices([deed for _, deed in deeds], [weight for weight, _ in deeds])
        await deed()
        if self.chance.random() < 0.05:
            self.chance.choice((self.break_device, self.kill_daemon, self.run_kubectl))()
        assert self.up.process.poll() is None, self.up.printed()[-3000:]

    # Pods.

    async def create(self) -> None:
        chance = self.chance
        resource = chance.choice(("neuron", "neurondevice", "neuroncore", "neuroncore", "nueron"))
        count: Any = chance.choice((1, 1, 2, 4, 6, 13, "1", "2", "1k", 0, -1, 1.5, "many", None, [1], 10**21))
        container: Any = {"name": "main", "resources": {"limits": {f"aws.amazon.com/{resource}": count}}}
        if chance.random() < 0.2:
            container["resources"]["requests"] = {"cpu": chance.choice(("1", "500", 2, "x"))}
        spec: Any = {"containers": [container]}
        if chance.random() < 0.5:
            name, value = chance.choice(
                [
                    ("schedulingGates", [{"name": "quota"}]),
                    ("schedulingGates", [{"name": 1}]),
                    ("schedulerName", chance.choice(("neuron-scheduler", "nobody", 7))),
                    ("nodeName", chance.choice((*NODES, "nowhere", [1]))),
                    ("nodeSelector", {"node.kubernetes.io/instance-type": "inf2.24xlarge"}),
                    ("nodeSelector", {"a": 1}),
                    ("tolerations", [{"operator": "Exists"}]),
                    ("initContainers", [{**container, "name": "init"}]),
                    ("containers", [container, {**container, "name": "other"}]),
                    ("containers", chance.choice(([], 7, [1], [{}]))),
                    ("priority", chance.choice((10, -5, "x"))),
                    ("affinity", {"podAntiAffinity": {}}),
                    ("volumes", [{"name": "v", "persistentVolumeClaim": {"claimName": "none"}}]),
                ]
            )
            spec[name] = value
        metadata: Any = {"name": f"p{chance.randrange(30)}", "labels": {"app": chance.choice("ab")}}
        if chance.random() < 0.3:
            key, value = chance.choice(
                [
                    ("neuron-plugin.io/placement", "spraed"),
                    ("neuron-plugin.io/memory", "30000"),
                    ("neuron-plugin.io/allow-devices", "9-3"),
                    ("neuron-plugin.io/group", "g"),
                    ("neuron-plugin.io/device-name", "inf2"),
                    ("NEURON_DEVS", "0,1"),
                ]
            )
            metadata["annotations"] = {key: value}
            if key.endswith("group"):
                metadata["annotations"] |= {"neuron-plugin.io/group-size": chance.choice(("2", "x"))}
        await self.ask("POST", PODS, {"metadata": metadata, "spec": spec, "status": chance.choice(({}, 1))})

    async def edit(self) -> None:
        chance = self.chance
        if names := await self.names(PODS):
            changes: list[Any] = [
                {"metadata": {"labels": {"app": chance.choice(("a", None, 1))}}},
                {"metadata": {"annotations": {"neuron-plugin.io/movable": "true"}}},
                {"metadata": {"resourceVersion": "1"}},
                {"spec": {"schedulingGates": [{"$patch": "delete", "name": "quota"}]}},
                {"spec": {"schedulingGates": []}},
                {"spec": {"containers": [{"name": "main", "image": "new", "resources": {"limits": {"cpu": 1}}}]}},
                {"spec": {"containers": 7}},
                {"spec": None},
                {"status": {"phase": chance.choice(("Failed", "Succeeded", 1))}},
                {"status": {"conditions": chance.choice(([{}], [1], 1, [{"type": "Ready"}]))}},
                7,
            ]
            path = f"{PODS}/{chance.choice(names)}{chance.choice(('', '', '/status'))}"
            kind = chance.choice((MERGE, STRATEGIC, "application/json"))
            await self.ask("PATCH", path, chance.choice(changes), content_type=kind)

    async def end(self) -> None:
        if names := await self.names(PODS):
            name = self.chance.choice(names)
            match self.chance.randrange(4):
                case 0:
                    await self.ask("DELETE", f"{PODS}/{name}")
                case 1:
                    await self.ask("DELETE", f"{PODS}/{name}", gracePeriodSeconds="0")
                case 2:
                    await self.ask("POST", f"{PODS}/{name}/eviction", {"metadata": {"name": name}})
                case _:
                    await self.ask("DELETE", PODS, labelSelector="app=a")

    # Everything else.

    async def touch_node(self) -> None:
        chance, path = self.chance, f"/api/v1/nodes/{self.chance.choice(list(NODES))}"
        taint = {"key": "a", "value": "b", "effect": "NoSchedule"}
        changes: list[Any] = [
            {"spec": {"unschedulable": chance.choice((True, None, "x"))}},
            {"spec": {"taints": chance.choice(([taint], None, [1]))}},
            {"metadata": {"labels": {"x": chance.choice(("y", None, 1))}}},
            {"metadata": {"annotations": {"neuron-plugin.io/disable": chance.choice(("0", "x", None))}}},
        ]
        if chance.random() < 0.1:
            await self.ask("DELETE", path)
        else:
            await self.ask("PATCH", path, chance.choice(changes), content_type=MERGE)

    async def write_budget(self) -> None:
        chance = self.chance
        least = chance.choice((0, 1, "50%", "x", [1]))
        spec: Any = chance.choice(({"minAvailable": least}, {"maxUnavailable": least}, 7))
        if isinstance(spec, dict):
            spec["selector"] = chance.choice(({"matchLabels": {"app": "a"}}, {}, None, 7, {"matchExpressions": [1]}))
        await self.ask("DELETE", f"{BUDGETS}/one")
        await self.ask("POST", BUDGETS, {"metadata": {"name": "one"}, "spec": spec})

    async def send_nonsense(self) -> None:
        chance = self.chance
        path = chance.choice((PODS, f"{PODS}/p1", f"{PODS}/p1/binding", f"{PODS}/p1/eviction", "/api/v1/nodes", "/x"))
        kinds = ("application/json", MERGE, "application/vnd.kubernetes.protobuf", "text/plain")
        body = chance.choice((b"", b"{", b"[]", b"7", b"k8s\0" + chance.randbytes(20), b'{"target": 7}'))
        await self.ask(chance.choice(("POST", "PUT", "PATCH", "DELETE")), path, body, content_type=chance.choice(kinds))

    async def watch_and_leave(self) -> None:
        with suppress(TimeoutError):
            timeout = aiohttp.ClientTimeout(total=0.05)
            query = {"watch": "true", "resourceVersion": self.chance.choice(("", "0", "1", "999999999"))}
            async with self.session.get("/api/v1/pods", params=query, timeout=timeout) as answer:
                await answer.content.readline()

    async def delete_lease(self) -> None:
        path = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases"
        if names := await self.names(path):
            await self.ask("DELETE", f"{path}/{self.chance.choice(names)}")

    def break_device(self) -> None:
        node, devices = self.chance.choice(list(NODES.items()))
        self.fault(node, "device", str(self.chance.randrange(devices)), self.chance.choice(("gone", "back")))

    def fault(self, node: str, *words: str) -> None:
        main(["simulate", "fault", str(self.up.directory / node), *words])  # what is gone or back already is refused

    def kill_daemon(self) -> None:
        daemons = [pid for pid in self.processes() if pid != self.up.process.pid]
        if daemons:
            os.kill(self.chance.choice(daemons), self.chance.choice((signal.SIGKILL, signal.SIGTERM)))

    def processes(self) -> list[int]:
        """The playground's, itself and its daemons."""
        found = []
        for each in Path("/proc").iterdir():
            with suppress(OSError):
                if each.name.isdigit() and str(self.up.directory).encode() in (each / "cmdline").read_bytes():
                    found.append(int(each.name))
        return found

    def run_kubectl(self) -> None:
        if shutil.which("kubectl"):
            line = self.chance.choice(KUBECTL).format(node=self.chance.choice(list(NODES)))
            command = ["kubectl", f"--kubeconfig={self.up.directory / 'kubeconfig'}", *line.split()]
            with suppress(subprocess.TimeoutExpired):
                subprocess.run(command, capture_output=True, check=False, timeout=10)  # noqa: S603

    # What must hold.

    async def repair(self) -> None:
        """Undo everything, and see every device given out again."""
        for path in (PODS, BUDGETS, "/api/v1/namespaces/team/pods"):
            await self.ask("DELETE", path, gracePeriodSeconds="0")
        for node, devices in NODES.items():
            for device in range(devices):
                self.fault(node, "device", str(device), "back")
        ends, left = time.monotonic() + SETTLED_SECONDS, dict(NODES)
        while left:
            for node, devices in list(left.items()):
                change = {
                    "metadata": {"annotations": {"neuron-plugin.io/disable": None}},
                    "spec": {"unschedulable": None, "taints": None},
                }
                await self.ask("PATCH", f"/api/v1/nodes/{node}", change, content_type=MERGE)
                name = f"last-{node}"
                limits = {"limits": {"aws.amazon.com/neuron": devices}}
                spec = {"containers": [{"name": "main", "resources": limits}], "nodeSelector": {HOSTNAME: node}}
                await self.ask("POST", PODS, {"metadata": {"name": name}, "spec": spec})
                _, pod = await self.ask("GET", f"{PODS}/{name}")
                assert pod["status"]["phase"] != "Failed", pod["status"]
                if pod["status"]["phase"] == "Running":
                    given = parse_ids(pod["metadata"]["annotations"]["NEURON_DEVS"])
                    assert len(given) == devices
                    del left[node]
            assert time.monotonic() < ends, (left, self.up.printed()[-3000:])
            assert self.up.process.poll() is None, self.up.printed()[-3000:]
            await asyncio.sleep(0.2)


HOSTNAME = "kubernetes.io/hostname"


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
    assert mischief.steps
