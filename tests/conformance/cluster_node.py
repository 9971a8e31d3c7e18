"""The suite's node as a client of its API server sees it: what the drivers on a real cluster and in memory share.

Pods go to the node by ``spec.nodeName``. A container says what it received in its log, as its script prints it; the
simulated kubelet knows what such a script would print.
"""

from __future__ import annotations

import contextlib
import json
import secrets
from collections.abc import Mapping
from typing import Any

from neuron_plugin.allocation import ContainerKind
from neuron_plugin.cluster import ApiError, ApiRequest, ApiServer
from neuron_plugin.cluster.api import JSON, MERGE_PATCH, STRATEGIC_MERGE_PATCH, send
from neuron_plugin.cluster.writes import describe_node
from tests.conformance.claims import allocated, claim_manifest, health_of, offered
from tests.conformance.node import OPENABLE, ContainerSpec, ContainerView, PodSpec, PodView, Received

PODS = "/api/v1/namespaces/default/pods"
CLAIMS = "/apis/resource.k8s.io/v1/namespaces/default/resourceclaims"
SLICES = "/apis/resource.k8s.io/v1/resourceslices"
SCRIPT = """
env | grep NEURON
for node in /dev/neuron*; do [ -e "$node" ] && echo "$node"; done
echo READY
trap 'exit 0' TERM
"""
"""What a container says of itself before it runs on."""
OPEN = f"exec 3</dev/neuron{OPENABLE} || exit 1\n"
STAY = "trap '' TERM\n"
RUN_ON = "while true; do sleep 1 & wait; done"
SECONDS_TO_BE_KNOWN = 2
"""Until the plugin has asked the kubelet for the pod by name. Later it has to ask for all, which makes the kubelet
forget what an ended pod held, and with it the health of that."""
TIMEOUT_SECONDS = 20.0


class ClusterNode:
    """Pods, claims and annotations of ``node_name``, through ``api``; pods have names of this run."""

    def __init__(self, api: ApiServer, node_name: str, pod_image: str) -> None:
        self.api = api
        self.node_name = node_name
        self._pod_image = pod_image
        self._run = secrets.token_hex(3)
        self.specs: dict[str, PodSpec] = {}
        self.uids: dict[str, str] = {}
        self.claims: list[str] = []

    async def create(self, pod: PodSpec) -> None:
        self.specs[pod.name] = pod
        created = await self.ask("POST", PODS, body=self._manifest(pod))
        self.uids[pod.name] = created["metadata"]["uid"]

    async def view(self, name: str) -> PodView | None:
        found = await self.find(name)
        if found is None:
            return None
        status = found.get("status", {})
        told = {
            each["name"]: each
            for key in ("initContainerStatuses", "containerStatuses")
            for each in status.get(key) or ()
        }
        containers = {
            each.name: await self._container_view(name, each, told.get(each.name, {}))
            for each in self.specs[name].containers
        }
        return PodView(
            uid=found["metadata"]["uid"],
            phase=status.get("phase", ""),
            reason=status.get("reason", ""),
            message=status.get("message", ""),
            containers=containers,
            annotations=found["metadata"].get("annotations") or {},
            labels=found["metadata"].get("labels") or {},
            resize=_resize(status),
            cpu=_cpu(status),
        )

    async def delete(self, name: str, *, force: bool = False) -> None:
        body = {"gracePeriodSeconds": 0} if force else {}
        with contextlib.suppress(ApiError):
            await self.ask("DELETE", f"{PODS}/{self.own_name(name)}", body=body)

    async def claim(self, name: str, *devices: str) -> None:
        """kube-controller-manager reserves it for a pod of this node, and takes the allocation off when that ended."""
        own = self.own_name(name)
        self.claims.append(own)
        await self.ask("POST", CLAIMS, body=claim_manifest(own))
        status = {"status": allocated(self.node_name, devices)}
        await self.ask("PATCH", f"{CLAIMS}/{own}/status", body=status, content_type=MERGE_PATCH)

    async def slice(self) -> Mapping[str, tuple[str, ...]]:
        found = await self.ask("GET", SLICES)
        return offered(found["items"], self.node_name)

    async def annotate_node(self, key: str, value: str | None) -> None:
        change = describe_node(self.node_name, annotations={key: value})
        await send(self.api, change, timeout_seconds=TIMEOUT_SECONDS)

    async def resize(self, name: str, cpu: str) -> None:
        (container,) = self.specs[name].containers
        change: dict[str, Any] = {
            "spec": {"containers": [{"name": container.name, "resources": {"requests": {"cpu": cpu}}}]}
        }
        await self.ask("PATCH", f"{PODS}/{self.own_name(name)}/resize", body=change, content_type=STRATEGIC_MERGE_PATCH)

    async def find(self, name: str) -> dict[str, Any] | None:
        try:
            return await self.ask("GET", f"{PODS}/{self.own_name(name)}")
        except ApiError as error:
            if error.missing:
                return None
            raise

    async def _container_view(self, pod: str, spec: ContainerSpec, status: Mapping[str, Any]) -> ContainerView:
        state = status.get("state") or {}
        waiting = state.get("waiting") or {}
        done = (state.get("terminated") or {}).get("exitCode") == 0
        starts = int(status.get("restartCount", 0)) + ("waiting" not in state and bool(state))
        return ContainerView(
            running="running" in state or (spec.kind is ContainerKind.INIT and done),
            starts=starts,
            waiting=f"{waiting.get('reason', '')}: {waiting.get('message', '')}" if waiting else "",
            received=await self._received(pod, spec.name) if starts else None,
            health=health_of(status.get("allocatedResourcesStatus") or ()),
        )

    async def _received(self, pod: str, container: str) -> Received | None:
        """What the container's present start has said, None until it has said all."""
        request = ApiRequest("GET", f"{PODS}/{self.own_name(pod)}/log", {"container": container})
        try:
            lines = (await send(self.api, request, timeout_seconds=TIMEOUT_SECONDS)).decode().splitlines()
        except ApiError:
            return None
        if "READY" not in lines:
            return None
        env = dict(line.split("=", 1) for line in lines if "=" in line)
        nodes = sorted(line.removeprefix("/dev/") for line in lines if line.startswith("/dev/"))
        return Received(env, tuple(nodes))

    def _manifest(self, pod: PodSpec) -> dict[str, Any]:
        containers = {
            kind: [self._container(each) for each in pod.containers if each.kind is kind] for kind in ContainerKind
        }
        return {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": self.own_name(pod.name), "annotations": dict(pod.annotations)},
            "spec": {
                "nodeName": self.node_name,
                "restartPolicy": "Never" if pod.ends else "Always",
                "terminationGracePeriodSeconds": 1,
                "tolerations": [{"operator": "Exists"}],
                "automountServiceAccountToken": False,
                "initContainers": [
                    self._container(each) for each in pod.containers if each.kind is not ContainerKind.APP
                ],
                "containers": containers[ContainerKind.APP],
                "resourceClaims": [{"name": name, "resourceClaimName": self.own_name(name)} for name in pod.claims],
            },
        }

    def _container(self, spec: ContainerSpec) -> dict[str, Any]:
        script = OPEN + SCRIPT + STAY if spec.opens else SCRIPT
        if spec.exits is not None:
            script += f"sleep {SECONDS_TO_BE_KNOWN}; exit {spec.exits}"
        elif spec.kind is not ContainerKind.INIT:
            script += RUN_ON
        sidecar = {"restartPolicy": "Always"} if spec.kind is ContainerKind.SIDECAR else {}
        return {
            "name": spec.name,
            "image": self._pod_image,
            "command": ["sh", "-c", script],
            "resources": spec.resources,
            **sidecar,
        }

    def own_name(self, name: str) -> str:
        """Of its own for each run: the kubelet's memory of an earlier pod of that name must not matter."""
        return f"np-conformance-{self._run}-{name}"

    async def ask(
        self, method: str, path: str, body: dict[str, Any] | None = None, content_type: str = JSON
    ) -> dict[str, Any]:
        request = ApiRequest(method, path, body=body, content_type=content_type)
        answer: dict[str, Any] = json.loads(await send(self.api, request, timeout_seconds=TIMEOUT_SECONDS))
        return answer


def _resize(status: Mapping[str, Any]) -> str:
    """Why a change of CPU is not begun, by the pod's condition; empty when it is."""
    pending = [each for each in status.get("conditions") or () if each["type"] == "PodResizePending"]
    return "".join(f"{each.get('reason', '')}: {each.get('message', '')}" for each in pending)


def _cpu(status: Mapping[str, Any]) -> str:
    told: Mapping[str, Any] = next(iter(status.get("containerStatuses") or ()), {})
    return str(((told.get("resources") or {}).get("requests") or {}).get("cpu", ""))
