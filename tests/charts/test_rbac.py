"""Rights of each component, exactly: a right more or less fails here (P81)."""

from __future__ import annotations

import pytest

from neuron_plugin.placement.device_hours import CONFIG_MAP
from tests.charts.manifests import NAMES, of_each, of_kind, pod_templates
from tests.charts.rendering import Manifest

Rule = tuple[str, str, str, str]
"""API group, resource, verb, and the one name it is for (empty for all)."""


def rules(role: Manifest) -> set[Rule]:
    return {
        (group, resource, verb, name)
        for rule in role["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
        for name in rule.get("resourceNames", [""])
    }


def follows(resource: str, group: str = "") -> set[Rule]:
    return {(group, resource, verb, "") for verb in ("list", "watch")}


def leases(*verbs: str, name: str = "") -> set[Rule]:
    return {("coordination.k8s.io", "leases", verb, name) for verb in verbs}


NONROOT = "system:openshift:scc:nonroot-v2"
"""OpenShift's own role, by which a pod may run as a user that is not of its namespace's range."""

EVENTS = {("events.k8s.io", "events", "create", "")}

STORAGE = follows("persistentvolumeclaims") | follows("persistentvolumes")
STORAGE |= {rule for kind in ("storageclasses", "csinodes", "csidrivers") for rule in follows(kind, "storage.k8s.io")}

CLUSTER_WIDE = {
    "neuron-plugin": follows("pods")
    | follows("nodes")
    | {("", "pods/status", "patch", ""), ("", "nodes", "get", "")}
    | {("", "nodes", "patch", ""), ("", "nodes/status", "patch", "")}
    | EVENTS,
    "neuron-plugin-extender": follows("pods")
    | follows("nodes")
    | {("", "pods", "get", ""), ("", "pods/binding", "create", "")}
    | STORAGE
    | follows("namespaces")
    | follows("poddisruptionbudgets", "policy")
    | follows("podgroups", "scheduling.k8s.io")
    | EVENTS,
}
DEVICE_HOURS = {("", "configmaps", "create", "")} | {("", "configmaps", verb, CONFIG_MAP) for verb in ("get", "patch")}
IN_ITS_NAMESPACE = {
    "neuron-plugin": leases("create", "patch"),
    "neuron-plugin-extender": leases("list", "watch", "create")
    | leases("get", "patch", name="neuron-extender")
    | DEVICE_HOURS,
    "neuron-plugin-scheduler": leases("create") | leases("get", "update", name="neuron-scheduler"),
}


def test_p81_rights_in_the_cluster_are_exactly_these() -> None:
    roles = of_kind("second-scheduler", "ClusterRole")
    assert {name: rules(role) for name, role in roles.items()} == CLUSTER_WIDE


def test_the_right_to_evict_comes_with_make_room_act_alone() -> None:
    granted = rules(of_kind("make-room", "ClusterRole")["neuron-plugin-extender"])
    assert granted == CLUSTER_WIDE["neuron-plugin-extender"] | {("", "pods/eviction", "create", "")}


def test_the_right_to_list_events_comes_with_the_live_page_alone() -> None:
    granted = rules(of_kind("existing-certificates", "ClusterRole")["neuron-plugin-extender"])
    assert granted == CLUSTER_WIDE["neuron-plugin-extender"] | {("", "events", "list", "")}


def test_without_device_hours_there_is_no_right_to_config_maps() -> None:
    granted = rules(of_kind("make-room", "Role")["neuron-plugin-extender"])
    assert granted == IN_ITS_NAMESPACE["neuron-plugin-extender"] - DEVICE_HOURS


def test_p81_rights_in_the_namespace_are_exactly_these() -> None:
    roles = of_kind("second-scheduler", "Role")
    assert {name: rules(role) for name, role in roles.items()} == IN_ITS_NAMESPACE


FENCED_WRITES = {
    ("neuron-plugin-extender", "patch"),
    ("neuron-plugin-extender", "delete"),
    ("neuron-plugin-extender", "create"),
    ("neuron-plugin-ungate", "patch"),
    ("neuron-plugin-ungate-all", "patch"),
}
"""The placement controller's, which a policy limits, those of a role that is bound to nobody, and those of a hook."""


def test_p81_writes_of_pods_are_fenced_or_given_to_nobody() -> None:
    (fence,) = (
        each for each in of_kind("gates", "ValidatingAdmissionPolicy").values() if "DELETE" in str(each["spec"])
    )
    assert "serviceaccount:kube-system:neuron-plugin-extender'" in fence["spec"]["matchConditions"][0]["expression"]
    bindings = (of_kind("gates", "ClusterRoleBinding") | of_kind("gates", "RoleBinding")).values()
    assert "neuron-plugin-ungate" not in {binding["roleRef"]["name"] for binding in bindings}
    hook = of_kind("gates", "ClusterRole")["neuron-plugin-ungate-all"]["metadata"]["annotations"]
    assert hook["helm.sh/hook-delete-policy"] == "before-hook-creation,hook-succeeded", "it goes again"


@of_each(NAMES)
def test_p81_no_account_may_write_pods_or_everything(name: str) -> None:
    for role in (*of_kind(name, "ClusterRole").values(), *of_kind(name, "Role").values()):
        for group, resource, verb, _ in rules(role):
            assert "*" not in (group, resource, verb)
            assert resource != "secrets"
            if resource == "pods" and verb not in ("get", "list", "watch"):
                assert "gates" in name
                assert (role["metadata"]["name"], verb) in FENCED_WRITES


@of_each(NAMES)
def test_every_role_is_bound_to_the_account_of_its_name_only(name: str) -> None:
    bindings = of_kind(name, "ClusterRoleBinding") | of_kind(name, "RoleBinding")
    accounts = set(of_kind(name, "ServiceAccount"))
    for binding in bindings.values():
        assert {(subject["kind"], subject["name"]) for subject in binding["subjects"]} <= {
            ("ServiceAccount", account) for account in accounts
        }
        names = [subject["name"] for subject in binding["subjects"]]
        role = binding["roleRef"]["name"]
        if role in accounts:
            assert names == [role]
        elif role.endswith("-autoscaler-status"):
            assert names == ["neuron-plugin-extender"]
        elif role != NONROOT:
            assert all(each.endswith("-scheduler") for each in names)


def test_the_lease_that_a_scheduler_may_write_has_its_own_name() -> None:
    (role,) = (role for name, role in of_kind("vendor-migration", "Role").items() if name.endswith("-scheduler"))
    assert leases("get", "update", name="my-scheduler") <= rules(role)


@of_each(NAMES)
def test_every_pod_uses_an_account_of_the_chart(name: str) -> None:
    jobs = {job: found["spec"]["template"] for job, found in of_kind(name, "Job").items()}
    pods = (pod_templates(name) | jobs).values()
    assert {pod["spec"]["serviceAccountName"] for pod in pods} == set(of_kind(name, "ServiceAccount"))


def test_p81_the_status_of_nodes_is_written_by_a_plugin_that_counts_devices_or_keeps_a_condition() -> None:
    (counts,) = of_kind("device-plugin", "ClusterRole").values()
    by_claims = of_kind("dra-everywhere", "ClusterRole")["neuron-plugin"]
    assert ("", "nodes/status", "patch", "") in rules(counts)
    assert ("", "nodes/status", "patch", "") not in rules(by_claims)


def test_openshift_allows_the_capabilities_that_the_container_asks_for() -> None:
    (constraints,) = of_kind("health", "SecurityContextConstraints").values()
    (container,) = pod_templates("health")["neuron-plugin"]["spec"]["containers"]
    assert constraints["allowedCapabilities"] == container["securityContext"]["capabilities"]["add"]


@pytest.mark.parametrize("name", ["openshift", "cleanup"])
def test_openshift_lets_every_other_pod_be_the_user_it_asks_for(name: str) -> None:
    bindings = [each for each in of_kind(name, "RoleBinding").values() if each["roleRef"]["name"] == NONROOT]
    allowed = {subject["name"] for binding in bindings for subject in binding["subjects"]}
    assert allowed == set(of_kind(name, "ServiceAccount")) - {"neuron-plugin"}
    job_s = [each for each in bindings if each["metadata"].get("annotations")]
    assert len(job_s) == (name == "cleanup"), "the Job runs when everything else is gone"


def test_openshift_lets_the_plugin_be_what_it_is_and_no_more() -> None:
    (constraints,) = of_kind("openshift", "SecurityContextConstraints").values()
    assert constraints["users"] == ["system:serviceaccount:kube-system:neuron-plugin"]
    assert constraints["requiredDropCapabilities"] == ["ALL"]
    allowed = {key for key, value in constraints.items() if key.startswith("allow") and value}
    assert allowed == {"allowHostDirVolumePlugin"}
    volumes = pod_templates("openshift")["neuron-plugin"]["spec"]["volumes"]
    assert {kind for volume in volumes for kind in volume if kind != "name"} <= set(constraints["volumes"])
