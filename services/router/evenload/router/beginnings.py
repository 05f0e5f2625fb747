"""How a prompt begins, as a keyed hash: prompts with the same one share what an engine has cached of them. Pure.

    beginning = model, then `prompt_cache_key` where the client gives one, else 128 bytes each of the instructions
                (`system`, `instructions`) and of what stands before the user's first turn, and 512 of that turn

A conversation sends all its turns again with each request, so what identifies it is where the user first speaks: after
the instructions, which all users of an application share, and before what the next request adds. A depth in bytes from
the start is either within the instructions, and sends all users to one engine, or beyond a short first turn, and is
another for the next request. OpenAI documents a hash of about the first 256 tokens together with `prompt_cache_key`
for its own routing. Others compare block by block with what they sent where (llm-d, vLLM's production stack) or keep a
tree of it (SGLang): that says how much is cached where, but each router knows its own part only; a hash is the same at
all routers that have the key.

A text without turns (`prompt`, a plain `input`) is cut at 2,048 bytes. What is shorter, and whole requests that are,
have no beginning (0): to compute 512 tokens again costs less than to gather. Headers of sessions have no standard name
and are not read.

The key: the hash is in decision records, and guessable text could be found again by hashing guesses; who reads the
topics has no key. Members are found by the decoder that has to read the body anyway, the turn by two searches in raw
bytes: inside a JSON string each quote is escaped, so `"user"` with plain quotes is a string of its own.

What it does not handle: messages whose role stands neither first nor last, and clients that change the first turn
later (as those do that move marks for a cache): they change their home. With more than 64 KiB before the first `"user"`
there is no beginning.
"""

from hashlib import blake2b

import msgspec

SHORTEST_BYTES = 2048  # of the body, and the depth of a text without turns
INSTRUCTIONS_BYTES = 128
TURN_BYTES = 512
SCANS_BYTES = (16 * 1024, 64 * 1024)  # how far the user's turn is looked for; the first is enough for most
HASH_BYTES = 6  # 48 bits: exact in every reader of JSON, and far from filling up
_AROUND_BYTES = 64  # between the text of a message and the role of the next, in an indented body
_WINDOW_BYTES = TURN_BYTES + _AROUND_BYTES
_USER, _ROLE = b'"user"', b'"role"'
_STRUCTURE = b"{}[], \t\r\n"
_NO_KEY = (b"null", b'""')
_LISTED = (b'"', b"[")  # how a prompt in a list begins

Raw = msgspec.Raw
_decode_list = msgspec.json.Decoder(list[Raw]).decode


class Prompt(msgspec.Struct, kw_only=True, gc=False):
    """Those members of a body that say how its prompt begins, as they came; of whatever type, for engines to judge."""

    messages: Raw = Raw()
    prompt: Raw = Raw()
    input: Raw = Raw()
    system: Raw = Raw()
    instructions: Raw = Raw()
    prompt_cache_key: Raw = Raw()


def prompts_in(prompt: Raw) -> int:
    """Return how many prompts the member `prompt` has: each gets answers of its own. Tokens are one."""
    if _cut(prompt, 1) != b"[":
        return 1
    first = bytes(memoryview(prompt)[1:_AROUND_BYTES]).lstrip()[:1]
    return len(_decode_list(prompt)) if first in _LISTED else 1


class Beginnings:
    """Hashes beginnings under one key.

    Args:
        key: 1 to 64 bytes; routers that are to agree have the same.
    """

    __slots__ = ("_blank",)

    def __init__(self, key: bytes) -> None:
        self._blank = blake2b(key=key, digest_size=HASH_BYTES)

    def __repr__(self) -> str:
        return "Beginnings(...)"

    def of(self, model: str, prompt: Prompt) -> int:
        """Return the hash of a prompt's beginning, 1 to 2^48 - 1; 0 where it has none."""
        found = _beginning(prompt)
        if not found:
            return 0
        hashed = self._blank.copy()
        hashed.update(b"%b\0%b" % (model.encode("utf-8", "surrogatepass"), found))
        return int.from_bytes(hashed.digest()) or 1


def _beginning(prompt: Prompt) -> bytes:
    """Return the bytes that identify it; empty for none."""
    if prompt.prompt_cache_key:
        key = _cut(prompt.prompt_cache_key, TURN_BYTES)
        if key not in _NO_KEY:
            return key
    turns = prompt.messages
    if not turns:
        text = prompt.prompt or prompt.input
        if prompt.prompt or _cut(text, 1) != b"[":
            return _cut(text, SHORTEST_BYTES) if len(text) >= SHORTEST_BYTES else b""
        turns = text
    before, turn = _first_turn(turns)
    if not turn:
        return b""
    instructions = prompt.system or prompt.instructions
    if instructions:
        return b"%b\0%b\0%b" % (_cut(instructions, INSTRUCTIONS_BYTES), before, turn)
    return b"%b\0%b" % (before, turn)


def _cut(raw: Raw, size: int) -> bytes:
    return bytes(memoryview(raw)[:size])


def _first_turn(turns: Raw) -> tuple[bytes, bytes]:
    """Return what stands before the first turn of the user, and that turn, both cut; empty where there is none.

    The same bytes come out whatever follows that turn.
    """
    for size in SCANS_BYTES:
        text = bytes(turns) if len(turns) <= size else _cut(turns, size)
        mark = text.find(_USER)
        if len(turns) <= size or 0 <= mark < size - _WINDOW_BYTES:
            return (b"", b"") if mark < 0 else _around(text, mark)
    return b"", b""


def _around(text: bytes, mark: int) -> tuple[bytes, bytes]:
    after = mark + len(_USER)
    if text[after : after + _AROUND_BYTES].lstrip()[:1] == b"}":  # what was said stands before who said it
        own = text.rfind(_ROLE, 0, mark)
        start = max(0, text.rfind(_ROLE, 0, max(own, 0)))
        turn = text[start:after]
    else:
        start = mark
        turn = text[mark : mark + _WINDOW_BYTES]
        next_role = turn.find(_ROLE)
        turn = (turn if next_role < 0 else turn[:next_role]).rstrip(_STRUCTURE)
    return text[: min(start, INSTRUCTIONS_BYTES)], turn[:TURN_BYTES]
