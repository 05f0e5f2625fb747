"""The story of one request: who could have served it, why this one, and what happened then."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import msgspec

from evenload.schemas import Batch, Candidate, Decision, Outcome

REASONS = {
    "cheaper": "it was the cheaper of the two drawn",
    "tie": "both drawn cost the same, and it was drawn first",
    "only": "it was the only one that could be chosen",
    "probe": "it was probed, because nobody had measured it for a while",
    "turn": "it was its turn",
    "draw": "it was drawn at random",
    "least": "it had the fewest requests in flight",
}


@dataclass(frozen=True, slots=True)
class AttemptStory:
    """One attempt.

    Attributes:
        outcome: None while the log does not say how it ended.
    """

    attempt: int
    router: str
    policy: str
    at_ms: int
    winner: str
    reason: str
    probability: float
    candidates: list[Candidate]
    outcome: Outcome | None

    def lines(self) -> Iterator[str]:
        """Yield the attempt in plain words."""
        yield f"Attempt {self.attempt} at router {self.router} (policy {self.policy}, log time {self.at_ms} ms):"
        for one in self.candidates:
            mark = ">" if one.instance == self.winner else " "
            yield f"  {mark} {one.instance}: {_describe(one)}"
        yield (
            f"  {self.winner} was chosen because {REASONS.get(self.reason, self.reason)}; "
            f"the chance of that was {100 * self.probability:.1f} %."
        )
        yield f"  {_ending(self.outcome)}"


@dataclass(frozen=True, slots=True)
class Story:
    """All attempts of one request."""

    request_id: str
    model: str
    pool: str
    prompt_tokens: int
    attempts: list[AttemptStory]

    def lines(self) -> Iterator[str]:
        """Yield the story in plain words."""
        yield (
            f"Request {self.request_id} asked pool {self.pool} for model {self.model} "
            f"with about {self.prompt_tokens} prompt tokens."
        )
        for attempt in self.attempts:
            yield from attempt.lines()

    def data(self) -> dict[str, object]:
        """Return the story as plain data."""
        return {
            "request_id": self.request_id,
            "model": self.model,
            "pool": self.pool,
            "prompt_tokens": self.prompt_tokens,
            "attempts": msgspec.to_builtins(self.attempts),
        }


def tell(decisions: list[Decision], batches: Mapping[tuple[int, int, int], tuple[int, Batch]]) -> Story:
    """Return the story of a request from its decisions, in order of attempts, and the telemetry."""
    first = decisions[0]
    outcomes = {
        (event.request_id, event.attempt): event
        for _, batch in batches.values()
        for event in batch.events
        if isinstance(event, Outcome) and event.request_id == first.request_id
    }
    return Story(
        request_id=first.request_id,
        model=first.model,
        pool=first.pool,
        prompt_tokens=first.prompt_tokens,
        attempts=[_attempt(decision, outcomes.get((first.request_id, decision.attempt))) for decision in decisions],
    )


def _attempt(decision: Decision, outcome: Outcome | None) -> AttemptStory:
    return AttemptStory(
        attempt=decision.attempt + 1,
        router=decision.router,
        policy=decision.policy,
        at_ms=decision.now_ms,
        winner=decision.winner,
        reason=decision.reason,
        probability=decision.probability,
        candidates=decision.candidates,
        outcome=outcome,
    )


def _describe(one: Candidate) -> str:
    load = f"score {one.score:.1f}, {one.in_flight} own and {one.others_in_flight} others' requests in flight"
    if one.excluded:
        return f"{load}, excluded: {one.excluded}"
    return f"{load}, cost {one.cost:.4g}" if one.cost is not None else load


def _ending(outcome: Outcome | None) -> str:
    if outcome is None:
        return "How it ended is not in the log (yet)."
    first = "" if outcome.ttft_ms is None else f", first token after {outcome.ttft_ms:.0f} ms"
    cause = f" ({outcome.cause})" if outcome.cause else ""
    return f"It ended as {outcome.kind}{cause} with status {outcome.status} after {outcome.duration_ms:.0f} ms{first}."
