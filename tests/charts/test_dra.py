"""Nodes that offer their devices by claims: which they are, what they mount, who may write what about it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from neuron_plugin.allocation.claims import CORE_CLASS, DRA_DRIVER, DRA_DRIVERS
from neuron_plugin.cluster.claims import FINALIZER
from neuron_plugin.plugin.settings import Mode, PluginSettings
from tests.charts.manifests import NAMES, containers, embedded, of_each, of_kind, pod_templates, rendered, settings_of
from tests.charts.rendering import VALUES, Manifest, read, render
from tests.charts.test_policies import expressions, policy
from tests.charts.test_rbac import Rule, rules

SOME, ALL = "gates-claims", "dra-everywhere"
"""The value sets: a group of nodes with claims that the placement controller allocates, and all nodes without it."""
GROUP = "resource.k8s.io"


def node_selector(name: str, workload: str) -> tuple[dict[str, str], list[list[Manifest]]]:
    """The labels that a node needs, and the alternatives of the affinity."""
    spec = pod_templates(name)[workload]["spec"]
    terms = spec["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    return spec.get("nodeSelector", {}), [term["matchExpressions"] for term in terms]


def test_a_node_has_one_of_the_two_plugins_by_its_label() -> None:
    group = read(VALUES / f"{SOME}.yaml")["devicePlugin"]["dra"]["nodeSelector"]
    ((label, value),) = group.items()
    by_claims, anywhere = node_selector(SOME, "neuron-plugin-dra")
    assert (by_claims, label in str(anywhere)) == (group, False)
    by_count, elsewhere = node_selector(SOME, "neuron-plugin")
    assert by_count == {}
    assert all({"key": label, "operator": "NotIn", "values": [value]} in term for term in elsewhere)


def test_without_a_group_every_node_offers_claims() -> None:
    assert set(of_kind(ALL, "DaemonSet")) == {"neuron-plugin-dra"}
    assert node_selector(ALL, "neuron-plugin-dra")[0] == {"nodeinfo": "neuron"}


def test_claims_are_offered_only_where_that_is_asked_for() -> None:
    assert [name for name in NAMES if of_kind(name, "DeviceClass")] == [ALL, SOME]
    for name in set(NAMES) - {ALL, SOME}:
        roles = of_kind(name, "ClusterRole")
        for role in ("cleanup", "ungate", "ungate-all"):  # which have to know that there are none
            roles.pop(f"neuron-plugin-{role}", None)
        assert GROUP not in str(list(roles.values()))
        assert not [each for each in of_kind(name, "DaemonSet") if each.endswith("-dra")]


@of_each([SOME, ALL])
def test_the_plugins_of_a_node_that_changes_its_mode_never_meet(name: str) -> None:
    spec = pod_templates(name)["neuron-plugin-dra"]["spec"]
    # kube-scheduler tries again when a pod goes that all terms mean (interpodaffinity/plugin.go): more than one would
    # leave the pod Pending for minutes.
    (term,) = spec["affinity"]["podAntiAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    assert (term["topologyKey"], term["namespaceSelector"]) == ("kubernetes.io/hostname", {})
    (expression,) = term["labelSelector"]["matchExpressions"]
    labels = pod_templates("device-plugin")["neuron-plugin"]["metadata"]["labels"]
    assert expression == {"key": "name", "operator": "In", "values": ["neuron-device-plugin-ds", labels["name"]]}
    assert "name" not in pod_templates(name)["neuron-plugin-dra"]["metadata"]["labels"]


def test_the_selectors_of_the_two_daemonsets_have_no_pod_in_common() -> None:
    selectors = [each["spec"]["selector"]["matchLabels"] for each in of_kind(SOME, "DaemonSet").values()]
    labels = [pod_templates(SOME)[each]["metadata"]["labels"] for each in of_kind(SOME, "DaemonSet")]
    fits = [[selector.items() <= each.items() for each in labels] for selector in selectors]
    assert fits == [[True, False], [False, True]]


@pytest.mark.parametrize(("name", "driver", "placed"), [(SOME, DRA_DRIVER, True), (ALL, "neuron-plugin.io", False)])
def test_daemon_controller_and_class_mean_one_driver(name: str, driver: str, *, placed: bool, tmp_path: Path) -> None:
    (container,) = containers(pod_templates(name)["neuron-plugin-dra"])
    environment = {each["name"]: each.get("value", "") for each in container["env"]}
    loaded = settings_of(PluginSettings, name, "neuron-plugin", tmp_path, environment)
    assert (loaded.mode, loaded.dra_driver, loaded.placed_claims) == (Mode.DRA, driver, placed)
    assert settings_of(PluginSettings, name, "neuron-plugin", tmp_path).mode is Mode.DEVICE_PLUGIN
    assert driver in DRA_DRIVERS, "its claims count in the other mode, too"
    expected = {driver: f'device.driver == "{driver}"'}
    if placed:
        assert embedded(name, "neuron-plugin-extender", "config.yaml")["dra-driver"] == driver
        cores = 'device.attributes["neuron.aws.com"].?resourceType.orValue("") == "neuron_core"'
        expected[CORE_CLASS] = f'device.driver == "{driver}" && {cores}'
    selectors = {each: found["spec"]["selectors"] for each, found in of_kind(name, "DeviceClass").items()}
    assert selectors == {each: [{"cel": {"expression": text}}] for each, text in expected.items()}


def test_the_kubelets_directory_is_read_only_and_what_is_not_needed_of_it_is_hidden() -> None:
    for workload in of_kind(SOME, "DaemonSet"):
        (container,) = containers(pod_templates(SOME)[workload])
        mounts = [each for each in container["volumeMounts"] if each["mountPath"].startswith("/host/kubelet")]
        assert [each["mountPath"].removeprefix("/host/kubelet") for each in mounts] == ["", "/pods", "/plugins", "/pki"]
        assert all(each["readOnly"] for each in mounts)
        assert [each.get("mountPropagation") for each in mounts] == ["HostToContainer", None, None, None]
        volumes = {each["name"]: each for each in pod_templates(SOME)[workload]["spec"]["volumes"]}
        assert {each["name"] for each in mounts[1:]} == {"hidden"}
        assert volumes["hidden"] == {"name": "hidden", "emptyDir": {}}
    (container,) = containers(pod_templates(ALL)["neuron-plugin-dra"])
    assert [each["mountPath"] for each in container["volumeMounts"] if each["name"] == "hidden"] == [
        "/host/kubelet/pods"
    ]
    (constraints,) = of_kind(ALL, "SecurityContextConstraints").values()
    assert "emptyDir" in constraints["volumes"]


def test_what_is_mounted_for_claims_beside_that() -> None:
    mounts = {
        workload: {each["name"] for each in containers(pod_templates(SOME)[workload])[0]["volumeMounts"]}
        for workload in of_kind(SOME, "DaemonSet")
    }
    assert mounts["neuron-plugin-dra"] - mounts["neuron-plugin"] == {"cdi", "plugins-registry"}


def granted(name: str, role: str) -> set[Rule]:
    return {rule for rule in rules(of_kind(name, "ClusterRole")[role]) if rule[0] == GROUP}


def test_p81_rights_about_claims_are_exactly_these() -> None:
    slices = {(GROUP, "resourceslices", verb, "") for verb in ("list", "watch", "create", "update", "delete")}
    assert (
        granted(ALL, "neuron-plugin")
        == granted(SOME, "neuron-plugin")
        == slices | {(GROUP, "resourceclaims", "get", "")}
    )
    assert granted(SOME, "neuron-plugin-extender") == {
        *((GROUP, "resourceclaims", verb, "") for verb in ("get", "list", "watch", "patch")),
        *((GROUP, f"resourceclaims/{part}", "patch", "") for part in ("status", "binding")),
    }


def test_p81_the_plugin_is_fenced_to_slices_of_its_own_node_and_driver() -> None:
    judged = expressions(policy(ALL, "own-slices"))
    for condition in ("variables.node != ''", "== variables.node", "variables.slice.spec.driver == 'neuron-plugin.io'"):
        assert condition in judged


def test_p81_the_placement_controller_is_fenced_to_allocations_of_our_driver() -> None:
    spec = policy(SOME, "claims")
    assert set(re.findall(r"each == '([^']+)'", expressions(spec))) == {FINALIZER}
    assert f"each.driver == '{DRA_DRIVER}'" in expressions(spec)


CLAIMS = "object.spec.?resourceClaims.orValue([]).size() > 0"


@pytest.mark.parametrize("admission", ["policy", "webhook"])
@pytest.mark.parametrize("mode", ["dra", "device-plugin"])
@pytest.mark.parametrize("claims", [True, False])
def test_pods_with_claims_are_gated_where_claims_are_placed(admission: str, mode: str, *, claims: bool) -> None:
    gates = {"admission": admission, "claims": claims}
    values = {"placement": "gates", "gates": gates, "devicePlugin": {"mode": mode}}
    found = {each["kind"]: each for each in yaml.safe_load_all(render(values)) if "gates" in each["metadata"]["name"]}
    hook = found.get("MutatingWebhookConfiguration", {"webhooks": [{}]})["webhooks"][0]
    gating = found["MutatingAdmissionPolicy"]["spec"] if admission == "policy" else hook
    (asks,) = (each for each in gating["matchConditions"] if each["name"] == "asks-for-neuron")
    assert asks["expression"].endswith(f" || {CLAIMS}") == (claims and mode == "dra")


def test_a_placed_pod_with_claims_may_be_taken_back() -> None:
    first = policy(SOME, "placement")["validations"][0]
    assert f"dyn(oldObject).{CLAIMS.removeprefix('object.')}" in first["expression"]
    assert "or have resource claims" in first["message"]
    assert "resourceClaims" not in policy("gates", "placement")["validations"][0]["expression"]


@pytest.mark.parametrize("admission", ["policy", "webhook"])
def test_webhook_and_controller_know_of_claims_by_one_setting(admission: str) -> None:
    values = {"placement": "gates", "gates": {"admission": admission}, "devicePlugin": {"mode": "dra"}}
    settings = rendered(values)["ConfigMap", "neuron-plugin-extender"]["data"]["config.yaml"]
    assert yaml.safe_load(settings)["dra-driver"] == DRA_DRIVER
