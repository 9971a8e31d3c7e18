"""Who gives new pods the gate: a policy, or a webhook where the API server has no such policies."""

from __future__ import annotations

import re
from typing import Any

import pytest
import yaml

from neuron_plugin.allocation.node_rules import DEFAULT_SCHEDULER
from neuron_plugin.placement.gates.webhook import COPIES_PATH, PATH
from tests.charts.manifests import embedded, of_kind, rendered
from tests.charts.rendering import CHART, Manifest, default_values
from tests.charts.templates import TemplateFailError

KINDS = {"MutatingAdmissionPolicy": "policy", "MutatingWebhookConfiguration": "webhook"}
NAME = "gates-webhook"
POLICY = "admissionregistration.k8s.io/v1/MutatingAdmissionPolicy"


def gated(values: Manifest, **asked: Any) -> dict[tuple[str, str], Manifest]:
    """Every object of placement gates with these values."""
    return rendered({"placement": "gates", **values}, **asked)


def webhook(found: dict[tuple[str, str], Manifest] | None = None, name: str = "gates") -> Manifest:
    made = found["MutatingWebhookConfiguration", "neuron-plugin-gates"] if found else None
    hooks = (made or of_kind(NAME, "MutatingWebhookConfiguration")["neuron-plugin-gates"])["webhooks"]
    (hook,) = (each for each in hooks if each["name"] == f"{name}.neuron-plugin.io")
    assert isinstance(hook, dict)
    return hook


def policy(name: str = "gates") -> Manifest:
    spec = of_kind("gates", "MutatingAdmissionPolicy")[f"neuron-plugin-{name}"]["spec"]
    assert isinstance(spec, dict)
    return spec


@pytest.mark.parametrize(
    ("admission", "kubernetes", "served", "chosen"),
    [
        ("auto", "1.36.0", (), "policy"),
        ("auto", "1.36.1-eks-1a2b3c", (), "policy"),
        ("auto", "1.35.9", (), "webhook"),
        ("auto", "1.30.0", (), "webhook"),
        ("auto", "1.36.0", ("v1/Pod",), "webhook"),  # with the feature off
        ("auto", "1.36.0", ("v1/Pod", POLICY), "policy"),
        ("webhook", "1.36.0", ("v1/Pod", POLICY), "webhook"),
        ("policy", "1.36.0", (), "policy"),
    ],
)
def test_what_the_cluster_serves_decides_who_gives_the_gate(
    admission: str, kubernetes: str, served: tuple[str, ...], chosen: str
) -> None:
    found = gated({"gates": {"admission": admission}}, kubernetes=kubernetes, served=served)
    assert [KINDS[kind] for kind, name in found if kind in KINDS and name == "neuron-plugin-gates"] == [chosen]
    ports = found["Service", "neuron-plugin-extender"]["spec"]["ports"]
    assert ("webhook" in {port["name"] for port in ports}) == (chosen == "webhook")
    settings = yaml.safe_load(found["ConfigMap", "neuron-plugin-extender"]["data"]["config.yaml"])
    assert ("webhook-port" in settings) == (chosen == "webhook")


def test_policy_and_webhook_gate_the_same_pods() -> None:
    assert webhook()["matchConditions"] == policy()["matchConditions"]
    (rule,) = policy()["matchConstraints"]["resourceRules"]
    assert webhook()["rules"] == [{**rule, "scope": "Namespaced"}]
    selector = {"matchLabels": {"neuron": "yes"}}
    chosen = webhook(gated({"gates": {"admission": "webhook", "namespaceSelector": selector}}))
    assert (chosen["namespaceSelector"], "namespaceSelector" in webhook()) == (selector, False)


def test_policy_and_webhook_take_the_same_off_the_same_pods_of_any_namespace() -> None:
    hook = webhook(name="copies")
    assert hook["matchConditions"] == policy("copies")["matchConditions"]
    (rule,) = policy("copies")["matchConstraints"]["resourceRules"]
    assert hook["rules"] == [{**rule, "scope": "Namespaced"}]
    assert hook["clientConfig"]["service"]["path"] == COPIES_PATH
    assert (hook["failurePolicy"], policy("copies")["failurePolicy"]) == ("Ignore", "Ignore")
    selected = gated({"gates": {"admission": "webhook", "namespaceSelector": {"matchLabels": {"neuron": "yes"}}}})
    assert "namespaceSelector" not in webhook(selected, "copies")
    assert "matchResources" not in of_kind("gates", "MutatingAdmissionPolicyBinding")["neuron-plugin-copies"]["spec"]


@pytest.mark.parametrize("kubernetes", ["1.35.9", "1.36.0"])
@pytest.mark.parametrize("policies", [True, False])
@pytest.mark.parametrize("placement", ["none", "gates"])
def test_copied_assignments_are_taken_off_wherever_somebody_would_be_refused_for_them(
    placement: str, kubernetes: str, *, policies: bool
) -> None:
    found = gated({"placement": placement, "policies": {"enabled": policies}}, kubernetes=kubernetes)
    served = kubernetes == "1.36.0"
    expected = served and (policies or placement == "gates")
    assert (("MutatingAdmissionPolicy", "neuron-plugin-copies") in found) is expected
    assert (("MutatingWebhookConfiguration", "neuron-plugin-gates") in found) is (not served and placement == "gates")


def test_a_webhook_that_does_not_answer_stops_no_pod() -> None:
    assert (webhook()["failurePolicy"], webhook()["sideEffects"], webhook()["timeoutSeconds"]) == ("Ignore", "None", 3)


def test_the_api_server_is_led_to_the_port_where_the_webhook_is_served() -> None:
    called = webhook()["clientConfig"]["service"]
    service = of_kind(NAME, "Service")[called["name"]]
    (port,) = (each for each in service["spec"]["ports"] if each["port"] == called["port"])
    (container,) = of_kind(NAME, "Deployment")["neuron-plugin-extender"]["spec"]["template"]["spec"]["containers"]
    (served,) = (each["containerPort"] for each in container["ports"] if each["name"] == port["targetPort"])
    assert embedded(NAME, "neuron-plugin-extender", "config.yaml")["webhook-port"] == served
    ingress = of_kind(NAME, "NetworkPolicy")["neuron-plugin-extender"]["spec"]["ingress"]
    assert {"ports": [{"port": port["targetPort"]}]} in ingress, "whoever calls"
    assert re.fullmatch(r"[a-z-]+\.[a-z-]+\.[a-z.]+", webhook()["name"]), "three segments, or the API server refuses it"


def test_those_who_may_call_the_webhook_can_be_named() -> None:
    peers = [{"ipBlock": {"cidr": "10.0.0.0/24"}}]
    found = gated({"gates": {"admission": "webhook"}, "networkPolicy": {"webhookFrom": peers}})
    ingress = found["NetworkPolicy", "neuron-plugin-extender"]["spec"]["ingress"]
    assert {"ports": [{"port": "webhook"}], "from": peers} in ingress


def test_pods_of_the_second_scheduler_that_is_no_more_go_to_the_default_one() -> None:
    former = default_values()["scheduler"]["customScheduler"]["schedulerName"]
    assert webhook()["clientConfig"]["service"]["path"] == f"{PATH}/{former}"
    (named,) = (
        each["expression"] for each in policy()["matchConditions"] if each["name"] == "by-the-default-scheduler"
    )
    assert yaml.safe_load(named[named.rindex("[") :]) == [DEFAULT_SCHEDULER, former]
    assert f"path: '/spec/schedulerName', value: '{DEFAULT_SCHEDULER}'" in str(policy()["mutations"])


def test_the_webhook_s_certificate_is_checked_by_the_authority_that_made_it() -> None:
    generated = (CHART / "templates/certificates-generated.yaml").read_text(encoding="utf-8")
    assert "$authority := $ca.Cert" in generated
    assert '$authority = index $oldServer.data "ca.crt"' in generated, "an upgrade keeps the authority, too"
    issued = gated({"gates": {"admission": "webhook"}, "certificates": {"mode": "certManager"}})
    annotations = issued["MutatingWebhookConfiguration", "neuron-plugin-gates"]["metadata"]["annotations"]
    assert annotations == {"cert-manager.io/inject-ca-from": "kube-system/neuron-plugin-extender"}
    assert ("Certificate", "neuron-plugin-extender") in issued
    assert "caBundle" not in webhook(issued)["clientConfig"], "cert-manager writes it"


def test_the_authority_of_a_certificate_that_is_brought_has_to_be_known() -> None:
    existing = {"certificates": {"mode": "existing"}}
    with pytest.raises(TemplateFailError, match=r"gates.caBundle is empty, and the secret neuron-plugin-extender-tls"):
        gated({"gates": {"admission": "webhook"}, **existing})
    given = {"admission": "webhook", "caBundle": "-----BEGIN CERTIFICATE-----\n"}
    assert webhook(gated({"gates": given, **existing}))["clientConfig"]["caBundle"].startswith("LS0tLS1CRUdJ")
