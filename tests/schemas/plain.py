"""MessagePack as the rest of the world has it: plain dicts by `msgpack`, which shares no code with msgspec."""

from typing import Any

import msgpack  # type: ignore[import-untyped]


def pack(value: Any) -> bytes:
    """Return the bytes of a plain value."""
    packed: bytes = msgpack.packb(value)
    return packed


def unpack(data: bytes) -> Any:
    """Return the plain value of the bytes; keys may be integers (maps by id)."""
    return msgpack.unpackb(data, strict_map_key=False)
