"""A scenario as data: fleet, workload, routers, telemetry path, faults. `scenarios/` has the benchmark's."""

from dataclasses import dataclass, field, replace
from shlex import quote
from typing import Literal

from evenload.sim.jobs import Workload
from evenload.sim.presets import EnginePreset, preset
from evenload.sim.provider import ProviderModel

FaultKind = Literal["slow", "fail", "crash"]
Arm = Literal["equal", "bare"]


@dataclass(frozen=True, slots=True, kw_only=True)
class InstanceSpec:
    """One engine or provider.

    Attributes:
        machine: engine preset; None makes it a provider.
        queue_max, queued_tokens_max: bounds of the engine's queue; beyond them it answers 429.
        prefix_cache: whether it keeps prompts' prefixes.
        crash_overload: the worker dies when it is given a request and all it holds would need this many KV caches.
        joins_at_ms: it does not exist before.
    """

    machine: EnginePreset | None = None
    provider: ProviderModel = field(default_factory=ProviderModel)
    queue_max: int | None = None
    queued_tokens_max: int | None = None
    prefix_cache: bool = False
    crash_overload: float | None = None
    joins_at_ms: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """Something that happens to an instance between two times.

    Attributes:
        kind: `slow` multiplies step times (engines) or TTFT (providers) by `factor`; `fail` answers 500 after 5 ms;
            `crash` kills it, and it comes back cold.
        share: of requests that are hit (`fail`, and `slow` at providers).
        ramp_ms: time in which `factor` grows to its value, in ten steps.
    """

    kind: FaultKind
    instance: int
    from_ms: float
    until_ms: float
    factor: float = 1.0
    share: float = 1.0
    ramp_ms: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class TelemetryPath:
    """Delays and faults of the way from router to scorer and back.

    Attributes:
        event_p50_ms, event_p99_ms: log-normal delay from a closed batch to the scorer having read it.
        snapshot_p50_ms, snapshot_p99_ms: log-normal delay from the scorer to a router.
        linger_ms: how long a batch stays open.
        gauge_interval_ms: between two polls of an instance; None polls never.
        flush_ms: least time between two snapshots of an instance.
        stalls_ms: periods in which nothing passes; what was sent arrives at their end, in order.
        duplicate_share: batches that are delivered twice.
        skew_ms: by how much the clocks of the partitions' brokers differ, first to last.
    """

    partitions: int = 4
    event_p50_ms: float = 30.0
    event_p99_ms: float = 150.0
    snapshot_p50_ms: float = 10.0
    snapshot_p99_ms: float = 50.0
    linger_ms: float = 20.0
    gauge_interval_ms: float | None = 250.0
    flush_ms: float = 25.0
    heartbeat_ms: float = 2000.0
    stalls_ms: tuple[tuple[float, float], ...] = ()
    duplicate_share: float = 0.0
    skew_ms: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Slo:
    """What a request must meet to count as good."""

    ttft_ms: float = 1000.0
    tpot_ms: float = 50.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """Everything about a run but policy and seed.

    Attributes:
        name: for example `s1-u85`; `family` is `S1`.
        shows: what it is for, in one line.
        warmup_s: arrivals before it are not measured.
        measured_s: from and until when arrivals are measured; None is from the warm-up to the end.
        aim: what the oracle optimises: TTFT, or requests that meet TTFT and TPOT limits.
        focus: which requests the headline percentile is of: all, or prompts below 4,096 tokens.
        attempts_max, client_timeout_s, client_retries: as the router and its clients do.
        asked_s, asked_file, asked_rps: duration, file of the workload and rate that were asked for in place of the
            scenario's own.
        timeouts: the client leaves when there is no first token after `client_timeout_s`; it comes again (after one
            second) `client_retries` times when it was refused.
    """

    name: str
    family: str
    shows: str
    fleet: tuple[InstanceSpec, ...]
    workload: Workload
    routers: int = 4
    duration_s: float = 180.0
    warmup_s: float = 20.0
    measured_s: tuple[float, float] | None = None
    faults: tuple[Fault, ...] = ()
    telemetry: TelemetryPath = field(default_factory=TelemetryPath)
    slo: Slo = field(default_factory=Slo)
    aim: Literal["ttft", "goodput"] = "ttft"
    focus: Literal["all", "short"] = "all"
    attempts_max: int = 3
    client_timeout_s: float = 30.0
    client_retries: int = 0
    notes: tuple[str, ...] = ()
    asked_s: float | None = None
    asked_file: str | None = None
    asked_rps: float | None = None

    def __post_init__(self) -> None:
        """Refuse what cannot run.

        Raises:
            ValueError: no instance or router, or a fault names an instance that is not there.
        """
        if not self.fleet or self.routers < 1 or self.duration_s <= self.warmup_s:
            raise ValueError(f"scenario {self.name}: needs instances, a router, and more time than its warm-up")
        for fault in self.faults:
            if not 0 <= fault.instance < len(self.fleet):
                raise ValueError(f"scenario {self.name}: fault at instance {fault.instance} of {len(self.fleet)}")

    @property
    def window_ms(self) -> tuple[float, float]:
        """From and until when arrivals are measured."""
        low_s, high_s = self.measured_s or (self.warmup_s, self.duration_s)
        return low_s * 1000.0, high_s * 1000.0

    def shortened(self, duration_s: float) -> "Scenario":
        """The same with less time, for quick looks; faults keep their times."""
        high_s = None if self.measured_s is None else (self.measured_s[0], min(self.measured_s[1], duration_s))
        warmup_s = min(self.warmup_s, duration_s / 4)
        return replace(self, duration_s=duration_s, warmup_s=warmup_s, measured_s=high_s, asked_s=duration_s)

    def fed(self, file: str | None, rate_rps: float | None) -> "Scenario":
        """The same with the requests of a file, or at another mean rate; None leaves what is."""
        workload = self.workload
        if file is not None:
            workload = replace(workload, trace=file)
        if rate_rps is not None:
            workload = replace(workload, rate_rps=rate_rps, utilisation=None, time_factor=None)
        return replace(self, workload=workload, asked_file=file, asked_rps=rate_rps)


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One cell of the benchmark.

    Attributes:
        arm: `equal` gives the policy the router's retries and exclusions; `bare` gives it neither.
    """

    scenario: Scenario
    policy: str
    seed: int
    arm: Arm = "equal"

    @property
    def command(self) -> str:
        """The one command that replays it."""
        bare = " --arm bare" if self.arm == "bare" else ""
        asked_s, asked_rps, asked_file = self.scenario.asked_s, self.scenario.asked_rps, self.scenario.asked_file
        duration = "" if asked_s is None else f" --duration {asked_s:g}"
        rate = "" if asked_rps is None else f" --rate {asked_rps!r}"
        workload = "" if asked_file is None else f" --workload {quote(asked_file)}"
        what = f"{self.scenario.name} --policy {quote(self.policy)} --seeds {self.seed},"
        return f"evenload sim run {what}{bare}{duration}{rate}{workload}"


def engines(name: str, count: int, kv_tokens: int | None = None, **options: object) -> tuple[InstanceSpec, ...]:
    """Return `count` equal engines of a preset, with another KV cache if wanted."""
    machine = preset(name)
    if kv_tokens is not None:
        machine = replace(machine, kv_tokens=kv_tokens)
    return (InstanceSpec(machine=machine, **options),) * count  # type: ignore[arg-type]  # checked by its dataclass
