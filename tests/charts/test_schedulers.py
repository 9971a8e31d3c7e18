"""What kube-scheduler's configuration says about the extender, in a second scheduler and in the cluster's own."""

from __future__ import annotations

from urllib.parse import urlsplit

import pytest
import yaml

from neuron_plugin.cli.scheduler_config import ExtenderEndpoint, scheduler_configuration
from neuron_plugin.placement.context import Times
from neuron_plugin.placement.settings import ExtenderSettings
from tests.charts.manifests import NAMES, containers, embedded, of_each, of_kind, pod_templates
from tests.charts.rendering import Manifest

CUSTOM = [name for name in NAMES if any(found.endswith("-scheduler") for found in of_kind(name, "Deployment"))]
DEFAULT = ["default-scheduler", "kops"]


def configuration(name: str) -> Manifest:
    """The KubeSchedulerConfiguration of a rendering."""
    if name in DEFAULT:
        return embedded(name, "neuron-plugin-default-scheduler", "kube-scheduler-config.yaml")
    (config_map,) = (found for found in of_kind(name, "ConfigMap") if found.endswith("-scheduler"))
    return embedded(name, config_map, "config.yaml")


@of_each(CUSTOM + DEFAULT)
def test_the_extender_entry_is_the_one_that_the_command_line_prints(name: str) -> None:
    (entry,) = configuration(name)["extenders"]
    tls = entry["tlsConfig"]
    assert tls.pop("serverName").endswith("-extender.kube-system.svc")
    endpoint = ExtenderEndpoint(entry["urlPrefix"], tls["caFile"], tls["certFile"], tls["keyFile"])
    printed: Manifest = scheduler_configuration(endpoint)
    (expected,) = printed["extenders"]
    del expected["tlsConfig"]["serverName"]  # that of the URL, where the chart may give an address
    for loaded in (entry, expected):
        loaded["managedResources"].sort(key=lambda resource: resource["name"])
    assert entry == expected
    url = urlsplit(entry["urlPrefix"])
    assert (url.scheme, url.port, url.path) == ("https", ExtenderSettings().port, "")


@of_each(CUSTOM + DEFAULT)
def test_only_fields_that_strict_decoding_knows_are_written(name: str) -> None:
    loaded = configuration(name)
    assert loaded["apiVersion"] == "kubescheduler.config.k8s.io/v1"
    assert loaded["kind"] == "KubeSchedulerConfiguration"
    known = {"apiVersion", "kind", "clientConnection", "leaderElection", "profiles", "extenders"}
    assert set(loaded) <= known
    assert set(loaded["leaderElection"]) <= {"leaderElect", "resourceName", "resourceNamespace"}
    (profile,) = loaded["profiles"]
    assert set(profile) == {"schedulerName", "percentageOfNodesToScore"}
    assert profile["percentageOfNodesToScore"] == 100


def test_the_extender_answers_before_the_scheduler_gives_up() -> None:
    (entry,) = configuration("second-scheduler")["extenders"]
    assert Times().answer < float(entry["httpTimeout"].removesuffix("s"))


@pytest.mark.parametrize(
    ("name", "scheduler"), [("second-scheduler", "neuron-scheduler"), ("vendor-migration", "my-scheduler")]
)
def test_a_second_scheduler_has_its_own_name_and_lease(name: str, scheduler: str) -> None:
    loaded = configuration(name)
    assert loaded["profiles"][0]["schedulerName"] == scheduler
    assert loaded["leaderElection"] == {
        "leaderElect": True,
        "resourceName": scheduler,
        "resourceNamespace": "kube-system",
    }


@of_each(CUSTOM)
def test_the_second_scheduler_finds_its_files_where_they_are_mounted(name: str) -> None:
    (workload,) = (found for found in pod_templates(name) if found.endswith("-scheduler"))
    (container,) = containers(pod_templates(name)[workload])
    mounts = {mount["mountPath"] for mount in container["volumeMounts"]}
    config = next(argument for argument in container["command"] if argument.startswith("--config="))
    assert config.removeprefix("--config=").rsplit("/", 1)[0] in mounts
    tls = configuration(name)["extenders"][0]["tlsConfig"]
    for file in ("caFile", "certFile", "keyFile"):
        assert tls[file].rsplit("/", 1)[0] in mounts


def test_more_arguments_come_last() -> None:
    (container,) = containers(pod_templates("vendor-migration")["neuron-plugin-scheduler"])
    assert container["command"][-1] == "--v=4"


@of_each(CUSTOM + DEFAULT)
def test_the_url_leads_to_the_service_and_its_pods(name: str) -> None:
    (entry,) = configuration(name)["extenders"]
    host = str(urlsplit(entry["urlPrefix"]).hostname)
    (service,) = of_kind(name, "Service").values()
    names = {service["spec"].get("clusterIP"), f"{service['metadata']['name']}.kube-system.svc"}
    assert host in names
    ports = {port["name"]: port["port"] for port in service["spec"]["ports"]}
    assert urlsplit(entry["urlPrefix"]).port == ports["https"]
    (workload,) = (found for found in pod_templates(name) if found.endswith("-extender"))
    template = pod_templates(name)[workload]
    assert service["spec"]["selector"].items() <= template["metadata"]["labels"].items()
    offered = {port["name"]: port["containerPort"] for port in containers(template)[0]["ports"]}
    assert {port["targetPort"] for port in service["spec"]["ports"]} == set(offered)
    assert offered == {"https": ExtenderSettings().port, "metrics": ExtenderSettings().health_port}


def test_the_cluster_s_own_scheduler_keeps_its_name_and_credentials() -> None:
    for name, kubeconfig in (
        ("default-scheduler", "/etc/kubernetes/scheduler.conf"),
        ("kops", "/var/lib/kube-scheduler/kubeconfig"),
    ):
        loaded = configuration(name)
        assert loaded["profiles"][0]["schedulerName"] == "default-scheduler"
        assert loaded["clientConnection"] == {"kubeconfig": kubeconfig}
        assert loaded["leaderElection"] == {"leaderElect": True}


def test_kubeadm_and_the_static_pod_patch_say_the_same() -> None:
    files = of_kind("default-scheduler", "ConfigMap")["neuron-plugin-default-scheduler"]["data"]
    kubeadm = yaml.safe_load(files["kubeadm-cluster-configuration.yaml"])
    patch = yaml.safe_load(files["kube-scheduler-static-pod-patch.yaml"])
    directory = "/etc/kubernetes/neuron-plugin"
    (argument,) = kubeadm["scheduler"]["extraArgs"]
    assert (argument["name"], argument["value"]) == ("config", f"{directory}/kube-scheduler-config.yaml")
    command, mount, volume = patch
    assert command["value"] == f"--config={argument['value']}"
    (extra,) = kubeadm["scheduler"]["extraVolumes"]
    assert mount["value"] == {"name": extra["name"], "mountPath": extra["mountPath"], "readOnly": extra["readOnly"]}
    assert volume["value"]["hostPath"] == {"path": extra["hostPath"], "type": extra["pathType"]}


def test_nothing_of_the_control_plane_is_changed_by_the_chart() -> None:
    for name in DEFAULT:
        assert not [found for found in pod_templates(name) if found.endswith("-scheduler")]
        assert {found["metadata"]["namespace"] for found in of_kind(name, "Deployment").values()} == {"kube-system"}
