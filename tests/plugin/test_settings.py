"""The node daemon's settings, as an operator writes them."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from neuron_plugin.allocation import Resource
from neuron_plugin.plugin.settings import Numbering, PluginSettings, ResourceName, TopologyPolicy


def read(**values: Any) -> PluginSettings:
    return msgspec.convert({key.replace("_", "-"): value for key, value in values.items()}, PluginSettings)


def test_by_default_all_names_are_offered_and_nothing_is_refused_for_its_links() -> None:
    settings = read()
    assert {name.resource for name in settings.resources} == set(Resource)
    assert settings.topology_policy is TopologyPolicy.PREFERRED
    assert settings.numbering is Numbering.AUTO
    assert settings.cluster
    assert not settings.cdi


def test_words_of_the_file_become_choices() -> None:
    settings = read(resources=["neuroncore"], numbering="container", topology_policy="required", cluster=False)
    assert settings.resources == (ResourceName.NEURONCORE,)
    assert settings.resources[0].resource is Resource.NEURONCORE
    assert settings.numbering is Numbering.CONTAINER
    assert settings.topology_policy is TopologyPolicy.REQUIRED


@pytest.mark.parametrize(
    "values",
    [
        {"resources": []},
        {"resources": ["gpu"]},
        {"numbering": "both"},
        {"rescan_seconds": 0.5},
        {"rescan_seconds": float("inf")},
        {"decision_deadline_seconds": 0},
        {"decision_deadline_seconds": 60},
        {"cdi": "perhaps"},
        {"no_such_key": 1},
    ],
)
def test_what_makes_no_sense_is_refused(values: dict[str, Any]) -> None:
    with pytest.raises(msgspec.ValidationError):
        read(**values)
