"""The kept renderings as objects, and how to find one's way in them."""

from __future__ import annotations

from functools import cache
from typing import Any, TypeAlias

import yaml

from tests.charts.rendering import CHART, GOLDEN, VALUES

Manifest: TypeAlias = dict[str, Any]
"""One Kubernetes object as YAML gives it."""

NAMES = tuple(sorted(file.stem for file in VALUES.glob("*.yaml")))
"""The value sets."""


@cache
def manifests(name: str) -> tuple[Manifest, ...]:
    """Every object of one rendering."""
    text = (GOLDEN / f"{name}.yaml").read_text(encoding="utf-8")
    return tuple(document for document in yaml.safe_load_all(text) if document)


def of_kind(name: str, kind: str) -> dict[str, Manifest]:
    """The objects of one kind in one rendering, by name."""
    return {found["metadata"]["name"]: found for found in manifests(name) if found["kind"] == kind}


def pod_templates(name: str) -> dict[str, Manifest]:
    """The pod templates of one rendering, by the name of the DaemonSet or Deployment."""
    workloads = of_kind(name, "DaemonSet") | of_kind(name, "Deployment")
    return {workload: found["spec"]["template"] for workload, found in workloads.items()}


def containers(template: Manifest) -> list[Manifest]:
    """All containers of a pod or pod template."""
    spec = template["spec"]
    return [*spec.get("initContainers", []), *spec["containers"]]


def embedded(name: str, config_map: str, key: str) -> Manifest:
    """A YAML file inside a ConfigMap of a rendering."""
    loaded = yaml.safe_load(of_kind(name, "ConfigMap")[config_map]["data"][key])
    assert isinstance(loaded, dict)
    return loaded


@cache
def default_values() -> Manifest:
    """``values.yaml``."""
    loaded = yaml.safe_load((CHART / "values.yaml").read_text(encoding="utf-8"))
    assert isinstance(loaded, dict)
    return loaded


def coalesced(values: Manifest, defaults: Manifest | None = None) -> Manifest:
    """The values that Helm judges: those given over the chart's own, and null takes one away."""
    merged = dict(default_values() if defaults is None else defaults)
    for key, value in values.items():
        under = merged.get(key)
        merged[key] = coalesced(value, under) if isinstance(value, dict) and isinstance(under, dict) else value
    return {key: value for key, value in merged.items() if value is not None}
