from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from neuron_plugin.cluster import ApiError, ApiRequest, Clock, KubernetesApi, Response, UnreachableError
from neuron_plugin.extender.survey import LOOK_SECONDS, PATIENCE_SECONDS, survey
from neuron_plugin.simulation import StandInApiServer, node_manifest, pod_manifest
from neuron_plugin.topology import catalogue
from tests.extender.running import Extender, until
from tests.extender.world import DEVICE


async def test_a_survey_sees_what_a_running_extender_sees(
    server: StandInApiServer, api: KubernetesApi, extender: Extender
) -> None:
    server.create_node(node_manifest("node", "trn1.32xlarge"))
    server.create_pod(pod_manifest("bound", DEVICE, 1, node="node", annotations={"NEURON_DEVS": "3"}))
    server.create_pod(pod_manifest("waiting", DEVICE, 4))
    server.create_pod(pod_manifest("plain", DEVICE, 0))
    await until(lambda: extender.daemon.state.nodes and len(extender.daemon.state.pods) == 2)

    found = await survey(api, catalogue())

    assert dict(found.pods) == dict(extender.daemon.state.pods)
    assert found.nodes["node"] == extender.daemon.state.nodes["node"]


async def test_an_absent_api_server_is_told(server: StandInApiServer, api: KubernetesApi) -> None:
    await server.stop()

    with pytest.raises(UnreachableError):
        await survey(api, catalogue())


class LeasesServer:
    """An API server of one node, whose plugin's lease is told as the test has it, look by look."""

    def __init__(self, *answers: Sequence[dict[str, Any]] | ApiError) -> None:
        self._answers = list(answers)
        self.looks = 0

    async def request(self, request: ApiRequest, *, timeout_seconds: float) -> Response:
        assert timeout_seconds > 0
        items: Sequence[dict[str, Any]] = []
        if "/leases" in request.path:
            answer = self._answers[min(self.looks, len(self._answers) - 1)]
            self.looks += 1
            if isinstance(answer, ApiError):
                raise answer
            items = answer
        elif request.path.endswith("/nodes"):
            items = [node_manifest("node", "trn1.32xlarge")]
        return Response(200, msgspec.json.encode({"metadata": {"resourceVersion": "1"}, "items": items}))

    def stream(self, request: ApiRequest, *, silence_seconds: float) -> Any:
        raise NotImplementedError(request, silence_seconds)


def lease(version: int, holder: str = "node", *, seconds: int = 8, name: str = "neuron-plugin-node") -> dict[str, Any]:
    return {
        "metadata": {"name": name, "uid": name, "resourceVersion": str(version)},
        "spec": {"holderIdentity": holder, "leaseDurationSeconds": seconds},
    }


async def surveyed(server: LeasesServer, namespace: str = "kube-system") -> tuple[bool, float]:
    """Whether the plugin was found silent, and how long it took in faked time."""
    loop = asyncio.get_running_loop()
    started = loop.time()
    found = await survey(
        server, catalogue(), lease_namespace=namespace, clock=Clock(now=loop.time, sleep=asyncio.sleep)
    )
    return found.nodes["node"].stale, loop.time() - started


@pytest.mark.looptime
async def test_e07_a_plugin_whose_lease_is_renewed_under_our_eyes_is_not_silent() -> None:
    silent, took = await surveyed(LeasesServer([lease(1)], [lease(1)], [lease(2)]))

    assert not silent
    assert took == pytest.approx(2 * LOOK_SECONDS)


@pytest.mark.looptime
async def test_e07_a_lease_that_runs_out_under_our_eyes_makes_its_node_stale() -> None:
    silent, took = await surveyed(LeasesServer([lease(1), lease(1, name="kube-scheduler", seconds=3600)]))

    assert silent
    assert took == pytest.approx(8, abs=LOOK_SECONDS)


@pytest.mark.looptime
async def test_e07_a_lease_that_was_given_up_takes_one_look() -> None:
    assert await surveyed(LeasesServer([lease(1, holder="")])) == (True, 0.0)


@pytest.mark.looptime
async def test_a_lease_that_lasts_long_is_not_waited_for() -> None:
    silent, took = await surveyed(LeasesServer([lease(1, seconds=3600)]))

    assert not silent
    assert took == pytest.approx(PATIENCE_SECONDS, abs=LOOK_SECONDS)


@pytest.mark.looptime
async def test_without_the_right_to_read_leases_or_a_place_to_look_for_them_plugins_go_unjudged() -> None:
    forbidden = ApiError(status=403, reason="Forbidden", message="no", method="GET", path="/leases")

    assert await surveyed(LeasesServer(forbidden)) == (False, 0.0)
    assert await surveyed(LeasesServer([lease(1, holder="")]), namespace="") == (False, 0.0)
