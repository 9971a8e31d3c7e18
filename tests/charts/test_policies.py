"""The fences: who may write what, by ValidatingAdmissionPolicy (P81).

The expressions are CEL, which only an API server evaluates; here it is held that they speak of the right users, keys,
resources and nodes, and that nothing is open where they are on.
"""

from __future__ import annotations

import re

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from neuron_plugin.allocation import (
    ALLOC_TIME_KEY,
    ALLOCATED_KEY,
    CORES_KEY,
    DEVICES_KEY,
    DISABLE_KEY,
    INVENTORY_KEY,
    UNHEALTHY_LABEL,
    VENDOR_IDS_KEY,
    Rejection,
)
from neuron_plugin.allocation.assignment import VENDOR_RESOURCE_KEY
from neuron_plugin.allocation.constraints import (
    ALLOW_KEY,
    BALANCE_KEY,
    CONSTRAINT_KEYS,
    DENY_KEY,
    DEVICE_NAME_KEY,
    LONGEST_TEXT,
    PREFER_KEY,
    PREFER_NUMA_KEY,
    SAME_DEVICE_KEY,
    read_constraints,
)
from neuron_plugin.allocation.requests import ContainerSpec, RequestError, pod_request
from neuron_plugin.allocation.resources import Resource
from neuron_plugin.extender.informers import LEASE_PREFIX
from neuron_plugin.plugin.publisher import LABEL_PREFIX, PUBLISHED_LABELS
from neuron_plugin.topology import InstanceType, Topology, Unit, catalogue, product_names
from neuron_plugin.topology.instances import SHIPPED
from tests.charts.manifests import NAMES, Manifest, default_values, embedded, of_kind

FENCED = [name for name in NAMES if name != "without-fences"]
PLUGIN = "system:serviceaccount:kube-system:neuron-plugin"
OWN = ("own-pods", "own-node", "own-lease")


def policy(name: str, kind: str) -> Manifest:
    """One policy's spec, by the last part of its name."""
    (found,) = (each for full, each in of_kind(name, "ValidatingAdmissionPolicy").items() if full.endswith(f"-{kind}"))
    spec = found["spec"]
    assert isinstance(spec, dict)
    return spec


def expressions(spec: Manifest) -> str:
    return "\n".join(part["expression"] for part in (*spec.get("variables", []), *spec["validations"]))


def resources(spec: Manifest) -> set[tuple[str, str]]:
    """Which (operation, resource) a policy judges."""
    return {
        (operation, resource)
        for rule in spec["matchConstraints"]["resourceRules"]
        for operation in rule["operations"]
        for resource in rule["resources"]
    }


@pytest.mark.parametrize("name", FENCED)
def test_every_policy_is_in_force_and_fails_closed(name: str) -> None:
    policies = of_kind(name, "ValidatingAdmissionPolicy")
    bindings = of_kind(name, "ValidatingAdmissionPolicyBinding")
    assert policies
    assert {binding["spec"]["policyName"] for binding in bindings.values()} == set(policies)
    for binding in bindings.values():
        assert binding["spec"]["validationActions"] == ["Deny"]
        assert "matchResources" not in binding["spec"]
    for full, each in policies.items():
        early = full.endswith("-requests")  # extender and plugin refuse such a pod, too
        assert each["spec"]["failurePolicy"] == ("Ignore" if early else "Fail")


def test_a_cluster_may_do_without() -> None:
    assert not of_kind("without-fences", "ValidatingAdmissionPolicy")
    assert not of_kind("without-fences", "ValidatingAdmissionPolicyBinding")


@pytest.mark.parametrize("kind", OWN)
def test_p81_the_plugin_is_fenced_to_the_node_its_token_names(kind: str) -> None:
    spec = policy("device-plugin", kind)
    assert spec["matchConditions"] == [
        {"name": "by-the-device-plugin", "expression": f"request.userInfo.username == '{PLUGIN}'"}
    ]
    variables = {variable["name"]: variable["expression"] for variable in spec["variables"]}
    assert "authentication.kubernetes.io/node-name" in variables["node"]
    assert "variables.node != ''" in expressions(spec), "a token without a node must not match an object without one"
    assert "== variables.node" in expressions(spec) or "+ variables.node" in expressions(spec)


def test_p81_the_fences_stand_where_the_plugin_may_write() -> None:
    assert resources(policy("device-plugin", "own-pods")) == {("UPDATE", "pods"), ("UPDATE", "pods/status")}
    assert resources(policy("device-plugin", "own-node")) == {("UPDATE", "nodes"), ("UPDATE", "nodes/status")}
    assert resources(policy("device-plugin", "own-lease")) == {("CREATE", "leases"), ("UPDATE", "leases")}


def test_p81_a_pod_author_cannot_set_a_decision_on_any_way_in() -> None:
    assert resources(policy("device-plugin", "decisions")) == {
        ("CREATE", "pods"),
        ("UPDATE", "pods"),
        ("CREATE", "pods/status"),
        ("UPDATE", "pods/status"),
        ("CREATE", "pods/binding"),
        ("CREATE", "bindings"),
    }


def test_p81_decisions_are_the_extender_s_and_the_plugin_s() -> None:
    (condition,) = policy("second-scheduler", "decisions")["matchConditions"]
    assert re.findall(r'"([^"]+)"', condition["expression"]) == [PLUGIN, f"{PLUGIN}-extender"]
    (condition,) = policy("vendor-migration", "decisions")["matchConditions"]
    assert re.findall(r'"([^"]+)"', condition["expression"])[2:] == [
        "system:serviceaccount:kube-system:k8s-neuron-scheduler",
        "system:serviceaccount:kube-system:neuron-device-plugin",
    ]
    assert condition["expression"].startswith("!(request.userInfo.username in [")


@pytest.mark.parametrize("kind", ["own-pods", "decisions"])
def test_p82_the_keys_are_those_of_the_code(kind: str) -> None:
    spec = policy("device-plugin", kind)
    (keys,) = (variable["expression"] for variable in spec["variables"] if variable["name"] == "keys")
    assert set(yaml.safe_load(keys)) == {
        DEVICES_KEY,
        CORES_KEY,
        ALLOC_TIME_KEY,
        ALLOCATED_KEY,
        VENDOR_IDS_KEY,
        VENDOR_RESOURCE_KEY,
    }


def test_p81_the_plugin_may_label_pods_only_where_it_is_asked_for_and_by_one_label() -> None:
    assert "variables.labelsAfter == variables.labelsBefore" in expressions(policy("device-plugin", "own-pods"))
    opened = expressions(policy("health", "own-pods"))
    assert set(re.findall(r"key == '([^']+)'", opened)) == {UNHEALTHY_LABEL}
    assert "variables.labelsAfter[key] == 'true'" in opened
    assert "variables.labelsBefore[key] == variables.labelsAfter[key]" in opened


def test_p82_the_refusal_names_every_key() -> None:
    spec = policy("device-plugin", "decisions")
    (keys,) = (variable["expression"] for variable in spec["variables"] if variable["name"] == "keys")
    for key in yaml.safe_load(keys):
        assert key in spec["validations"][0]["message"]


def test_p82_node_and_lease_are_described_under_the_names_of_the_code() -> None:
    prefixes = set(re.findall(r"startsWith\('([^']+)'\)", expressions(policy("device-plugin", "own-node"))))
    assert prefixes == {f"{LABEL_PREFIX}/"}
    assert INVENTORY_KEY.startswith(f"{LABEL_PREFIX}/")
    assert f"'{LEASE_PREFIX}' + variables.node" in expressions(policy("device-plugin", "own-lease"))


def test_p82_the_plugin_may_not_say_which_devices_are_disabled() -> None:
    spec = policy("device-plugin", "own-node")
    (keys,) = (each["expression"] for each in spec["variables"] if each["name"] == "operatorsAnnotations")
    assert yaml.safe_load(keys) == [DISABLE_KEY]
    assert expressions(spec).count("!(key in variables.operatorsAnnotations)") == 2, "neither set nor remove it"


def test_p82_every_label_that_the_plugin_publishes_may_pass_the_fence() -> None:
    spec = policy("device-plugin", "own-node")
    (listed,) = (each["expression"] for each in spec["variables"] if each["name"] == "vendorLabels")
    others = {label for label in PUBLISHED_LABELS if not label.startswith(f"{LABEL_PREFIX}/")}
    assert set(yaml.safe_load(listed)) == others
    assert expressions(spec).count("key in variables.vendorLabels") == 2, "to set one, and to remove it"


def test_p81_the_status_of_the_node_is_closed_but_for_the_conditions_asked_for() -> None:
    assert "object.status == oldObject.status" in expressions(policy("device-plugin", "own-node"))
    opened = expressions(policy("health", "own-node"))
    assert own_conditions("health") == ["NeuronDevicesHealthy"]
    assert own_conditions("cleanup") == ["NeuronDevicesHealthy", "NeuronDevicesReady"]
    assert opened.count("each.type in variables.ownConditions") == 2, "to set one, and to remove it"
    assert set(re.findall(r"key == '([^']+)'", opened)) == {"conditions"}
    assert "object.spec == oldObject.spec" in opened


def own_conditions(name: str) -> object:
    (listed,) = (each for each in policy(name, "own-node")["variables"] if each["name"] == "ownConditions")
    return yaml.safe_load(listed["expression"])


@pytest.mark.parametrize("name", FENCED)
def test_every_refusal_is_a_sentence(name: str) -> None:
    for each in of_kind(name, "ValidatingAdmissionPolicy").values():
        for validation in each["spec"]["validations"]:
            assert validation["message"].endswith(".")


@pytest.mark.parametrize("name", FENCED)
def test_no_annotation_is_read_where_there_may_be_none(name: str) -> None:
    for each in of_kind(name, "ValidatingAdmissionPolicy").values():
        assert not re.search(r"metadata\.(annotations|labels|finalizers)", expressions(each["spec"]))


def test_a_request_that_no_node_can_serve_is_judged_when_the_pod_is_created() -> None:
    assert resources(policy("device-plugin", "requests")) == {("CREATE", "pods")}


@pytest.mark.parametrize("way", ["ValidatingAdmissionPolicy", "MutatingAdmissionPolicy"])
def test_p82_the_resources_are_those_of_the_code(way: str) -> None:
    for name, found in of_kind("pod-defaults", way).items():
        if name in {"neuron-plugin-requests", "neuron-plugin-pod-defaults"}:
            (condition,) = (each for each in found["spec"]["matchConditions"] if each["name"] == "asks-for-neuron")
            (listed,) = re.findall(r"\[[^]]+\]", condition["expression"].replace("orValue([])", ""))
            assert yaml.safe_load(listed) == list(Resource)
            assert "limits" in condition["expression"]


def most(name: str) -> dict[str, int]:
    """What a rendering takes for the most that a type has."""
    (listed,) = (each["expression"] for each in policy(name, "requests")["variables"] if each["name"] == "most")
    return {resource: int(count) for resource, count in re.findall(r"'([^']+)': quantity\('(\d+)'\)", listed)}


def test_p82_the_largest_request_is_that_of_the_catalogue_and_of_the_user_s_types() -> None:
    devices = max(one.devices for one in SHIPPED)
    cores = max(one.devices * one.cores_per_device for one in SHIPPED)
    assert most("device-plugin") == dict(zip(Resource, (devices, devices, cores), strict=True))
    (mine,) = embedded("pod-defaults", "neuron-plugin", "instance-types.yaml")["instance-types"]
    assert mine["devices"] > devices
    assert set(most("pod-defaults").values()) == {mine["devices"], mine["devices"] * mine["cores-per-device"]}


def test_p82_two_resources_in_a_container_are_refused_in_the_words_of_the_code() -> None:
    limits = {Resource.NEURON.value: "1", Resource.NEURONCORE.value: "2"}
    with pytest.raises(RequestError) as refused:
        pod_request([ContainerSpec("main", limits=limits)])
    said = policy("device-plugin", "requests")["validations"][0]["messageExpression"]
    said = said.replace("' + variables.twice[0].container[0] + '", "main")
    said = said.replace("' + variables.twice[0].resources.join(' and ') + '", " and ".join(limits))
    assert said.strip("'") == str(refused.value)


def forms() -> dict[str, str]:
    """The regular expressions that the policy holds against a pod's constraints, by annotation."""
    (listed,) = (
        each["expression"] for each in policy("device-plugin", "requests")["variables"] if each["name"] == "form"
    )
    return dict(re.findall(r"'([^']+)': r'([^']+)'", listed))


def test_p82_every_constraint_of_the_code_is_judged() -> None:
    assert set(forms()) == set(CONSTRAINT_KEYS)
    assert f"size() <= {LONGEST_TEXT} " in expressions(policy("device-plugin", "requests"))


ASKED = [("a", Unit.CORE), ("b", Unit.CORE)]


@pytest.mark.parametrize("key", CONSTRAINT_KEYS)
@given(text=st.text("0123456789-, abt.", max_size=12))
def test_p82_a_constraint_is_refused_early_only_if_the_code_refuses_it(key: str, text: str) -> None:
    if not re.search(forms()[key], text, re.ASCII):
        assert isinstance(read_constraints({key: text}, ASKED), Rejection)


@pytest.mark.parametrize(
    ("key", "text"),
    [
        (ALLOW_KEY, ""),
        (ALLOW_KEY, "1;2"),
        (ALLOW_KEY, "neuron3"),
        (DENY_KEY, "64"),
        (DENY_KEY, "0-"),
        (PREFER_KEY, "1,,2"),
        (DEVICE_NAME_KEY, "trn1 trn2"),
        (SAME_DEVICE_KEY, "a,"),
        (PREFER_NUMA_KEY, "yes"),
        (BALANCE_KEY, "memory,other"),
    ],
)
def test_p82_what_cannot_be_read_is_refused_early(key: str, text: str) -> None:
    assert not re.search(forms()[key], text, re.ASCII)


def variable(name: str, wanted: str) -> str:
    (found,) = (each["expression"] for each in policy(name, "requests")["variables"] if each["name"] == wanted)
    assert isinstance(found, str)
    return found


@pytest.mark.parametrize("name", ["device-plugin", "pod-defaults"])
def test_p82_the_known_products_are_those_of_the_catalogue_and_of_the_user_s_types(name: str) -> None:
    mine = embedded(name, "neuron-plugin", "instance-types.yaml")["instance-types"] if name == "pod-defaults" else []
    extra = [InstanceType(each["name"], each["device-name"], 64, 8, 0, Topology.UNLINKED) for each in mine]
    known = product_names(catalogue(extra))
    expression = variable(name, "unknownProducts")
    assert f"annotations[?'{DEVICE_NAME_KEY}']" in expression
    (listed,) = re.findall(r"in (\[.*\])\)\)$", expression)
    assert yaml.safe_load(listed) == sorted(known)
    said = policy(name, "requests")["validations"][3]["messageExpression"]
    assert said.endswith(f"known are {', '.join(sorted(known))}'")


def test_p82_a_container_that_cannot_share_is_refused_early_in_the_words_of_the_code() -> None:
    refused = read_constraints({SAME_DEVICE_KEY: "a,x"}, ASKED)
    assert isinstance(refused, Rejection)
    said = policy("device-plugin", "requests")["validations"][4]["messageExpression"]
    text = said.replace('" + variables.notSharing[0] + "', "x").strip('"')
    assert text.removeprefix(f"annotation {SAME_DEVICE_KEY}: ") == refused.detail.split(": ", 1)[1]
    expression = variable("device-plugin", "notSharing")
    assert f"annotations[?'{SAME_DEVICE_KEY}']" in expression
    assert f"'{Resource.NEURONCORE}' in each.resources" in expression


def defaults(name: str) -> Manifest:
    spec = of_kind(name, "MutatingAdmissionPolicy")["neuron-plugin-pod-defaults"]["spec"]
    assert isinstance(spec, dict)
    return spec


def test_pods_are_given_what_their_authors_forget_only_where_that_is_asked_for() -> None:
    assert [name for name in NAMES if of_kind(name, "MutatingAdmissionPolicy")] == ["pod-defaults"]
    binding = of_kind("pod-defaults", "MutatingAdmissionPolicyBinding")["neuron-plugin-pod-defaults"]
    assert binding["spec"] == {"policyName": "neuron-plugin-pod-defaults"}
    assert defaults("pod-defaults")["failurePolicy"] == "Ignore", "a pod without them is scheduled as before"
    assert resources({**defaults("pod-defaults"), "validations": []}) == {("CREATE", "pods")}


def test_pods_are_given_the_name_under_which_the_second_scheduler_runs() -> None:
    (profile,) = embedded("pod-defaults", "neuron-plugin-scheduler", "config.yaml")["profiles"]
    scheduler, _ = (each["jsonPatch"]["expression"] for each in defaults("pod-defaults")["mutations"])
    assert f"path: '/spec/schedulerName', value: '{profile['schedulerName']}'" in scheduler


def test_pods_are_given_the_tolerations_of_the_values() -> None:
    (untolerated,) = (each for each in defaults("pod-defaults")["variables"] if each["name"] == "untolerated")
    taints = default_values()["policies"]["podDefaults"]["taints"]
    assert untolerated["expression"].startswith(str(taints).replace("'", '"').replace(", ", ","))
    assert {taint for taint in taints if taint not in set(Resource)} == set(), "the resources' names are the taints'"
