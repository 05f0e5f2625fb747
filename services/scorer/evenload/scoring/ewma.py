"""Two estimates of TTFT.

Published: per-sample EWMA, `new = old + alpha * (sample - old)`; the first sample initialises. Only samples move it.

In time (the usable one): a sample that stands for dt milliseconds has weight dt / (tau + dt), the rational form of
1 - exp(-dt/tau), with tau = `rise_ms` upwards and `decay_ms` downwards, in the spirit of Finagle's Peak-EWMA
(twitter/finagle, loadbalancer) with a peak that is not instantaneous, so that one odd request does not convict an
instance. Without samples it fades by decay / (decay + idle), so that a shunned instance is tried again. The age of a
waiting request is a lower bound of its TTFT (right-censored) and can only raise it. Neither handles prompt length.
"""

from evenload.scoring.config import ScoringConfig


def per_sample(old: float | None, sample: float, alpha: float) -> float:
    """Return the published EWMA after `sample`."""
    return sample if old is None else old + alpha * (sample - old)


def faded(value: float | None, idle_ms: float, config: ScoringConfig) -> float | None:
    """Return the estimate in time after `idle_ms` without a sample; None once it has expired."""
    if value is None or idle_ms >= config.evidence_expire_ms:
        return None
    if idle_ms <= 0.0:
        return value
    return value * (config.decay_ms / (config.decay_ms + idle_ms))


def in_time(value: float | None, sample: float, idle_ms: float, config: ScoringConfig) -> float:
    """Return the estimate in time after `sample`, `idle_ms` after the one before."""
    old = faded(value, idle_ms, config)
    if old is None:
        return sample
    weight_ms = idle_ms if idle_ms > config.sample_ms_min else config.sample_ms_min
    tau = config.rise_ms if sample > old else config.decay_ms
    return old + (sample - old) * (weight_ms / (tau + weight_ms))
