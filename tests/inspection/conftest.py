"""Facts of a healthy node, and simulated machines."""

from __future__ import annotations

import pytest

from neuron_plugin.inspection.facts import Facts
from neuron_plugin.simulation import write_node
from tests.inspection.cases import facts_of
from tests.inspection.doubles import make_node, short_directory, usual_file

__all__ = ["make_node", "short_directory", "usual_file"]


@pytest.fixture(scope="session")
def well(tmp_path_factory: pytest.TempPathFactory) -> Facts:
    """Facts of a trn1.32xlarge on which all is well; frozen, so all tests share it."""
    root = tmp_path_factory.mktemp("doctor") / "node"
    return facts_of(write_node(root, "trn1.32xlarge", usage_counters=False))
