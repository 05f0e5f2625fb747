"""What TTFT to expect of an instance, learned from finished first tokens.

    predicted = base_ms + token_ms * work       work: prompt tokens awaiting their first token, as `work_of` weighs them

The line is a weighted least-squares fit through (work at dispatch, TTFT), kept as running means. An engine's base is
about one step and `token_ms` the inverse of its prefill rate; a provider's base is all there is.

- A sample weighs 1 / (1 + work / `fit_tokens`)^2: it is the relative error that counts.
- A sample above `fit_excess` times what was expected weighs the fourth power of the excess less. So the line is that of
  a request that met only what its router knew of; prompts of other routers that arrive in between, and faults, are the
  business of the policy and of `slowness.py`, and must not become the new normal.
- `fit_trust` is s / (s + 1/10), s being the share of the variance that the slope explains: near 0 for a provider, whose
  slope is luck, above 0.7 for an engine.

What it does not handle: decode load, which is slower to matter and is left to the policy.
"""

from evenload.schemas.state import InstanceState
from evenload.scoring.config import ScoringConfig

ATTENTION_TOKENS = 42_000.0  # prompt whose attention costs as much as its linear layers on 8B models; 70B: 84,000
RIDGE_TOKENS = 100.0  # a spread of work below this says nothing of the cost of a token
NOISE_SHARE = 0.1
BASE_MS_MIN = 1.0


def work_of(tokens: float) -> float:
    """Return prompt tokens weighed by what attention adds to long ones."""
    return tokens * (1.0 + tokens / ATTENTION_TOKENS)


def predicted_ms(state: InstanceState, work: float) -> float | None:
    """Return the predicted TTFT, milliseconds, behind so much work; None before the first sample."""
    if state.fit_weight <= 0.0:
        return None
    return state.base_ms + state.token_ms * work


def learn(state: InstanceState, work: float, ttft_ms: float, config: ScoringConfig) -> None:
    """Take a finished first token into a state that the fold owns."""
    total = state.fit_weight + _weight(state, work, ttft_ms, config)
    share = (total - state.fit_weight) / total
    state.fit_weight = total if total < config.fit_samples else config.fit_samples
    state.fit_work += share * (work - state.fit_work)
    state.fit_ttft += share * (ttft_ms - state.fit_ttft)
    state.fit_work_work += share * (work * work - state.fit_work_work)
    state.fit_work_ttft += share * (work * ttft_ms - state.fit_work_ttft)
    state.fit_ttft_ttft += share * (ttft_ms * ttft_ms - state.fit_ttft_ttft)
    _draw_line(state)


def forget(state: InstanceState) -> None:
    """Unlearn everything: another process answers now."""
    state.fit_weight = state.fit_work = state.fit_ttft = 0.0
    state.fit_work_work = state.fit_work_ttft = state.fit_ttft_ttft = 0.0
    state.base_ms = state.token_ms = state.fit_trust = 0.0


def _weight(state: InstanceState, work: float, ttft_ms: float, config: ScoringConfig) -> float:
    near = config.fit_tokens / (config.fit_tokens + work)
    weight = near * near
    if state.fit_weight >= config.fit_young:
        expected = config.fit_excess * (state.base_ms + state.token_ms * work + config.slack_ms)
        if ttft_ms > expected:
            excess = expected / ttft_ms
            weight = weight * (excess * excess) * (excess * excess)
    return weight


def _draw_line(state: InstanceState) -> None:
    work, ttft_ms = state.fit_work, state.fit_ttft
    spread = state.fit_work_work - work * work
    together = state.fit_work_ttft - work * ttft_ms
    slope = trust = 0.0
    if together > 0.0 and spread > 0.0:
        slope = together / (spread + RIDGE_TOKENS * RIDGE_TOKENS)
        explained = together * together / spread
        variance = state.fit_ttft_ttft - ttft_ms * ttft_ms
        trust = explained / (explained + NOISE_SHARE * variance) if variance > 0.0 else 1.0
    base_ms = ttft_ms - slope * work
    if base_ms < BASE_MS_MIN:
        base_ms = BASE_MS_MIN
        slope = (ttft_ms - base_ms) / work if work > 0.0 and ttft_ms > base_ms else 0.0
    state.base_ms, state.token_ms, state.fit_trust = base_ms, slope, trust
