"""Pre-flight checks in the chart: nothing without them, and with them what the controller needs and no more (P81)."""

from __future__ import annotations

import operator
from functools import reduce

import msgspec
import pytest
import yaml

from neuron_plugin.cluster import KubernetesApi
from neuron_plugin.placement.check_pods import CLAIM, check_manifest
from neuron_plugin.placement.settings import OnUnable, PreflightSettings
from tests.charts.manifests import embedded, of_kind, rendered
from tests.charts.rendering import Manifest, render
from tests.charts.templates import TemplateFailError
from tests.charts.test_policies import expressions, policy, resources
from tests.charts.test_rbac import Rule, rules
from tests.charts.test_rights_of_gates import asked
from tests.placement.test_group_checks import Ring
from tests.placement.test_preflight import Life
from tests.support.api_server import StandInApiServer
from tests.support.manifests import node_manifest
from tests.support.world import node_of

NAME, ACCOUNT = "gates-preflight", "neuron-plugin-extender"
CHECKED = ("neuron-plugin-preflight", "neuron-plugin-checked-nodes")
"""The policies."""
RIGHTS = {("", "nodes", "patch", ""), ("", "pods", "create", ""), ("", "pods", "delete", "")}


def chart_settings() -> PreflightSettings:
    """The checks as the chart tells the controller."""
    return msgspec.convert(embedded(NAME, ACCOUNT, "config.yaml")["preflight"], PreflightSettings)


def granted(name: str) -> set[Rule]:
    roles = [of_kind(name, kind)[ACCOUNT] for kind in ("ClusterRole", "Role")]
    return set().union(*map(rules, roles))


def test_without_checks_there_is_no_right_no_policy_and_no_setting() -> None:
    # Pods may be deleted with placement gates anyway.
    assert granted(NAME) - granted("gates") == RIGHTS - {("", "pods", "delete", "")}
    assert not of_kind("gates", "ValidatingAdmissionPolicy").keys() & {*CHECKED}
    assert "preflight" not in embedded("gates", ACCOUNT, "config.yaml")


async def test_p81_checks_need_every_right_they_have_and_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    life = Life(monkeypatch)
    life.add("n0")
    life.faults["n0"] = 3
    await life.turns(12)
    assert asked(life.server) <= granted(NAME)
    assert asked(life.server) >= RIGHTS


def test_the_chart_s_values_are_those_of_the_check() -> None:
    settings = chart_settings()
    assert (settings.timeout, settings.retry, settings.parallel, settings.on_unable) == (600, 0, 4, OnUnable.CLOSED)
    pod = check_manifest(settings, node_of(node_manifest("n0", "inf2.48xlarge")), "kube-system")
    (container,) = pod["spec"]["containers"]
    assert container["image"] == "registry.example.com/neuron-tools:2"
    assert "nccom-test" in container["command"][-1]
    assert container["resources"]["limits"] == {"aws.amazon.com/neuron": "12"}
    assert {"name": "NEURON_PREFLIGHT_CORES", "value": "24"} in container["env"]
    assert pod["spec"]["imagePullSecrets"] == [{"name": "registry"}]
    assert (pod["spec"]["nodeName"], pod["spec"]["automountServiceAccountToken"]) == ("n0", False)


async def test_a_check_of_a_group_needs_no_other_right_and_is_as_the_chart_says(
    server: StandInApiServer, api: KubernetesApi
) -> None:
    ring = Ring(server, api, chart_settings())
    ring.nodes("ab")
    await ring.begin(2)
    for node, pod in ring.check_pods().items():
        (container,) = pod["spec"]["containers"]
        assert container["image"] == "registry.example.com/neuron-tools:2"
        assert container["command"] == ["sh", "-c", "all-reduce"]
        assert pod["spec"]["hostNetwork"] is True
        ring.end(node)
    await ring.turn()
    await ring.place_all()
    assert all(ring.places(2))
    assert asked(ring.server) <= granted(NAME)


def test_what_the_controller_assigns_to_a_check_is_not_taken_off_as_from_a_copied_pod() -> None:
    (condition,) = of_kind(NAME, "MutatingAdmissionPolicy")["neuron-plugin-copies"]["spec"]["matchConditions"]
    user = f"system:serviceaccount:kube-system:{ACCOUNT}"
    assert condition["expression"].startswith(f"request.userInfo.username != '{user}' && (['NEURON_DEVS'")


def test_the_policies_are_of_the_controller_and_of_what_it_writes() -> None:
    made, described = (policy(NAME, name.removeprefix("neuron-plugin-")) for name in CHECKED)
    assert resources(made) == {("CREATE", "pods")}
    assert resources(described) == {("UPDATE", "nodes")}
    for spec in (made, described):
        assert spec["failurePolicy"] == "Fail"
        assert f"serviceaccount:kube-system:{ACCOUNT}'" in spec["matchConditions"][0]["expression"]
    for word in ("['node', 'group']", "registry.example.com/neuron-tools:2", "hostPID", "privileged", "emptyDir"):
        assert word in expressions(made)


def test_where_claims_are_placed_a_check_has_one_and_the_controller_needs_no_right_for_it() -> None:
    by_claims = {"devicePlugin": {"mode": "dra"}, "placement": "gates"}
    checked = {"preflight": {"enabled": True, "image": "i"}}

    def made_of(*values: Manifest) -> dict[tuple[str, str], Manifest]:
        return rendered(reduce(operator.or_, values))

    made = made_of(by_claims, checked)
    settings = yaml.safe_load(made["ConfigMap", ACCOUNT]["data"]["config.yaml"])
    (template,) = (each for (kind, _), each in made.items() if kind == "ResourceClaimTemplate")
    assert template["metadata"] == {
        **template["metadata"],
        "name": "neuron-plugin-preflight",
        "namespace": "kube-system",
    }
    assert settings["preflight"]["claim-template"] == template["metadata"]["name"]
    (request,) = template["spec"]["spec"]["devices"]["requests"]
    assert request == {"name": CLAIM, "exactly": {"deviceClassName": "neuron.aws.com", "allocationMode": "All"}}
    for values in ([by_claims], [checked], [by_claims, checked, {"gates": {"claims": False}}]):
        assert not any(kind == "ResourceClaimTemplate" for kind, _ in made_of(*values))
    with_claims = of_kind("gates-claims", "ClusterRole")[ACCOUNT]
    granted_twice = set().union(*(rules(made[kind, ACCOUNT]) for kind in ("ClusterRole", "Role")))
    assert granted_twice <= granted(NAME) | rules(with_claims)


@pytest.mark.parametrize(
    ("values", "complaint"),
    [
        ({"preflight": {"enabled": True}}, "preflight.image is empty"),
        ({"preflight": {"enabled": True, "image": "i"}, "placement": "none"}, "placement is none"),
    ],
)
def test_checks_that_nobody_could_make_are_refused(values: Manifest, complaint: str) -> None:
    with pytest.raises(TemplateFailError, match=complaint):
        render(values)
