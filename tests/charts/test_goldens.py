"""The kept renderings are what Helm makes of the chart today, and what Kubernetes accepts."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import kubernetes_validate  # type: ignore[import-untyped]  # ships no types; two functions are used here
import pytest
import yaml

from tests.charts.manifests import NAMES, Manifest, manifests
from tests.charts.rendering import GOLDEN, NOTES, PLAIN, PLAIN_VALUES, VALUES, helm, render, render_notes, render_plain

FOREIGN_GROUPS = {"cert-manager.io", "monitoring.coreos.com", "security.openshift.io"}
"""Objects of other projects, whose schemas Kubernetes does not have; other tests look at them."""

TRIED = "1.36"
VERSIONS = [f"1.{minor}" for minor in range(30, 38)]
"""From the chart's oldest to the newest that the schemas know."""

SINCE = {"MutatingAdmissionPolicy": "1.36", "MutatingAdmissionPolicyBinding": "1.36"}
"""Kinds that the oldest Kubernetes does not serve; the chart refuses to render them for it."""

needs_helm = pytest.mark.skipif(
    helm() is None, reason="no helm on the PATH: the kept renderings are judged as they are"
)


def stems(directory: Path, suffix: str) -> set[str]:
    return {file.stem for file in directory.glob(f"*{suffix}")}


def test_every_value_set_has_its_rendering_and_its_notes() -> None:
    assert len(NAMES) >= 8
    assert stems(GOLDEN, ".yaml") == stems(NOTES, ".txt") == set(NAMES)
    assert stems(PLAIN, ".yaml") == stems(PLAIN_VALUES, ".yaml")


@needs_helm
@pytest.mark.parametrize("name", NAMES)
def test_helm_renders_what_is_kept(name: str) -> None:
    assert render(VALUES / f"{name}.yaml") == (GOLDEN / f"{name}.yaml").read_text(encoding="utf-8")


@needs_helm
@pytest.mark.parametrize("name", NAMES)
def test_helm_renders_the_notes_that_are_kept(name: str) -> None:
    assert render_notes(VALUES / f"{name}.yaml") == (NOTES / f"{name}.txt").read_text(encoding="utf-8")


@needs_helm
@pytest.mark.parametrize("name", sorted(stems(PLAIN_VALUES, ".yaml")))
def test_helm_renders_the_plain_manifests_that_are_kept(name: str) -> None:
    kept = (PLAIN / f"{name}.yaml").read_text(encoding="utf-8")
    assert render_plain(PLAIN_VALUES / f"{name}.yaml") == kept


@needs_helm
@pytest.mark.parametrize("release", ["7", "x" * 53])
def test_a_release_may_have_any_name_that_helm_allows(release: str) -> None:
    for found in yaml.safe_load_all(render(VALUES / "second-scheduler.yaml", release=release)):
        kubernetes_validate.validate(found, TRIED, strict=True)
        assert found["metadata"]["labels"]["app.kubernetes.io/instance"] == release


@needs_helm
def test_a_plugin_for_no_node_at_all_is_refused_in_words(tmp_path: Path) -> None:
    values = tmp_path / "values.yaml"
    values.write_text("devicePlugin: {nodeAffinity: {instanceTypes: [], labels: []}}", encoding="utf-8")
    with pytest.raises(subprocess.CalledProcessError) as refused:
        render(values)
    assert "devicePlugin.nodeAffinity has neither instanceTypes nor labels: name one" in refused.value.stderr


def distinct_objects() -> dict[str, Manifest]:
    """Every object of every rendering once: most are the same in most."""
    return {json.dumps(found, sort_keys=True): found for name in NAMES for found in manifests(name)}


def is_foreign(manifest: Manifest) -> bool:
    return manifest["apiVersion"].split("/")[0] in FOREIGN_GROUPS


@pytest.mark.parametrize("version", VERSIONS)
def test_kubernetes_own_schemas_accept_every_object_strictly(version: str) -> None:
    for manifest in distinct_objects().values():
        if not is_foreign(manifest) and version >= SINCE.get(manifest["kind"], ""):
            kubernetes_validate.validate(manifest, version, strict=True)


@needs_helm
def test_a_node_problem_detector_is_refused_in_words(tmp_path: Path) -> None:
    values = tmp_path / "values.yaml"
    values.write_text("npd: {enabled: true}", encoding="utf-8")
    with pytest.raises(subprocess.CalledProcessError) as refused:
        render(values)
    assert "npd.enabled is true, but this chart has no node problem detector" in refused.value.stderr


@needs_helm
def test_a_token_for_a_page_that_is_off_is_refused_in_words(tmp_path: Path) -> None:
    values = tmp_path / "values.yaml"
    values.write_text("scheduler: {enabled: true, extender: {uiTokenSecret: t}}", encoding="utf-8")
    with pytest.raises(subprocess.CalledProcessError) as refused:
        render(values)
    assert (
        "scheduler.extender.uiTokenSecret is t, but scheduler.extender.settings.ui is not true" in refused.value.stderr
    )


@needs_helm
@pytest.mark.parametrize(("name", "what"), [("pod-defaults", "policies.podDefaults"), ("gates", "placement gates")])
def test_what_a_cluster_does_not_serve_is_refused_in_words(name: str, what: str) -> None:
    with pytest.raises(subprocess.CalledProcessError) as refused:
        render(VALUES / f"{name}.yaml", kubernetes="1.35.2")
    assert f"{what} needs Kubernetes 1.36" in refused.value.stderr


def test_the_schemas_would_notice_a_misspelled_field() -> None:
    manifest = next(found for found in manifests("device-plugin") if found["kind"] == "DaemonSet")
    broken = yaml.safe_load(yaml.safe_dump(manifest))
    broken["spec"]["template"]["spec"]["containers"][0]["imagePullPolicyy"] = "Always"
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(broken, TRIED, strict=True)


@pytest.mark.parametrize("name", NAMES)
def test_no_object_is_rendered_twice(name: str) -> None:
    keys = [
        (found["apiVersion"], found["kind"], found["metadata"].get("namespace"), found["metadata"]["name"])
        for found in manifests(name)
    ]
    assert len(keys) == len(set(keys))


@pytest.mark.parametrize("name", NAMES)
def test_everything_is_labelled_as_part_of_the_release(name: str) -> None:
    for manifest in manifests(name):
        labels = manifest["metadata"]["labels"]
        assert labels["app.kubernetes.io/name"] == "neuron-plugin"
        assert labels["app.kubernetes.io/instance"] == "neuron-plugin"


def test_no_certificate_is_kept() -> None:
    for file in GOLDEN.glob("*.yaml"):
        assert "PRIVATE KEY" not in file.read_text(encoding="utf-8")
    for manifest in distinct_objects().values():
        if manifest["kind"] == "Secret":
            assert set(manifest["data"].values()) == {"R0VORVJBVEVE"}
