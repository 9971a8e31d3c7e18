"""The pod of ``helm test``: the doctor, with the plugin's view of its host."""

from __future__ import annotations

from neuron_plugin.cli.main import build_parser
from tests.charts.manifests import NAMES, containers, of_each, of_kind, pod_templates
from tests.charts.rendering import Manifest

PLUGINS = [(name, plugin) for name in NAMES for plugin in of_kind(name, "DaemonSet")]


def doctor(name: str, plugin: str) -> tuple[Manifest, Manifest]:
    """The pod that looks at nodes of a DaemonSet, and the DaemonSet's pod template."""
    return of_kind(name, "Pod")[f"{plugin}-doctor"], pod_templates(name)[plugin]


def test_it_is_there_where_the_plugin_is() -> None:
    assert [(name, pod.removesuffix("-doctor")) for name in NAMES for pod in of_kind(name, "Pod")] == PLUGINS


@of_each(PLUGINS)
def test_helm_runs_it_as_a_test_only(name: str, plugin: str) -> None:
    pod, _ = doctor(name, plugin)
    annotations = pod["metadata"]["annotations"]
    assert annotations == {"helm.sh/hook": "test", "helm.sh/hook-delete-policy": "before-hook-creation"}
    assert pod["spec"]["restartPolicy"] == "Never"


@of_each(PLUGINS)
def test_it_sees_what_the_plugin_sees_and_may_do_no_more(name: str, workload: str) -> None:
    pod, plugin = doctor(name, workload)
    (ours,), (theirs,) = containers(pod), containers(plugin)
    for key in ("image", "imagePullPolicy", "volumeMounts", "securityContext", "terminationMessagePath"):
        assert ours[key] == theirs[key], key
    for key in ("serviceAccountName", "securityContext", "volumes", "tolerations"):
        assert pod["spec"][key] == plugin["spec"][key], key
    assert not {"hostNetwork", "hostPID", "hostIPC"} & set(pod["spec"])


@of_each(PLUGINS)
def test_it_goes_to_a_node_with_the_plugin(name: str, workload: str) -> None:
    pod, plugin = doctor(name, workload)
    (term,) = pod["spec"]["affinity"]["podAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    assert term["topologyKey"] == "kubernetes.io/hostname"
    assert term["labelSelector"]["matchLabels"].items() <= plugin["metadata"]["labels"].items()
    assert pod["metadata"]["labels"]["app.kubernetes.io/component"] == "doctor", "no selector may take it"


@of_each(PLUGINS)
def test_the_command_understands_its_arguments_and_looks_as_its_daemon_does(name: str, workload: str) -> None:
    pod, plugin = doctor(name, workload)
    (container,), (theirs,) = containers(pod), containers(plugin)
    assert build_parser().parse_args(container["args"]).words == []
    assert container["env"] == [each for each in theirs["env"] if each["name"] != "POD_UID"]
