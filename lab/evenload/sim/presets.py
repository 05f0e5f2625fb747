"""Frozen coefficients of simulated engines: one step law, five machines.

One step over `n` decoding sequences and `B` prefill tokens, while the decoders read `K` tokens of KV cache, takes

    T = fixed + max(memory, per_token * (B + n)) + per_kv_token * K + per_seq * n
        + attention * sum(B_j * (ctx_j + B_j / 2))        over the prefill chunks j

milliseconds. Two terms need a word. `fixed + memory` is the published "base" of a step: `memory` is the time to read
the weights once, the floor of all linear layers, and `fixed` is the host's share of a step. The linear law ignores the
tile quantisation of real kernels, so between roughly 64 and 512 tokens a real step lies above it by up to 45 %.

Coefficients carry about 25 % uncertainty; a conclusion that flips when they move by that much is not one.
"""

from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

BLOCK_TOKENS: Final = 16  # vLLM's KV block


@dataclass(frozen=True, slots=True, kw_only=True)
class EnginePreset:
    """What a model on a machine costs.

    Attributes:
        name: The preset's name, for example `h100-8b`.
        fixed_ms: Host overhead of each step.
        memory_ms: Time to read the weights once, the floor of the linear layers.
        per_token_ms: Linear layers, per token in the step (prefill and decode alike).
        per_seq_ms: Sampling and bookkeeping, per decoding sequence.
        per_kv_token_us: Microseconds per KV token that the decoders read.
        attention_ms: Prefill attention, per token times context.
        kv_tokens: Size of the KV cache in tokens.
        step_budget: Most tokens in one step (`--max-num-batched-tokens`).
        seqs_max: Most sequences that run together (`--max-num-seqs`).
    """

    name: str
    fixed_ms: float
    memory_ms: float
    per_token_ms: float
    per_seq_ms: float
    per_kv_token_us: float
    attention_ms: float
    kv_tokens: int
    step_budget: int
    seqs_max: int

    def __post_init__(self) -> None:
        """Refuse coefficients for which the model has no meaning.

        Raises:
            ValueError: A coefficient is negative, or a size makes no progress possible.
        """
        for field in ("fixed_ms", "memory_ms", "per_token_ms", "per_seq_ms", "per_kv_token_us", "attention_ms"):
            if getattr(self, field) < 0:
                raise ValueError(f"preset {self.name}: {field} must not be negative, got {getattr(self, field)}")
        if self.fixed_ms + self.memory_ms <= 0:
            raise ValueError(f"preset {self.name}: a step must take time, fixed_ms + memory_ms is 0")
        if self.kv_tokens < BLOCK_TOKENS:
            raise ValueError(f"preset {self.name}: kv_tokens must hold one block of {BLOCK_TOKENS}")
        if not 1 <= self.seqs_max < self.step_budget:
            # With a budget above the sequences, a prefill always advances by at least one token a step.
            raise ValueError(f"preset {self.name}: 1 <= seqs_max < step_budget must hold")

    @property
    def kv_blocks(self) -> int:
        """Whole blocks in the cache."""
        return self.kv_tokens // BLOCK_TOKENS

    def step_ms(self, *, decoders: int, prefill_tokens: int, kv_read: int, attention_work: float) -> float:
        """Duration of one step.

        Args:
            decoders: Sequences that decode one token in this step.
            prefill_tokens: Prompt tokens computed in this step, over all chunks.
            kv_read: KV tokens that the decoders read.
            attention_work: Sum over chunks of `tokens * (context + tokens / 2)`.

        Returns:
            Milliseconds.
        """
        linear_ms = max(self.memory_ms, self.per_token_ms * (prefill_tokens + decoders))
        return (
            self.fixed_ms
            + linear_ms
            + self.per_kv_token_us * 1e-3 * kv_read
            + self.attention_ms * attention_work
            + self.per_seq_ms * decoders
        )


_ALL = (
    EnginePreset(
        name="h100-8b",
        fixed_ms=2.0,
        memory_ms=6.0,
        per_token_ms=0.031,
        per_seq_ms=0.02,
        per_kv_token_us=0.055,
        attention_ms=1.3e-6,
        kv_tokens=400_000,
        step_budget=8192,
        seqs_max=256,
    ),
    EnginePreset(
        name="a100-8b",
        fixed_ms=2.0,
        memory_ms=10.0,
        per_token_ms=0.075,
        per_seq_ms=0.02,
        per_kv_token_us=0.09,
        attention_ms=4e-6,
        kv_tokens=400_000,
        step_budget=2048,
        seqs_max=256,
    ),
    EnginePreset(
        name="l40s-8b",
        fixed_ms=2.0,
        memory_ms=20.0,
        per_token_ms=0.14,
        per_seq_ms=0.03,
        per_kv_token_us=0.20,
        attention_ms=7e-6,  # scaled from the A100 by peak bf16 rate
        kv_tokens=190_000,
        step_budget=2048,
        seqs_max=128,
    ),
    EnginePreset(
        name="h100x4-70b",
        fixed_ms=3.0,
        memory_ms=15.0,
        per_token_ms=0.0675,
        per_seq_ms=0.02,
        per_kv_token_us=0.036,
        attention_ms=1.6e-6,  # five times the attention of 8B (80 x 64 heads against 32 x 32), over four devices
        kv_tokens=420_000,
        step_budget=8192,
        seqs_max=256,
    ),
    EnginePreset(
        # The published model of prequal-rs adds its base to the tokens instead of taking a maximum, has no attention
        # term and counts KV reads in its per-sequence cost.
        name="h100x2-qwen32b",
        fixed_ms=15.0,
        memory_ms=0.0,
        per_token_ms=0.063,
        per_seq_ms=0.2,
        per_kv_token_us=0.0,
        attention_ms=0.0,
        kv_tokens=307_328,
        step_budget=8192,
        seqs_max=256,
    ),
)

PRESETS: Final = MappingProxyType({preset.name: preset for preset in _ALL})


def preset(name: str) -> EnginePreset:
    """Look a preset up by name.

    Raises:
        ValueError: No such preset; the message lists the names there are.
    """
    try:
        return PRESETS[name]
    except KeyError:
        raise ValueError(f"unknown engine preset {name!r}; there are {', '.join(PRESETS)}") from None
