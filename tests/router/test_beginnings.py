"""How a prompt begins: the same for each turn of a conversation, another for another one, and nothing to guess from."""

import json
from typing import Any

import msgspec
import pytest

from evenload.router.beginnings import SCANS_BYTES, SHORTEST_BYTES, Beginnings, Prompt

LONG = "You help. " * 500
HASHES = Beginnings(b"a key of the tests")


def of(body: dict[str, Any] | bytes, *, model: str = "m", hashes: Beginnings = HASHES, **layout: Any) -> int:
    raw = body if isinstance(body, bytes) else json.dumps(body, **layout).encode()
    return hashes.of(model, msgspec.json.decode(raw, type=Prompt))


def message(role: str, content: Any, *, role_first: bool = True) -> dict[str, Any]:
    both = {"role": role, "content": content}
    return both if role_first else dict(reversed(both.items()))


def chat(first: Any, *more: str, system: str = LONG, role_first: bool = True) -> dict[str, Any]:
    turns = [message(("assistant", "user")[n % 2], text, role_first=role_first) for n, text in enumerate(more)]
    begin = [message("system", system, role_first=role_first)] if system else []
    return {"messages": [*begin, message("user", first, role_first=role_first), *turns]}


FIRST_TURNS = [
    "",
    "Hello",
    "ends like JSON }]}, {[",
    'says "user" and "role": "user"',
    "ü" * 200,
    *("x" * size for size in range(680, 780, 3)),
    "y" * 5000,
    [{"type": "text", "text": "in parts"}],
    [{"type": "image_url", "image_url": {"url": "data:" + "A" * 9000}}, {"type": "text", "text": "what is it?"}],
]


@pytest.mark.parametrize("role_first", [True, False], ids=["role first", "role last"])
@pytest.mark.parametrize("layout", [{}, {"separators": (",", ":")}, {"indent": 2}, {"ensure_ascii": False}], ids=str)
@pytest.mark.parametrize("system", [LONG, "", "short"], ids=["long", "no", "short"])
def test_every_turn_of_a_conversation_begins_alike(role_first: bool, layout: dict[str, Any], system: str) -> None:
    for first in FIRST_TURNS:
        one = chat(first, system=system, role_first=role_first)
        two = chat(first, "Answer", "And then?", system=system, role_first=role_first)
        three = chat(first, "Answer", "And then?", "z" * 3000, "Go on", system=system, role_first=role_first)
        found = {of(body, **layout) for body in (one, two, three)}
        assert len(found) == 1, first
        assert found != {0}


def test_conversations_under_one_system_prompt_begin_differently() -> None:
    found = {of(chat(f"Question {number}")) for number in range(200)}
    assert len(found) == 200
    assert 0 not in found


def test_the_same_first_turn_under_other_instructions_is_another_beginning() -> None:
    hello = message("user", "Hello")
    bodies = [
        chat("Hello"),
        chat("Hello", system="You refuse. " * 400),
        {"system": "You are A", "messages": [hello]},
        {"system": [{"type": "text", "text": "You are B"}], "messages": [hello]},
        {"instructions": "You are C", "input": [hello]},
    ]
    assert len({of(body) for body in bodies}) == len(bodies)


def test_what_follows_the_beginning_and_what_is_no_prompt_makes_no_difference() -> None:
    body = chat("Hello")
    assert of({"temperature": 1, "tools": [], **body, "stream": True, "user": "u"}) == of(body)
    assert of(chat("x" * 5000 + "tail")) == of(chat("x" * 5000 + "other"))
    assert of({"model": "m", **body}, model="m") != of({"model": "n", **body}, model="n")


def test_the_name_that_the_client_gives_a_prompt_counts_instead_of_its_text() -> None:
    assert of({**chat("one"), "prompt_cache_key": "k"}) == of({**chat("two"), "prompt_cache_key": "k"})
    assert of({**chat("one"), "prompt_cache_key": "k"}) != of({**chat("one"), "prompt_cache_key": "l"})
    for empty in (None, ""):
        assert of({**chat("one"), "prompt_cache_key": empty}) == of(chat("one"))


@pytest.mark.parametrize("member", ["prompt", "input"])
def test_a_text_without_turns_begins_where_it_is_long_enough(member: str) -> None:
    assert of({member: "x" * (SHORTEST_BYTES - 3)}) == 0
    assert of({member: "x" * SHORTEST_BYTES}) == of({member: "x" * SHORTEST_BYTES + " and more"}) != 0
    assert of({member: "x" * SHORTEST_BYTES}) != of({member: "y" * SHORTEST_BYTES})


def test_token_ids_are_a_text_without_turns() -> None:
    assert of({"prompt": list(range(2000))}) == of({"prompt": list(range(3000))}) != 0


ODD: list[dict[str, Any]] = [
    {},
    {"messages": []},
    {"messages": None},
    {"messages": "text"},
    {"messages": 7},
    {"messages": [{"role": "assistant", "content": LONG}]},
    {"messages": ["user"]},
    {"messages": {"role": "user"}},
    {"input": [1, 2, 3]},
    {"input": None},
    {"prompt": None},
    {"system": 5, "instructions": [], "prompt_cache_key": {"a": 1}},
]


@pytest.mark.parametrize("body", ODD, ids=str)
def test_what_no_engine_would_take_is_hashed_or_not_but_never_an_error(body: dict[str, Any]) -> None:
    assert 0 <= of(body) < 2**48


def test_a_turn_far_behind_the_instructions_is_found_up_to_a_bound() -> None:
    near, far = SCANS_BYTES
    for size in (*range(near - 90, near + 20), far - 200):
        first, later = chat("Hello", system="s" * size), chat("Hello", "Answer", "More", system="s" * size)
        assert of(first) == of(later) != 0, size
    assert of(chat("Hello", system="s" * far)) == 0


def test_the_hash_depends_on_the_key_and_is_of_48_bits() -> None:
    body = chat("Hello")
    found = {of(body, hashes=Beginnings(b"key %d" % number)) for number in range(100)}
    assert len(found) == 100
    assert max(found) < 2**48
    assert max(found).bit_length() > 40
    assert of(body, hashes=Beginnings(b"same")) == of(body, hashes=Beginnings(b"same"))
    assert "key" not in repr(Beginnings(b"key"))
