"""Plain records of the engine model: what goes in, what comes out, what is tracked in between."""

from enum import StrEnum

from msgspec import Struct

from evenload.sim.presets import BLOCK_TOKENS


class SimRequest(Struct, frozen=True):
    """One request as an engine sees it.

    Attributes:
        id: Unique among the requests an engine holds.
        prompt_tokens: Tokens of the prompt, at least 1.
        output_tokens: Tokens that will be generated, at least 1.
        block_hashes: Hashes of the prompt's blocks, for a prefix index; empty is "nothing to share".
        noise: A standard normal that decides its latency at a provider; None lets the provider draw.
        draw: A uniform that decides whether a fault with a share hits it; None lets the provider draw.
    """

    id: str
    prompt_tokens: int
    output_tokens: int
    block_hashes: tuple[int, ...] = ()
    noise: float | None = None
    draw: float | None = None

    def __post_init__(self) -> None:
        """Refuse empty requests.

        Raises:
            ValueError: A size is below 1.
        """
        if self.prompt_tokens < 1 or self.output_tokens < 1:
            raise ValueError(f"request {self.id}: prompt_tokens and output_tokens must be at least 1")


class EmissionKind(StrEnum):
    """What an engine reports of a request."""

    FIRST_TOKEN = "first_token"  # noqa: S105 - a token of text, not a credential
    FINISHED = "finished"
    PREEMPTED = "preempted"


class Emission(Struct, frozen=True):
    """Something that happened to a request at `at_ms` of engine time."""

    at_ms: float
    kind: EmissionKind
    request_id: str


class Gauges(Struct, frozen=True):
    """What an engine publishes: gauges first, then counters that only rise."""

    running: int
    waiting: int
    kv_usage: float
    preemptions: int
    recomputed_tokens: int
    rejections: int
    prefix_queries: int
    prefix_hits: int
    prompt_tokens: int
    generation_tokens: int
    steps: int
    busy_ms: float


class Sequence(Struct, eq=False):
    """A request inside an engine. Mutable, and never seen outside.

    While it decodes, `join_step` is the decode step after which it joined, so that its tokens and its cache follow from
    the engine's step counter without anyone visiting it.
    """

    request: SimRequest
    arrived_ms: float
    target: int = 0
    computed: int = 0
    emitted: int = 0
    join_step: int = -1
    finish_step: int = -1
    gone: bool = False

    @property
    def decoding(self) -> bool:
        """Whether the prefill is done."""
        return self.join_step >= 0

    def tokens(self, decode_step: int) -> int:
        """Tokens emitted up to `decode_step`."""
        return self.emitted + (decode_step - self.join_step if self.decoding else 0)

    def kv_tokens(self, decode_step: int) -> int:
        """Tokens it holds in the cache up to `decode_step`."""
        return self.target + (decode_step - self.join_step) if self.decoding else self.computed

    def boundary(self) -> int:
        """The decode steps, modulo a block, at which it needs a new block."""
        return (1 - self.target + self.join_step) % BLOCK_TOKENS

    def reset(self, decode_step: int) -> None:
        """Forget the cache: all that was emitted so far has to be computed again."""
        self.emitted = self.tokens(decode_step)
        self.target = self.request.prompt_tokens + self.emitted
        self.computed = 0
        self.join_step = self.finish_step = -1


def blocks_for(tokens: int) -> int:
    """Whole blocks that `tokens` need."""
    return -(-tokens // BLOCK_TOKENS)
