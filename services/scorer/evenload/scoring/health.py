"""The published health score.

    score = 100 * max(0, 1 - (0.35*ttft + 0.40*error + 0.25*queue))
    ttft  = min(1, EWMA_TTFT / 2000 ms)^2
    error = min(1, 5 * error_ratio)
    queue = max(min(1, waiting/30), (kv - 0.80)/0.20 if kv > 0.80 else 0)

What it does not handle: it saturates (TTFT 2 s and 14 s score the same), and an idle instance that fails at once scores
60, more than a busy healthy one. Policies that act on more than this number exist for that reason.
"""

from evenload.scoring.config import DEFAULT, ScoringConfig


def ttft_term(ewma_ttft_ms: float | None, config: ScoringConfig = DEFAULT) -> float:
    """Latency term, 0..1; unknown latency lowers nothing."""
    if ewma_ttft_ms is None:
        return 0.0
    if ewma_ttft_ms >= config.ttft_limit_ms:
        return 1.0
    ratio = ewma_ttft_ms / config.ttft_limit_ms
    return ratio * ratio


def error_term(error_ratio: float, config: ScoringConfig = DEFAULT) -> float:
    """Error term, 0..1, of a ratio 0..1."""
    term = config.error_gain * error_ratio
    return term if term < 1.0 else 1.0


def queue_term(waiting: float | None, kv_usage: float | None, config: ScoringConfig = DEFAULT) -> float:
    """Queue term, 0..1, the worse of waiting requests and KV pressure; unknown is not zero and lowers nothing."""
    term = 0.0
    if waiting is not None:
        term = waiting / config.waiting_limit
        term = min(term, 1.0)
    if kv_usage is not None and kv_usage > config.kv_threshold:
        pressure = (kv_usage - config.kv_threshold) / (1.0 - config.kv_threshold)
        if pressure > term:
            term = pressure if pressure < 1.0 else 1.0
    return term


def combine(ttft: float, error: float, queue: float, config: ScoringConfig = DEFAULT) -> float:
    """Score, 0..100, of the three terms."""
    left = 1.0 - (config.ttft_weight * ttft + config.error_weight * error + config.queue_weight * queue)
    return 100.0 * left if left > 0.0 else 0.0


def health_score(
    ewma_ttft_ms: float | None,
    error_ratio: float,
    waiting: float | None,
    kv_usage: float | None,
    config: ScoringConfig = DEFAULT,
) -> float:
    """Return the published score, 0..100.

    Args:
        ewma_ttft_ms: milliseconds, at least 0; None when there was no first token yet.
        error_ratio: instance-caused errors over errors and successes, 0..1.
        waiting: requests waiting in the engine, at least 0; None when unknown.
        kv_usage: KV-cache usage, 0..1; None when unknown.
        config: constants of the pool.

    Raises:
        ValueError: an argument is outside its range or not a number.
    """
    for name, value, top in (
        ("ewma_ttft_ms", ewma_ttft_ms, None),
        ("error_ratio", error_ratio, 1.0),
        ("waiting", waiting, None),
        ("kv_usage", kv_usage, 1.0),
    ):
        if value is not None and not (value >= 0.0 and (top is None or value <= top)):
            raise ValueError(f"{name} is {value!r}, expected 0 or more{'' if top is None else f' and at most {top:g}'}")
    return combine(
        ttft_term(ewma_ttft_ms, config), error_term(error_ratio, config), queue_term(waiting, kv_usage, config), config
    )
