"""How both daemons count, and how counts become metrics."""

from __future__ import annotations

import pytest
from prometheus_client import Metric

from neuron_plugin.metrics import BOUNDS_SECONDS, Latencies, MetricCounts, Table

TABLE = Table(
    "neuron_test_",
    {
        "done_total": ("counter", ("kind",), "What was done."),
        "all_total": ("counter", (), "All that was done."),
        "waiting": ("gauge", (), "What waits."),
        "work_seconds": ("histogram", ("kind",), "How long it took."),
        "part_lists_total": ("counter", ("kind",), "Lists."),
        "part_watch_restarts_total": ("counter", ("kind", "cause"), "Ends."),
    },
)


def shown(counts: MetricCounts) -> dict[str, Metric]:
    return {family.name: family for family in TABLE.families(counts.samples())}


def test_what_was_written_is_shown_by_its_labels_and_nothing_else_is() -> None:
    counts = MetricCounts(TABLE)
    assert [(name, family.samples[0].value) for name, family in shown(counts).items()] == [("neuron_test_all", 0)]
    counts.add("done_total", "a", count=2)
    counts.add("done_total", "a")
    counts.set("waiting", value=7)
    counts.set("waiting", value=5)
    counts.observe("work_seconds", "a", seconds=0.3)
    found = shown(counts)
    (done,), (waiting,) = found["neuron_test_done"].samples, found["neuron_test_waiting"].samples
    assert (done.name, done.labels, done.value) == ("neuron_test_done_total", {"kind": "a"}, 3)
    assert (waiting.name, waiting.labels, waiting.value) == ("neuron_test_waiting", {}, 5)
    values = {sample.name: sample.value for sample in found["neuron_test_work_seconds"].samples}
    assert values["neuron_test_work_seconds_sum"] == 0.3
    assert values["neuron_test_work_seconds_count"] == 1
    assert found["neuron_test_work_seconds"].type == "histogram"


def test_a_name_that_the_table_lacks_is_an_error() -> None:
    counts = MetricCounts(TABLE)
    with pytest.raises(KeyError):
        counts.add("other")
    with pytest.raises(KeyError):
        counts.observe("done_total", seconds=1.0)
    with pytest.raises(KeyError):
        list(TABLE.families({"other": {(): 1}}))


def test_a_copy_does_not_change_with_what_is_counted_later() -> None:
    counts = MetricCounts(TABLE)
    before = counts.samples()
    counts.add("done_total", "a")
    assert before["done_total"] == {}
    assert counts["done_total"] == {("a",): 1}


def test_reflectors_are_counted_under_the_names_of_their_daemon() -> None:
    counts = MetricCounts(TABLE, "part_")
    counts.listed("pods", 3, 0.1)
    counts.interrupted("pods", "end", 1.0)
    assert counts["part_lists_total"] == {("pods",): 1}
    assert counts["part_watch_restarts_total"] == {("pods", "end"): 1}


def test_a_latency_counts_in_every_bucket_that_it_is_not_above() -> None:
    latencies = Latencies()
    for seconds in (0.0, BOUNDS_SECONDS[3], 99.0):
        latencies.observe(seconds)
    cumulative = dict(latencies.cumulative())
    assert [cumulative[str(bound)] for bound in BOUNDS_SECONDS[2:5]] == [1, 2, 2]
    assert cumulative["+Inf"] == 3
    assert latencies.sum_seconds == BOUNDS_SECONDS[3] + 99.0
    assert list(BOUNDS_SECONDS) == sorted(set(BOUNDS_SECONDS))
