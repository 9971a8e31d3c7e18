"""The pod of ``helm test``: the doctor, with the plugin's view of its host."""

from __future__ import annotations

from neuron_plugin.cli.main import build_parser
from tests.charts.manifests import NAMES, containers, of_each, of_kind, pod_templates
from tests.charts.rendering import Manifest

WITH_PLUGIN = [name for name in NAMES if of_kind(name, "DaemonSet")]


def doctor(name: str) -> tuple[Manifest, Manifest]:
    """The doctor's pod of a rendering, and the pod template of its plugin."""
    (pod,) = of_kind(name, "Pod").values()
    (plugin,) = (pod_templates(name)[daemon_set] for daemon_set in of_kind(name, "DaemonSet"))
    return pod, plugin


def test_it_is_there_where_the_plugin_is() -> None:
    assert [name for name in NAMES if of_kind(name, "Pod")] == WITH_PLUGIN


@of_each(WITH_PLUGIN)
def test_helm_runs_it_as_a_test_only(name: str) -> None:
    annotations = doctor(name)[0]["metadata"]["annotations"]
    assert annotations == {"helm.sh/hook": "test", "helm.sh/hook-delete-policy": "before-hook-creation"}
    assert doctor(name)[0]["spec"]["restartPolicy"] == "Never"


@of_each(WITH_PLUGIN)
def test_it_sees_what_the_plugin_sees_and_may_do_no_more(name: str) -> None:
    pod, plugin = doctor(name)
    (ours,), (theirs,) = containers(pod), containers(plugin)
    for key in ("image", "imagePullPolicy", "volumeMounts", "securityContext", "terminationMessagePath"):
        assert ours[key] == theirs[key], key
    for key in ("serviceAccountName", "securityContext", "volumes", "tolerations"):
        assert pod["spec"][key] == plugin["spec"][key], key
    assert not {"hostNetwork", "hostPID", "hostIPC"} & set(pod["spec"])


@of_each(WITH_PLUGIN)
def test_it_goes_to_a_node_with_the_plugin(name: str) -> None:
    pod, plugin = doctor(name)
    (term,) = pod["spec"]["affinity"]["podAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    assert term["topologyKey"] == "kubernetes.io/hostname"
    assert term["labelSelector"]["matchLabels"].items() <= plugin["metadata"]["labels"].items()
    assert pod["metadata"]["labels"]["app.kubernetes.io/component"] != "device-plugin", "no selector may take it"


def test_the_command_understands_its_arguments() -> None:
    (container,) = containers(doctor("device-plugin")[0])
    parsed = build_parser().parse_args(container["args"])
    assert parsed.checks == []
    assert {each["name"] for each in container["env"]} == {"NODE_NAME"}
