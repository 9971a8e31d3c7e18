"""Alerts and panels ask for series that exist (P82)."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

from neuron_plugin.allocation.rejection import CORDONED, NODE_REFUSALS
from neuron_plugin.placement import metrics as extender_metrics
from neuron_plugin.plugin import metrics as plugin_metrics
from tests.charts.manifests import of_each, of_kind, pod_templates
from tests.charts.rendering import CHART, Manifest

FOREIGN = {
    "up",  # Prometheus
    "neuroncore_utilization_ratio",  # neuron-monitor
    "kube_node_status_allocatable", "kube_node_status_capacity", "kube_node_status_condition",  # kube-state-metrics
}  # fmt: skip

_NAME = re.compile(r"\b((?:neuron|kube|kubelet)_[a-z_]+|up)\b(?=\{|\[|\)| |$)")


def own_series() -> set[str]:
    """The names of every series that the daemons can have."""
    suffixes = {"histogram": ("_bucket", "_sum", "_count")}
    return {
        table.prefix + name + suffix
        for table in (plugin_metrics.METRICS, extender_metrics.METRICS)
        for name, (kind, *_) in table.rows.items()
        for suffix in suffixes.get(kind, ("",))
    }


def alerts() -> Iterator[Manifest]:
    for group in of_kind("monitoring", "PrometheusRule")["neuron-plugin"]["spec"]["groups"]:
        yield from group["rules"]


def dashboard() -> Manifest:
    loaded = json.loads(of_kind("monitoring", "ConfigMap")["neuron-plugin-dashboard"]["data"]["neuron-plugin.json"])
    assert isinstance(loaded, dict)
    return loaded


def questions() -> list[str]:
    """Every PromQL expression of the chart."""
    panels = [target["expr"] for panel in dashboard()["panels"] for target in panel["targets"]]
    return [*panels, *(alert["expr"] for alert in alerts())]


def test_p82_every_series_that_is_asked_for_exists() -> None:
    asked = {name for question in questions() for name in _NAME.findall(question)}
    assert asked - FOREIGN <= own_series()
    assert len(asked - FOREIGN) >= 8


def test_p82_reasons_in_questions_are_reasons_of_the_code() -> None:
    codes = {refusal.code for refusal in (*NODE_REFUSALS, CORDONED)}
    named = {match for question in questions() for match in re.findall(r'reason!?="([^"]+)"', question)}
    assert named == {"no-neuron", "cordoned"} <= codes


@of_each(questions())
def test_brackets_of_every_question_are_balanced(question: str) -> None:
    for opening, closing in ("()", "{}", "[]"):
        assert question.count(opening) == question.count(closing)


def test_every_alert_says_what_is_wrong_and_what_to_do() -> None:
    names = [alert["alert"] for alert in alerts()]
    assert len(names) == len(set(names)) >= 10
    for alert in alerts():
        assert alert["labels"]["severity"] in {"info", "warning", "critical"}
        assert set(alert["annotations"]) == {"summary", "description", "runbook_url"}
        for text in (alert["annotations"][name] for name in ("summary", "description")):
            assert text.endswith((".", "?")), alert["alert"]
            assert text.count("{{") == text.count("}}")


def test_the_alerts_of_what_is_not_installed_are_left_out() -> None:
    groups = of_kind("monitoring", "PrometheusRule")["neuron-plugin"]["spec"]["groups"]
    assert [group["name"] for group in groups] == ["neuron-device-plugin", "neuron-extender", "neuron-idle-devices"]
    assert not of_kind("second-scheduler", "PrometheusRule")


def test_monitors_select_pods_and_ports_that_exist() -> None:
    templates = pod_templates("monitoring")
    (pod_monitor,) = of_kind("monitoring", "PodMonitor").values()
    plugin = templates["neuron-plugin"]
    assert pod_monitor["spec"]["selector"]["matchLabels"].items() <= plugin["metadata"]["labels"].items()
    assert pod_monitor["spec"]["podMetricsEndpoints"][0]["port"] == plugin["spec"]["containers"][0]["ports"][0]["name"]
    (service_monitor,) = of_kind("monitoring", "ServiceMonitor").values()
    (service,) = of_kind("monitoring", "Service").values()
    assert service_monitor["spec"]["selector"]["matchLabels"].items() <= service["metadata"]["labels"].items()
    assert service_monitor["spec"]["endpoints"][0]["port"] in {port["name"] for port in service["spec"]["ports"]}


def test_prometheus_finds_what_it_selects_by_label() -> None:
    for kind in ("PodMonitor", "ServiceMonitor", "PrometheusRule"):
        for found in of_kind("monitoring", kind).values():
            assert found["metadata"]["labels"]["release"] == "kube-prometheus-stack"
    config_map = of_kind("monitoring", "ConfigMap")["neuron-plugin-dashboard"]
    assert config_map["metadata"]["labels"]["grafana_dashboard"] == "1"


def test_alerts_name_the_containers_of_the_chart() -> None:
    names = {
        container["name"] for pod in pod_templates("monitoring").values() for container in pod["spec"]["containers"]
    }
    asked = {match for question in questions() for match in re.findall(r'container="([^"]+)"', question)}
    assert asked <= names


def test_the_dashboard_is_kept_as_grafana_would_import_it() -> None:
    kept = json.loads(Path(CHART / "files/dashboard.json").read_text(encoding="utf-8"))
    assert kept == dashboard()
    ids = [panel["id"] for panel in kept["panels"]]
    assert len(ids) == len(set(ids))
    for panel in kept["panels"]:
        assert panel["gridPos"]["x"] + panel["gridPos"]["w"] <= 24
