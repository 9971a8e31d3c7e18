"""What the chart tells the daemons is what the daemons understand (P82)."""

from __future__ import annotations

import argparse
import enum
import json
import typing
from pathlib import Path

import msgspec
import pytest
import yaml

from neuron_plugin.cli.main import build_parser
from neuron_plugin.instance_file import load_catalogue
from neuron_plugin.placement.settings import ExtenderSettings, check
from neuron_plugin.plugin.health import Action, HealthRules
from neuron_plugin.plugin.settings import TAKEN_CONDITIONS, PluginSettings
from neuron_plugin.plugin.settings import check as check_plugin
from neuron_plugin.settings import USUAL_FILE, _kind_of
from tests.charts.manifests import NAMES, embedded, of_each, of_kind, pod_templates, settings_of
from tests.charts.rendering import CHART, Manifest
from tests.charts.values_table import SCHEMA, schema

DEFINITIONS: Manifest = json.loads((CHART / "values.schema.json").read_text(encoding="utf-8"))["definitions"]

SET_BY_THE_CHART = {
    "pluginSettings": {
        "node-name", "cluster", "kubeconfig", "instance-types", "cdi-dir", "logical-core-file", "kubelet-dir",
        "pod-resources-socket", "plugins-registry", "proc", "cgroup", "health-address", "health-port",
        "lease-namespace", "kmsg", "state-dir", "mode", "dra-driver", "dra-state", "placed-claims",
    },
    "extenderSettings": {
        "address", "port", "tls-cert", "tls-key", "client-ca", "insecure", "health-address", "health-port",
        "kubeconfig", "instance-types", "leader-election", "lease-namespace", "identity",
        "advertise-address", "ui-token-file", "webhook-port", "dra-driver", "topology-levels", "preflight",
    },
}  # fmt: skip
"""Settings that follow from mounts, ports and names, and that values cannot change."""

STRUCTS: dict[str, type[msgspec.Struct]] = {
    "pluginSettings": PluginSettings,
    "extenderSettings": ExtenderSettings,
}


@pytest.mark.parametrize("definition", STRUCTS)
def test_p82_values_offer_every_setting_that_the_chart_does_not_set_itself(definition: str) -> None:
    settings = {field.encode_name for field in msgspec.structs.fields(STRUCTS[definition])}
    assert set(DEFINITIONS[definition]["properties"]) == settings - SET_BY_THE_CHART.get(definition, set())


def test_p82_the_schema_of_health_rules_and_topologies_is_the_daemon_s() -> None:
    assert schema() == SCHEMA.read_text(encoding="utf-8"), "write it: python -m tests.charts.values_table"


def choices(offered: Manifest) -> list[str]:
    """What a setting may be, in the schema of values."""
    resolved = DEFINITIONS[offered["$ref"].rsplit("/", 1)[1]] if "$ref" in offered else offered
    return list(resolved.get("enum") or resolved.get("items", {}).get("enum") or [])


def _members(kind: object) -> list[enum.Enum]:
    return list(kind) if isinstance(kind, enum.EnumType) else []


@pytest.mark.parametrize("definition", STRUCTS)
def test_p82_choices_of_a_setting_are_the_daemon_s(definition: str) -> None:
    offered = DEFINITIONS[definition]["properties"]
    for field in msgspec.structs.fields(STRUCTS[definition]):
        kind = _kind_of(field)
        kind = typing.get_args(kind)[0] if typing.get_origin(kind) is tuple else kind
        if field.encode_name in offered:
            members = [member.value for member in _members(kind)]
            assert choices(offered[field.encode_name]) == members, field.name


def test_p82_a_condition_that_another_program_writes_is_refused_as_by_the_daemon() -> None:
    assert set(DEFINITIONS["nodeCondition"]["not"]["enum"]) == set(TAKEN_CONDITIONS)


def test_health_policies_reach_the_daemon_over_its_defaults(tmp_path: Path) -> None:
    loaded = settings_of(PluginSettings, "health", "neuron-plugin", tmp_path)
    assert (loaded.health.sram_ecc.threshold, loaded.health.hw_error.action) == (5, Action.UNHEALTHY)
    assert loaded.health.kernel_message == HealthRules().kernel_message
    assert (loaded.health.flapping_window_seconds, loaded.node_condition) == (1800.0, "NeuronDevicesHealthy")


def test_the_state_is_looked_for_where_it_is_mounted() -> None:
    (container,) = pod_templates("health")["neuron-plugin"]["spec"]["containers"]
    mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
    assert embedded("health", "neuron-plugin", "config.yaml")["state-dir"] == mounts["state"]
    assert "state-dir" not in embedded("cleanup", "neuron-plugin", "config.yaml")


def test_the_doctor_finds_the_daemons_configuration_where_it_is_mounted() -> None:
    (container,) = pod_templates("device-plugin")["neuron-plugin"]["spec"]["containers"]
    (mount,) = [mount for mount in container["volumeMounts"] if mount["name"] == "config"]
    assert Path(mount["mountPath"], "config.yaml") == USUAL_FILE
    assert f"--config={USUAL_FILE}" in container["args"]


def test_the_kernel_log_takes_a_capability_and_no_mount_of_its_own() -> None:
    (container,) = pod_templates("health")["neuron-plugin"]["spec"]["containers"]
    assert "SYSLOG" in container["securityContext"]["capabilities"]["add"]
    assert not [mount for mount in container["volumeMounts"] if "kmsg" in mount["mountPath"]]
    assert "kmsg" not in embedded("health", "neuron-plugin", "config.yaml")


@pytest.mark.parametrize("name", NAMES)
def test_the_daemons_load_the_configuration_files_of_every_rendering(name: str, tmp_path: Path) -> None:
    config_maps = of_kind(name, "ConfigMap")
    if "neuron-plugin" in config_maps:
        check_plugin(settings_of(PluginSettings, name, "neuron-plugin", tmp_path))
    if "neuron-plugin-extender" in config_maps:
        loaded = settings_of(ExtenderSettings, name, "neuron-plugin-extender", tmp_path)
        check(loaded)
        assert (loaded.tls, loaded.insecure) == (True, False)
        assert loaded.client_ca == Path("/etc/neuron-plugin-tls/ca.crt")


def test_further_instance_types_reach_both_daemons_and_the_affinity(tmp_path: Path) -> None:
    file = tmp_path / "instance-types.yaml"
    file.write_text(
        of_kind("tuned-node", "ConfigMap")["neuron-plugin"]["data"]["instance-types.yaml"], encoding="utf-8"
    )
    assert load_catalogue(file)["trn9.48xlarge"].devices == 16
    assert embedded("tuned-node", "neuron-plugin", "config.yaml")["instance-types"].endswith("/instance-types.yaml")
    assert embedded("second-scheduler", "neuron-plugin-extender", "instance-types.yaml") == {"instance-types": []}
    terms = pod_templates("tuned-node")["neuron-plugin"]["spec"]["affinity"]["nodeAffinity"]
    first = terms["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"][0]["matchExpressions"][0]
    assert first["key"] == "node.kubernetes.io/instance-type"
    assert "trn9.48xlarge" in first["values"]


def test_a_schema_s_instance_type_is_an_entry_of_the_file(tmp_path: Path) -> None:
    entry = dict.fromkeys(DEFINITIONS["instanceType"]["properties"], 1) | {
        "name": "x", "device-name": "X", "topology": "single", "numa-nodes": [0], "amounts": {"shares": 100},
        "block-sizes": [1], "core-block-sizes": [1],
    }  # fmt: skip
    file = tmp_path / "types.yaml"
    file.write_text(yaml.safe_dump({"instance-types": [entry]}), encoding="utf-8")
    assert load_catalogue(file)["x"].device_name == "X"


@of_each(NAMES)
def test_the_daemons_parsers_accept_the_arguments_of_every_rendering(name: str) -> None:
    parser = build_parser()
    for template in pod_templates(name).values():
        for container in template["spec"]["containers"]:
            if container["name"] != "kube-scheduler":
                parsed: argparse.Namespace = parser.parse_args(container["args"])
                assert str(parsed.config) == "/etc/neuron-plugin/config.yaml"
