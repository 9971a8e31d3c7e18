from __future__ import annotations

from typing import Any

import pytest

from neuron_plugin.simulation.api_server_kinds import LEASES, NODES, PODS
from neuron_plugin.simulation.api_server_selectors import selector
from neuron_plugin.simulation.api_server_status import Refusal

POD: dict[str, Any] = {
    "metadata": {"name": "p", "namespace": "ns", "labels": {"app": "x", "tier": "1"}},
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
    assert selector(PODS, fields=fields, labels="")(POD) is meant


@pytest.mark.parametrize(
    ("labels", "meant"),
    [
        ("", True),
        ("app=x", True),
        ("app = x , tier == 1", True),
        ("app!=x", False),
        ("other!=x", True),
        ("app in (x, y)", True),
        ("app in (y,z),tier=1", False),
        ("app notin (y)", True),
        ("other notin (y)", True),
        ("app notin (x,y)", False),
        ("app", True),
        ("other", False),
        ("!other", True),
        ("!app", False),
    ],
)
def test_labels(labels: str, meant: bool) -> None:  # noqa: FBT001 - as above
    assert selector(PODS, fields="", labels=labels)(POD) is meant


def test_an_object_without_labels_has_none() -> None:
    assert not selector(NODES, fields="", labels="a")({"metadata": {"name": "n"}})


def test_truth_is_written_as_a_word() -> None:
    cordoned = {"metadata": {"name": "n"}, "spec": {"unschedulable": True}}
    assert selector(NODES, fields="spec.unschedulable=true", labels="")(cordoned)


@pytest.mark.parametrize("fields", ["spec.priority=1", "spec.nodeName", "metadata.uid=1", "spec.nodeName in (a)"])
def test_fields_that_the_server_cannot_select_by_are_refused(fields: str) -> None:
    with pytest.raises(Refusal) as raised:
        selector(PODS, fields=fields, labels="")
    assert raised.value.code == 400


def test_each_kind_has_its_own_fields() -> None:
    with pytest.raises(Refusal, match=r"field label not supported: spec\.nodeName"):
        selector(LEASES, fields="spec.nodeName=n1", labels="")


@pytest.mark.parametrize("labels", ["a b", "a in x", "(a)", "=x"])
def test_labels_that_make_no_sense_are_refused(labels: str) -> None:
    with pytest.raises(Refusal, match="unable to parse requirement"):
        selector(PODS, fields="", labels=labels)
