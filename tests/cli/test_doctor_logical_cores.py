from __future__ import annotations

import pytest

from neuron_plugin.cli.doctor_findings import Level
from tests.cli.doctor_cases import ask, facts_of, is_fine, the_finding
from tests.cli.doubles import MakeNode


@pytest.mark.parametrize(
    ("size", "seen"), [(None, "LNC 2 (hardware default)"), (1, "LNC 1 (logical_nc_config)"), (2, "LNC 2 (logical")]
)
def test_a_legal_size_is_told_with_its_source(make_node: MakeNode, size: int | None, seen: str) -> None:
    facts = facts_of(make_node("trn2.3xlarge", logical_core_size=size))
    assert is_fine("logical-cores", facts)
    assert seen in ask("logical-cores", facts)[0].seen


@pytest.mark.parametrize("text", ["NEURON_LOGICAL_NC_CONFIG=4\n", "NEURON_LOGICAL_NC_CONFIG=3\n", "two\n"])
def test_an_illegal_size_is_a_warning_that_says_what_is_used(make_node: MakeNode, text: str) -> None:
    node = make_node("trn2.3xlarge", logical_core_size=1)
    node.paths.logical_nc_config.write_text(text)
    facts = facts_of(node)
    finding = the_finding("logical-cores", facts)
    assert finding.level is Level.WARNING
    assert finding.why.startswith("2 is used instead")
    assert str(node.paths.logical_nc_config) in finding.action
    assert is_fine("sysfs", facts)  # told once
