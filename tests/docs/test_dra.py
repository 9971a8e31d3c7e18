"""The claim templates on the page about claims mean to the program what the page says."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from neuron_plugin.allocation.claims import DRA_DRIVER, ClaimRequest
from neuron_plugin.cluster.claims import ResourceClaim, neuron_claim
from neuron_plugin.topology import Unit
from tests.support.playground import Playground

NEURON_PLUGIN = f"{sys.executable} -m neuron_plugin"
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


GIVEN = {
    "one-row-of-a-trn2": r"trn2-1, claim devices: neuron-8 neuron-9 neuron-10 neuron-11$",
    "one-device-with-large-cores": r"trn2-1, claim devices: neuron-\d+$",
    "all-devices": r"trn1-\d, claim devices:( neuron-\d+){16}$",  # no other node is whole any more
    "one-device": r"trn\d-\d, claim devices: neuron-\d+$",
    "four-linked-devices": r"claim devices: neuron-(0 .*-3|4 .*-7|8 .*-11|12 .*-15)$",
    "two-cores": r"claim devices: neuron-\d+-cores-\d+-\d+(-lnc-2)?$",
}
"""What a pod with a claim of each template is given; in the order in which all of them fit."""


@pytest.mark.timeout(180)
def test_each_template_of_the_page_is_served_in_the_playground(tmp_path: Path) -> None:
    (example,) = manifests("Pod").values()
    with Playground("--mode", "dra", "--nodes", "trn1.32xlarge=2,trn2.48xlarge=1") as play:
        for name, given in GIVEN.items():
            container = {**example["spec"]["containers"][0], "resources": {"claims": [{"name": "devices"}]}}
            claims = [{"name": "devices", "resourceClaimTemplateName": name}]
            pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}}
            pod |= {"spec": {"resourceClaims": claims, "containers": [container]}}
            file = tmp_path / f"{name}.yaml"
            file.write_text(yaml.safe_dump_all([manifests("ResourceClaimTemplate")[name], pod]), encoding="utf-8")
            created, *rest = play.run("run", "-f", str(file)).splitlines()
            assert created == f"resourceclaimtemplate default/{name} is created"
            assert re.search(rf"^pod default/{name} runs on .*{given}", "\n".join(rest)), rest
        config = play.directory / "trn2-1/plugin.json"
        assert "default/one-row-of-a-trn2/claim:" in play.shell(f"{NEURON_PLUGIN} devices --config {config}")
        assert "\nno problem" in play.shell(f"{NEURON_PLUGIN} doctor --config {config}")
        play.wait_for("--env NEURON_LOGICAL_NC_CONFIG=2")
        play.wait_for("--env NEURON_RT_VISIBLE_CORES=0,1")
