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

from neuron_plugin.allocation import Rejection, Resource
from neuron_plugin.allocation.constraints import LONGEST_CONSTRAINT, read_constraints
from neuron_plugin.allocation.keys import (
    ALLOC_TIME_KEY,
    ALLOCATED_KEY,
    CORES_KEY,
    DEVICES_KEY,
    DISABLE_KEY,
    GATE,
    INVENTORY_KEY,
    NODE_KEY,
    PREFIX,
    PREFLIGHT_KEY,
    RANK_KEY,
    SAME_DEVICE_KEY,
    UNHEALTHY_LABEL,
    VENDOR_IDS_KEY,
    VENDOR_RESOURCE_KEY,
)
from neuron_plugin.allocation.requests import MOST_AMOUNTS, ContainerSpec, RequestError, pod_request
from neuron_plugin.cluster.leases import LEASE_PREFIX
from neuron_plugin.placement.device_hours import CONFIG_MAP
from neuron_plugin.placement.gates.writes import WRITTEN_KEYS
from neuron_plugin.plugin.publisher import LABEL_PREFIX, PRESENT_LABEL, PUBLISHED_LABELS
from neuron_plugin.topology import MOST_CORES_PER_DEVICE, MOST_DEVICES, Unit
from tests.charts import annotation_table
from tests.charts.manifests import NAMES, embedded, of_each, of_kind
from tests.charts.rendering import Manifest, default_values

FENCED = [name for name in NAMES if name != "without-fences"]
PLUGIN = "system:serviceaccount:kube-system:neuron-plugin"
CONTROLLER = f"{PLUGIN}-extender"
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


@of_each(FENCED)
def test_every_policy_is_in_force_and_fails_closed(name: str) -> None:
    policies = of_kind(name, "ValidatingAdmissionPolicy")
    bindings = of_kind(name, "ValidatingAdmissionPolicyBinding")
    assert policies
    assert {binding["spec"]["policyName"] for binding in bindings.values()} == set(policies)
    for full, binding in bindings.items():
        assert binding["spec"]["validationActions"] == (["Warn"] if full.endswith("-privileged") else ["Deny"])
        assert "matchResources" not in binding["spec"]
    for full, each in policies.items():
        early = full.endswith(("-requests", "-annotations", "-privileged"))  # they protect nothing
        assert each["spec"]["failurePolicy"] == ("Ignore" if early else "Fail")


LITERAL = re.compile(r"""'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*\"""")
"""A CEL string."""


@of_each(FENCED)
def test_no_text_of_a_policy_ends_before_its_end(name: str) -> None:
    kinds = ("ValidatingAdmissionPolicy", "MutatingAdmissionPolicy")
    found = [text for kind in kinds for each in of_kind(name, kind).values() for text in cel_of(each["spec"])]
    assert found
    for text in found:
        without = LITERAL.sub("\0", text)
        assert "'" not in without, text
        assert not re.search("\0\\s*(?!in\\b)\\w", without), f"an apostrophe in a text: {text}"


def cel_of(part: object) -> list[str]:
    """All expressions of a policy."""
    if isinstance(part, list):
        return [text for each in part for text in cel_of(each)]
    if not isinstance(part, dict):
        return []
    own = [text for key, text in part.items() if key.lower().endswith("expression") and isinstance(text, str)]
    return own + [text for each in part.values() for text in cel_of(each)]


def test_a_cluster_may_do_without() -> None:
    assert not of_kind("without-fences", "ValidatingAdmissionPolicy")
    assert not of_kind("without-fences", "ValidatingAdmissionPolicyBinding")


JUDGED = {
    ("device-plugin", "own-pods"): (PLUGIN, "UPDATE pods, UPDATE pods/status"),
    ("device-plugin", "own-node"): (PLUGIN, "UPDATE nodes, UPDATE nodes/status"),
    ("device-plugin", "own-lease"): (PLUGIN, "CREATE leases, UPDATE leases"),
    ("dra-everywhere", "own-slices"): (PLUGIN, "CREATE resourceslices, UPDATE resourceslices, DELETE resourceslices"),
    ("gates", "placement"): (CONTROLLER, "UPDATE pods, UPDATE pods/status, DELETE pods"),
    ("gates", "bindings"): (CONTROLLER, "CREATE pods/binding, CREATE bindings"),
    ("gates-claims", "claims"): (CONTROLLER, "UPDATE resourceclaims, UPDATE resourceclaims/status"),
    ("second-scheduler", "device-hours"): (CONTROLLER, "CREATE configmaps, UPDATE configmaps"),
    # Whoever writes: a pod's author, on any way in.
    ("device-plugin", "decisions"): (
        "",
        "CREATE pods, UPDATE pods, CREATE pods/status, UPDATE pods/status, CREATE pods/binding, CREATE bindings",
    ),
    ("device-plugin", "requests"): ("", "CREATE pods"),
    # Not CREATE nodes: a node that joins is never refused.
    ("device-plugin", "annotations"): (
        "",
        "CREATE pods, UPDATE pods, CREATE namespaces, UPDATE namespaces, UPDATE nodes",
    ),
    ("gates", "ungate"): ("", "UPDATE pods"),
}
"""Whose writes a policy judges, and which; a value set in which the policy is."""


@of_each((*which, *judged) for which, judged in JUDGED.items())
def test_p81_a_fence_stands_where_it_is_needed(name: str, kind: str, user: str, written: str) -> None:
    spec = policy(name, kind)
    assert resources(spec) == {tuple(each.split()) for each in written.split(", ")}
    if user:
        (condition,) = spec["matchConditions"]
        assert condition["expression"] == f"request.userInfo.username == '{user}'"


@pytest.mark.parametrize("kind", OWN)
def test_p81_the_plugin_is_fenced_to_the_node_its_token_names(kind: str) -> None:
    spec = policy("device-plugin", kind)
    assert [condition["name"] for condition in spec["matchConditions"]] == ["by-the-device-plugin"]
    variables = {variable["name"]: variable["expression"] for variable in spec["variables"]}
    assert "authentication.kubernetes.io/node-name" in variables["node"]
    assert "variables.node != ''" in expressions(spec), "a token without a node must not match an object without one"
    assert "== variables.node" in expressions(spec) or "+ variables.node" in expressions(spec)


def test_p81_decisions_are_the_extender_s_and_the_plugin_s() -> None:
    (condition,) = policy("second-scheduler", "decisions")["matchConditions"]
    assert re.findall(r'"([^"]+)"', condition["expression"]) == [PLUGIN, CONTROLLER]
    (condition,) = policy("vendor-migration", "decisions")["matchConditions"]
    assert re.findall(r'"([^"]+)"', condition["expression"])[2:] == [
        "system:serviceaccount:kube-system:k8s-neuron-scheduler",
        "system:serviceaccount:kube-system:neuron-device-plugin",
    ]
    assert condition["expression"].startswith("!(request.userInfo.username in [")


ASSIGNMENT = {DEVICES_KEY, CORES_KEY, ALLOC_TIME_KEY, ALLOCATED_KEY, VENDOR_IDS_KEY, VENDOR_RESOURCE_KEY}


@pytest.mark.parametrize("kind", ["own-pods", "decisions"])
def test_p82_the_keys_are_those_of_the_code(kind: str) -> None:
    assert set(yaml.safe_load(variable("device-plugin", kind, "keys"))) == ASSIGNMENT


@pytest.mark.parametrize("kind", ["own-pods", "decisions", "placement", "bindings"])
def test_p82_a_promise_is_fenced_as_an_assignment(kind: str) -> None:
    keys, _, more = variable("gates", kind, "keys").partition(" + ")
    assert set(yaml.safe_load(keys)) == set(WRITTEN_KEYS)
    assert set(yaml.safe_load(more or "[]")) == ({RANK_KEY} if kind == "placement" else set())


@pytest.mark.parametrize(("name", "keys"), [("gates", set(WRITTEN_KEYS)), ("device-plugin", ASSIGNMENT)])
def test_p82_what_is_fenced_is_taken_off_a_copied_pod(name: str, keys: set[str]) -> None:
    spec = of_kind(name, "MutatingAdmissionPolicy")["neuron-plugin-copies"]["spec"]
    assert resources({**spec, "validations": []}) == {("CREATE", "pods")}
    (found,) = (each["expression"] for each in spec["variables"] if each["name"] == "keys")
    assert set(yaml.safe_load(found)) == keys
    (condition,) = spec["matchConditions"]
    assert condition["expression"].startswith(f"{found}.exists(")
    assert f"'{NODE_KEY}' in object.metadata.?labels" in str(spec["mutations"])


def test_pods_are_gated_only_where_that_is_asked_for() -> None:
    mutating = {name: set(of_kind(name, "MutatingAdmissionPolicy")) for name in NAMES}
    gated = [name for name, found in mutating.items() if "neuron-plugin-gates" in found]
    assert gated == ["gates", "gates-claims", "gates-preflight"]
    spec = of_kind("gates", "MutatingAdmissionPolicy")["neuron-plugin-gates"]["spec"]
    assert spec["failurePolicy"] == "Ignore", "a pod without the gate is scheduled by counts"
    assert resources({**spec, "validations": []}) == {("CREATE", "pods")}
    binding = of_kind("gates", "MutatingAdmissionPolicyBinding")["neuron-plugin-gates"]["spec"]
    assert binding["matchResources"]["namespaceSelector"]["matchExpressions"][0]["values"] == ["kube-system"]
    mutations = str(spec["mutations"])
    assert set(re.findall(r"'name': '([^']+)'", mutations)) == {GATE}


def test_p81_of_config_maps_the_placement_controller_may_write_its_account_alone() -> None:
    spec = policy("second-scheduler", "device-hours")
    assert expressions(spec) == f"object.metadata.name == '{CONFIG_MAP}'"
    policies = {name: of_kind(name, "ValidatingAdmissionPolicy") for name in ("make-room", "device-plugin")}
    assert not any("neuron-plugin-device-hours" in found for found in policies.values()), "without it, without a right"


def test_p81_the_plugin_may_label_pods_only_where_it_is_asked_for_and_by_one_label() -> None:
    assert "variables.labelsAfter == variables.labelsBefore" in expressions(policy("device-plugin", "own-pods"))
    opened = expressions(policy("health", "own-pods"))
    assert set(re.findall(r"key == '([^']+)'", opened)) == {UNHEALTHY_LABEL}
    assert "variables.labelsAfter[key] == 'true'" in opened
    assert "variables.labelsBefore[key] == variables.labelsAfter[key]" in opened


@pytest.mark.parametrize("name", ["device-plugin", "gates"])
def test_p82_the_refusal_names_every_key(name: str) -> None:
    spec = policy(name, "decisions")
    for key in yaml.safe_load(variable(name, "decisions", "keys")):
        assert key in spec["validations"][0]["message"]


def test_p82_node_and_lease_are_described_under_the_names_of_the_code() -> None:
    prefixes = set(re.findall(r"startsWith\('([^']+)'\)", expressions(policy("device-plugin", "own-node"))))
    assert prefixes == {f"{LABEL_PREFIX}/"}
    assert INVENTORY_KEY.startswith(f"{LABEL_PREFIX}/")
    assert f"'{LEASE_PREFIX}' + variables.node" in expressions(policy("device-plugin", "own-lease"))


def test_p82_the_plugin_may_say_neither_which_devices_are_disabled_nor_that_it_was_checked() -> None:
    spec = policy("device-plugin", "own-node")
    (keys,) = (each["expression"] for each in spec["variables"] if each["name"] == "operatorsAnnotations")
    assert yaml.safe_load(keys) == [DISABLE_KEY, PREFLIGHT_KEY]
    assert expressions(spec).count("!(key in variables.operatorsAnnotations)") == 2, "neither set nor remove it"


def test_p82_every_label_that_the_plugin_publishes_may_pass_the_fence() -> None:
    spec = policy("device-plugin", "own-node")
    (listed,) = (each["expression"] for each in spec["variables"] if each["name"] == "vendorLabels")
    others = {label for label in PUBLISHED_LABELS if not label.startswith(f"{LABEL_PREFIX}/")}
    assert set(yaml.safe_load(listed)) == others | {PRESENT_LABEL}
    assert expressions(spec).count("key in variables.vendorLabels") == 2, "to set one, and to remove it"


def test_p81_the_status_of_the_node_is_closed_but_for_the_conditions_asked_for_and_lower_counts() -> None:
    assert own_conditions("device-plugin") == []
    opened = expressions(policy("health", "own-node"))
    assert own_conditions("health") == ["NeuronDevicesHealthy"]
    assert own_conditions("cleanup") == ["NeuronDevicesHealthy", "NeuronDevicesReady"]
    assert opened.count("each.type in variables.ownConditions") == 2, "to set one, and to remove it"
    assert set(re.findall(r"key == '([^']+)'", opened)) == {"conditions", "allocatable"}
    assert "object.spec == oldObject.spec" in opened


def own_conditions(name: str) -> object:
    (listed,) = (each for each in policy(name, "own-node")["variables"] if each["name"] == "ownConditions")
    return yaml.safe_load(listed["expression"])


@of_each(FENCED)
def test_every_refusal_is_a_sentence(name: str) -> None:
    for each in of_kind(name, "ValidatingAdmissionPolicy").values():
        for validation in each["spec"]["validations"]:
            assert validation["message"].endswith(".")


@of_each(FENCED)
def test_no_annotation_is_read_where_there_may_be_none(name: str) -> None:
    for each in of_kind(name, "ValidatingAdmissionPolicy").values():
        assert not re.search(r"metadata\.(annotations|labels|finalizers)", expressions(each["spec"]))


@pytest.mark.parametrize("way", ["ValidatingAdmissionPolicy", "MutatingAdmissionPolicy"])
def test_p82_the_resources_are_those_of_the_code(way: str) -> None:
    for name, found in of_kind("pod-defaults", way).items():
        if name in {"neuron-plugin-requests", "neuron-plugin-pod-defaults"}:
            (condition,) = (each for each in found["spec"]["matchConditions"] if each["name"] == "asks-for-neuron")
            (listed,) = re.findall(r"\[[^]]+\]", condition["expression"].replace("orValue([])", ""))
            assert yaml.safe_load(listed) == list(Resource)
            assert "limits" in condition["expression"]


def test_p82_the_largest_request_is_what_the_driver_allows_a_machine() -> None:
    (listed,) = (
        each["expression"] for each in policy("device-plugin", "requests")["variables"] if each["name"] == "most"
    )
    most = {resource: int(count) for resource, count in re.findall(r"'([^']+)': quantity\('(\d+)'\)", listed)}
    cores = MOST_DEVICES * MOST_CORES_PER_DEVICE
    assert most == dict(zip(Resource, (MOST_DEVICES, MOST_DEVICES, cores), strict=True))


def test_types_and_products_that_no_catalogue_has_are_not_judged_at_creation() -> None:
    """A node says itself what it has; the extender knows every node, and the API server none."""
    kinds = ("ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding")
    for kind in kinds:
        assert of_kind("pod-defaults", kind) == of_kind("second-scheduler", kind), "pod-defaults has instanceTypes"


def test_p82_two_resources_in_a_container_are_refused_in_the_words_of_the_code() -> None:
    limits = {Resource.NEURON.value: "1", Resource.NEURONCORE.value: "2"}
    with pytest.raises(RequestError) as refused:
        pod_request([ContainerSpec("main", limits=limits)])
    said = policy("device-plugin", "requests")["validations"][0]["messageExpression"]
    said = said.replace("' + variables.twice[0].container[0] + '", "main")
    said = said.replace("' + variables.twice[0].resources.join(' and ') + '", " and ".join(limits))
    assert said.strip("'") == str(refused.value)


def test_p82_amounts_without_a_device_are_refused_in_the_words_of_the_code() -> None:
    limits = {f"{PREFIX}memory": "1"}
    with pytest.raises(RequestError) as refused:
        pod_request([ContainerSpec("main", limits=limits)])
    said = policy("device-plugin", "requests")["validations"][2]["messageExpression"]
    said = said.replace("' + variables.amountsAlone[0].container[0] + '", "main")
    said = said.replace("' + variables.amountsAlone[0].amounts.min() + '", *limits)
    assert said.strip("'") == str(refused.value)


def test_p82_more_amounts_than_the_code_reads_are_refused_in_its_words() -> None:
    limits = {f"{PREFIX}a{number}": "1" for number in range(MOST_AMOUNTS + 1)}
    with pytest.raises(RequestError) as refused:
        pod_request([ContainerSpec("main", limits=limits)])
    spec = policy("device-plugin", "requests")
    assert f"each.named.size() > {MOST_AMOUNTS})" in expressions(spec)
    said = spec["validations"][3]["messageExpression"].replace(
        "' + variables.tooManyAmounts[0].container[0] + '", "main"
    )
    said = said.replace("' + string(variables.tooManyAmounts[0].named.size()) + '", str(MOST_AMOUNTS + 1))
    assert said.strip("'") == str(refused.value)


def test_p82_a_pod_that_asks_for_an_amount_alone_is_judged() -> None:
    (condition,) = policy("device-plugin", "requests")["matchConditions"]
    assert f"name.startsWith('{PREFIX}')" in condition["expression"]


def test_of_a_nodes_annotations_only_the_one_that_people_write_is_judged() -> None:
    only = f"(request.resource.resource != 'nodes' || key == '{DISABLE_KEY}')"
    assert only in variable("device-plugin", "annotations", "written"), "the others of a node are the controller's"


@pytest.mark.parametrize("wanted", ["form", "expected"])
def test_p82_every_annotation_that_people_write_is_judged(wanted: str) -> None:
    expression = variable("device-plugin", "annotations", wanted)
    assert set(re.findall(r"'([^']+)': r?'", expression)) == set(annotation_table.KEYS)


def test_p82_texts_are_as_long_as_the_code_reads() -> None:
    assert f"size() > {LONGEST_CONSTRAINT} " in expressions(policy("device-plugin", "annotations"))


@of_each(annotation_table.rows())
def test_p82_the_code_reads_what_the_table_says(key: str, text: str, is_read: bool) -> None:  # noqa: FBT001 - a row
    assert annotation_table.reads(key, text) is is_read


@pytest.mark.parametrize("key", annotation_table.KEYS)
@given(text=st.text("0123456789-:+TZ, abt.", max_size=12))
def test_p82_an_annotation_is_refused_by_its_form_only_if_the_code_refuses_it(key: str, text: str) -> None:
    forms = dict(re.findall(r"'([^']+)': r'([^']+)'", variable("device-plugin", "annotations", "form")))
    form = forms[key].replace(r"[\s\v\x{85}\p{Z}]", r"\s")
    if not re.fullmatch(form.strip("^$"), text) and (text.strip() or key != DISABLE_KEY):
        assert not annotation_table.reads(key, text)


def variable(name: str, kind: str, wanted: str) -> str:
    (found,) = (each["expression"] for each in policy(name, kind)["variables"] if each["name"] == wanted)
    assert isinstance(found, str)
    return found


ASKED = [("a", Unit.CORE), ("b", Unit.CORE)]


def test_p82_a_container_that_cannot_share_is_refused_early_in_the_words_of_the_code() -> None:
    refused = read_constraints({SAME_DEVICE_KEY: "a,x"}, ASKED)
    assert isinstance(refused, Rejection)
    said = policy("device-plugin", "requests")["validations"][4]["messageExpression"]
    text = said.replace('" + variables.notSharing[0] + "', "x").strip('"')
    assert text.removeprefix(f"annotation {SAME_DEVICE_KEY}: ") == refused.detail.split(": ", 1)[1]
    expression = variable("device-plugin", "requests", "notSharing")
    assert f"annotations[?'{SAME_DEVICE_KEY}']" in expression
    assert f"'{Resource.NEURONCORE}' in each.resources" in expression


def defaults(name: str) -> Manifest:
    spec = of_kind(name, "MutatingAdmissionPolicy")["neuron-plugin-pod-defaults"]["spec"]
    assert isinstance(spec, dict)
    return spec


def test_pods_are_given_what_their_authors_forget_only_where_that_is_asked_for() -> None:
    mutating = {name: set(of_kind(name, "MutatingAdmissionPolicy")) for name in NAMES}
    assert [name for name, found in mutating.items() if "neuron-plugin-pod-defaults" in found] == ["pod-defaults"]
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
