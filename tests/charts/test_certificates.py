"""Certificates: three ways to have them, one pair of secrets that extender and scheduler mount."""

from __future__ import annotations

import pytest

from tests.charts.manifests import NAMES, embedded, of_each, of_kind, pod_templates
from tests.charts.rendering import CHART, Manifest

WITH_EXTENDER = [name for name in NAMES if of_kind(name, "Service")]


def mounted_secret(name: str, suffix: str, volume_name: str = "tls") -> str | None:
    """The secret that the extender's or scheduler's pods mount."""
    for workload, template in pod_templates(name).items():
        if workload.endswith(suffix):
            secrets = {each["name"]: each["secret"] for each in template["spec"]["volumes"] if "secret" in each}
            assert {each["defaultMode"] for each in secrets.values()} == {0o440}
            return str(secrets[volume_name]["secretName"]) if volume_name in secrets else None
    return None


@pytest.mark.parametrize("name", ["second-scheduler", "default-scheduler", "monitoring", "extender-only"])
def test_generated_secrets_are_those_that_are_mounted(name: str) -> None:
    secrets = of_kind(name, "Secret")
    assert set(secrets) == {"neuron-plugin-extender-tls", "neuron-plugin-scheduler-tls"}
    assert mounted_secret(name, "-extender") == "neuron-plugin-extender-tls"
    assert mounted_secret(name, "-scheduler") in ("neuron-plugin-scheduler-tls", None)
    for secret in secrets.values():
        assert secret["type"] == "kubernetes.io/tls"
        assert set(secret["data"]) == {"ca.crt", "tls.crt", "tls.key"}


def test_an_upgrade_keeps_generated_certificates_and_never_mixes_two_authorities() -> None:
    text = (CHART / "templates/certificates-generated.yaml").read_text(encoding="utf-8")
    assert "$keep := and $oldServer $oldClient" in text
    assert text.count("lookup ") == 2
    assert text.count("genCA ") == 1


@pytest.mark.parametrize(
    ("name", "server", "client"),
    [
        ("existing-certificates", "our-server", "our-client"),
        ("kops", "neuron-plugin-extender-tls", None),
        ("cert-manager", "neuron-plugin-extender-tls", "neuron-plugin-scheduler-tls"),
        ("cert-manager-issuer", "neuron-server", "neuron-client"),
    ],
)
def test_brought_and_issued_secrets_are_mounted_and_not_made(name: str, server: str, client: str | None) -> None:
    assert not of_kind(name, "Secret")
    assert (mounted_secret(name, "-extender"), mounted_secret(name, "-scheduler")) == (server, client)


def issued(name: str) -> dict[str, Manifest]:
    """The certificates that cert-manager is asked for, by the secret they go to."""
    return {found["spec"]["secretName"]: found["spec"] for found in of_kind(name, "Certificate").values()}


@pytest.mark.parametrize("name", ["cert-manager", "cert-manager-issuer"])
def test_cert_manager_issues_what_is_mounted(name: str) -> None:
    certificates = issued(name)
    server = certificates[str(mounted_secret(name, "-extender"))]
    client = certificates[str(mounted_secret(name, "-scheduler"))]
    assert "server auth" in server["usages"]
    assert "client auth" in client["usages"]
    assert server["issuerRef"] == client["issuerRef"]
    (service,) = of_kind(name, "Service")
    assert server["dnsNames"][0] == f"{service}.kube-system.svc"


def test_cert_manager_makes_a_ca_that_signs_nothing_else_unless_an_issuer_is_named() -> None:
    assert set(of_kind("cert-manager", "Issuer")) == {"neuron-plugin-self-signed", "neuron-plugin-ca"}
    assert of_kind("cert-manager", "Issuer")["neuron-plugin-ca"]["spec"]["ca"]["secretName"] == "neuron-plugin-ca"
    assert issued("cert-manager")["neuron-plugin-ca"]["isCA"] is True
    assert not of_kind("cert-manager-issuer", "Issuer")
    for certificate in issued("cert-manager-issuer").values():
        assert certificate["issuerRef"]["kind"] == "ClusterIssuer"


@of_each(WITH_EXTENDER)
def test_the_server_s_name_in_the_certificate_is_what_the_scheduler_expects(name: str) -> None:
    (service,) = of_kind(name, "Service")
    for config_map in of_kind(name, "ConfigMap").values():
        for text in config_map["data"].values():
            if "KubeSchedulerConfiguration" in text:
                assert f"serverName: {service}.kube-system.svc\n" in text


def test_the_page_s_token_is_mounted_where_the_setting_looks_for_it() -> None:
    name = "existing-certificates"
    assert mounted_secret(name, "-extender", "ui") == "our-page"
    settings = embedded(name, "neuron-plugin-extender", "config.yaml")
    (container,) = pod_templates(name)["neuron-plugin-extender"]["spec"]["containers"]
    (mount,) = [each["mountPath"] for each in container["volumeMounts"] if each["name"] == "ui"]
    assert settings["ui-token-file"] == f"{mount}/token"
    assert settings["ui"] is True
    assert mounted_secret("second-scheduler", "-extender", "ui") is None
