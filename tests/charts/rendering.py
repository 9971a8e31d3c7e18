"""The chart's renderings: what its templates make of values, and which of them are kept as files.

No helm is needed: ``templates.py`` reads the chart, so a change of a template is judged when it is made, for every file
of ``values/``. Kept are the renderings that people compare (``golden/``), the notes after their installation, and what
``neuron-plugin manifests`` prints. ``python -m tests.charts.rendering`` writes these files again.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, TypeAlias

import yaml

from tests.charts.templates import Chart, ordered

Manifest: TypeAlias = dict[str, Any]
"""One Kubernetes object as YAML gives it, or the values of a chart."""

REPOSITORY = Path(__file__).parents[2]
CHART = REPOSITORY / "charts/neuron-plugin"
VALUES = Path(__file__).parent / "values"
GOLDEN = Path(__file__).parent / "golden"
NOTES = Path(__file__).parent / "notes"
PLAIN_VALUES = Path(__file__).parent / "plain"
PLAIN = REPOSITORY / "neuron_plugin/cli/rendered"
KUBERNETES = "1.36.2"

KEPT = ("device-plugin", "second-scheduler", "default-scheduler", "gates")
"""The value sets whose renderings are kept: one for each way to place pods."""

PLAIN_NAMESPACE = "namespace-of-neuron-plugin"
"""Stands in the plain manifests for the namespace; never a real one's name."""

_NO_ADDRESS = "192.0.2.45"
"""For documentation (RFC 5737): the values take only an address where the plain manifests have a name."""

_NOTES = "neuron-plugin/templates/NOTES.txt"
_CERTIFICATE = re.compile(r"^( +(?:ca\.crt|tls\.crt|tls\.key|caBundle)): \S+$", re.MULTILINE)
_HELMS_LABELS = re.compile(r"^ +(app\.kubernetes\.io/managed-by: Helm|helm\.sh/chart: .*)\n", re.MULTILINE)


def helm() -> str | None:
    """The path of a helm binary, if there is one."""
    return shutil.which("helm")


def read(values: Path) -> Manifest:
    """A file of values."""
    loaded = yaml.safe_load(values.read_text(encoding="utf-8"))
    assert isinstance(loaded, dict)
    return loaded


@cache
def default_values() -> Manifest:
    """``values.yaml``."""
    return read(CHART / "values.yaml")


def coalesced(values: Manifest, defaults: Manifest | None = None) -> Manifest:
    """The values that Helm judges: those given over the chart's own, and null takes one away."""
    merged = dict(default_values() if defaults is None else defaults)
    for key, value in values.items():
        under = merged.get(key)
        merged[key] = coalesced(value, under) if isinstance(value, dict) and isinstance(under, dict) else value
    return {key: value for key, value in merged.items() if value is not None}


@cache
def _chart() -> Chart:
    return Chart(CHART)


def render(
    values: Manifest,
    namespace: str = "kube-system",
    release: str = "neuron-plugin",
    kubernetes: str = KUBERNETES,
    *,
    served: tuple[str, ...] = (),
    tests: bool = True,
) -> str:
    """What the chart makes of values; ``tests=False`` leaves the hooks of ``helm test`` out.

    ``served`` are the kinds of a cluster, such as ``v1/Pod``; none where none is asked.
    """
    chart = _chart()
    context = chart.context(coalesced(values), release, namespace, kubernetes, served)
    printed = {path: chart.include(path, context) for path in chart.paths if path != _NOTES}
    return ordered(printed, tests=tests)


def render_notes(values: Manifest) -> str:
    """The notes after an installation."""
    context = _chart().context(coalesced(values), "neuron-plugin", "kube-system", KUBERNETES)
    return _chart().include(_NOTES, context) + "\n"


def render_plain(values: Manifest) -> str:
    """A rendering for people without Helm: nothing in it claims to be Helm's."""
    text = render(values, PLAIN_NAMESPACE, tests=False)
    return _HELMS_LABELS.sub("", text).replace(_NO_ADDRESS, "address-of-the-extender")


def render_with_helm(values: Path, chart: Path = CHART) -> str:
    """What ``helm template`` makes of the chart; generated certificates, new each time, are left out."""
    command = [helm() or "helm", "template", "neuron-plugin", str(chart), "--values", str(values)]
    command += ["--namespace", "kube-system", "--kube-version", KUBERNETES]
    done = subprocess.run(command, check=True, capture_output=True, text=True)  # noqa: S603 - our own arguments
    return _CERTIFICATE.sub(r"\1: R0VORVJBVEVE", done.stdout)


def render_notes_with_helm(values: Path) -> str:
    """The notes. ``helm template`` leaves them out: a copy of the chart has them in a manifest."""
    with tempfile.TemporaryDirectory() as scratch:
        copy = shutil.copytree(CHART, Path(scratch) / "neuron-plugin")
        for template in copy.glob("templates/*.yaml"):
            template.unlink()
        (copy / "templates/NOTES.txt").rename(copy / "files/notes.txt")
        (copy / "templates/notes.yaml").write_text('notes: {{ tpl (.Files.Get "files/notes.txt") . | toJson }}\n')
        return str(json.loads(render_with_helm(values, copy).split("notes: ", 1)[1])) + "\n"


def beside(base: str, text: str) -> str:
    """A rendering in which a manifest that the base has word for word is a line that names it."""
    known, shown = base.split("---\n"), list[str]()
    for manifest in text.split("---\n"):
        found = yaml.safe_load(manifest) if manifest in known else None
        line = f"# {found['kind']} {found['metadata']['name']}: as in {KEPT[0]}.yaml\n" if found else ""
        shown.append(line or manifest)
    return "---\n".join(shown)


def kept() -> Iterator[tuple[Path, str]]:
    """Every kept file and what it should say."""
    base = render(read(VALUES / f"{KEPT[0]}.yaml"))
    for name in KEPT:
        values = read(VALUES / f"{name}.yaml")
        yield GOLDEN / f"{name}.yaml", base if name == KEPT[0] else beside(base, render(values))
        yield NOTES / f"{name}.txt", render_notes(values)
    for file in sorted(PLAIN_VALUES.glob("*.yaml")):
        yield PLAIN / file.name, render_plain(read(file))


if __name__ == "__main__":
    for file, text in kept():
        file.write_text(text, encoding="utf-8")
