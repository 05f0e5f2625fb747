"""From `Emitter.add` to the router's view, by number of producers and by the scorer's flush interval."""

from benchmarks.pipeline import machine
from benchmarks.pipeline.flow import Flow, Offer, offer
from benchmarks.pipeline.stack import Kafka, case

RATE = 2_000
PRODUCERS = (2, 8, 32)
FLUSH_MS = (25,)  # the default
KINDS = ("acked", "covered", "shown", "probe")
PROBES_PER_S = 50


def measure(
    where: Kafka,
    rounds: int,
    *,
    producers: tuple[int, ...] = PRODUCERS,
    flush_ms: tuple[int, ...] = FLUSH_MS,
    seconds: float = 4.0,
    warmup_s: float = 10.0,
    tries: int = 1,
) -> dict[str, dict[str, float]]:
    """Delays in ms, 2,000 events/s and 64 instances; a window is tried again while others used half a core.

    The warm-up is for the advised linger: so many producers begin at the shortest one.
    """
    rows: dict[str, list[dict[str, float]]] = {}
    for flush in flush_ms:
        with case(where) as owner, owner.worker(flush_ms=flush) as worker:
            worker.wait_ready()
            for number in range(rounds):
                for count in producers:
                    wanted = Offer(
                        producers=count,
                        rate=RATE,
                        warmup_s=warmup_s,
                        measure_s=seconds,
                        probe_every=RATE // PROBES_PER_S,
                        seed=number,
                    )
                    flow = offer(owner, [worker], wanted)
                    for _ in range(tries):
                        if flow.others_cores < machine.QUIET_CORES:
                            break
                        flow = min(flow, offer(owner, [worker], wanted), key=lambda one: one.others_cores)
                    rows.setdefault(f"{count} producers, flush {flush} ms", []).append(_row(flow))
    return {name: machine.middle(found) for name, found in rows.items()}


def _row(flow: Flow) -> dict[str, float]:
    row: dict[str, float] = {}
    for kind in KINDS:
        delays_ms = flow.delays_ms(f"{kind}_ms")
        row[f"{kind}_p50"] = machine.quantile(delays_ms, 0.5)
        row[f"{kind}_p99"] = machine.quantile(delays_ms, 0.99)
    row["linger_ms"] = sum(one["linger_ms"] for one in flow.producers) / len(flow.producers)
    row["records_per_s"] = flow.records / flow.seconds
    row["cores"] = flow.cpu_s / flow.seconds
    row["broker_cores"] = flow.broker_cpu_s / flow.seconds
    row["producer_cores"] = sum(one["cpu_s"] for one in flow.producers) / flow.seconds
    row["snapshots_per_s"] = flow.snapshots / flow.seconds
    row["snapshot_kb_per_s"] = flow.snapshot_bytes / flow.seconds / 1000
    row["others_cores"] = flow.others_cores
    return row
