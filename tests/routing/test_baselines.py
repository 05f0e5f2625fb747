"""The baselines' formulas on values computed by hand; their sources are in the policies' docstrings."""

import pytest

from evenload.routing import POLICIES, InstanceView, Request
from tests.routing.views import NOW_MS, Draws, view


def costs(policy: str, *views: InstanceView, prompt: int = 100, draws: tuple[float, ...] = (0.0,) * 4) -> list[float]:
    return POLICIES[policy]().choose(views, Request(prompt_tokens=prompt), NOW_MS, Draws(*draws)).costs


def chosen(policy: str, *views: InstanceView, prompt: int = 100, draws: tuple[float, ...] = (0.0,) * 4) -> str:
    return views[POLICIES[policy]().choose(views, Request(prompt_tokens=prompt), NOW_MS, Draws(*draws)).index].instance


def loaded(name: str, known: dict[str, object] | None = None, **load: int) -> InstanceView:
    made = view(name, **(known or {}))  # type: ignore[arg-type]
    for key, value in load.items():
        setattr(made, key, value)
    return made


def test_c3_cubes_the_queue() -> None:
    # R 80 ms, 1/mu = 80 / (1 + 3) = 20, q = 1 + 2 own + 1 other + 3 waiting = 7: 80 - 20 + 343 * 20
    busy = loaded("busy", {"live_ttft_ms": 80.0, "waiting": 3}, in_flight=2, others_in_flight=1)
    idle = loaded("idle", {"live_ttft_ms": 500.0, "waiting": 0})  # 1/mu = R, q = 1: 500 - 500 + 500
    assert costs("c3", busy, idle) == [6920.0, 500.0]
    assert chosen("c3", busy, idle) == "idle"


def test_vllm_counts_those_who_wait_fourfold() -> None:
    gauged = loaded("gauged", {"waiting": 3, "running": 10}, in_flight=2, awaiting=1)  # 4 * 3 + 10
    known = loaded(
        "known", {"waiting": 0, "running": 1}, in_flight=7, others_in_flight=4, awaiting=2, others_awaiting=1
    )
    assert costs("vllm-dp", gauged, known) == [22.0, 4 * 3 + 11.0]


def test_dynamo_adds_prefill_and_decode_blocks() -> None:
    # prefill 160 - 64 + 320 + 160 = 576, decode 160 + 800 + 64 = 1024 tokens, in blocks of 16
    busy = loaded(
        "busy",
        cached_tokens=64,
        awaiting_tokens=320,
        others_awaiting_tokens=160,
        in_flight_tokens=800,
        others_in_flight_tokens=64,
    )
    assert costs("dynamo", busy, view("idle"), prompt=160) == [100.0, 20.0]


def test_llm_d_weighs_queue_cache_and_prefix_two_two_three() -> None:
    # queue (6 - 6) / 4, KV 1 - 0.25, prefix 80 / 100; queue (6 - 2) / 4, KV unknown, no prefix
    cached = loaded("cached", {"waiting": 6, "kv_usage": 0.25}, cached_tokens=80)
    short = loaded("short", {"waiting": 2})
    assert costs("llm-d", cached, short) == pytest.approx([-(2 * 0.0 + 2 * 0.75 + 3 * 0.8), -(2 * 1.0 + 2 * 1.0)])
    assert chosen("llm-d", cached, short) == "short"
    assert costs("llm-d", view("a"), view("b")) == [-4.0, -4.0]  # equal queues count as the best


@pytest.mark.parametrize(
    ("cached", "load", "expected"),
    [
        (31, 64, "match"),  # 31 % of the prompt, and loads at most 64 apart
        (30, 64, "idle"),  # not more than 30 %
        (100, 65, "idle"),  # more than 64 apart and more than 1.5 times
    ],
)
def test_sglang_follows_the_longest_match_unless_loads_are_apart(cached: int, load: int, expected: str) -> None:
    match = loaded("match", in_flight=load, cached_tokens=cached)
    assert chosen("sglang-cache-aware", match, view("idle")) == expected


def test_sglang_needs_loads_apart_in_proportion_too() -> None:
    match = loaded("match", in_flight=240, cached_tokens=100)
    assert chosen("sglang-cache-aware", match, loaded("other", in_flight=160)) == "match"  # 80 apart, but 1.5 times
    assert chosen("sglang-cache-aware", match, loaded("other", in_flight=159)) == "other"


def test_prequal_takes_the_fastest_of_the_cold_ones_and_the_least_loaded_when_all_are_hot() -> None:
    # The 0.84 quantile of 1, 2, 3 and 9 in flight is 3: only "hot" is above it.
    hot = loaded("hot", {"live_ttft_ms": 10.0}, in_flight=4, others_in_flight=5)
    cold = [loaded(f"c{load}", {"live_ttft_ms": 100.0 * load}, in_flight=load) for load in (1, 2, 3)]
    assert chosen("prequal", hot, *cold) == "c1"  # draws 0 take the first three
    assert costs("prequal", hot, *cold) == [1e9 + 9.0, 100.0, 200.0, 300.0]


def test_peak_ewma_10s_halves_in_ten_silent_seconds() -> None:
    silent = view("silent", in_flight=1, ewma_ttft_ms=300.0, live_at_ms=NOW_MS - 10_000)  # 150 * 2
    recent = view("recent", in_flight=0, ewma_ttft_ms=300.0)
    assert costs("peak-ewma-10s", silent, recent) == [300.0, 300.0]


def test_peak_ewma_penalty_takes_failures_for_five_seconds() -> None:
    quarter = view("quarter", in_flight=1, ewma_ttft_ms=200.0, err_sum=1, ok_sum=3)  # (0.75 * 200 + 0.25 * 5000) * 2
    healthy = view("healthy", ewma_ttft_ms=200.0)
    assert costs("peak-ewma-penalty", quarter, healthy) == [2800.0, 200.0]


def test_envoy_ejects_who_answers_errors_only_and_never_more_than_a_tenth() -> None:
    fine = [view(name, in_flight=5, damped=100.0, ok_sum=10) for name in "ab"]
    dead = view("dead", damped=100.0, err_sum=5)
    worse = view("worse", damped=100.0, err_sum=9)
    assert chosen("envoy-least-request", *fine, dead) == "a"
    assert costs("envoy-least-request", *fine, dead) == [5.0, 5.0, 1e9]
    assert costs("envoy-least-request", *fine, dead, worse).count(1e9) == 1
    assert 1e9 not in costs("envoy-least-request", *fine, view("few", damped=100.0, err_sum=4))


def test_envoy_ejects_an_outlier_of_the_success_rate() -> None:
    # Nine hosts at 1 and one at 0.8: mean 0.98, standard deviation 0.06; 0.8 is below 0.98 - 1.9 * 0.06 = 0.866.
    fine = [view(f"f{n}", damped=100.0, ok_sum=100) for n in range(9)]
    outlier = view("outlier", damped=100.0, ok_sum=80, err_sum=20)
    assert costs("envoy-least-request", *fine, outlier)[9] == 1e9
    # At 0.96 among four hosts there are too few to judge.
    assert 1e9 not in costs("envoy-least-request", *fine[:3], outlier)
