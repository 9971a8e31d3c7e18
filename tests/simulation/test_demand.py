from __future__ import annotations

from statistics import mean

import pytest

from neuron_plugin.planning import DemandError, shape_text
from neuron_plugin.simulation.demand import MIXES, arrivals, devices_asked, read_trace
from tests.planning.clusters import TRN1


def test_arrivals_ask_for_the_load_on_average() -> None:
    pods = arrivals([TRN1] * 10, MIXES["train"], 0.5, 20_000, seed=1)
    asked = sum(devices_asked(TRN1, each.request) * each.stays for each in pods)
    assert asked / (pods[-1].comes * 160) == pytest.approx(0.5, rel=0.1)
    assert mean(each.stays for each in pods) == pytest.approx(1.0, rel=0.1)


def test_equal_seeds_give_equal_arrivals() -> None:
    first, again, other = (arrivals([TRN1], MIXES["infer"], 1.0, 50, seed=seed) for seed in (3, 3, 4))
    assert first == again != other


def test_only_the_proportions_of_a_mix_count() -> None:
    mix = MIXES["train"]
    doubled = {request: 2 * weight for request, weight in mix.items()}
    assert arrivals([TRN1], doubled, 0.5, 20) == arrivals([TRN1], mix, 0.5, 20)


def test_a_trace_is_read_in_the_order_of_time() -> None:
    found = read_trace("time,duration,devices,cores\n2.5,1,4,\n0,0.5,,2\n")
    assert [(each.comes, each.stays, shape_text(each.request)) for each in found] == [
        (0.0, 0.5, "neuroncore=2"),
        (2.5, 1.0, "neuron=4"),
    ]


@pytest.mark.parametrize("text", ["", "time,devices\n0,1\n", "time,duration\n0,1\n"])
def test_a_trace_without_its_columns_is_refused(text: str) -> None:
    with pytest.raises(DemandError, match="expected the columns time, duration, and devices or cores"):
        read_trace(text)


@pytest.mark.parametrize(
    "line", ["x,1,4,", "0,0,4,", "0,1,,", "0,1,4,2", "0,nan,4,", "inf,1,4,", "0,1", "0,1,-4,", "0,inf,4,"]
)
def test_a_line_of_a_trace_that_cannot_be_used_is_named(line: str) -> None:
    with pytest.raises(DemandError, match="line 3 is"):
        read_trace(f"time,duration,devices,cores\n0,1,4,\n{line}\n")
