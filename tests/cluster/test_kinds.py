from __future__ import annotations

import json
import time
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from neuron_plugin.cluster.api import DecodeError
from neuron_plugin.cluster.kinds import LEASES, NODES, PODS, Bookmark, decode_bookmark, decode_event, parse_version


def test_paths_of_collections_and_objects() -> None:
    assert PODS.collection() == "/api/v1/pods"
    assert PODS.collection("ml") == "/api/v1/namespaces/ml/pods"
    assert PODS.item("a", "ml") == "/api/v1/namespaces/ml/pods/a"
    assert NODES.item("n1") == "/api/v1/nodes/n1"
    assert LEASES.item("l", "kube-system") == "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases/l"


def test_a_page_has_records_version_and_continuation() -> None:
    page = PODS.decode_page(
        b'{"kind":"PodList","metadata":{"resourceVersion":"90","continue":"abc","remainingItemCount":7},'
        b'"items":[{"metadata":{"name":"a"}},{"metadata":{"name":"b"}}]}'
    )
    assert ([pod.name for pod in page.records], page.version, page.continuation) == (["a", "b"], 90, "abc")


@pytest.mark.parametrize("items", ['"items":[]', '"items":null', '"kind":"PodList"'])
def test_an_empty_page_has_no_records(items: str) -> None:
    page = PODS.decode_page(f'{{"metadata":{{"resourceVersion":"1"}},{items}}}'.encode())
    assert (page.records, page.continuation) == ((), "")


def test_a_page_without_a_version_is_refused() -> None:
    with pytest.raises(DecodeError, match="resourceVersion reads '', expected a decimal number"):
        PODS.decode_page(b'{"metadata":{},"items":[]}')


def test_an_event_is_read_without_its_object() -> None:
    event = decode_event(b'{"type":"MODIFIED","object":{"metadata":{"name":"a"},"spec":17}}')
    assert event.type == "MODIFIED"
    assert bytes(event.object) == b'{"metadata":{"name":"a"},"spec":17}'
    assert PODS.decode(decode_event(b'{"type":"ADDED","object":{"metadata":{"name":"a"}}}').object).name == "a"


def test_a_bookmark_has_a_version_and_may_end_the_initial_events() -> None:
    plain = b'{"kind":"Pod","metadata":{"resourceVersion":"12","creationTimestamp":null},"spec":{"containers":null}}'
    assert decode_bookmark(plain) == Bookmark(12, initial_end=False)
    end = b'{"metadata":{"resourceVersion":"12","annotations":{"k8s.io/initial-events-end":"true"}}}'
    assert decode_bookmark(end) == Bookmark(12, initial_end=True)
    assert decode_bookmark(end.replace(b"true", b"false")) == Bookmark(12, initial_end=False)


@pytest.mark.parametrize("text", ["", "-1", "1.5", "0x10", "abc", "١٢", " 7", "9" * 5000])
def test_a_version_that_is_no_number_is_refused(text: str) -> None:
    with pytest.raises(DecodeError, match="expected a decimal number"):
        parse_version(text)


def test_versions_are_compared_as_numbers() -> None:
    assert parse_version("100") > parse_version("99")


@pytest.mark.parametrize(
    "garbage",
    [b"", b"<html>", b"[1]", b"null", b'{"metadata":7}', b'{"metadata":', b'{"metadata":{"resourceVersion":"\xff"}}'],
)
def test_garbage_is_a_decode_error_that_says_what_and_how_it_starts(garbage: bytes) -> None:
    with pytest.raises(DecodeError, match=rf"^pods cannot be read: .*\({len(garbage)} bytes\)$"):
        PODS.decode(garbage)
    with pytest.raises(DecodeError, match="a list of pods cannot be read"):
        PODS.decode_page(garbage)


def test_deep_nesting_is_a_decode_error() -> None:
    deep = b'{"metadata":{"x":' + b"[" * 100_000 + b"]" * 100_000 + b"}}"
    with pytest.raises(DecodeError):
        PODS.decode(deep)
    with pytest.raises(DecodeError):
        decode_event(b'{"type":"ADDED","object":' + deep + b"}")
    with pytest.raises(DecodeError):
        decode_bookmark(deep)


@given(st.binary(max_size=200))
def test_no_bytes_raise_anything_else(data: bytes) -> None:
    for decode in (PODS.decode, PODS.decode_page, NODES.decode, LEASES.decode, decode_event, decode_bookmark):
        try:
            decode(data)
        except DecodeError:
            continue


Json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["metadata", "spec", "status", "items", "containers", "type", "object"]), inner
        )
    ),
    max_leaves=12,
)


@given(Json)
def test_no_json_raises_anything_else(value: Any) -> None:
    test_no_bytes_raise_anything_else.hypothesis.inner_test(msgspec.json.encode(value))  # type: ignore[attr-defined]  # hypothesis adds it


def big_page(pods: int) -> bytes:
    """A page of pods of about 7 KB each, mostly of what is skipped."""
    managed = [{"manager": "kubelet", "fieldsV1": {f"f:field-{number}": {"f:x": {}} for number in range(150)}}]
    spec = {
        "nodeName": "n1",
        "containers": [
            {
                "name": "main",
                "env": [{"name": f"VARIABLE_{number}", "value": "x" * 20} for number in range(40)],
                "resources": {"limits": {"aws.amazon.com/neurondevice": "1"}},
            }
        ],
    }
    items = [
        {
            "metadata": {"name": f"p{number}", "uid": f"u{number}", "resourceVersion": "1", "managedFields": managed},
            "spec": spec,
            "status": {"phase": "Running", "conditions": [{"type": "Ready", "message": "m" * 500}]},
        }
        for number in range(pods)
    ]
    return json.dumps({"metadata": {"resourceVersion": "5"}, "items": items}).encode()


def test_reading_a_page_costs_less_than_reading_it_as_plain_json() -> None:
    """An absolute bound would measure the machine; the ratio was 6 when this was written."""
    page = big_page(200)
    assert 6_000 < len(page) / 200 < 9_000
    ours = min(_cpu_seconds(lambda: PODS.decode_page(page)) for _ in range(5))
    plain = min(_cpu_seconds(lambda: json.loads(page)) for _ in range(5))
    assert ours < plain / 1.5


def _cpu_seconds(act: Any) -> float:
    started = time.process_time()
    act()
    return time.process_time() - started
