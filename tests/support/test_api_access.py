from __future__ import annotations

from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.support.api_access import Access, Right, in_namespace
from tests.support.api_server import StandInApiServer

LEASES = "coordination.k8s.io"
MERGE = {"Content-Type": "application/merge-patch+json"}


async def asked(server: StandInApiServer, method: str, path: str, body: Any = None, **options: Any) -> tuple[int, str]:
    """The status of a request by ``anna``, and what was said."""
    headers = {"Authorization": "Bearer anna", **options.pop("headers", {})}
    async with (
        aiohttp.ClientSession(server.url) as session,
        session.request(method, path, json=body, headers=headers, **options) as answer,
    ):
        return answer.status, (await answer.json()).get("message", "")


@pytest.mark.parametrize(
    ("right", "method", "path"),
    [
        (Right("", "pods", "list"), "GET", "/api/v1/pods"),
        (Right("", "pods", "watch"), "GET", "/api/v1/pods?watch=true&timeoutSeconds=0&resourceVersion=1"),
        (Right("", "pods", "get"), "GET", "/api/v1/namespaces/default/pods/a"),
        (Right("", "pods", "get", "a"), "GET", "/api/v1/namespaces/default/pods/a"),
        (Right("", "pods/status", "patch"), "PATCH", "/api/v1/namespaces/default/pods/a/status"),
        (Right("", "pods/binding", "create"), "POST", "/api/v1/namespaces/default/pods/a/binding"),
        (Right("", "nodes", "patch"), "PATCH", "/api/v1/nodes/n"),
        (Right(LEASES, "leases", "create"), "POST", f"/apis/{LEASES}/v1/namespaces/default/leases"),
        (Right(LEASES, "leases", "update"), "PUT", f"/apis/{LEASES}/v1/namespaces/default/leases/a"),
        (Right(LEASES, "leases", "delete"), "DELETE", f"/apis/{LEASES}/v1/namespaces/default/leases/a"),
        (Right(LEASES, "leases", "deletecollection"), "DELETE", f"/apis/{LEASES}/v1/namespaces/default/leases"),
    ],
)
async def test_a_request_takes_the_right_to_it_and_no_other_will_do(right: Right, method: str, path: str) -> None:
    others = {"get", "list", "watch", "create", "update", "patch", "delete"} - {right.verb}
    async with StandInApiServer() as server:
        access = Access(server)
        access.permit("anna", [Right(right.group, right.resource, verb) for verb in others])
        headers = MERGE if method == "PATCH" else {}
        assert (await asked(server, method, path, {}, headers=headers))[0] == 403
        access.permit("anna", [right])
        status = (await asked(server, method, path, {}, headers=headers))[0] if right.verb != "watch" else 200
        assert status not in {401, 403}
        assert access.used["anna"] == ({right} if right.verb != "watch" else set())


async def test_a_refusal_names_user_verb_resource_and_place() -> None:
    async with StandInApiServer() as server:
        Access(server).permit("anna", in_namespace([Right("", "pods", "get", "b")], "default"))
        assert await asked(server, "GET", "/api/v1/pods") == (
            403,
            'pods is forbidden: User "anna" cannot list resource "pods" in API group "" at the cluster scope',
        )
        _, said = await asked(server, "PATCH", "/api/v1/namespaces/default/pods/b/status", {}, headers=MERGE)
        assert said.startswith('pods "b" is forbidden: User "anna" cannot patch resource "pods/status" in API group ""')
        assert said.endswith('in the namespace "default"')
        assert (await asked(server, "GET", "/api/v1/namespaces/default/pods/a"))[0] == 403, "for another name"
        assert (await asked(server, "GET", "/api/v1/namespaces/other/pods/b"))[0] == 403, "of another namespace"
        assert (await asked(server, "GET", "/api/v1/namespaces/default/pods/b"))[0] == 404


async def test_every_user_may_do_everything_unless_access_is_guarded(tmp_path: Path) -> None:
    async with StandInApiServer() as server:
        assert (await asked(server, "GET", "/api/v1/pods"))[0] == 200
        Access(server).permit("berta", [Right("", "pods", "list")])
        assert (await asked(server, "GET", "/api/v1/pods"))[0] == 401
        assert '"token":"berta"' in server.write_kubeconfig(tmp_path / "config", "berta").read_text()
