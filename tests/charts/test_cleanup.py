"""The Jobs that tidy up when the release is uninstalled: Helm's hooks, never part of an installation."""

from __future__ import annotations

import pytest

from neuron_plugin.cli.main import build_parser
from tests.charts.manifests import NAMES, containers, manifests, of_each, of_kind
from tests.charts.rendering import PLAIN, Manifest
from tests.charts.test_rbac import leases, rules

NAME, UNGATE = "neuron-plugin-cleanup", "neuron-plugin-ungate-all"
BOTH = pytest.mark.parametrize(("values", "name", "number"), [("cleanup", NAME, 6), ("gates", UNGATE, 4)])


def of_hook(values: str, name: str) -> list[Manifest]:
    return [found for found in manifests(values) if found["metadata"]["name"] == name]


def job(values: str = "cleanup", name: str = NAME) -> Manifest:
    """A Job's specification."""
    spec = of_kind(values, "Job")[name]["spec"]
    assert isinstance(spec, dict)
    return spec


@BOTH
def test_all_of_it_comes_after_the_deletion_and_goes_again(values: str, name: str, number: int) -> None:
    hook = of_hook(values, name)
    assert [found["kind"] for found in hook].count("Job") == 1
    assert len(hook) == number
    for found in hook:
        annotations = found["metadata"]["annotations"]
        assert annotations["helm.sh/hook"] == "post-delete"
        assert annotations["helm.sh/hook-delete-policy"] == "before-hook-creation,hook-succeeded"


@BOTH
def test_its_account_and_rights_are_there_before_it(values: str, name: str, number: int) -> None:
    weights = {
        found["kind"]: int(found["metadata"]["annotations"]["helm.sh/hook-weight"]) for found in of_hook(values, name)
    }
    assert weights["ServiceAccount"] < weights["Job"]
    for kind in ("ClusterRole", "Role"):
        assert (kind in weights) == (kind == "ClusterRole" or number == 6)
        if kind in weights:
            assert weights[kind] < weights[f"{kind}Binding"] < weights["Job"]


def test_pods_that_wait_behind_the_gate_are_released_by_the_command_for_it() -> None:
    (container,) = containers(job("gates", UNGATE)["template"])
    parsed = build_parser().parse_args(container["args"])
    assert (parsed.command, parsed.all, parsed.pods, parsed.kubeconfig) == ("ungate", True, [], None)
    assert rules(of_kind("gates", "ClusterRole")[UNGATE]) == {
        ("", "pods", "list", ""),
        ("", "pods", "patch", ""),
        *(("resource.k8s.io", kind, "list", "") for kind in ("resourceclaims", "resourceslices")),
        ("neuron-plugin.io", "placements", "ungate", ""),
    }


def test_p81_it_may_clear_nodes_and_leases_and_nothing_else() -> None:
    assert rules(of_kind("cleanup", "ClusterRole")[NAME]) == {
        *(("", "nodes", verb, "") for verb in ("get", "list", "patch")),
        ("resource.k8s.io", "resourceclaims", "list", ""),
        ("", "nodes/status", "patch", ""),  # because the plugin of these values keeps conditions
    }
    assert rules(of_kind("cleanup", "Role")[NAME]) == leases("list", "delete")


def test_the_command_understands_its_arguments() -> None:
    (container,) = containers(job()["template"])
    parsed = build_parser().parse_args(container["args"])
    assert (parsed.all, parsed.nodes, parsed.kubeconfig, parsed.lease_namespace) == (True, [], None, "kube-system")
    assert parsed.node_condition == ["NeuronDevicesHealthy", "NeuronDevicesReady"]


@BOTH
def test_it_ends_before_helm_stops_waiting(values: str, name: str, number: int) -> None:
    del number
    assert job(values, name)["activeDeadlineSeconds"] < 300
    assert job(values, name)["template"]["spec"]["restartPolicy"] == "Never"


@BOTH
def test_p80_it_runs_unprivileged_and_has_nothing_of_the_host(values: str, name: str, number: int) -> None:
    del number
    spec = job(values, name)["template"]["spec"]
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


WITH_HOOKS = {"cleanup", "dra-everywhere", "gates", "gates-claims", "gates-preflight"}


@of_each([name for name in NAMES if name not in WITH_HOOKS])
def test_nothing_has_hooks_that_was_not_asked_to(name: str) -> None:
    assert not of_kind(name, "Job")
    for found in manifests(name):
        assert found["metadata"].get("annotations", {}).get("helm.sh/hook") in {None, "test"}


def test_kubectl_is_never_handed_a_hook() -> None:
    for file in PLAIN.glob("*.yaml"):
        assert "helm.sh/hook" not in file.read_text(encoding="utf-8")
