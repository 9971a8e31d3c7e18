"""What the chart renders: as it is kept, as Helm renders it, and as Kubernetes accepts it."""

from __future__ import annotations

import kubernetes_validate  # type: ignore[import-untyped]  # ships no types; two functions are used here
import pytest
import yaml

from tests.charts.manifests import NAMES, manifests, of_each
from tests.charts.rendering import (
    GOLDEN,
    NOTES,
    PLAIN,
    PLAIN_VALUES,
    VALUES,
    Manifest,
    helm,
    kept,
    read,
    render,
    render_notes,
    render_notes_with_helm,
    render_with_helm,
)
from tests.charts.templates import TemplateFailError

FOREIGN_GROUPS = {"cert-manager.io", "monitoring.coreos.com", "security.openshift.io"}
"""Objects of other projects, whose schemas Kubernetes does not have; other tests look at them."""

TRIED = "1.36"
VERSIONS = ("1.30", TRIED, "1.37")
"""The chart's oldest, the one that it is tried with, and the newest that the schemas know."""

SINCE = {"MutatingAdmissionPolicy": "1.36", "MutatingAdmissionPolicyBinding": "1.36", "DeviceClass": "1.34"}
"""Kinds that the oldest Kubernetes does not serve; the chart refuses to render them for it."""


def test_what_is_kept_is_what_the_chart_renders() -> None:
    for file, text in kept():
        assert file.read_text(encoding="utf-8") == text, f"{file.name}: write it, python -m tests.charts.rendering"


def test_nothing_else_is_kept() -> None:
    files = {file for directory in (GOLDEN, NOTES, PLAIN) for file in directory.iterdir() if file.suffix != ".py"}
    assert files == {file for file, _ in kept()}
    assert {file.stem for file in PLAIN.glob("*.yaml")} == {file.stem for file in PLAIN_VALUES.glob("*.yaml")}


@pytest.mark.skipif(helm() is None, reason="no helm on the PATH: tests/charts/templates.py stands in for it")
@of_each(NAMES)
def test_helm_renders_the_same(name: str) -> None:
    file = VALUES / f"{name}.yaml"
    assert said(render_with_helm(file)) == said(render(read(file)))
    assert render_notes_with_helm(file) == render_notes(read(file))


def said(text: str) -> list[str]:
    """The manifests without empty lines, in any order: Helm 4 leaves other ones than Helm 3, and prints hooks first."""
    return sorted("\n".join(filter(str.strip, each.splitlines())) for each in text.split("---\n"))


@pytest.mark.parametrize("release", ["7", "x" * 53])
def test_a_release_may_have_any_name_that_helm_allows(release: str) -> None:
    for found in yaml.load_all(render(read(VALUES / "second-scheduler.yaml"), release=release), yaml.CSafeLoader):
        if found["kind"] in {"DaemonSet", "Deployment", "Service"}:  # which select by it
            kubernetes_validate.validate(found, TRIED, strict=True)
        assert found["metadata"]["labels"]["app.kubernetes.io/instance"] == release


@pytest.mark.parametrize(
    ("values", "words"),
    [
        (
            {"devicePlugin": {"nodeAffinity": {"instanceTypes": [], "labels": []}}},
            "devicePlugin.nodeAffinity has neither instanceTypes nor labels: name one",
        ),
        (
            {"scheduler": {"customScheduler": {"fullnameOverride": "my-scheduler"}}},
            "calls it so, here it is scheduler.customScheduler.schedulerName=my-scheduler",
        ),
        ({"npd": {"enabled": True}}, "npd.enabled is true, but this chart has no node problem detector"),
        (
            {"scheduler": {"enabled": True, "extender": {"uiTokenSecret": "t"}}},
            "scheduler.extender.uiTokenSecret is t, but scheduler.extender.settings.ui is not true",
        ),
    ],
)
def test_what_makes_no_sense_is_refused_in_words(values: Manifest, words: str) -> None:
    with pytest.raises(TemplateFailError) as refused:
        render(values)
    assert words in str(refused.value)


@pytest.mark.parametrize(
    ("values", "what"),
    [
        ({"policies": {"podDefaults": {"enabled": True}}}, "policies.podDefaults needs Kubernetes 1.36"),
        (
            {"placement": "gates", "gates": {"admission": "policy"}},
            "gates.admission is policy, which needs Kubernetes 1.36",
        ),
        ({"devicePlugin": {"mode": "dra"}}, "devicePlugin.mode is dra, which needs Kubernetes 1.34"),
    ],
)
def test_what_a_cluster_does_not_serve_is_refused_in_words(values: Manifest, what: str) -> None:
    with pytest.raises(TemplateFailError) as refused:
        render(values, kubernetes="1.33.2")
    assert what in str(refused.value)


def shape(part: object) -> object:
    """What a schema judges: keys and types."""
    if isinstance(part, dict):
        return tuple((key, shape(value)) for key, value in sorted(part.items()))
    return frozenset(map(shape, part)) if isinstance(part, list) else type(part)


def distinct_objects() -> list[Manifest]:
    """An object of each shape in every rendering: most are the same in most."""
    return list({(found["kind"], shape(found)): found for name in NAMES for found in manifests(name)}.values())


def is_foreign(manifest: Manifest) -> bool:
    return manifest["apiVersion"].split("/")[0] in FOREIGN_GROUPS


@pytest.mark.parametrize("version", VERSIONS)
def test_kubernetes_own_schemas_accept_every_object_strictly(version: str) -> None:
    for manifest in distinct_objects():
        if not is_foreign(manifest) and version >= SINCE.get(manifest["kind"], ""):
            kubernetes_validate.validate(manifest, version, strict=True)


def test_the_schemas_would_notice_a_misspelled_field() -> None:
    manifest = next(found for found in manifests("device-plugin") if found["kind"] == "DaemonSet")
    broken = yaml.safe_load(yaml.safe_dump(manifest))
    broken["spec"]["template"]["spec"]["containers"][0]["imagePullPolicyy"] = "Always"
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(broken, TRIED, strict=True)


@of_each(NAMES)
def test_no_object_is_rendered_twice(name: str) -> None:
    keys = [
        (found["apiVersion"], found["kind"], found["metadata"].get("namespace"), found["metadata"]["name"])
        for found in manifests(name)
    ]
    assert len(keys) == len(set(keys)) > 0


@of_each(NAMES)
def test_everything_is_labelled_as_part_of_the_release(name: str) -> None:
    for manifest in manifests(name):
        labels = manifest["metadata"]["labels"]
        assert labels["app.kubernetes.io/name"] == "neuron-plugin"
        assert labels["app.kubernetes.io/instance"] == "neuron-plugin"


def test_no_certificate_is_kept() -> None:
    for file in GOLDEN.glob("*.yaml"):
        assert "PRIVATE KEY" not in file.read_text(encoding="utf-8")
