"""What every pod of the chart may do: as little as it needs (P80)."""

from __future__ import annotations

from pathlib import Path

import pytest

from neuron_plugin.kubelet_files import DRA_STATE
from neuron_plugin.placement.leadership import CONDITION
from neuron_plugin.placement.settings import ExtenderSettings
from neuron_plugin.plugin.settings import PluginSettings
from tests.charts.manifests import NAMES, containers, embedded, of_each, of_kind, pod_templates, settings_of
from tests.charts.rendering import Manifest

PODS = [(name, workload) for name in NAMES for workload in pod_templates(name)]
PLUGIN = [name for name in NAMES if of_kind(name, "DaemonSet")]
EXTENDER = [(name, workload) for name, workload in PODS if workload.endswith("-extender")]
SCHEDULER = [(name, workload) for name, workload in PODS if workload.endswith("-scheduler")]

ASKED = {"watched": ["SYS_PTRACE", "DAC_READ_SEARCH"], "health": ["SYS_PTRACE", "DAC_READ_SEARCH", "SYSLOG"]}
"""The value sets that ask for a look at the host's processes, which takes two capabilities, or at its kernel log."""

WRITABLE = {"device-plugins", "cdi", "plugins-registry", "state"}
"""The only host directories the plugin writes: its sockets, its memory and, asked to, the CDI specification."""

everywhere = of_each(PODS)


@everywhere
def test_p80_no_container_is_privileged_or_may_become_so(name: str, workload: str) -> None:
    for container in containers(pod_templates(name)[workload]):
        context = container["securityContext"]
        assert not context.get("privileged", False)
        assert context["allowPrivilegeEscalation"] is False
        assert context["capabilities"] == (
            {"drop": ["ALL"], "add": ASKED[name]} if name in ASKED else {"drop": ["ALL"]}
        )
        assert context["readOnlyRootFilesystem"] is True


@everywhere
def test_p80_no_pod_shares_a_namespace_of_its_host(name: str, workload: str) -> None:
    spec = pod_templates(name)[workload]["spec"]
    assert not {"hostNetwork", "hostPID", "hostIPC"} & set(spec)
    assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}


@everywhere
def test_p80_only_the_plugin_is_root(name: str, workload: str) -> None:
    context = pod_templates(name)[workload]["spec"]["securityContext"]
    if of_kind(name, "DaemonSet").get(workload):
        assert context["runAsUser"] == 0
    else:
        assert context["runAsNonRoot"] is True
        assert context["runAsUser"] >= 10000


RESTRICTED_VOLUMES = {"configMap", "secret", "projected", "downwardAPI", "emptyDir"}
"""Of those that the Pod Security level ``restricted`` admits, the ones that could be of use here."""


@of_each(NAMES)
def test_p80_every_pod_but_the_plugin_s_meets_the_restricted_level(name: str) -> None:
    jobs = {job: found["spec"]["template"] for job, found in of_kind(name, "Job").items()}
    plugins = set(of_kind(name, "DaemonSet"))
    for template in (pod for workload, pod in {**pod_templates(name), **jobs}.items() if workload not in plugins):
        spec = template["spec"]
        assert spec["securityContext"]["runAsNonRoot"] is True
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        kinds = {kind for volume in spec.get("volumes", []) for kind in volume if kind != "name"}
        assert kinds <= RESTRICTED_VOLUMES
        for container in containers(template):
            assert container["securityContext"]["allowPrivilegeEscalation"] is False
            assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
            assert not [port for port in container.get("ports", []) if "hostPort" in port]


@everywhere
def test_p80_every_container_has_requests_and_a_memory_limit(name: str, workload: str) -> None:
    for container in containers(pod_templates(name)[workload]):
        assert set(container["resources"]["requests"]) == {"cpu", "memory"}
        assert "memory" in container["resources"]["limits"]


@everywhere
def test_p80_every_container_has_probes_on_a_port_it_names(name: str, workload: str) -> None:
    for container in containers(pod_templates(name)[workload]):
        ports = {port["name"] for port in container["ports"]}
        for probe in ("livenessProbe", "readinessProbe"):
            assert container[probe]["httpGet"]["port"] in ports


def test_probes_ask_the_daemons_own_ports() -> None:
    ports = {
        container["name"]: {port["name"]: port["containerPort"] for port in container["ports"]}
        for template in pod_templates("second-scheduler").values()
        for container in containers(template)
    }
    assert ports["device-plugin"] == {"metrics": PluginSettings().health_port}
    assert ports["extender"]["metrics"] == ExtenderSettings().health_port


@everywhere
def test_every_mount_has_its_volume_and_the_reverse(name: str, workload: str) -> None:
    template = pod_templates(name)[workload]
    mounted = {mount["name"] for container in containers(template) for mount in container["volumeMounts"]}
    assert mounted == {volume["name"] for volume in template["spec"]["volumes"]}


@everywhere
def test_p80_host_paths_are_read_only_unless_the_plugin_writes_there(name: str, workload: str) -> None:
    template = pod_templates(name)[workload]
    host_paths = {volume["name"] for volume in template["spec"]["volumes"] if "hostPath" in volume}
    writable = {
        mount["name"]
        for container in containers(template)
        for mount in container["volumeMounts"]
        if mount["name"] in host_paths and not mount.get("readOnly", False)
    }
    assert writable <= WRITABLE
    if not of_kind(name, "DaemonSet").get(workload):
        assert not host_paths


@of_each(PLUGIN)
def test_p80_two_plugins_never_run_on_a_node_at_once(name: str) -> None:
    for workload in of_kind(name, "DaemonSet").values():
        strategy = workload["spec"]["updateStrategy"]
        assert strategy["type"] == "RollingUpdate"
        assert strategy["rollingUpdate"]["maxSurge"] == 0


def tolerates(tolerations: list[Manifest], key: str, value: str, effect: str) -> bool:
    """Whether one of the tolerations covers a taint (``ToleratesTaint`` of k8s.io/api/core/v1)."""
    return any(
        toleration.get("key") in (None, key)
        and toleration.get("effect") in (None, effect)
        and (toleration.get("operator") == "Exists" or toleration.get("value") == value)
        for toleration in tolerations
    )


@pytest.mark.parametrize(
    "taint",
    [
        ("CriticalAddonsOnly", "", "NoSchedule"),
        ("aws.amazon.com/neuron", "", "NoSchedule"),
        ("aws.amazon.com/neuroncore", "", "NoSchedule"),
        ("sagemaker.amazonaws.com/node-health-status", "Unschedulable", "NoSchedule"),
        ("node.kubernetes.io/not-ready", "", "NoExecute"),
    ],
)
def test_p80_no_taint_takes_a_node_s_plugin_away(taint: tuple[str, str, str]) -> None:
    spec = pod_templates("device-plugin")["neuron-plugin"]["spec"]
    assert tolerates(spec["tolerations"], *taint)
    assert spec["priorityClassName"] == "system-node-critical"


def test_p80_a_node_with_the_vendor_s_plugin_gets_no_second_one() -> None:
    affinity = pod_templates("device-plugin")["neuron-plugin"]["spec"]["affinity"]
    (term,) = affinity["podAntiAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    vendors = {"key": "name", "operator": "In", "values": ["neuron-device-plugin-ds"]}
    assert term["labelSelector"] == {"matchExpressions": [vendors]}
    assert term["namespaceSelector"] == {}
    assert term["topologyKey"] == "kubernetes.io/hostname"


def test_a_node_selector_narrows_the_affinity_further() -> None:
    selectors = {
        name: pod_templates(name)["neuron-plugin"]["spec"].get("nodeSelector") for name in ("tuned-node", "health")
    }
    assert selectors == {"tuned-node": {"nodeinfo": "neuron"}, "health": None}


def test_nodes_may_be_chosen_by_labels_alone() -> None:
    affinity = pod_templates("simulated")["neuron-plugin"]["spec"]["affinity"]["nodeAffinity"]
    (term,) = affinity["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    assert term["matchExpressions"][0] == {"key": "example.com/simulated-neuron", "operator": "In", "values": ["true"]}


def test_the_termination_message_is_not_written_into_the_host_s_dev() -> None:
    (container,) = pod_templates("device-plugin")["neuron-plugin"]["spec"]["containers"]
    assert {"name": "dev", "mountPath": "/dev", "readOnly": True} in container["volumeMounts"]
    assert not container["terminationMessagePath"].startswith("/dev/")


@of_each(PLUGIN)
def test_the_kubelet_s_directories_are_mounted_where_the_plugin_looks(name: str) -> None:
    for workload in of_kind(name, "DaemonSet"):
        spec = pod_templates(name)[workload]["spec"]
        paths = {volume["name"]: volume["hostPath"]["path"] for volume in spec["volumes"] if "hostPath" in volume}
        mounts = {mount["name"]: mount["mountPath"] for mount in spec["containers"][0]["volumeMounts"]}
        config = embedded(name, workload.removesuffix("-dra"), "config.yaml")
        assert paths["device-plugins"] == mounts["device-plugins"] == config["kubelet-dir"]
        assert paths["pod-resources"] == mounts["pod-resources"] == config["pod-resources-socket"].rsplit("/", 1)[0]
        if "plugins-registry" in mounts:
            assert paths["plugins-registry"] == mounts["plugins-registry"] == config["plugins-registry"]
            assert config.get("registration") == "watcher" or workload.endswith("-dra")
        if "kubelet" in mounts:
            assert paths["device-plugins"] == f"{paths['kubelet']}/device-plugins"
            assert config["dra-state"] == f"{mounts['kubelet']}/{DRA_STATE}"
        assert mounts.get("proc") == config.get("proc")
        assert paths["cgroup"] == "/sys/fs/cgroup"
        assert mounts["cgroup"] == config["cgroup"]


def test_what_is_mounted_only_when_asked_for() -> None:
    asked = {"tuned-node": {"cdi"}, "watched": {"plugins-registry", "proc"}, "health": {"proc"}}
    plain = {mount["name"] for mount in containers(pod_templates("device-plugin")["neuron-plugin"])[0]["volumeMounts"]}
    for name, more in asked.items():
        (container,) = containers(pod_templates(name)["neuron-plugin"])
        assert {mount["name"] for mount in container["volumeMounts"]} == plain | more


@of_each(EXTENDER + SCHEDULER)
def test_extender_and_scheduler_do_not_wait_for_themselves(name: str, workload: str) -> None:
    template = pod_templates(name)[workload]
    assert template["spec"]["schedulerName"] == "default-scheduler"
    for container in containers(template):
        asked = {*container["resources"]["requests"], *container["resources"]["limits"]}
        assert not [resource for resource in asked if resource.startswith("aws.amazon.com/")]


@of_each(EXTENDER)
def test_a_rollout_of_the_extender_takes_no_pod_before_another_stands_by(name: str, workload: str) -> None:
    deployment = of_kind(name, "Deployment")[workload]["spec"]
    assert deployment["strategy"]["rollingUpdate"] == {"maxSurge": 1, "maxUnavailable": 0}
    assert deployment["replicas"] == 2
    (container,) = pod_templates(name)[workload]["spec"]["containers"]
    assert container["readinessProbe"]["httpGet"]["path"] == f"/readyz?exclude={CONDITION}"
    pause = container["lifecycle"]["preStop"]["sleep"]["seconds"]
    assert 0 < pause < pod_templates(name)[workload]["spec"]["terminationGracePeriodSeconds"] - 10


@pytest.mark.parametrize(("name", "workload"), EXTENDER)
def test_a_standby_knows_where_the_leader_is_reached(name: str, workload: str, tmp_path: Path) -> None:
    (container,) = pod_templates(name)[workload]["spec"]["containers"]
    (variable,) = container["env"]
    assert variable["valueFrom"] == {"fieldRef": {"fieldPath": "status.podIP"}}
    loaded = settings_of(ExtenderSettings, name, workload, tmp_path, {variable["name"]: "10.0.0.7"})
    assert loaded.url == "https://10.0.0.7:12345"


@of_each(NAMES)
def test_a_drain_takes_one_pod_of_extender_and_scheduler_at_a_time_and_is_never_held_up(name: str) -> None:
    budgets = of_kind(name, "PodDisruptionBudget")
    assert set(budgets) in (set(of_kind(name, "Deployment")), set()), "all of them, or none where they are off"
    for budget in budgets.values():
        assert budget["spec"]["maxUnavailable"] == 1
        assert budget["spec"]["unhealthyPodEvictionPolicy"] == "AlwaysAllow"


@everywhere
def test_a_change_of_configuration_restarts_its_pods(name: str, workload: str) -> None:
    assert len(pod_templates(name)[workload]["metadata"]["annotations"]["checksum/config"]) == 64


def test_another_configuration_has_another_checksum() -> None:
    sums = {
        pod_templates(name)["neuron-plugin"]["metadata"]["annotations"]["checksum/config"]
        for name in ("device-plugin", "tuned-node", "simulated")
    }
    assert len(sums) == 3


def test_images_come_by_tag_or_by_digest() -> None:
    def images(name: str) -> set[str]:
        return {container["image"] for pod in pod_templates(name).values() for container in containers(pod)}

    assert images("second-scheduler") == {"neuron-plugin:0.1.0", "registry.k8s.io/kube-scheduler:v1.36.2"}
    assert images("existing-certificates") == {
        f"mirror.example.com/neuron-plugin@sha256:{'a' * 64}",
        "mirror.example.com/kube-scheduler:v1.36.2",
    }
    for pod in pod_templates("existing-certificates").values():
        assert pod["spec"]["imagePullSecrets"] == [{"name": "mirror"}]
