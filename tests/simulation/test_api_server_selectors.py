from __future__ import annotations

from typing import Any

import pytest

from neuron_plugin.simulation.api_server_kinds import LEASES, NODES, PODS, Refusal, selector

POD: dict[str, Any] = {
    "metadata": {"name": "p", "namespace": "ns"},
    "spec": {"nodeName": "n1"},
    "status": {"phase": "Running"},
}


@pytest.mark.parametrize(
    ("fields", "meant"),
    [
        ("", True),
        ("spec.nodeName=n1", True),
        ("spec.nodeName==n1", True),
        ("spec.nodeName!=n1", False),
        ("spec.nodeName=", False),
        ("status.phase!=Succeeded,status.phase!=Failed", True),
        ("metadata.name=p,metadata.namespace=ns", True),
        ("metadata.name=p,spec.nodeName=n2", False),
        ("status.nominatedNodeName=", True),
    ],
)
def test_fields(fields: str, meant: bool) -> None:  # noqa: FBT001 - a table's column
    assert selector(PODS, fields)(POD) is meant


def test_truth_is_written_as_a_word() -> None:
    cordoned = {"metadata": {"name": "n"}, "spec": {"unschedulable": True}}
    assert selector(NODES, "spec.unschedulable=true")(cordoned)


@pytest.mark.parametrize("fields", ["spec.priority=1", "spec.nodeName", "metadata.uid=1", "spec.nodeName in (a)"])
def test_fields_that_the_server_cannot_select_by_are_refused(fields: str) -> None:
    with pytest.raises(Refusal) as raised:
        selector(PODS, fields)
    assert raised.value.code == 400


def test_each_kind_has_its_own_fields() -> None:
    with pytest.raises(Refusal, match=r"field label not supported: spec\.nodeName"):
        selector(LEASES, "spec.nodeName=n1")
