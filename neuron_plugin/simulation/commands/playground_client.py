"""The actions on a running playground from a second shell: create pods, and make faults.

They need only its directory, with the kubeconfig and each node's machine.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import sys
import time
from argparse import Namespace
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import yaml

from neuron_plugin.allocation.claims import DRA_DRIVER
from neuron_plugin.allocation.event_reasons import EventReason
from neuron_plugin.allocation.inventory import read_inventory
from neuron_plugin.allocation.keys import CORES_KEY, DEVICES_KEY, GATE, INVENTORY_KEY
from neuron_plugin.allocation.node_rules import DEFAULT_SCHEDULER, node_use
from neuron_plugin.cli.command import CommandError, Exit, UsageError, program
from neuron_plugin.cluster import ApiError, ApiRequest, ClusterError, KubernetesApi, Pod
from neuron_plugin.cluster.api import PAGE_SECONDS, JsonObject, send
from neuron_plugin.cluster.claims import RESOURCE_CLAIMS, neuron_claim
from neuron_plugin.cluster.client import connect
from neuron_plugin.cluster.nodes import neuron_node
from neuron_plugin.cluster.objects import NODES
from neuron_plugin.cluster.pods import PODS, asks_for_neuron, neuron_pod
from neuron_plugin.cluster.writes import read_node, read_pod
from neuron_plugin.inspection import look
from neuron_plugin.placement.check_steps import CHECKED_FIRST
from neuron_plugin.plugin.settings import PluginSettings
from neuron_plugin.settings import load
from neuron_plugin.simulation.api_server_kinds import KINDS
from neuron_plugin.simulation.commands.playground import is_up
from neuron_plugin.simulation.commands.simulate import run_fault
from neuron_plugin.simulation.machines import NODE_FAULTS_PATH
from neuron_plugin.simulation.node import SimulatedNode
from neuron_plugin.simulation.resource_claims import NOT_CREATED
from neuron_plugin.simulation.scheduler import why_not
from neuron_plugin.simulation.workloads import NoPodsError, WorkloadError, WorkloadPod, kind_of, makes_pods, pods_of
from neuron_plugin.topology import catalogue
from neuron_plugin.wording import named, plural

CHANGE_SECONDS = 60.0
"""How long a fault of a whole node may take, such as a reboot."""
PLACE_SECONDS = 30.0
"""How long to wait until a new pod has a node or is refused one."""
SETTLE_SECONDS = 0.3
"""Between two looks at a pod."""
NOTICE_SECONDS = 15.0
"""How long to wait until a node's plugin reports a change."""


@dataclass
class _Wanted:
    """What to create: pods, workload objects whose pods are created, and other objects; and lines about the rest."""

    pods: list[WorkloadPod] = field(default_factory=list)
    owners: list[JsonObject] = field(default_factory=list)
    others: list[tuple[str, JsonObject]] = field(default_factory=list)
    """Collection path and manifest."""
    passed: list[str] = field(default_factory=list)


def run_pods(arguments: Namespace) -> int:
    """Create pods and wait until each runs, has failed, or is refused.

    Raises:
        UsageError: no pod is given, or an object cannot be read.
        CommandError: no playground is up, or it refuses a request.
    """
    wanted = _Wanted()
    for asked in arguments.ask or ():
        containers = [
            {"name": f"container-{place}", "image": "none", "resources": {"limits": {resource.value: str(count)}}}
            for place, (resource, count) in enumerate(asked, 1)
        ]
        manifest = {"apiVersion": "v1", "kind": "Pod", "metadata": {}, "spec": {"containers": containers}}
        wanted.pods.append(WorkloadPod(manifest))
    try:
        if arguments.filename:
            _sort(_read_objects(arguments.filename), wanted)
        if not (wanted.pods or wanted.owners or wanted.others):
            raise UsageError("; ".join(["no pod: give --ask neuron=1, or --filename FILE with one", *wanted.passed]))
        for owner in wanted.owners:  # before anything is created
            with contextlib.suppress(NoPodsError):
                pods_of(owner)
    except WorkloadError as error:
        raise UsageError(f"{arguments.filename}: {error}") from None
    kubeconfig = _kubeconfig(arguments.directory)
    lines, refused = asyncio.run(_create(kubeconfig, wanted))
    print("\n".join([*lines, *refused]))
    return Exit.FAILURE if refused else Exit.SUCCESS


def _read_objects(name: str) -> list[Any]:
    """The objects of a file, including the items of Lists."""
    try:
        text = sys.stdin.read() if name == "-" else Path(name).read_text("utf-8")
        documents: list[Any] = [document for document in yaml.safe_load_all(text) if document is not None]
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise UsageError(f"{name} is no YAML: {' '.join(str(error).split())}") from None
    objects: list[Any] = []
    while documents:
        document = documents.pop(0)
        is_list = isinstance(document, dict) and isinstance(document.get("items"), list)
        if is_list and str(document.get("kind", "")).endswith("List"):
            documents[:0] = document["items"]
        else:
            objects.append(document)
    return objects


def _sort(objects: list[Any], wanted: _Wanted) -> None:
    """Sort objects into workloads, objects for the API server, and others.

    Raises:
        WorkloadError: not a Kubernetes object.
    """
    served = {(kind.version.rpartition("/")[0], kind.kind): kind for kind in KINDS}
    for manifest in objects:
        group, kind = kind_of(manifest)
        metadata = manifest["metadata"]
        if blanks := sorted(set(_blanks(manifest))):
            raise WorkloadError(f"{kind} has {', '.join(blanks)} to be filled in: see what comes with it, and envsubst")
        if makes_pods(manifest):
            wanted.owners.append(manifest)
        elif known := served.get((group, kind)):
            namespace = f"/namespaces/{metadata.get('namespace') or 'default'}" if known.namespaced else ""
            as_served = manifest | {"apiVersion": known.version}  # a PodGroup has another one in each release
            wanted.others.append((f"{known.group}{namespace}/{known.plural}", as_served))
        else:
            name = metadata.get("name") or metadata.get("generateName")
            wanted.passed.append(f"{kind} {name}: makes no pods here, passed over")


def _blanks(part: Any, key: str = "") -> Iterator[str]:
    """Placeholders such as ``${NAME}``, except in fields that containers read."""
    if key in {"command", "args", "env", "data", "stringData"}:
        return
    if isinstance(part, dict):
        for name, value in part.items():
            yield from _blanks(value, name)
    elif isinstance(part, list):
        for value in part:
            yield from _blanks(value, key)
    else:
        yield from re.findall(r"\$\{\w+\}", str(part))


def _kubeconfig(directory: Path) -> Path:
    """The kubeconfig of the playground; waits while it is being started."""
    path = directory / "kubeconfig"
    while not path.exists():
        if not is_up(directory):
            raise CommandError(f"no playground is up in {directory}: start one with {program()} playground")
        time.sleep(0.1)
    return path


async def _create(kubeconfig: Path, wanted: _Wanted) -> tuple[list[str], list[str]]:
    """Create what is wanted; return lines about the pods, and lines about refused objects."""
    lines, refused = list(wanted.passed), list[str]()
    async with _connected(kubeconfig) as api:
        lines += [await _create_other(api, path, manifest) for path, manifest in wanted.others]
        given = wanted.pods + [pod for owner in wanted.owners for pod in await _made_of(api, owner, lines)]
        made = await _create_pods(api, [pod.manifest for pod in given if not pod.after], refused)
        for leader in dict.fromkeys(pod.after for pod in given if pod.after):
            led = [pod for pod in given if pod.after == leader]
            leading = next((pod for pod in made if pod.name == leader), None)
            first = (await _settled(api, leading))[0] if leading else None
            if first and first.node_name and (first.phase == "Running" or not led[0].ready):
                placed = [await _led_to(api, pod, first.node_name) for pod in led]
                made += await _create_pods(api, placed, refused)
            else:
                state = "runs" if led[0].ready else "is scheduled"
                lines.append(f"{plural(len(led), 'pod')} more would be made once {leader} {state}")
        for pod in made:
            lines += await _became_of(api, pod, kubeconfig)
    return lines, refused


@contextlib.asynccontextmanager
async def _connected(kubeconfig: Path) -> AsyncIterator[KubernetesApi]:
    """A connection to the playground's API server; an error is one line of this command."""
    try:
        async with await connect(kubeconfig) as api:
            yield api
    except ClusterError as error:
        raise CommandError(error.message if isinstance(error, ApiError) else str(error)) from None


async def _ask(api: KubernetesApi, request: ApiRequest) -> bytes:
    return await send(api, request, timeout_seconds=PAGE_SECONDS)


async def _made_of(api: KubernetesApi, owner: JsonObject, lines: list[str]) -> list[WorkloadPod]:
    """The pods of a workload object; for a DaemonSet one for each node that its template allows."""
    try:
        return pods_of(owner, await _nodes_for(api, owner) if owner["kind"] == "DaemonSet" else ())
    except NoPodsError as error:
        lines.append(str(error))
        return []


async def _nodes_for(api: KubernetesApi, daemon_set: Any) -> list[str]:
    """The nodes whose labels and taints allow a DaemonSet's pod."""
    spec = daemon_set["spec"]["template"]["spec"] | {"containers": [], "initContainers": []}  # labels and taints decide
    probe = {"metadata": {"name": "probe", "namespace": "default", "uid": "probe"}, "spec": spec}
    rules = neuron_pod(PODS.decode(msgspec.json.encode(probe))).rules
    listed = msgspec.json.decode(await _ask(api, ApiRequest("GET", "/api/v1/nodes")))
    nodes = [neuron_node(NODES.decode(msgspec.json.encode(node)), catalogue()) for node in listed["items"]]
    return [node.name for node in nodes if not why_not(rules, node.name, node.rules, node_use(()))]


async def _led_to(api: KubernetesApi, led: WorkloadPod, node: str) -> dict[str, Any]:
    """A pod's manifest, with a node selector for the topology domain of its leader's node."""
    if not led.topology_key:
        return led.manifest
    record = NODES.decode(await _ask(api, read_node(node)))
    if led.topology_key not in record.labels:
        raise CommandError(f"node {node} has no label {led.topology_key}: no other pod of {led.after}'s group is made")
    spec = led.manifest["spec"]
    selector = {**(spec.get("nodeSelector") or {}), led.topology_key: record.labels[led.topology_key]}
    return led.manifest | {"spec": spec | {"nodeSelector": selector}}


async def _became_of(api: KubernetesApi, pod: Pod, kubeconfig: Path) -> list[str]:
    """Where a pod runs and with which devices, or why it waits or has failed."""
    name = f"{pod.namespace}/{pod.name}"
    try:
        pod, message = await _settled(api, pod)
    except ApiError as error:
        if not error.missing:
            raise
        why = await _told(api, pod, EventReason.EVICTED_FOR_MOVE, EventReason.PREEMPTED)
        return [f"pod {name} is gone: {why or 'deleted'}"]
    if pod.terminal:
        return [f"pod {name} has failed on {pod.node_name}: {message}"]
    if pod.node_name:
        ids = [f"{key}: {pod.annotations[key]}" for key in (DEVICES_KEY, CORES_KEY) if key in pod.annotations]
        ids += await _claimed(api, pod)
        return [f"pod {name} runs on {', '.join([pod.node_name, *ids])}"]
    why = f"  why: {program()} explain {name} --kubeconfig {kubeconfig}"
    return [f"pod {name} waits: {message or 'the scheduler has not looked at it yet'}", why]


async def _create_other(api: KubernetesApi, path: str, manifest: JsonObject) -> str:
    """Create an object unless it exists; return a line about it."""
    try:
        body = await _ask(api, ApiRequest("POST", path, body=manifest))
    except ApiError as error:
        if not error.conflict:
            raise
        return f"{named_object(manifest)} is there already, and is left as it is"
    return f"{named_object(msgspec.json.decode(body))} is created"


def named_object(manifest: Any) -> str:
    """Kind, namespace and name of an object."""
    metadata = manifest["metadata"]
    name = metadata.get("name") or f"{metadata.get('generateName')}..."
    where = f"{metadata['namespace']}/" if metadata.get("namespace") else ""
    return f"{manifest['kind'].lower()} {where}{name}"


async def _claimed(api: KubernetesApi, pod: Pod) -> list[str]:
    """A text about the devices of each claim of a pod."""
    texts = []
    for pod_claim in neuron_pod(pod).claims:
        path = RESOURCE_CLAIMS.item(pod_claim.claim, pod.namespace)
        claim = RESOURCE_CLAIMS.decode(await _ask(api, ApiRequest("GET", path)))
        devices = [result.device for result in neuron_claim(claim, DRA_DRIVER).results]
        texts.append(f"claim {pod_claim.name}: {' '.join(devices) or 'no Neuron device'}")
    return texts


async def _create_pods(api: KubernetesApi, manifests: list[dict[str, Any]], refused: list[str]) -> list[Pod]:
    """Create pods; add a line to ``refused`` for each that the API server refuses."""
    made = []
    for manifest in manifests:
        try:
            made.append(await _create_pod(api, manifest))
        except ApiError as error:
            why = f"{error.status} {error.reason}: {error.message}"
            refused.append(f"{named_object(manifest)} is refused: {why}")
    return made


async def _create_pod(api: KubernetesApi, manifest: dict[str, Any]) -> Pod:
    """Create a pod; without a name it is called by the next free ``pod-N``."""
    metadata = msgspec.convert(manifest["metadata"], dict[str, object])
    path = PODS.collection(str(metadata.get("namespace") or "default"))
    for number in range(1, 1000):
        name = {} if metadata.get("generateName") else {"name": f"pod-{number}"}
        body = manifest | {"metadata": {**name, **metadata}}
        request = ApiRequest("POST", path, body=body)
        try:
            return PODS.decode(await _ask(api, request))
        except ApiError as error:
            if metadata or not error.conflict:
                raise
    raise CommandError("999 pods are there: delete some")


async def _settled(api: KubernetesApi, pod: Pod) -> tuple[Pod, str]:
    """The pod once it runs, has ended or is known to wait, and why it waits or has failed."""
    wanted, ends = pod.spec.scheduler_name, time.monotonic() + PLACE_SECONDS
    if wanted != DEFAULT_SCHEDULER:
        from neuron_plugin.simulation.scheduler import SCHEDULERS  # loads all that a simulated cluster consists of

        if wanted not in SCHEDULERS:
            return pod, f"no scheduler is called {wanted!r}, only {' and '.join(SCHEDULERS)}: leave schedulerName out"
    while True:
        body = await _ask(api, read_pod(namespace=pod.namespace, name=pod.name))
        pod, status = PODS.decode(body), msgspec.json.decode(body)["status"]
        conditions = status.get("conditions") or ()
        waits = next(
            (condition["message"] for condition in conditions if condition.get("reason") == "Unschedulable"), ""
        )
        if gates := [gate.name for gate in pod.spec.scheduling_gates or ()]:
            others = [gate for gate in gates if gate != GATE]
            waits = (
                f"its gates {', '.join(others)} are for others to take off"
                if others
                else await _told(api, pod, EventReason.WAITING)
            )
            waits = "" if CHECKED_FIRST in waits and time.monotonic() < ends else waits
        elif not waits and pod.spec.resource_claims:
            waits = await _told(api, pod, NOT_CREATED)
        # Of a pod that came without an assignment the plugin writes what it has once it runs.
        has = (
            pod.terminal or not asks_for_neuron(pod) or not pod.annotations.keys().isdisjoint((DEVICES_KEY, CORES_KEY))
        )
        if (pod.phase != "Pending" and has) or waits or time.monotonic() > ends:
            return pod, status.get("message") or waits
        await asyncio.sleep(0.1)


async def _told(api: KubernetesApi, pod: Pod, *reasons: str) -> str:
    """The note of a pod's last event with one of these reasons; empty without one."""
    path = f"/apis/events.k8s.io/v1/namespaces/{pod.namespace}/events"
    events = msgspec.json.decode(await _ask(api, ApiRequest("GET", path)))["items"]
    about = [event for event in events if (event.get("regarding") or {}).get("uid") == pod.uid]
    return next((str(event["note"]) for event in reversed(about) if event.get("reason") in reasons), "")


def change_node(arguments: Namespace) -> None:
    """Make a fault of a whole node, or undo it.

    Raises:
        CommandError: an unknown node, or it is not possible now.
    """
    kubeconfig = _kubeconfig(arguments.directory)
    path = f"{NODE_FAULTS_PATH}{arguments.node}/{arguments.what}/{arguments.change}"

    async def change() -> bytes:
        async with _connected(kubeconfig) as api:
            return await send(api, ApiRequest("POST", path, body={}), timeout_seconds=CHANGE_SECONDS)

    print(msgspec.json.decode(asyncio.run(change()))["message"])
    print(f"  look: {program()} nodes --kubeconfig {kubeconfig}")


def break_node(arguments: Namespace) -> None:
    """Change a node's machine.

    Raises:
        UsageError: an unknown node, or an impossible change.
    """
    root = arguments.directory / arguments.node
    if not (root / "node.json").is_file():
        names = sorted(path.parent.name for path in arguments.directory.glob("*/node.json"))
        there = f"choose among {', '.join(names)}" if names else f"start one with {program()} playground"
        raise UsageError(f"the playground in {arguments.directory} has no node {arguments.node}: {there}")
    kubeconfig, look = _kubeconfig(arguments.directory), f"devices --config {root / 'plugin.json'}"
    if arguments.what == "use":
        run_fault(Namespace(**{**vars(arguments), "directory": root}))
        print(
            f"node {arguments.node}: devices {arguments.devices} are {arguments.work} from now on; see it in a minute"
        )
        look = f"pods --kubeconfig {kubeconfig}"
    else:
        print(asyncio.run(_break(arguments, root, kubeconfig)))
    print(f"  look: {program()} {look}")


async def _break(arguments: Namespace, root: Path, kubeconfig: Path) -> str:
    """Make the change, wait until the node's plugin publishes it, and return what it reports."""

    async def published() -> str:
        node = NODES.decode(await _ask(api, read_node(arguments.node)))
        return node.annotations.get(INVENTORY_KEY, "")

    def knows_all(text: str) -> bool:
        inventory, tree = read_inventory(text), SimulatedNode.open(root).paths.sysfs / "class/neuron_device"
        seen = {device for device in inventory.present if not inventory.unhealthy.get(device, "").startswith("missing")}
        return seen == {
            device for device in range(inventory.geometry.device_count) if (tree / f"neuron{device}").exists()
        }

    async with _connected(kubeconfig) as api:
        before, ends = await published(), time.monotonic() + NOTICE_SECONDS
        run_fault(Namespace(**{**vars(arguments), "directory": root}))
        if arguments.what == "attribute" and not arguments.missing:  # a missing attribute may only be late
            reported, now = read_inventory(before), look(load(PluginSettings, {}, {}, root / "plugin.json"), {})
            due = now.node_inventory
            if due and (due.present, due.unhealthy) == (reported.present, reported.unhealthy):
                return f"node {arguments.node}: its plugin reports the same; {arguments.name} makes no difference to it"
        while (after := await published()) == before:
            if time.monotonic() > ends:
                return f"node {arguments.node}: its plugin reports no change after {NOTICE_SECONDS:g} s"
            await asyncio.sleep(0.1)
        earlier = before
        # A driver that goes takes its devices one by one.
        while after != earlier or not (knows_all(after) or time.monotonic() > ends):
            await asyncio.sleep(SETTLE_SECONDS)
            earlier, after = after, await published()
    inventory = read_inventory(after)
    broken = {
        **dict.fromkeys(set(range(inventory.geometry.device_count)) - set(inventory.present), "missing"),
        **inventory.unhealthy,
    }
    alike: dict[str, list[int]] = {}
    for device, why in sorted(broken.items()):
        alike.setdefault(why, []).append(device)
    texts = (
        f"{named('device', ids)} {'is' if len(ids) == 1 else 'are'} unhealthy: {why}" for why, ids in alike.items()
    )
    return f"node {arguments.node}: its plugin reports {'; '.join(texts) or 'that all devices are healthy'}"
