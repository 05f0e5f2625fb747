"""Which instance probably has a prompt's prefix in its cache: an approximate index of what was sent where.

A hash stands for a block of the prompt and everything before it. Per instance the index keeps the hashes of prompts
that this router sent there, least recently used first out; a hit is the longest leading run of known hashes. What it
does not handle: what other routers sent, and what the engine has evicted in the meantime (llm-d's and SGLang's
approximate modes share both limits).
"""

from collections.abc import Sequence

HASHES_MAX = 65_536  # per instance


class PrefixIndex:
    """What one router sent where.

    Args:
        hashes_max: hashes remembered per instance; an engine's KV tokens over the tokens of a hash is a good figure.
    """

    def __init__(self, hashes_max: int = HASHES_MAX) -> None:
        self._hashes_max = hashes_max
        self._known: dict[str, dict[int, None]] = {}

    def __repr__(self) -> str:
        return f"PrefixIndex({ {name: len(known) for name, known in self._known.items()} })"

    def matched(self, instance: str, hashes: Sequence[int]) -> int:
        """Return how many leading hashes the instance probably has."""
        known = self._known.get(instance)
        count = 0
        if known:
            for block in hashes:
                if block not in known:
                    break
                count += 1
        return count

    def note(self, instance: str, hashes: Sequence[int]) -> None:
        """Remember that a prompt with these hashes was sent to the instance."""
        known = self._known.setdefault(instance, {})
        for block in reversed(hashes):  # the beginning is used by most: it goes last
            known.pop(block, None)
            known[block] = None
        while len(known) > self._hashes_max:
            del known[next(iter(known))]

    def forget(self, instance: str) -> None:
        """Drop everything about an instance whose cache is gone."""
        self._known.pop(instance, None)
