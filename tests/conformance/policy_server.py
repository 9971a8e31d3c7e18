"""An API server in which policies of a kept rendering hold, for one run and beside any that are installed.

Policies and bindings get names of the run, and what they are bound to is the run's: pods with its label, or its
namespace. Objects that are not only tried (``dryRun``) are deleted in the end.
"""

from __future__ import annotations

import asyncio
import copy
import json
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from neuron_plugin.allocation import Resource
from neuron_plugin.cluster import ApiError, ApiRequest, ApiServer
from neuron_plugin.cluster.api import JSON, MERGE_PATCH, send
from neuron_plugin.cluster.client import connect
from tests.support.official_client import official_client

REGISTRATION = "/apis/admissionregistration.k8s.io/v1"
PLURALS = {
    f"{way}AdmissionPolicy{part}": f"{way.lower()}admissionpolic{'ybindings' if part else 'ies'}"
    for way in ("Validating", "Mutating")
    for part in ("", "Binding")
}
LABEL = "np-conformance"
IN_FORCE_SECONDS = 60.0
"""Within which a policy that was written holds: the API server compiles one after the other."""
NEURON, DEVICE, CORE = (resource.value for resource in Resource)

Body = dict[str, Any]
"""An object as JSON gives it."""


@dataclass(frozen=True)
class Server:
    """One user's connection to the API server, and the run that policies are made for."""

    api: ApiServer
    run: str
    undo: AsyncExitStack = field(repr=False)

    async def ask(self, method: str, path: str, body: Mapping[str, Any] | None = None, **query: str) -> Body:
        """The answer to one request.

        Raises:
            ApiError: refused; the text is the policy's.
        """
        content = MERGE_PATCH if method == "PATCH" else JSON
        sent = None if body is None else dict(body)
        return await self.send(ApiRequest(method, path, query, body=sent, content_type=content))

    async def send(self, request: ApiRequest) -> Body:
        """The answer to a request of the program's own."""
        loaded: Body = json.loads(await send(self.api, request, timeout_seconds=20))
        return loaded

    async def why_not(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> str:
        """Why a request is refused; empty for one that is not. Nothing is changed."""
        try:
            await self.ask(method, path, body, dryRun="All")
        except ApiError as error:
            return str(error)
        return ""

    async def make(self, path: str, body: Mapping[str, Any]) -> Body:
        """Create an object that is deleted when the run ends."""
        made = await self.ask("POST", path, body)
        self.undo.push_async_callback(self.forget, f"{path}/{made['metadata']['name']}")
        return made

    async def forget(self, path: str) -> None:
        """Delete an object at once if it is still there."""
        try:
            await self.ask("DELETE", path, gracePeriodSeconds="0")
        except ApiError as error:
            if error.status != 404:
                raise

    async def apply(self, manifests: Iterable[Body], matches: Body) -> None:
        """Put policies and bindings in force for what ``matches`` says, under names of this run."""
        for manifest in manifests:
            mine = copy.deepcopy(manifest)
            mine["metadata"] = {"name": f"{mine['metadata']['name']}-{self.run}"}
            if "policyName" in mine["spec"]:
                mine["spec"]["policyName"] += f"-{self.run}"
                mine["spec"]["matchResources"] = matches
            await self.make(f"{REGISTRATION}/{PLURALS[mine['kind']]}", mine)

    async def installed(self) -> list[str]:
        """The names of the chart's own policies in the cluster, which hold for what a run does, too."""
        path = f"{REGISTRATION}/validatingadmissionpolicies"
        listed = await self.ask("GET", path, labelSelector="app.kubernetes.io/name=neuron-plugin")
        return [policy["metadata"]["name"] for policy in listed["items"]]

    async def as_account(self, namespace: str, name: str, kubeconfig: Path, bound: Body | None = None) -> Server:
        """The same server, asked with a token of a service account, which may be bound to a pod."""
        spec = {"audiences": [], "expirationSeconds": 3600}
        if bound:
            spec["boundObjectRef"] = {"kind": "Pod", "name": bound["metadata"]["name"], "uid": bound["metadata"]["uid"]}
        path = f"/api/v1/namespaces/{namespace}/serviceaccounts/{name}/token"
        token = (await self.ask("POST", path, {"spec": spec}))["status"]["token"]
        config = yaml.safe_load(kubeconfig.read_text())
        for user in config["users"]:
            user["user"] = {"token": token}
        with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
            yaml.safe_dump(config, file)
            file.flush()
            # Ours, which can watch, too: with these rights the daemons' own parts are run.
            api = await self.undo.enter_async_context(await connect(Path(file.name)))
        return Server(api, self.run, self.undo)


async def in_force(what: str, holds: Callable[[], Awaitable[object]]) -> None:
    """Wait until what a policy does is seen.

    Raises:
        TimeoutError: it is not after ``IN_FORCE_SECONDS``; the text names it.
    """
    try:
        async with asyncio.timeout(IN_FORCE_SECONDS):
            while not await holds():
                await asyncio.sleep(0.2)
    except TimeoutError:
        raise TimeoutError(f"after {IN_FORCE_SECONDS:g} s it does not hold yet: {what}") from None


@asynccontextmanager
async def opened(kubeconfig: Path, run: str) -> AsyncIterator[Server]:
    """The server as the kubeconfig's user; what the run has made is deleted in the end."""
    async with official_client(kubeconfig) as api, AsyncExitStack() as undo:
        yield Server(api, run, undo)


def pod(*limits: dict[str, str], **more: object) -> Body:
    """A pod's spec: a container for each of ``limits``."""
    containers = [
        {"name": f"c{number}", "image": "none", "resources": {"limits": each}} for number, each in enumerate(limits)
    ]
    return {"automountServiceAccountToken": False, "containers": containers, **more}
