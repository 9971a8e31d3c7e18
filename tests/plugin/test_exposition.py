"""Our text, read back with the library that scrapers share."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from neuron_plugin.plugin.counts import Latencies
from neuron_plugin.plugin.exposition import Metric, MetricKind, Samples, exposed, exposed_latencies

GAUGE = Metric("devices", MetricKind.GAUGE, ("resource", "state"), "Ids.")
COUNTER = Metric("calls_total", MetricKind.COUNTER, (), "Calls.")
SECONDS = Metric("call_seconds", MetricKind.HISTOGRAM, ("resource",), "Time.")


def read(metric: Metric, samples: Samples) -> dict[tuple[str, ...], float]:
    text = "".join(f"{line}\n" for line in exposed(metric, samples))
    (family,) = text_string_to_metric_families(text)
    return {tuple(sample.labels[name] for name in metric.labels): sample.value for sample in family.samples}


def test_a_gauge_has_its_meaning_its_kind_and_a_line_for_each_sample() -> None:
    assert list(exposed(GAUGE, {("neuron", "free"): 3, ("neuron", "held"): 1.5})) == [
        "# HELP devices Ids.",
        "# TYPE devices gauge",
        'devices{resource="neuron",state="free"} 3.0',
        'devices{resource="neuron",state="held"} 1.5',
    ]


def test_a_metric_without_labels_has_no_braces() -> None:
    assert list(exposed(COUNTER, {(): True}))[-1] == "calls_total 1.0"


def test_a_metric_without_a_sample_is_not_there() -> None:
    assert list(exposed(GAUGE, {})) == []
    assert list(exposed_latencies(SECONDS, {})) == []


@given(st.dictionaries(st.tuples(st.text(), st.text()), st.floats(allow_nan=False), min_size=1))
def test_whatever_a_label_or_value_is_it_reads_back(samples: dict[tuple[str, ...], float]) -> None:
    safe = {key: value for key, value in samples.items() if not _splits_lines("".join(key))} or {("a", "b"): 1.0}
    assert read(GAUGE, safe) == safe


def _splits_lines(text: str) -> bool:
    """What the library's reader takes for the end of a line and the format does not."""
    return len(text.replace("\n", "").splitlines()) > 1 or text.strip("\n") != text.strip() or "\r" in text


@pytest.mark.parametrize("value", ['say "hi"', "back\\slash", "two\nlines", 'all "three\\\n'])
def test_quotes_backslashes_and_newlines_are_escaped(value: str) -> None:
    assert read(GAUGE, {(value, "x"): 1}) == {(value, "x"): 1}


def test_a_meaning_may_have_a_newline() -> None:
    metric = Metric("x", MetricKind.GAUGE, (), "one\ntwo \\ three")
    (family,) = text_string_to_metric_families("\n".join(exposed(metric, {(): 1})) + "\n")
    assert family.documentation == "one\ntwo \\ three"


def test_a_histogram_reads_back_with_buckets_count_and_sum() -> None:
    latencies = Latencies()
    for seconds in (0.0002, 0.0004, 9.0):
        latencies.observe(seconds)
    text = "\n".join(exposed_latencies(SECONDS, {"neuron": latencies})) + "\n"
    (family,) = text_string_to_metric_families(text)
    assert family.type == "histogram"
    found = {(sample.name, sample.labels.get("le", "")): sample.value for sample in family.samples}
    assert {sample.labels["resource"] for sample in family.samples} == {"neuron"}
    assert found["call_seconds_bucket", "0.00025"] == 1
    assert found["call_seconds_bucket", "0.0005"] == 2
    assert found["call_seconds_bucket", "+Inf"] == found["call_seconds_count", ""] == 3
    assert found["call_seconds_sum", ""] == pytest.approx(9.0006)
