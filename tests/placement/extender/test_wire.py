from __future__ import annotations

import json
from contextlib import suppress

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from neuron_plugin.placement.extender.preempt import Victims
from neuron_plugin.placement.extender.wire import (
    FilterArgs,
    Names,
    WireError,
    decode_bind,
    decode_filter,
    decode_preempt,
    encode_error,
    encode_filter,
    encode_scores,
    encode_victims,
)

POD = '{"metadata":{"name":"a","uid":"u"}}'


def test_t03_names_alone_are_taken() -> None:
    args = decode_filter(f'{{"Pod":{POD},"Nodes":null,"NodeNames":["b","a"]}}'.encode())

    assert (args.uid, args.names, args.nodes) == ("u", ["b", "a"], None)


def test_t03_whole_nodes_alone_come_back_byte_for_byte() -> None:
    node = '{"metadata":{"name":"a",  "labels":{"x":"\\u00e9"}},"spec":{"weird": 1.50e3}}'
    args = decode_filter(f'{{"Pod":{POD},"NodeNames":null,"Nodes":{{"metadata":{{}},"items":[{node}]}}}}'.encode())

    answer = encode_filter(args, ["a"], {}, {})

    assert args.names == ["a"]
    assert node.encode() in answer
    assert msgspec.json.decode(answer)["NodeNames"] is None


def test_t03_where_both_forms_came_names_decide() -> None:
    nodes = '{"items":[{"metadata":{"name":"x"}}]}'

    args = decode_filter(f'{{"Pod":{POD},"NodeNames":["a"],"Nodes":{nodes}}}'.encode())

    assert args.names == ["a"]
    assert args.nodes is None


@pytest.mark.parametrize("body", ['"NodeNames":[]', '"Nodes":{"items":[]}', '"Nodes":{"items":null}'])
def test_t03_an_empty_list_is_a_list(body: str) -> None:
    assert decode_filter(f'{{"Pod":{POD},{body}}}'.encode()).names == []


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (f'{{"Pod":{POD}}}', "neither NodeNames nor Nodes"),
        (f'{{"Pod":{POD},"NodeNames":null,"Nodes":null}}', "neither NodeNames nor Nodes"),
        ('{"NodeNames":["a"]}', "without Pod"),
        ('{"Pod":null,"NodeNames":["a"]}', "without Pod"),
        (f'{{"Pod":{POD},"Nodes":{{"items":[{{"metadata":{{}}}}]}}}}', "without metadata.name"),
        ("{}", "without Pod"),
    ],
)
def test_t03_what_is_missing_is_named(body: str, text: str) -> None:
    with pytest.raises(WireError, match=text):
        decode_filter(body.encode())


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\x00",
        b"\xff\xfe",
        b"null",
        b"[]",
        b'"text"',
        b'{"Pod":',
        b"[" * 200_000,
        b'{"Pod":' + b"[" * 200_000 + b"]" * 200_000 + b"}",
    ],
    ids=range(9),
)
def test_t04_garbage_of_any_kind_ends_in_one_typed_error(body: bytes) -> None:
    for decode in (decode_filter, decode_bind, decode_preempt):
        with pytest.raises(WireError, match="expected"):
            decode(body)


@pytest.mark.parametrize(
    "part", ['"NodeNames":7', '"NodeNames":[7]', '"NodeNames":{}', '"Nodes":[]', '"Nodes":{"items":3}']
)
def test_t04_a_part_of_the_wrong_type_is_named(part: str) -> None:
    with pytest.raises(WireError, match=r"Node|ExtenderArgs"):
        assert decode_filter(f'{{"Pod":{POD},{part}}}'.encode()).names is None


@given(st.lists(st.text(st.sampled_from('ab",\\-.'), max_size=4), max_size=4), st.lists(st.text("ab-.", max_size=4)))
def test_a_look_for_a_name_gives_what_the_decoded_list_gives(names: list[str], asked: list[str]) -> None:
    args = decode_filter(b'{"Pod":%s,"NodeNames":%s}' % (POD.encode(), msgspec.json.encode(names)))

    assert [name in args.called for name in [*asked, *names]] == [name in names for name in [*asked, *names]]
    assert args.one_node is (len(names) < 2 and "," not in "".join(names))


VALID = f'{{"Pod":{POD},"NodeNames":["a"],"NodeNameToMetaVictims":{{"n":{{"Pods":[{{"UID":"u"}}]}}}}}}'.encode()


@given(st.integers(0, len(VALID) - 1), st.binary(max_size=3))
def test_t04_a_body_damaged_anywhere_is_read_or_refused_and_nothing_else(position: int, damage: bytes) -> None:
    body = VALID[:position] + damage + VALID[position + len(damage) :]

    for decode in (decode_filter, decode_bind, decode_preempt):
        with suppress(WireError):
            decode(body)


@pytest.mark.parametrize("more", ['"kind":"ExtenderArgs"', '"Pods":[]', '"pod ":7'])
def test_unknown_keys_are_passed_over(more: str) -> None:
    assert decode_filter(f'{{"Pod":{POD},{more},"NodeNames":["a"]}}'.encode()).names == ["a"]


def test_a_node_list_may_say_what_it_is() -> None:
    nodes = (
        '{"kind":"NodeList","apiVersion":"v1","metadata":{"resourceVersion":"7"},"items":[{"metadata":{"name":"x"}}]}'
    )

    assert decode_filter(f'{{"Pod":{POD},"NodeNames":null,"Nodes":{nodes}}}'.encode()).names == ["x"]


def test_a_bind_without_uid_is_refused_because_names_come_again() -> None:
    with pytest.raises(WireError, match="PodUID"):
        decode_bind(b'{"PodName":"p","PodNamespace":"ns","PodUID":"","Node":"n"}')


def test_victims_may_come_as_whole_pods() -> None:
    victims = {"n": {"Pods": [{"metadata": {"uid": "u1"}}, {"metadata": {"uid": "u2"}}], "NumPDBViolations": 1}}
    body = {"Pod": {}, "NodeNameToMetaVictims": None, "NodeNameToVictims": victims}

    assert decode_preempt(json.dumps(body).encode()).victims == {"n": Victims(("u1", "u2"), 1)}


def test_t05_answers_carry_exactly_gos_names() -> None:
    args = FilterArgs(b"{}", "", Names(b'["a","b","c"]'))

    answer = json.loads(encode_filter(args, ["a"], {"b": "full"}, {"c": "never"}))

    assert answer == {
        "Nodes": None,
        "NodeNames": ["a"],
        "FailedNodes": {"b": "full"},
        "FailedAndUnresolvableNodes": {"c": "never"},
        "Error": "",
    }
    assert json.loads(encode_scores(["a"], [7])) == [{"Host": "a", "Score": 7}]
    assert json.loads(encode_error("no")) == {"Error": "no"}
    assert json.loads(encode_victims({"n": Victims(("u",), 3)})) == {
        "NodeNameToMetaVictims": {"n": {"Pods": [{"UID": "u"}], "NumPDBViolations": 3}}
    }
