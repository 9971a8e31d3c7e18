"""Selectors of the simulated API server."""

from __future__ import annotations

from typing import Any

import pytest

from neuron_plugin.simulation.api_server_kinds import PODS, Refusal, label_selector, selector

# Field selectors.

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


@pytest.mark.parametrize("fields", ["spec.priority=1", "spec.nodeName", "metadata.uid=1", "spec.nodeName in (a)"])
def test_fields_that_the_server_cannot_select_by_are_refused(fields: str) -> None:
    with pytest.raises(Refusal) as raised:
        selector(PODS, fields)
    assert raised.value.code == 400


# Label selectors.

LABELLED: dict[str, Any] = {"metadata": {"labels": {"app": "x", "team.example.com/name": "ml_1", "empty": ""}}}


@pytest.mark.parametrize(
    ("texts", "meant"),
    [
        (
            ("", "  ", "app=x", " app == x ", "app!=y", "none != x", "empty=", "app!=", "app", "! none", "notin!=in"),
            True,
        ),
        (("app=y", "none=x", "app!=x", "app=", "none=", "none", "!app", "app=x,none", "in"), False),
        (("app in (x, y)", "empty in (,y)", "app notin (y,z)", "none notin (x)"), True),
        (("app in (y)", "app in (,y)", "none in (x)", "app notin(x)"), False),
        (("app=x,team.example.com/name=ml_1,!none", "app in (x),app notin (y) , empty"), True),
    ],
)
def test_labels(texts: tuple[str, ...], *, meant: bool) -> None:
    assert [text for text in texts if label_selector(text)(LABELLED) is not meant] == []


@pytest.mark.parametrize(
    "text",
    [
        *("app=x=y", "app x", "=x", "app=x,", ",app", "app,,app", "app in x", "app in (x", "app in ()", "app in ( )"),
        *(
            "app in (x))",
            "app inx",
            "!app=x",
            "!app in (x)",
            "!",
            "app>1",
            "a b=c",
            "-app",
            "app=-",
            "app=x y",
            "a/b/c",
        ),
        *("app=" + "x" * 64, "x" * 64, "app===x", "A.com/app", "ap\u00fe"),
    ],
)
def test_a_label_selector_that_cannot_be_read_is_refused(text: str) -> None:
    with pytest.raises(Refusal, match="unable to parse requirement") as raised:
        label_selector(text)
    assert (raised.value.code, raised.value.reason) == (400, "BadRequest")
