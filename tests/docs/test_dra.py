"""The claim templates on the page about claims mean to the program what the page says."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from neuron_plugin.allocation.claims import DRA_DRIVER, ClaimRequest
from neuron_plugin.cluster.claims import ResourceClaim, neuron_claim
from neuron_plugin.topology import Unit

PAGE = Path(__file__).parents[2] / "docs/dra.md"
EXPECTED = {
    "one-device": ("neuron", Unit.DEVICE, 1, 0),
    "four-linked-devices": ("neuron", Unit.DEVICE, 4, 0),
    "all-devices": ("neuron", Unit.DEVICE, 0, 0),
    "one-row-of-a-trn2": ("neuron", Unit.DEVICE, 4, 0),
    "one-device-with-large-cores": ("neuron", Unit.DEVICE, 1, 2),
    "two-cores": ("cores", Unit.CORE, 2, 0),
}


def manifests(kind: str) -> dict[str, dict[str, Any]]:
    texts = re.findall(r"```yaml\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    found = [each for text in texts for each in yaml.safe_load_all(text)]
    return {each["metadata"]["name"]: each for each in found if each["kind"] == kind}


def test_every_template_is_judged() -> None:
    assert set(manifests("ResourceClaimTemplate")) == set(EXPECTED)
    (pod,) = manifests("Pod").values()
    assert pod["spec"]["resourceClaims"][0]["resourceClaimTemplateName"] in EXPECTED


@pytest.mark.parametrize("name", EXPECTED)
def test_a_template_asks_for_what_its_name_says(name: str) -> None:
    template = manifests("ResourceClaimTemplate")[name]
    manifest = {"metadata": {"name": name, "namespace": "ml", "uid": "u"}, "spec": template["spec"]["spec"]}
    claim = neuron_claim(msgspec.json.decode(msgspec.json.encode(manifest), type=ResourceClaim), DRA_DRIVER)
    assert isinstance(claim.requests, tuple), claim.requests
    (request,) = claim.requests
    assert isinstance(request, ClaimRequest)
    assert (request.name, request.unit, request.count, claim.logical_core_size) == EXPECTED[name]
