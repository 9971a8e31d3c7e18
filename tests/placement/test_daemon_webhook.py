"""The webhook's port beside the scheduler's: open to callers without a certificate, and to nothing but reviews."""

from __future__ import annotations

import ssl
from base64 import b64decode
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest
import trustme

from neuron_plugin.allocation import Resource
from neuron_plugin.allocation.keys import GATE
from neuron_plugin.cluster import KubernetesApi
from tests.placement.test_daemon_standby import free_port
from tests.support.manifests import pod_manifest
from tests.support.running import SETTINGS, extender_on


@pytest.fixture
def authority() -> trustme.CA:
    return trustme.CA()


def review(pod: object) -> dict[str, Any]:
    request = {"uid": "review-1", "operation": "CREATE", "object": pod}
    return {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request}


async def test_the_api_server_has_new_pods_gated_without_a_certificate_of_its_own(
    api: KubernetesApi, authority: trustme.CA, tmp_path: Path
) -> None:
    ca, chain, key = tmp_path / "ca.crt", tmp_path / "tls.crt", tmp_path / "tls.key"
    leaf = authority.issue_cert("127.0.0.1")
    authority.cert_pem.write_to_path(str(ca))
    leaf.cert_chain_pems[0].write_to_path(str(chain))
    leaf.private_key_pem.write_to_path(str(key))
    settings = msgspec.structs.replace(SETTINGS, tls_cert=chain, tls_key=key, client_ca=ca, webhook_port=free_port())
    context = ssl.create_default_context()
    authority.configure_trust(context)
    pod = pod_manifest("pod", Resource.NEURON, 4)
    pod["metadata"]["annotations"] = {"large": "x" * 200_000}

    async with (
        extender_on(api, settings) as extender,
        aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=context)) as session,
    ):
        url = f"https://127.0.0.1:{settings.webhook_port}"
        async with session.post(f"{url}/gate", json=review(pod)) as answer:
            patch = msgspec.json.decode(b64decode((await answer.json())["response"]["patch"]))
        pod["spec"]["schedulerName"] = "neuron-scheduler"
        async with session.post(f"{url}/gate/neuron-scheduler", json=review(pod)) as answer:
            former = msgspec.json.decode(b64decode((await answer.json())["response"]["patch"]))
        copy = {**pod, "metadata": {**pod["metadata"], "annotations": {"NEURON_DEVS": "0"}}}
        async with session.post(f"{url}/copies", json=review(copy)) as answer:
            taken_off = msgspec.json.decode(b64decode((await answer.json())["response"]["patch"]))
        async with session.post(f"{url}/gate", json={"kind": "Pod"}) as answer:
            refused = answer.status, await answer.text()
        others = [(await session.post(f"{url}/{path}", json={})).status for path in ("filter", "bind", "metrics")]
        with pytest.raises(aiohttp.ClientError):
            await session.post(f"https://127.0.0.1:{extender.daemon.port}/filter", json={})

    assert patch == [{"op": "add", "path": "/spec/schedulingGates", "value": [{"name": GATE}]}]
    assert [change["path"] for change in former] == ["/spec/schedulerName", "/spec/schedulingGates"]
    assert [change["path"] for change in taken_off] == ["/metadata/annotations/NEURON_DEVS"]
    assert refused[0] == 400
    assert "expected admission.k8s.io/v1" in refused[1]
    assert others == [404] * 3
