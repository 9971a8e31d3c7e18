"""The Job that clears nodes when the release is uninstalled: Helm's hook, never part of an installation."""

from __future__ import annotations

import pytest

from neuron_plugin.cli.main import build_parser
from tests.charts.manifests import NAMES, containers, manifests, of_kind
from tests.charts.rendering import PLAIN, Manifest
from tests.charts.test_rbac import leases, rules

NAME = "neuron-plugin-cleanup"


def of_cleanup() -> list[Manifest]:
    return [found for found in manifests("cleanup") if found["metadata"]["name"] == NAME]


def job() -> Manifest:
    """The Job's specification."""
    spec = of_kind("cleanup", "Job")[NAME]["spec"]
    assert isinstance(spec, dict)
    return spec


def test_all_of_it_comes_after_the_deletion_and_goes_again() -> None:
    assert [found["kind"] for found in of_cleanup()].count("Job") == 1
    assert len(of_cleanup()) == 6
    for found in of_cleanup():
        annotations = found["metadata"]["annotations"]
        assert annotations["helm.sh/hook"] == "post-delete"
        assert annotations["helm.sh/hook-delete-policy"] == "before-hook-creation,hook-succeeded"


def test_its_account_and_rights_are_there_before_it() -> None:
    weights = {found["kind"]: int(found["metadata"]["annotations"]["helm.sh/hook-weight"]) for found in of_cleanup()}
    assert weights["ServiceAccount"] < weights["Job"]
    for kind in ("ClusterRole", "Role"):
        assert weights[kind] < weights[f"{kind}Binding"] < weights["Job"]


def test_p81_it_may_clear_nodes_and_leases_and_nothing_else() -> None:
    assert rules(of_kind("cleanup", "ClusterRole")[NAME]) == {
        *(("", "nodes", verb, "") for verb in ("get", "list", "patch")),
        ("", "nodes/status", "patch", ""),  # because the plugin of these values keeps conditions
    }
    assert rules(of_kind("cleanup", "Role")[NAME]) == leases("list", "delete")


def test_the_command_understands_its_arguments() -> None:
    (container,) = containers(job()["template"])
    parsed = build_parser().parse_args(container["args"])
    assert (parsed.all, parsed.nodes, parsed.kubeconfig, parsed.lease_namespace) == (True, [], None, "kube-system")
    assert parsed.node_condition == ["NeuronDevicesHealthy", "NeuronDevicesReady"]


def test_it_ends_before_helm_stops_waiting() -> None:
    assert job()["activeDeadlineSeconds"] < 300
    assert job()["template"]["spec"]["restartPolicy"] == "Never"


def test_p80_it_runs_unprivileged_and_has_nothing_of_the_host() -> None:
    spec = job()["template"]["spec"]
    assert spec["securityContext"]["runAsNonRoot"] is True
    assert not {"volumes", "hostNetwork", "hostPID"} & set(spec)
    (container,) = spec["containers"]
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert "memory" in container["resources"]["limits"]


def test_it_uses_the_release_s_image_and_pull_secrets() -> None:
    (container,) = containers(job()["template"])
    assert container["image"] == "mirror.example.com/neuron-plugin:0.1.0"
    assert job()["template"]["spec"]["imagePullSecrets"] == [{"name": "mirror"}]


@pytest.mark.parametrize("name", [name for name in NAMES if name != "cleanup"])
def test_nothing_has_hooks_that_was_not_asked_to(name: str) -> None:
    assert not of_kind(name, "Job")
    for found in manifests(name):
        assert found["metadata"].get("annotations", {}).get("helm.sh/hook") in {None, "test"}


def test_kubectl_is_never_handed_a_hook() -> None:
    for file in PLAIN.glob("*.yaml"):
        assert "helm.sh/hook" not in file.read_text(encoding="utf-8")
