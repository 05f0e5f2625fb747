"""The model's name in a request body is found where a JSON reader finds it, and nothing else is touched."""

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenload.router.body_model import TOKENS_MAX, find_model, replaced

NEW = b'"theirs"'


def rename(body: bytes) -> bytes:
    return replaced(body, find_model(body), NEW)


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (b'{"model":"m"}', b'{"model":"theirs"}'),
        (b' {  "model" :\t"m" , "n":1 }\n', b' {  "model" :\t"theirs" , "n":1 }\n'),
        (b'{"a":"\\"model\\":\\"x\\"","model":"m"}', b'{"a":"\\"model\\":\\"x\\"","model":"theirs"}'),
        (b'{"metadata":{"model":"keep"},"model":"m"}', b'{"metadata":{"model":"keep"},"model":"theirs"}'),
        (b'{"model":"m","tools":[{"model":"keep"}]}', b'{"model":"theirs","tools":[{"model":"keep"}]}'),
        (b'{"user":"model","model":"m"}', b'{"user":"model","model":"theirs"}'),
        (b'{"model":"a","x":0,"model":"b"}', b'{"model":"theirs","x":0,"model":"theirs"}'),
        (b'{"mod\\u0065l":"m"}', b'{"mod\\u0065l":"theirs"}'),
        (b'{"model":"a","mode\\u006c":"b"}', b'{"model":"theirs","mode\\u006c":"theirs"}'),
        ('{"p":"ü漢","model":"ü"}'.encode(), '{"p":"ü漢","model":"theirs"}'.encode()),
        (b'{"model":"\\ud83d\\ude00 \\"x"}', b'{"model":"theirs"}'),
    ],
)
def test_only_the_outermost_names_change(body: bytes, expected: bytes) -> None:
    assert rename(body) == expected


def test_the_name_found_is_the_one_that_routing_sees() -> None:
    assert find_model(b'{"model":"a","model":"b"}').name == "b"
    assert find_model(b'{"mod\\u0065l":"\\u0061"}').name == "a"


@pytest.mark.parametrize("body", [b"", b"[]", b"{}", b'{"model":1}', b'{"model":null}', b'{"model":"m"'])
def test_a_body_without_a_name_is_an_error(body: bytes) -> None:
    with pytest.raises(msgspec.MsgspecError):
        find_model(body)


def test_a_body_of_very_many_tokens_keeps_its_meaning() -> None:
    body = b'{"input":[' + b",".join([b"[1]"] * TOKENS_MAX) + b'],"model":"m","seed":1.50}'
    assert find_model(body).spans is None
    renamed = rename(body)
    assert json.loads(renamed) == json.loads(body) | {"model": "theirs"}
    assert b"1.50" in renamed, "numbers stay as they were written"


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8) | st.just('"model": "x"'),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["model", "a", "{"]), inner),
    max_leaves=10,
)


@given(st.dictionaries(st.text(max_size=6), VALUES, max_size=4), st.text(min_size=1, max_size=10), st.booleans())
def test_any_body_is_the_same_but_for_the_name(members: dict[str, Any], model: str, ascii_only: bool) -> None:
    body = json.dumps({**members, "model": model}, ensure_ascii=ascii_only).encode("utf-8", "surrogatepass")
    try:
        body.decode()
    except UnicodeDecodeError:
        return
    assert json.loads(rename(body)) == {**members, "model": "theirs"}
    assert replaced(body, find_model(body), json.dumps(model, ensure_ascii=ascii_only).encode()) == body
