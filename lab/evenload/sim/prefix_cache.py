"""The prefix cache of one engine: whole blocks by hash, least recently used first out.

A hash stands for a block and everything before it, so a prompt's hit is its longest leading run of known hashes. The
cache is as large as the KV cache. Approximations: blocks of running sequences are not shared between them, and the
space of generated tokens is not taken from the cache; both are small beside prompts of thousands of tokens.
"""

from evenload.sim.presets import BLOCK_TOKENS


class PrefixCache:
    """Known hashes, in order of use.

    Args:
        kv_tokens: size of the KV cache.
        tokens_per_hash: prompt tokens that a hash stands for, a multiple of the 16-token block.
    """

    def __init__(self, kv_tokens: int, tokens_per_hash: int) -> None:
        if tokens_per_hash % BLOCK_TOKENS or tokens_per_hash <= 0:
            raise ValueError(f"tokens_per_hash must be a multiple of {BLOCK_TOKENS}, got {tokens_per_hash}")
        self._blocks_per_hash = tokens_per_hash // BLOCK_TOKENS
        self._hashes_max = max(1, kv_tokens // tokens_per_hash)
        self._known: dict[int, None] = {}

    def __repr__(self) -> str:
        return f"PrefixCache({len(self._known)} of {self._hashes_max} hashes)"

    def cached_blocks(self, block_hashes: tuple[int, ...], /) -> int:
        """Number of leading 16-token blocks that need no computing."""
        known = self._known
        count = 0
        for block in block_hashes:
            if block not in known:
                break
            count += 1
        return count * self._blocks_per_hash

    def store(self, block_hashes: tuple[int, ...], /) -> None:
        """Note that these blocks have been computed, or used again."""
        known = self._known
        for block in reversed(block_hashes):  # the beginning is used by most: it goes last
            known.pop(block, None)
            known[block] = None
        while len(known) > self._hashes_max:
            del known[next(iter(known))]
