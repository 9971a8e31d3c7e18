from __future__ import annotations

import json

import pytest
import yaml

from neuron_plugin import __version__
from neuron_plugin.cli.manifests import PARTS
from tests.cli.doubles import Cli

NEEDED = {
    "device-plugin": (),
    "gates": (),
    "second-scheduler": ("--kubernetes-version", "v1.36.2"),
    "default-scheduler": ("--extender-address", "10.96.100.45"),
}


@pytest.mark.parametrize("part", PARTS)
def test_what_is_printed_is_manifests_without_a_placeholder_or_a_word_of_helm(cli: Cli, part: str) -> None:
    shown = cli("manifests", part, *NEEDED[part])
    assert (shown.status, shown.err) == (0, "")
    for placeholder in ("of-neuron-plugin", "its-tag", "version-of-kubernetes", "address-of-the-extender"):
        assert placeholder not in shown.out
    manifests = [manifest for manifest in yaml.safe_load_all(shown.out) if manifest]
    assert {"DaemonSet", "ValidatingAdmissionPolicy"} <= {manifest["kind"] for manifest in manifests}
    for manifest in manifests:
        assert not {"app.kubernetes.io/managed-by", "helm.sh/chart"} & manifest["metadata"]["labels"].keys()

    as_json = cli("manifests", part, *NEEDED[part], "-o", "json")
    found = json.loads(as_json.out)
    assert (found["apiVersion"], found["kind"], found["items"]) == ("v1", "List", manifests)
    assert ("neuron-plugin-extender-tls" in as_json.err) == (part != "device-plugin"), "comments go beside it"


def test_without_a_part_its_choices_are_named(cli: Cli) -> None:
    shown = cli("manifests")

    assert shown.status == 2
    assert "PART is device-plugin, gates, second-scheduler" in shown.err


def test_namespace_and_image_go_everywhere_they_belong(cli: Cli) -> None:
    shown = cli(
        "manifests", "second-scheduler", *NEEDED["second-scheduler"], "--namespace", "neuron", "--image", "r/i:1"
    )
    manifests = {(found["kind"], found["metadata"]["name"]): found for found in yaml.safe_load_all(shown.out) if found}
    plugin = manifests["DaemonSet", "neuron-plugin"]
    assert plugin["metadata"]["namespace"] == "neuron"
    assert plugin["spec"]["template"]["spec"]["containers"][0]["image"] == "r/i:1"
    policy = manifests["ValidatingAdmissionPolicy", "neuron-plugin-own-pods"]
    assert "system:serviceaccount:neuron:neuron-plugin" in policy["spec"]["matchConditions"][0]["expression"]
    scheduler = manifests["ConfigMap", "neuron-plugin-scheduler"]["data"]["config.yaml"]
    assert "https://neuron-plugin-extender.neuron.svc:12345" in scheduler
    reader = manifests["RoleBinding", "neuron-plugin-scheduler-authentication"]
    assert reader["metadata"]["namespace"] == "kube-system", "this role is Kubernetes's own and stays where it is"


def test_the_image_of_this_version_is_the_default(cli: Cli) -> None:
    assert f"image: neuron-plugin:{__version__}\n" in cli("manifests", "device-plugin").out


@pytest.mark.parametrize(("given", "upstream"), [("v1.33.4-eks-1a2b3c", "v1.33.4"), ("1.30", "v1.30.0")])
def test_a_provider_s_version_or_a_minor_one_becomes_the_upstream_scheduler_s(
    cli: Cli, given: str, upstream: str
) -> None:
    shown = cli("manifests", "second-scheduler", "--kubernetes-version", given)
    assert f"image: registry.k8s.io/kube-scheduler:{upstream}\n" in shown.out


def test_the_address_is_the_service_s_and_the_scheduler_s(cli: Cli) -> None:
    shown = cli("manifests", "default-scheduler", *NEEDED["default-scheduler"])
    assert 'clusterIP: "10.96.100.45"\n' in shown.out
    assert "urlPrefix: https://10.96.100.45:12345\n" in shown.out


@pytest.mark.parametrize("address", ["fd00:10:96::45", "1:2:3:4:5:6:7:8", "fd00::"])
def test_where_services_have_ipv6_our_pods_listen_on_it(cli: Cli, address: str) -> None:
    shown = cli("manifests", "default-scheduler", "--extender-address", address)
    assert f"urlPrefix: https://[{address}]:12345\n" in shown.out
    manifests = [manifest for manifest in yaml.safe_load_all(shown.out) if manifest]
    assert address in [each["spec"].get("clusterIP") for each in manifests if each["kind"] == "Service"]
    assert "0.0.0.0" not in shown.out  # noqa: S104 - what must not be there
    assert shown.out.count('address: "::"') == 3


@pytest.mark.parametrize("part", ["second-scheduler", "default-scheduler"])
def test_the_secrets_that_are_needed_first_are_named_first(cli: Cli, part: str) -> None:
    head = cli("manifests", part, *NEEDED[part], "--namespace", "neuron").out.split("---")[0]
    for name in ("neuron-plugin-extender-tls", "neuron-plugin-scheduler-tls", "neuron-plugin-extender.neuron.svc"):
        assert name in head
    assert "secret" not in cli("manifests", "device-plugin").out.split("---")[0]


def test_gates_need_no_scheduler_s_secret_and_leave_hooks_to_helm(cli: Cli) -> None:
    shown = cli("manifests", "gates", "--namespace", "neuron")
    head = shown.out.split("---")[0]
    assert "neuron-plugin-extender.neuron.svc" in head
    assert "neuron-plugin-scheduler-tls" not in head
    manifests = [manifest for manifest in yaml.safe_load_all(shown.out) if manifest]
    assert {"Deployment", "MutatingAdmissionPolicy"} <= {manifest["kind"] for manifest in manifests}
    assert "Job" not in {manifest["kind"] for manifest in manifests}
    assert "serviceaccount:neuron:neuron-plugin-extender'" in shown.out


@pytest.mark.parametrize(
    ("part", "flag"), [("second-scheduler", "--kubernetes-version"), ("default-scheduler", "--extender-address")]
)
def test_what_cannot_be_guessed_is_asked_for(cli: Cli, part: str, flag: str) -> None:
    shown = cli("manifests", part)
    assert (shown.status, shown.out) == (2, "")
    assert f"{part} needs {flag}" in shown.err


@pytest.mark.parametrize(
    "bad",
    [
        ("--namespace", "Kube_System"),
        ("--namespace", "neuron\n  evil: true"),
        ("--image", "neuron plugin"),
        ("--kubernetes-version", "latest"),
        ("--extender-address", "fe80::1%eth0"),
        ("--extender-address", "extender.local"),
    ],
)
def test_a_value_that_would_break_the_manifests_is_refused(cli: Cli, bad: tuple[str, str]) -> None:
    shown = cli("manifests", "device-plugin", *bad)
    assert (shown.status, shown.out) == (2, "")
    assert bad[0] in shown.err
