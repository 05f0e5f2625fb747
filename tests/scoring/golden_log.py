"""A fixed log and what folding it gave, so that any supported Python shows that it gets the same bits.

`python -m tests.scoring.golden_log` verifies and prints; it needs nothing but the package and msgspec. `--write`
replaces log and expectation, which is right only when scores or the state's fields change on purpose: it is a line
under "Routing behaviour" in the changelog.
"""

import hashlib
import json
import random
import sys
import zlib
from pathlib import Path
from typing import Any

import msgspec

from evenload.schemas import Batch, Event, FirstToken, InstanceState, Membership, Outcome, decode_batch, encode
from evenload.schemas.telemetry import EngineGauges, Overdue, RouterLoad
from evenload.scoring import ScoringConfig, fold, snapshot

FOLDER = Path(__file__).parent / "golden"
LOG, EXPECTED = FOLDER / "log.bin", FOLDER / "expected.json"
CONFIGS = {
    "published": ScoringConfig(),
    "censored": ScoringConfig(evidence="censored"),
    "long_prompts": ScoringConfig(evidence="censored", ttft_limit_ms=17_000.0, ewma_alpha=1 / 3, damping_per_s=7.3),
}
BATCHES, SNAPSHOT_EVERY = 500, 10
Records = list[tuple[int, bytes]]  # log time, encoded batch; the offset is the index


def generate(seed: int = 20_240_501) -> Records:
    """Draw a log of 8 instances and 4 producers, with faults, restarts, departures, pauses and jumps."""
    rng = random.Random(seed)
    log_ms, records = 1_700_000_000_000, []
    sequences = [0] * 4
    for index in range(BATCHES):
        log_ms += (
            rng.choice([20, 25, 50, 100, 137, 400]) if rng.random() < 0.97 else rng.choice([-900, 15_000, 7_200_000])
        )
        producer = rng.randrange(4)
        batch = Batch(
            v=1,
            producer=f"router-{producer}",
            incarnation=2**62 + producer,
            seq=sequences[producer],
            events=[_draw_event(rng, f"engine-{rng.randrange(8)}", index) for _ in range(rng.randrange(1, 12))],
            age_ms=30_000.0 if rng.random() < 0.02 else rng.random() * 40,
        )
        sequences[producer] += 1
        records.append((log_ms, encode(batch)))
    return records


def _draw_event(rng: random.Random, instance: str, index: int) -> Event:
    """One event; engine-3 is sick, engine-7 leaves and comes back as generation 1, with a few late events of 0."""
    generation = 0
    if instance == "engine-7" and index >= BATCHES // 3:
        if index < BATCHES // 2:
            return Membership(instance=instance, change="left")
        generation = 0 if rng.random() < 0.05 else 1
    return _draw_lively(rng, instance == "engine-3", {"instance": instance, "gen": generation})


def _draw_lively(rng: random.Random, sick: bool, about: dict[str, Any]) -> Event:
    kind = rng.random()
    if kind < 0.35:
        return FirstToken(**about, ttft_ms=rng.lognormvariate(7.2 if sick else 5.3, 0.5))
    if kind < 0.70:
        failing = rng.random() < (0.3 if sick else 0.02)
        return Outcome(**about, kind=rng.choice(["timeout", "http_error", "saturated", "quota"]) if failing else "ok")
    if kind < 0.80:
        return Overdue(**about, age_ms=250.0 * 2 ** rng.randrange(6))
    if kind < 0.88:
        return RouterLoad(**about, in_flight=rng.randrange(9), awaiting=rng.randrange(3))
    if kind < 0.99:
        started_s = 2.0 if rng.random() < 0.02 else 1.0
        return EngineGauges(**about, waiting=rng.randrange(40), kv_usage=rng.random(), started_s=started_s)
    return Membership(**about, change=rng.choice(["ready", "ready", "ready", "not_ready", "draining"]), cause="refused")


def results(records: Records) -> dict[str, Any]:
    """Fold the log with each config; digests of all states and snapshots, and the last scores to their last bit."""
    return {name: _result(records, config) for name, config in CONFIGS.items()}


def _result(records: Records, config: ScoringConfig) -> dict[str, Any]:
    states: dict[str, InstanceState] = {}
    taken = hashlib.sha256()
    for offset, (log_ms, data) in enumerate(records):
        states.update(fold(states, decode_batch(data), offset, log_ms, lambda _instance: config))
        if offset % SNAPSHOT_EVERY == 0:
            for name in sorted(states):
                taken.update(encode(snapshot(states[name], log_ms + 60, config)))
    final = hashlib.sha256(b"".join(encode(states[name]) for name in sorted(states)))
    now_ms = records[-1][0]
    return {
        "states": final.hexdigest(),
        "snapshots": taken.hexdigest(),
        "scores": {name: snapshot(states[name], now_ms, config).score.hex() for name in sorted(states)},
    }


def load() -> Records:
    """Read the stored log."""
    return msgspec.msgpack.decode(zlib.decompress(LOG.read_bytes()), type=Records)


def expected() -> dict[str, Any]:
    """Read what folding the stored log has to give."""
    read: dict[str, Any] = json.loads(EXPECTED.read_text())
    return read


def _write() -> None:
    FOLDER.mkdir(exist_ok=True)
    records = generate()
    LOG.write_bytes(zlib.compress(encode(records), 9))
    EXPECTED.write_text(json.dumps(results(records), indent=1) + "\n")


if __name__ == "__main__":
    if "--write" in sys.argv:
        _write()
    same = results(load()) == expected()
    print(f"Python {sys.version.split()[0]}, msgspec {msgspec.__version__}: {'identical' if same else 'DIFFERENT'}")
    sys.exit(not same)
