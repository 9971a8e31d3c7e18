"""docs/eks.md and docs/terraform.md: what goes to eksctl, Terraform and Kubernetes is read, as far as that goes.

The commands are tried by ``test_commands``, the ``console`` blocks beside a playground by ``test_platforms``.
"""

from __future__ import annotations

from typing import Any

import hcl2
import pytest
import yaml

from neuron_plugin.topology import catalogue
from tests.charts.rendering import CHART
from tests.docs.test_pages import DOCS, blocks

PAGE = DOCS / "eks.md"
DOCUMENTS: list[Any] = [each for text in blocks(PAGE, "yaml") for each in yaml.safe_load_all(text)]

GROUP_KEYS = {
    "name", "instanceType", "amiFamily", "availabilityZones", "privateNetworking", "efaEnabled", "minSize", "maxSize",
    "desiredCapacity", "volumeSize", "taints", "bottlerocket", "capacityReservation", "instanceMarketOptions",
}  # fmt: skip
"""Of ManagedNodeGroup in eksctl 0.231.0 (its assets/schema.json), as far as the page uses it."""

AMI_TYPES = {"AL2023_x86_64_NEURON", "BOTTLEROCKET_x86_64"}
EFA_INTERFACES = {"trn1.32xlarge": 8, "trn2.48xlarge": 16}


def groups() -> list[dict[str, Any]]:
    """Every managed node group on the page."""
    return [group for each in DOCUMENTS for group in each.get("managedNodeGroups", ())]


def terraform() -> dict[str, Any]:
    (text,) = blocks(DOCS / "terraform.md", "hcl")
    loaded: dict[str, Any] = hcl2.loads(text)
    return loaded


def resource(kind: str) -> dict[str, Any]:
    """The only resource of a kind."""
    found = [
        body
        for each in terraform()["resource"]
        for name, bodies in each.items()
        if name.strip('"') == kind
        for body in bodies.values()
    ]
    assert len(found) == 1, kind
    body: dict[str, Any] = found[0]
    return body


@pytest.mark.parametrize("group", groups(), ids=lambda group: group["name"])
def test_a_node_group_is_one_that_eksctl_accepts(group: dict[str, Any]) -> None:
    assert group.keys() <= GROUP_KEYS
    if group["name"] == "system":
        return
    assert group["instanceType"] in catalogue()
    assert group["amiFamily"] in {"AmazonLinux2023", "Bottlerocket"}
    if group.get("efaEnabled"):
        assert len(group["availabilityZones"]) == 1, "eksctl refuses more"
        assert group["privateNetworking"], "no public address for an instance with several cards"
        tainted = {taint["key"] for taint in group.get("taints", ())}
        assert not tainted - {"aws.amazon.com/efa"}, "eksctl's EFA plugin would not run there"
    if "instanceMarketOptions" in group:
        assert group["instanceMarketOptions"] == {"marketType": "capacity-block"}
        assert group["capacityReservation"]["capacityReservationTarget"]["capacityReservationID"].startswith("cr-")
        assert group["desiredCapacity"] == 0


def test_the_chart_runs_on_every_instance_type_of_the_page() -> None:
    known = yaml.safe_load((CHART / "values.yaml").read_text("utf-8"))["devicePlugin"]["nodeAffinity"]["instanceTypes"]
    assert {group["instanceType"] for group in groups() if group["name"] != "system"} <= set(known)


def test_terraform_makes_a_group_of_the_ami_for_neuron_with_all_interfaces() -> None:
    group, template = resource("aws_eks_node_group"), resource("aws_launch_template")
    assert group["ami_type"].strip('"') in AMI_TYPES
    instance_type = template["instance_type"].strip('"')
    (interfaces,) = (each for each in template["dynamic"] if "network_interfaces" in str(next(iter(each))))
    body = next(iter(interfaces.values()))
    assert f"range({EFA_INTERFACES[instance_type]})" in str(body["for_each"])
    assert "CAPACITY_BLOCK" in group["capacity_type"]
