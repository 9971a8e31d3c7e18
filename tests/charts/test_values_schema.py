"""``values.schema.json`` refuses what the templates would silently ignore."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import jsonschema
import pytest
import yaml

from neuron_plugin.topology.instances import SHIPPED
from tests.charts.manifests import NAMES, of_each
from tests.charts.rendering import CHART, VALUES, Manifest, coalesced, default_values

SCHEMA: Manifest = json.loads((CHART / "values.schema.json").read_text(encoding="utf-8"))
VALIDATOR = jsonschema.Draft7Validator(SCHEMA)

REFUSED = {"scheduler.customScheduler": {"fullnameOverride"}}
"""Names of the vendor's chart that a template refuses, with the name here."""
FREE_FORM = {"global", "extraVolumes[]", "extraVolumeMounts[]", "podSelector", "namespaceSelector"}
"""Objects of Kubernetes or of the user's, passed on as they are."""


def nested(path: str, value: object) -> Manifest:
    """``nested("a.b", 1)`` is ``{"a": {"b": 1}}``, as ``--set a.b=1`` makes it."""
    for key in reversed(path.split(".")):
        value = {key: value}
    assert isinstance(value, dict)
    return value


def is_refused(values: Manifest) -> bool:
    return bool(list(VALIDATOR.iter_errors(coalesced(values))))


def test_the_schema_is_draft_07_as_helm_wants_it() -> None:
    assert SCHEMA["$schema"] == "http://json-schema.org/draft-07/schema#"
    jsonschema.Draft7Validator.check_schema(SCHEMA)


def test_the_chart_s_own_values_are_accepted() -> None:
    VALIDATOR.validate(default_values())


@of_each(NAMES)
def test_every_value_set_is_accepted(name: str) -> None:
    VALIDATOR.validate(coalesced(yaml.safe_load((VALUES / f"{name}.yaml").read_text(encoding="utf-8"))))


@pytest.mark.parametrize(
    "good",
    [
        {},
        {"global": {"anything": {"at": "all"}}},
        nested("devicePlugin.maxUnavailable", "25%"),
        nested("devicePlugin.settings", {"resources": ["neuroncore"], "cdi": True}),
        nested("devicePlugin.tolerations", [{"operator": "Exists"}]),
        nested("scheduler.customScheduler.schedulerName", "my-scheduler"),
        nested("scheduler.customScheduler.fullnameOverride", "my-scheduler"),  # a template says what it is called here
        nested("networkPolicy.extenderFrom", [{"ipBlock": {"cidr": "10.0.0.0/8"}}]),
        nested("scheduler.extender.service.clusterIP", "fd00::a:1"),
        nested("devicePlugin.podLabels", {"app.kubernetes.io/part-of": "accelerators"}),
        nested("global", None),
        {"scheduler": {"enabled": True}, "npd": {"enabled": False}},  # the command line in the vendor's documentation
        {"devicePlugin": {"nodeSelector": {"nodeinfo": "neuron"}}},
        {
            "devicePlugin": {
                "mode": "dra",
                "dra": {"driver": "neuron-plugin.io", "nodeSelector": {"a/b": "c"}, "hidden": []},
            }
        },
    ],
)
def test_good_values_are_accepted(good: Manifest) -> None:
    VALIDATOR.validate(coalesced(good))


@pytest.mark.parametrize("condition", ["NeuronHealth", "It's", "two words", "ends."])
def test_a_condition_that_would_break_its_fence_is_refused(condition: str) -> None:
    for setting in ("node-condition", "ready-condition"):
        assert is_refused(nested(f"devicePlugin.settings.{setting}", condition))


BAD: dict[str, object] = {
    "devicePlugins.enabled": True,
    "devicePlugin.enable": True,
    "devicePlugin.enabled": "yes",
    "devicePlugin.mode": "both",
    "devicePlugin.settings.mode": "dra",
    "devicePlugin.dra.driver": "It's ours",
    "devicePlugin.dra.nodeSelector": {"two": "labels", "are": "not one"},
    "devicePlugin.dra.hidden": ["../.."],
    "gates.claims": "yes",
    "devicePlugin.settings.numbering": "hosts",
    "devicePlugin.settings.resources": [],
    "devicePlugin.settings.node-name": "the-chart-sets-this",
    "devicePlugin.settings.rescan-seconds": 0.5,
    "devicePlugin.settings.proc": "/host/proc",
    "devicePlugin.settings.kmsg": "/dev/kmsg",
    "devicePlugin.settings.node-condition": "Ready",
    "devicePlugin.settings.health": {"sram-eccc": {}},
    "devicePlugin.settings.health.sram-ecc": {"treshold": 5},
    "devicePlugin.settings.health.sram-ecc.threshold": 0,
    "devicePlugin.settings.health.hw-error.action": "drain",
    "devicePlugin.settings.health.missing": {"action": "ignore"},
    "devicePlugin.settings.health.flapping-window-seconds": -1,
    "devicePlugin.stateDir": "state",
    "devicePlugin.kernelLog": "/dev/kmsg",
    "devicePlugin.metricsPort": 9470,
    "devicePlugin.kubeletDir": "var/lib/kubelet",
    "devicePlugin.maxUnavailable": "half",
    "devicePlugin.maxUnavailable ": 1,
    "devicePlugin.tolerations": [{"operator": "Exist"}],
    "devicePlugin.resources.requests": None,
    "devicePlugin.nodeAffinity.instanceType": ["trn1.32xlarge"],
    "image.digest": "latest",
    "image.pullPolicy": "ifNotPresent",
    "instanceTypes": [{"name": "trn9.48xlarge", "devices": 16, "cores-per-device": 8, "topology": "cube"}],
    "scheduler.enabled": "true",
    "scheduler.extender.replicas": 0,
    "scheduler.extender.settings.dialects": ["aws"],
    "scheduler.extender.settings.insecure": True,
    "scheduler.customScheduler.schedulerName": "default-scheduler",
    "scheduler.customScheduler.extraArgs": ["v=2"],
    "scheduler.defaultScheduler.certificateDir": "pki",
    "scheduler.extenderConfig.weight": 0,
    "certificates.mode": "none",
    "certificates.certManager.duration": "90d",
    "policies.trustedUsers": "system:serviceaccount:a:b",
    "networkPolicy.extenderFrom": [{}],
    "npd.nodeRecovery.enabled": True,
    "policies.requests": "no",
    "policies.podDefaults.taints": ["two words"],
    "devicePlugin.nodeSelector": {"nodeinfo": True},
    "fullnameOverride": "2nd",
    "devicePlugin.nodeAffinity.labels": ["two words"],
    "devicePlugin.podLabels": {"app.kubernetes.io/name": "would no longer be selected"},
    "scheduler.extender.podLabels": {"app.kubernetes.io/component": "other"},
    "scheduler.extender.service.clusterIP": "None",
    "scheduler.customScheduler.podLabels": {"app.kubernetes.io/instance": "other"},
}


@pytest.mark.parametrize("path", BAD)
def test_bad_values_are_refused(path: str) -> None:
    assert is_refused(nested(path, BAD[path])), path


def objects(schema: Any, name: str = "") -> Iterator[tuple[str, Manifest]]:
    """Every schema of an object in the file, with the name it has there."""
    if isinstance(schema, dict):
        if schema.get("type") == "object":
            yield name, schema
        for key, part in schema.items():
            yield from objects(part, f"{name}[]" if key == "items" else name if key == "properties" else key)


def test_every_object_says_what_it_may_hold() -> None:
    open_ones = {name for name, schema in objects(SCHEMA) if "additionalProperties" not in schema}
    assert open_ones == FREE_FORM


def leaves(values: Manifest, schema: Manifest, path: str = "") -> Iterator[tuple[str, set[str], set[str]]]:
    """For every object of values.yaml: its path, its keys, and the keys the schema knows."""
    schema = SCHEMA["definitions"][schema["$ref"].rsplit("/", 1)[1]] if "$ref" in schema else schema
    known = schema.get("properties", {})
    yield path, set(values), set(known)
    for key, value in values.items():
        if isinstance(value, dict) and key in known:
            yield from leaves(value, known[key], f"{path}.{key}".lstrip("."))


def test_values_yaml_shows_every_key_that_the_schema_knows() -> None:
    maps = {"devicePlugin.settings", "scheduler.extender.settings", "gates.namespaceSelector"}
    for path, shown, known in leaves(default_values(), SCHEMA):
        if known and path not in maps:
            assert shown == known - REFUSED.get(path, set()), path


def test_null_takes_no_value_away() -> None:
    """A template that finds nothing says so in terms of Go, or leaves a fence out without a word."""
    for path, shown, known in leaves(default_values(), SCHEMA):
        for key in shown & known - {"global"}:
            refused = is_refused(nested(f"{path}.{key}".lstrip("."), None))
            assert refused or path.endswith(".settings"), f"{path}.{key}"


def test_the_affinity_lists_the_instance_types_of_the_catalogue() -> None:
    listed = default_values()["devicePlugin"]["nodeAffinity"]["instanceTypes"]
    assert listed == [instance.name for instance in SHIPPED]
