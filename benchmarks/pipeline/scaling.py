"""What a fleet needs, computed from the measured figures: `python benchmarks/pipeline/scaling.py` prints the table.

docs/scaling.md explains the formulas; nothing is measured here. Change the constants when docs/performance.md changes.
"""

from dataclasses import dataclass

# Measured (docs/performance.md).
EVENT_S = 14e-6  # scorer CPU per event, in whatever batch
RECORD_S = 950e-6  # scorer CPU per record while they trickle in, its share of publishing and checkpoints included
SNAPSHOTS_PER_S = 10.0  # per instance with traffic, when it may be published every 25 ms (scorer/pace.py)
SNAPSHOTS_PER_S_MIN = 6.5  # the same at 100 ms, the longest
SNAPSHOT_BYTES = 220  # each, compressed, as it lies in the log, in records of ten and more; up to 300 in smaller ones
TAKE_S = 10e-6  # router CPU to decode a snapshot and take it into the view
PRODUCE_S = 0.6e-3  # router CPU per record sent

# Settings and their bounds.
TARGET_SNAPSHOTS_PER_S = 400  # per partition, beyond which instances are published less often
TARGET_RECORDS_PER_S = 125  # per partition; the advised linger aims at it
LINGER_MS_MIN, LINGER_MS_MAX = 20, 500
POLLS_PER_S = 4  # of each instance's gauges

# Assumed of the traffic.
REQUESTS_PER_S = 4.0  # per instance
EVENTS_PER_REQUEST = 4.0  # first token, outcome, and a change of load at either end
IN_FLIGHT = 16  # per instance; so many routers at most report a load of it every second
EVENTS_PER_PARTITION = 5_000  # per second


@dataclass(frozen=True, slots=True)
class Needs:
    """What a fleet needs, in events, records and bytes per second, and cores."""

    routers: int
    instances: int
    events: float
    partitions: int
    linger_ms: float
    records: float
    scorer_cores: float
    snapshot_bytes: float
    egress_bytes: float
    view_cores: float
    emitter_cores: float


def needs(routers: int, instances: int) -> Needs:
    """Compute what `routers` x `instances` need."""
    events = instances * (REQUESTS_PER_S * EVENTS_PER_REQUEST + POLLS_PER_S + min(routers, IN_FLIGHT))
    partitions = max(4, -(-int(events) // EVENTS_PER_PARTITION))
    linger_ms = min(LINGER_MS_MAX, max(LINGER_MS_MIN, routers * 1000 / TARGET_RECORDS_PER_S))
    records = min(events, partitions * routers * 1000 / linger_ms)
    snapshots = min(
        instances * SNAPSHOTS_PER_S, max(partitions * TARGET_SNAPSHOTS_PER_S, instances * SNAPSHOTS_PER_S_MIN)
    )
    snapshot_bytes = snapshots * SNAPSHOT_BYTES
    return Needs(
        routers=routers,
        instances=instances,
        events=events,
        partitions=partitions,
        linger_ms=linger_ms,
        records=records,
        scorer_cores=events * EVENT_S + records * RECORD_S,
        snapshot_bytes=snapshot_bytes,
        egress_bytes=routers * snapshot_bytes,
        view_cores=snapshots * TAKE_S,
        emitter_cores=records / routers * PRODUCE_S,
    )


def main() -> None:
    """Print the table of docs/scaling.md."""
    print("| routers x instances | events/s | partitions | linger ms | telemetry records/s | scorer cores ", end="")
    print("| snapshots to one router | broker egress | view cores/router | emitter cores/router |")
    print("|---" * 10 + "|")
    for routers in (10, 100, 1000):
        for instances in (100, 1000, 10_000):
            row = needs(routers, instances)
            print(
                f"| {routers} x {instances:,} | {row.events:,.0f} | {row.partitions} | {row.linger_ms:.0f} "
                f"| {row.records:,.0f} | {row.scorer_cores:,.1f} | {row.snapshot_bytes / 1e6:,.2f} MB/s "
                f"| {row.egress_bytes / 1e6:,.0f} MB/s | {row.view_cores:.2f} | {row.emitter_cores:.2f} |"
            )


if __name__ == "__main__":
    main()
