"""The chart's renderings: what Helm makes of it, and what of that is kept as files.

Helm is not needed to test the chart: for each file of ``values/`` its rendering stands in ``golden/`` and is judged
there. Where Helm is on the PATH, ``test_goldens`` renders again and compares. ``python -m tests.charts.rendering``
writes the files, also those that ``neuron-plugin manifests`` prints.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]
CHART = REPOSITORY / "charts/neuron-plugin"
VALUES = Path(__file__).parent / "values"
GOLDEN = Path(__file__).parent / "golden"
NOTES = Path(__file__).parent / "notes"
PLAIN_VALUES = Path(__file__).parent / "plain"
PLAIN = REPOSITORY / "neuron_plugin/cli/rendered"
KUBERNETES = "1.36.2"

PLAIN_NAMESPACE = "namespace-of-neuron-plugin"
"""Stands in the plain manifests for the namespace; never a real one's name."""

_NO_ADDRESS = "192.0.2.45"
"""For documentation (RFC 5737): the values take only an address where the plain manifests have a name."""

_CERTIFICATE = re.compile(r"^(  (?:ca\.crt|tls\.crt|tls\.key)): \S+$", re.MULTILINE)
_HELMS_LABELS = re.compile(r"^ +(app\.kubernetes\.io/managed-by: Helm|helm\.sh/chart: .*)\n", re.MULTILINE)


def helm() -> str | None:
    """The path of a helm binary, if there is one."""
    return shutil.which("helm")


def render(
    values: Path,
    namespace: str = "kube-system",
    chart: Path = CHART,
    release: str = "neuron-plugin",
    kubernetes: str = KUBERNETES,
    flags: tuple[str, ...] = (),
) -> str:
    """What ``helm template`` makes of the chart; generated certificates, new each time, are left out."""
    command = [helm() or "helm", "template", release, str(chart), "--values", str(values)]
    command += ["--namespace", namespace, "--kube-version", kubernetes, *flags]
    done = subprocess.run(command, check=True, capture_output=True, text=True)  # noqa: S603 - our own arguments
    return _CERTIFICATE.sub(r"\1: R0VORVJBVEVE", done.stdout)


def render_plain(values: Path) -> str:
    """A rendering for people without Helm: nothing in it claims to be Helm's."""
    text = render(values, PLAIN_NAMESPACE, flags=("--skip-tests",))
    return _HELMS_LABELS.sub("", text).replace(_NO_ADDRESS, "address-of-the-extender")


def render_notes(values: Path) -> str:
    """The notes after an installation. ``helm template`` leaves them out: a copy has them in a manifest."""
    with tempfile.TemporaryDirectory() as scratch:
        copy = shutil.copytree(CHART, Path(scratch) / "neuron-plugin")
        for template in copy.glob("templates/*.yaml"):
            template.unlink()
        (copy / "templates/NOTES.txt").rename(copy / "files/notes.txt")
        (copy / "templates/notes.yaml").write_text('notes: {{ tpl (.Files.Get "files/notes.txt") . | toJson }}\n')
        return str(json.loads(render(values, chart=copy).split("notes: ", 1)[1])) + "\n"


def targets() -> Iterator[tuple[Path, str]]:
    """Every kept file and what it should say."""
    for values in sorted(VALUES.glob("*.yaml")):
        yield GOLDEN / values.name, render(values)
        yield NOTES / f"{values.stem}.txt", render_notes(values)
    for values in sorted(PLAIN_VALUES.glob("*.yaml")):
        yield PLAIN / values.name, render_plain(values)


def main() -> None:
    """Write every kept file."""
    for file, text in targets():
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
