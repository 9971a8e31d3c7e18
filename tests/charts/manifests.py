"""The renderings of every value set as objects, and how to find one's way in them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import yaml

from neuron_plugin.settings import load
from tests.charts.rendering import VALUES, Manifest, read, render

S = TypeVar("S", bound=msgspec.Struct)

NAMES = tuple(sorted(file.stem for file in VALUES.glob("*.yaml")))
"""The value sets."""


@cache
def manifests(name: str) -> tuple[Manifest, ...]:
    """Every object of one rendering."""
    text = render(read(VALUES / f"{name}.yaml"))
    return tuple(yaml.load_all(text, yaml.CSafeLoader))


def of_kind(name: str, kind: str) -> dict[str, Manifest]:
    """The objects of one kind in one rendering, by name."""
    return {found["metadata"]["name"]: found for found in manifests(name) if found["kind"] == kind}


def pod_templates(name: str) -> dict[str, Manifest]:
    """The pod templates of one rendering, by the name of the DaemonSet or Deployment."""
    workloads = of_kind(name, "DaemonSet") | of_kind(name, "Deployment")
    return {workload: found["spec"]["template"] for workload, found in workloads.items()}


def plugin_of(name: str) -> str:
    """A rendering's DaemonSet; that of the device plugin where there is one for claims, too."""
    return min(of_kind(name, "DaemonSet"))


def containers(template: Manifest) -> list[Manifest]:
    """All containers of a pod or pod template."""
    spec = template["spec"]
    return [*spec.get("initContainers", []), *spec["containers"]]


def embedded(name: str, config_map: str, key: str) -> Manifest:
    """A YAML file inside a ConfigMap of a rendering."""
    loaded = yaml.safe_load(of_kind(name, "ConfigMap")[config_map]["data"][key])
    assert isinstance(loaded, dict)
    return loaded


def rendered(values: Manifest, **asked: Any) -> dict[tuple[str, str], Manifest]:
    """Every object that the chart makes of values, by kind and name; ``asked`` as of ``render``."""
    found = yaml.load_all(render(values, **asked), yaml.CSafeLoader)
    return {(each["kind"], each["metadata"]["name"]): each for each in found}


def settings_of(
    kind: type[S], name: str, config_map: str, directory: Path, environment: Mapping[str, str] | None = None
) -> S:
    """What a daemon loads from the configuration of a rendering; the file is written into the directory."""
    file = directory / "config.yaml"
    file.write_text(of_kind(name, "ConfigMap")[config_map]["data"]["config.yaml"], encoding="utf-8")
    return load(kind, {}, environment or {}, file)


def of_each(cases: Iterable[Any]) -> Callable[[Callable[..., None]], Callable[[], None]]:
    """One test of a property that holds for each case: a rendering's name, or a tuple of arguments."""

    def decorate(test: Callable[..., None]) -> Callable[[], None]:
        def run() -> None:
            for case in cases:
                try:
                    test(*(case if isinstance(case, tuple) else (case,)))
                except Exception as error:
                    error.add_note(f"the case: {case}")
                    raise

        run.__name__ = test.__name__
        return run

    return decorate
