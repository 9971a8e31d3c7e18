from __future__ import annotations

import pytest

from neuron_plugin.allocation.shapes import DemandError, parse_shape, shape_text


@pytest.mark.parametrize("text", ["neuron=4", "neurondevice=1", "neuroncore=2"])
def test_a_shape_reads_back_as_it_was_written(text: str) -> None:
    assert shape_text(parse_shape(text)) == text
    assert parse_shape(f"aws.amazon.com/{text}") == parse_shape(text)
    assert shape_text(parse_shape(text) * 2) == f"{text}+{text}"


@pytest.mark.parametrize("text", ["", "neuron", "neuron=0", "neuron=-1", "gpu=1", "neuron=1.5", "neuron=x"])
def test_what_is_no_shape_is_refused_by_name(text: str) -> None:
    with pytest.raises(DemandError, match="expected such as neuron=4"):
        parse_shape(text)
