"""`/metrics` of a simulated engine: vLLM 0.32's names, labels and buckets, for the figures the model has. Pure.

Left out are the figures nothing here could fill (FLOPs, HTTP summaries). Series of features the engine does not use are
there with 0, as in vLLM.
"""

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from typing import Final

from evenload.sim.sequence import Gauges

CONTENT_TYPE: Final = "text/plain; version=1.0.0; charset=utf-8"

_TTFT_S: Final = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0),
    *(160.0, 640.0, 2560.0),
)
_ITL_S: Final = (
    *(0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0),
)
_LATENCY_S: Final = (
    *(0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0, 480.0, 960.0),
    *(1920.0, 7680.0),
)
_TOKENS: Final = tuple(float(m * 10**e) for e in range(6) for m in (1, 2, 5))[:16]
_STEP_TOKENS: Final = (1.0, *(float(2**e) for e in range(3, 15)))
_REASONS: Final = ("stop", "length", "abort", "error", "repetition")
_BY_REASON_HELP: Final = (
    "Number of waiting requests by reason. Reason labels: 'capacity' = waiting for scheduling capacity; 'deferred' = "
    "deferred by transient constraints (LoRA budget, KV transfer, blocked status). Sum of all reasons equals "
    "vllm:num_requests_waiting."
)
_SLEEP_HELP: Final = (
    "Engine sleep state; awake = 0 means engine is sleeping; awake = 1 means engine is awake; weights_offloaded = 1 "
    "means sleep level 1; discard_all = 1 means sleep level 2."
)
_ZERO_COUNTERS: Final = (
    (
        "vllm:external_prefix_cache_queries",
        "External prefix cache queries from KV connector cross-instance cache sharing, "
        "in terms of number of queried tokens.",
    ),
    (
        "vllm:external_prefix_cache_hits",
        "External prefix cache hits from KV connector cross-instance cache sharing, "
        "in terms of number of cached tokens.",
    ),
    ("vllm:mm_cache_queries", "Multi-modal cache queries, in terms of number of queried items."),
    ("vllm:mm_cache_hits", "Multi-modal cache hits, in terms of number of cached items."),
)


def number(value: float) -> str:
    """A sample value as Prometheus clients for Python write it: `1.79598547783e+09`, `3.0`."""
    text = repr(float(value))
    dot = text.find(".")
    if value > 0 and dot > 6 and "e" not in text:
        mantissa = f"{text[0]}.{text[1:dot]}{text[dot + 1 :]}".rstrip("0.")
        return f"{mantissa}e+0{dot - 1}"
    return text


class Histogram:
    """Counts per bucket; bounds in ascending order, +Inf implied."""

    __slots__ = ("_bounds", "_counts", "_help", "_name", "_total")

    def __init__(self, name: str, help_: str, bounds: Sequence[float]) -> None:
        self._name = name
        self._help = help_
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._total = 0.0

    def observe(self, value: float, times: int = 1) -> None:
        """Count a value, `times` over."""
        self._counts[bisect_left(self._bounds, value)] += times
        self._total += value * times

    def lines(self, labels: str, model_label: str, created: str) -> Iterator[str]:
        """The exposition; `labels` are all labels, buckets have `le` between engine and model."""
        yield from _head(self._name, self._help, "histogram")
        count = 0
        for bound, hits in zip((*map(number, self._bounds), "+Inf"), self._counts, strict=True):
            count += hits
            yield f'{self._name}_bucket{{engine="0",le="{bound}",{model_label}}} {number(count)}'
        yield f"{self._name}_count{labels} {number(count)}"
        yield f"{self._name}_sum{labels} {number(self._total)}"
        yield from _head(f"{self._name}_created", self._help, "gauge")
        yield f"{self._name}_created{labels} {created}"


class EngineMetrics:
    """What a server observes about its requests, and the rendering of it beside the engine's own gauges.

    Args:
        model: The `model_name` label.
        started_s: Unix time of this process life, for `process_start_time_seconds` and `_created`.
        kv_blocks: Size of the cache, for `vllm:cache_config_info`.
    """

    def __init__(self, model: str, started_s: float, kv_blocks: int) -> None:
        self.ttft_s = Histogram(
            "vllm:time_to_first_token_seconds", "Histogram of time to first token in seconds.", _TTFT_S
        )
        self.itl_s = Histogram(
            "vllm:inter_token_latency_seconds", "Histogram of inter-token latency in seconds.", _ITL_S
        )
        self.e2e_s = Histogram(
            "vllm:e2e_request_latency_seconds", "Histogram of e2e request latency in seconds.", _LATENCY_S
        )
        self.prompt_tokens = Histogram("vllm:request_prompt_tokens", "Number of prefill tokens processed.", _TOKENS)
        self.output_tokens = Histogram(
            "vllm:request_generation_tokens", "Number of generation tokens processed.", _TOKENS
        )
        self.step_tokens = Histogram(
            "vllm:iteration_tokens_total", "Histogram of number of tokens per engine_step.", _STEP_TOKENS
        )
        self._steps = self._tokens = 0
        self.finished = dict.fromkeys(_REASONS, 0)
        self.refused = 0  # by a fault, besides what the engine itself refuses
        self._model = f'model_name="{_escape(model)}"'
        self._labels = f'{{engine="0",{self._model}}}'
        self._started_s = started_s
        self._kv_blocks = kv_blocks

    def render(self, gauges: Gauges, *, held: int, cpu_s: float) -> str:
        """The whole page.

        Args:
            gauges: The engine's figures.
            held: Requests a fault keeps from the engine; they count as running.
            cpu_s: CPU time of the process (all engines in it).
        """
        self._count_steps(gauges)
        return "\n".join(self._lines(gauges, held, cpu_s)) + "\n"

    def _count_steps(self, gauges: Gauges) -> None:
        """Count the steps since the last page, each with the mean of their tokens: the engine keeps sums only."""
        steps, tokens = gauges.steps - self._steps, gauges.prompt_tokens + gauges.generation_tokens - self._tokens
        if steps:
            self.step_tokens.observe(tokens / steps, steps)
            self._steps, self._tokens = self._steps + steps, self._tokens + tokens

    def _lines(self, gauges: Gauges, held: int, cpu_s: float) -> Iterator[str]:
        created = number(self._started_s)
        started = "Start time of the process since unix epoch in seconds."
        yield from _plain("process_start_time_seconds", started, "gauge", round(self._started_s, 2))
        yield from _plain(
            "process_cpu_seconds_total", "Total user and system CPU time spent in seconds.", "counter", cpu_s
        )
        yield from self._gauge_lines(gauges, held)
        yield from self._counter_lines(gauges, created)
        histograms = self.prompt_tokens, self.output_tokens, self.ttft_s, self.itl_s, self.e2e_s, self.step_tokens
        for histogram in histograms:
            yield from histogram.lines(self._labels, self._model, created)
        yield from _head("vllm:cache_config_info", "Information of the LLMEngine CacheConfig", "gauge")
        yield (
            'vllm:cache_config_info{block_size="16",cache_dtype="auto",enable_prefix_caching="True",engine="0",'
            f'gpu_memory_utilization="0.92",num_gpu_blocks="{self._kv_blocks}"}} 1.0'
        )

    def _gauge_lines(self, gauges: Gauges, held: int) -> Iterator[str]:
        running = "Number of requests in model execution batches."
        yield from self._gauge("vllm:num_requests_running", running, gauges.running + held)
        yield from self._gauge(
            "vllm:num_requests_waiting", "Number of requests waiting to be processed.", gauges.waiting
        )
        name = "vllm:num_requests_waiting_by_reason"
        yield from _head(name, _BY_REASON_HELP, "gauge")
        for reason, value in (("capacity", gauges.waiting), ("deferred", 0)):
            yield f'{name}{{engine="0",{self._model},reason="{reason}"}} {number(value)}'
        name = "vllm:engine_sleep_state"
        yield from _head(name, _SLEEP_HELP, "gauge")
        for state, value in (("awake", 1), ("weights_offloaded", 0), ("discard_all", 0)):
            yield f'{name}{{engine="0",{self._model},sleep_state="{state}"}} {number(value)}'
        usage = "KV-cache usage. 1 means 100 percent usage."
        yield from self._gauge("vllm:kv_cache_usage_perc", usage, gauges.kv_usage)

    def _counter_lines(self, gauges: Gauges, created: str) -> Iterator[str]:
        queries = "Prefix cache queries, in terms of number of queried tokens."
        hits = "Prefix cache hits, in terms of number of cached tokens."
        yield from self._counter("vllm:prefix_cache_queries", queries, gauges.prefix_queries, created)
        yield from self._counter("vllm:prefix_cache_hits", hits, gauges.prefix_hits, created)
        for name, help_ in _ZERO_COUNTERS:
            yield from self._counter(name, help_, 0, created)
        preemptions = "Cumulative number of preemption from the engine."
        yield from self._counter("vllm:num_preemptions", preemptions, gauges.preemptions, created)
        yield from self._counter(
            "vllm:prompt_tokens", "Number of prefill tokens processed.", gauges.prompt_tokens, created
        )
        generated = "Number of generation tokens processed."
        yield from self._counter("vllm:generation_tokens", generated, gauges.generation_tokens, created)
        yield from self._reasons(created)
        rejections = (("max_num_queued_reqs", gauges.rejections + self.refused), ("max_num_queued_tokens", 0))
        help_ = "Number of admission attempts rejected by a queue limit, by reason."
        yield from _head("vllm:admission_rejections_total", help_, "counter")
        for reason, value in rejections:
            yield f'vllm:admission_rejections_total{{{self._model},reason="{reason}"}} {number(value)}'
        yield from _head("vllm:admission_rejections_created", help_, "gauge")
        for reason, _ in rejections:
            yield f'vllm:admission_rejections_created{{{self._model},reason="{reason}"}} {created}'

    def _reasons(self, created: str) -> Iterator[str]:
        help_ = "Count of successfully processed requests."
        yield from _head("vllm:request_success_total", help_, "counter")
        for reason, value in self.finished.items():
            yield f'vllm:request_success_total{{engine="0",finished_reason="{reason}",{self._model}}} {number(value)}'
        yield from _head("vllm:request_success_created", help_, "gauge")
        for reason in self.finished:
            yield f'vllm:request_success_created{{engine="0",finished_reason="{reason}",{self._model}}} {created}'

    def _gauge(self, name: str, help_: str, value: float) -> Iterator[str]:
        yield from _head(name, help_, "gauge")
        yield f"{name}{self._labels} {number(value)}"

    def _counter(self, name: str, help_: str, value: float, created: str) -> Iterator[str]:
        yield from _head(f"{name}_total", help_, "counter")
        yield f"{name}_total{self._labels} {number(value)}"
        yield from _head(f"{name}_created", help_, "gauge")
        yield f"{name}_created{self._labels} {created}"


def _head(name: str, help_: str, type_: str) -> tuple[str, str]:
    return f"# HELP {name} {help_}", f"# TYPE {name} {type_}"


def _plain(name: str, help_: str, type_: str, value: float) -> tuple[str, ...]:
    return (*_head(name, help_, type_), f"{name} {number(value)}")


def _escape(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
