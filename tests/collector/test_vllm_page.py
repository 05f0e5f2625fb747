"""Reading metrics pages: real ones, renamed ones, wrong ones."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evenload.collector.vllm import COUNT_MAX, Page, parse
from evenload.schemas import WIRE_VERSION, Batch, decode_batch, encode

STARTED_S = 1_795_984_982.94
SATURATED_S = 1_795_985_477.83

GOLDEN = {
    "vllm-0.32.0-cpu/metrics_idle.txt": Page(0, 0, 0.0, 0, 0, 0, STARTED_S),
    "vllm-0.32.0-cpu/metrics_loaded.txt": Page(8, 15, 0.0009766817238432424, 0, 818, 0, STARTED_S),
    "vllm-0.32.0-cpu/metrics_after.txt": Page(0, 0, 0.0, 0, 1954, 0, STARTED_S),
    "vllm-0.32.0-cpu/metrics_saturated_0.txt": Page(4, 0, 0.7142857142857143, 0, 300, 0, SATURATED_S),
    "vllm-0.32.0-cpu/metrics_saturated_1.txt": Page(3, 1, 0.8571428571428572, 0, 300, 0, SATURATED_S),
    "vllm-0.32.0-cpu/metrics_saturated_2.txt": Page(1, 0, 0.2857142857142857, 0, 300, 2, SATURATED_S),
    "llm-d-inference-sim/metrics_loaded.txt": Page(4, 4, 0.015625, 0, 91),
    "llm-d-inference-sim/metrics_lora.txt": Page(1, 0, 0.0),
}


@pytest.mark.parametrize("name", GOLDEN)
def test_a_page_of_a_real_engine_says_what_it_says(shared_dir: Path, name: str) -> None:
    assert parse((shared_dir / "captures" / name).read_bytes()) == GOLDEN[name]


def test_the_old_name_of_the_kv_metric_is_read_and_the_new_one_goes_first() -> None:
    old = b'vllm:gpu_cache_usage_perc{model_name="m"} 0.25\n'
    assert parse(old).kv_usage == 0.25
    assert parse(old + b'vllm:kv_cache_usage_perc{engine="0"} 0.5\n').kv_usage == 0.5


def test_without_a_kv_metric_the_use_is_unknown_and_said_to_be_missing() -> None:
    page = parse(b"vllm:num_requests_running 1\nvllm:num_requests_waiting 0\n")
    assert page.kv_usage is None
    assert page.missing == ("kv_usage",)
    assert parse(b"").missing == ("running", "waiting", "kv_usage")


def test_series_of_data_parallel_engines_are_summed_and_the_fullest_cache_counts() -> None:
    page = parse(
        b'vllm:num_requests_running{engine="0"} 3.0\nvllm:num_requests_running{engine="1"} 4.0\n'
        b'vllm:num_requests_waiting{engine="0"} 0.0\nvllm:num_requests_waiting{engine="1"} 9.0\n'
        b'vllm:kv_cache_usage_perc{engine="0"} 0.1\nvllm:kv_cache_usage_perc{engine="1"} 0.9\n'
        b'vllm:prefix_cache_hits_total{engine="0"} 5\nvllm:prefix_cache_hits_total{engine="1"} 6\n'
    )
    assert page == Page(running=7, waiting=9, kv_usage=0.9, prefix_hits=11)


@pytest.mark.parametrize("value", [b"NaN", b"-1", b"+Inf", b"1e300", b"1_0", b"", b"x", b"9007199254740994"])
def test_an_impossible_count_is_unknown_and_counted(value: bytes) -> None:
    page = parse(b"vllm:num_requests_waiting " + value + b"\nvllm:num_requests_running 2\n")
    assert page == Page(running=2, dropped=1)


@pytest.mark.parametrize("value", [b"1.01", b"-0.1", b"nan", b"inf"])
def test_an_impossible_share_is_unknown_and_counted(value: bytes) -> None:
    assert parse(b"vllm:kv_cache_usage_perc " + value) == Page(dropped=1)


def test_one_impossible_series_makes_the_sum_unknown_rather_than_smaller() -> None:
    page = parse(b'vllm:num_requests_waiting{engine="0"} NaN\nvllm:num_requests_waiting{engine="1"} 2\n')
    assert page == Page(dropped=1)


def test_labels_may_hold_anything_and_a_timestamp_may_follow() -> None:
    page = parse(b'vllm:num_requests_waiting{model_name="a} 9 \\" {",x="\\\\"} 4 1795985267314\r\n')
    assert page.waiting == 4


def test_longer_names_and_comments_are_no_values() -> None:
    page = parse(
        b'# HELP vllm:num_requests_waiting x\nvllm:num_requests_waiting_by_reason{reason="capacity"} 15\n'
        b"#vllm:num_requests_waiting 3\nxvllm:num_requests_waiting 3\n"
    )
    assert page == Page()


LINES = st.sampled_from(
    [
        b"vllm:num_requests_waiting",
        b"vllm:kv_cache_usage_perc",
        b"process_start_time_seconds",
        b"vllm:num_preemptions_total",
    ]
)
VALUES = st.one_of(
    st.floats().map(lambda x: repr(x).encode()), st.integers().map(lambda x: str(x).encode()), st.binary()
)
LABELS = st.one_of(st.just(b""), st.just(b'{engine="0"}'), st.binary().map(lambda x: b"{" + x + b"}"))
PAGES = st.lists(st.tuples(LINES, LABELS, VALUES).map(lambda x: x[0] + x[1] + b" " + x[2])).map(b"\n".join)


@settings(max_examples=300, deadline=None)
@given(st.one_of(PAGES, st.binary()))
def test_whatever_a_page_holds_the_event_can_be_read_back(data: bytes) -> None:
    page = parse(data)
    batch = Batch(producer="p", incarnation=0, seq=0, events=[page.event("i")], v=WIRE_VERSION)
    assert decode_batch(encode(batch)) == batch
    for count in (page.running, page.waiting, page.prefix_hits, page.prefix_queries, page.preemptions):
        assert count is None or 0 <= count <= COUNT_MAX
