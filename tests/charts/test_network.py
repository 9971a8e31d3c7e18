"""Who may talk to whom inside the cluster's network."""

from __future__ import annotations

from tests.charts.manifests import NAMES, containers, of_each, of_kind, pod_templates
from tests.charts.rendering import Manifest


def test_every_pod_has_a_policy_of_its_own() -> None:
    for name in NAMES:
        expected = set() if name == "without-fences" else {each.removesuffix("-dra") for each in pod_templates(name)}
        assert set(of_kind(name, "NetworkPolicy")) == expected


@of_each(NAMES)
def test_a_policy_selects_its_pods_and_names_their_ports(name: str) -> None:
    policies = of_kind(name, "NetworkPolicy")
    for workload, template in pod_templates(name).items() if policies else ():
        policy = policies[workload.removesuffix("-dra")]
        labels, selector = template["metadata"]["labels"], policy["spec"]["podSelector"]
        assert selector["matchLabels"].items() <= labels.items()
        for each in selector.get("matchExpressions", ()):
            assert labels[each["key"]] in each["values"]
        assert policy["spec"]["policyTypes"] == ["Ingress"]
        ports = {port["name"] for port in containers(template)[0]["ports"]}
        assert {port["port"] for rule in policy["spec"]["ingress"] for port in rule["ports"]} <= ports


def callers(name: str) -> list[Manifest]:
    """Who may reach the extender's verbs."""
    policy = of_kind(name, "NetworkPolicy")["neuron-plugin-extender"]
    (rule,) = (rule for rule in policy["spec"]["ingress"] if rule["ports"] == [{"port": "https"}])
    found = rule["from"]
    assert isinstance(found, list)
    return found


def test_only_the_second_scheduler_reaches_the_verbs() -> None:
    (caller,) = callers("second-scheduler")
    labels = pod_templates("second-scheduler")["neuron-plugin-scheduler"]["metadata"]["labels"]
    assert caller["podSelector"]["matchLabels"].items() <= labels.items()


def test_metrics_are_for_everybody_or_for_those_who_are_named() -> None:
    for name, expected in (("second-scheduler", 0), ("monitoring", 3)):
        named = [
            rule
            for policy in of_kind(name, "NetworkPolicy").values()
            for rule in policy["spec"]["ingress"]
            if "namespaceSelector" in str(rule.get("from"))
        ]
        assert len(named) == expected
