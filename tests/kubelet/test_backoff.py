from __future__ import annotations

from random import Random

from neuron_plugin.kubelet.backoff import Backoff
from tests.kubelet.fakes import seeded


class NoJitter(Random):
    def uniform(self, a: float, b: float) -> float:
        del a
        return b


def test_delays_double_up_to_the_longest() -> None:
    backoff = Backoff(NoJitter(), first_seconds=1, longest_seconds=5)
    assert [backoff.next_seconds() for _ in range(5)] == [1, 2, 4, 5, 5]


def test_reset_begins_with_the_shortest() -> None:
    backoff = Backoff(NoJitter(), first_seconds=1, longest_seconds=5)
    for _ in range(4):
        backoff.next_seconds()
    backoff.reset()
    assert backoff.next_seconds() == 1


def test_p6_jitter_cuts_up_to_half_and_differs_between_nodes() -> None:
    delays = [Backoff(seeded(seed), first_seconds=2).next_seconds() for seed in range(50)]
    assert all(1 <= delay <= 2 for delay in delays)
    assert len(set(delays)) == 50
