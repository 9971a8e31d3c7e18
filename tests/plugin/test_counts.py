from __future__ import annotations

from neuron_plugin.kubelet import RegistrationState
from neuron_plugin.plugin.counts import BOUNDS_SECONDS, Counts, Latencies


def test_a_latency_counts_in_every_bucket_it_is_not_above() -> None:
    latencies = Latencies()
    for seconds in (0.00005, 0.0001, 0.003, 60.0):
        latencies.observe(seconds)
    found = dict(latencies.cumulative())
    assert found["0.0001"] == 2
    assert found["0.0025"] == 2
    assert found["0.005"] == 3
    assert found["5.0"] == 3
    assert found["+Inf"] == 4
    assert latencies.sum_seconds == 0.00005 + 0.0001 + 0.003 + 60.0


def test_the_bounds_ascend_and_a_fresh_histogram_is_empty() -> None:
    assert list(BOUNDS_SECONDS) == sorted(set(BOUNDS_SECONDS))
    assert {count for _, count in Latencies().cumulative()} == {0}


def test_registrations_count_by_how_they_ended() -> None:
    counts = Counts()
    counts.registration_ended("neuron", None)
    counts.registration_ended("neuron", "refused")
    counts.registration_ended("neuron", "refused")
    assert counts.registrations == {("neuron", "accepted"): 1, ("neuron", "failed"): 2}


def test_refusals_count_by_method_and_replaced_preferences_by_resource() -> None:
    counts = Counts()
    counts.request_refused("neuron", "Allocate", ValueError())
    counts.request_refused("neuron", "PreStartContainer", ValueError())
    counts.preference_replaced("neuron", "too late")
    assert counts.refusals == {("neuron", "Allocate"): 1, ("neuron", "PreStartContainer"): 1}
    assert counts.preferences_replaced == {"neuron": 1}


def test_lists_and_interruptions_of_the_watch_count_by_cause() -> None:
    counts = Counts()
    counts.listed("pods", 10, 0.1)
    counts.interrupted("pods", "end", 0.1)
    counts.interrupted("pods", "end", 0.2)
    counts.interrupted("pods", "expired", 0.2)
    assert counts.lists == {"pods": 1}
    assert counts.watch_restarts == {("pods", "end"): 2, ("pods", "expired"): 1}


def test_where_a_registration_stands_is_not_counted() -> None:
    counts = Counts()
    counts.state_changed("neuron", RegistrationState.ADVERTISED)
    assert counts == Counts()
