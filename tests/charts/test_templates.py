"""What stands in for Helm reads its template language, or says what it does not know."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.charts.templates import Chart, TemplateError, ordered


def printed(directory: Path, template: str, values: dict[str, object] | None = None) -> str:
    """What a chart of one template prints."""
    (directory / "templates").mkdir()
    (directory / "Chart.yaml").write_text("name: sample\n", encoding="utf-8")
    (directory / "templates/one.yaml").write_text(template, encoding="utf-8")
    chart = Chart(directory)
    return chart.include("sample/templates/one.yaml", chart.context(values or {}, "release", "space", "1.36.2"))


@pytest.mark.parametrize(
    ("template", "text"),
    [
        ("a\n  {{- /* why */}}\nb", "a\nb"),
        ("a {{- 1 -}} b", "a1b"),
        ("{{ if .Values.no }}1{{ else if .Values.yes }}2{{ else }}3{{ end }}", "2"),
        ("{{ with .Values.map }}{{ .a }}{{ $.Release.Name }}{{ end }}", "xrelease"),
        ("{{ $a := 1 }}{{ if true }}{{ $a = 2 }}{{ end }}{{ $a }}", "2"),
        ("{{ $a := 1 }}{{ if true }}{{ $a := 2 }}{{ end }}{{ $a }}", "1"),
        ("{{ range $k, $v := .Values.map }}{{ $k }}={{ $v }};{{ else }}none{{ end }}", "a=x;b=y;"),
        ("{{ range .Values.none }}{{ . }}{{ else }}none{{ end }}", "none"),
        ('{{ define "d" }}<{{ . }}>{{ end }}{{ include "d" (list 1 2 | last) }}', "<2>"),
        ('{{ .Values.missing | default "d" | quote }}', '"d"'),
        ("{{ toYaml .Values }}", 'map:\n  a: x\n  b: "y"\n"yes": true'),
        ("{{ toJson (list `<a>`) }}", '["\\u003ca\\u003e"]'),
        ('{{ "{{" }} }}', "{{ }}"),
    ],
)
def test_it_prints_as_helm_does(tmp_path: Path, template: str, text: str) -> None:
    assert printed(tmp_path, template, {"yes": True, "map": {"a": "x", "b": "y"}}) == text


@pytest.mark.parametrize("template", ["{{ upper `a` }}", "{{ 1 % 2 }}", '{{ semverCompare "^1" "1.2.3" }}'])
def test_what_it_does_not_know_ends_a_rendering(tmp_path: Path, template: str) -> None:
    with pytest.raises(TemplateError):
        printed(tmp_path, template)


def test_objects_come_by_kind_and_hooks_last() -> None:
    hook = "kind: ServiceAccount\nmetadata:\n  annotations:\n    helm.sh/hook: test\n"
    texts = {"b.yaml": "kind: Job\n---\nkind: ConfigMap\n", "a.yaml": hook, "c.yaml": "\n"}
    in_order = ["# Source: b.yaml\nkind: ConfigMap", "# Source: b.yaml\nkind: Job", f"# Source: a.yaml\n{hook}".strip()]
    assert ordered(texts) == "".join(f"---\n{text}\n" for text in in_order)
    assert "ServiceAccount" not in ordered(texts, tests=False)
