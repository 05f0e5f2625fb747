"""Reading engines' pages: real ones, documented ones, renamed ones, wrong ones (F30, F31, F32)."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evenload.collector.engines.adapters import ADAPTERS, Adapter, Endpoint, recognise
from evenload.collector.engines.page import Page
from evenload.collector.engines.scan import COUNT_MAX
from evenload.collector.engines.trtllm import parse as parse_trtllm
from evenload.collector.engines.vllm import parse
from evenload.schemas import WIRE_VERSION, Batch, decode_batch, encode

GOLDEN = Path(__file__).parent / "golden"
STARTED_S = 1_795_984_982.94
SATURATED_S = 1_795_985_477.83
QUEUE = ("running", "waiting")


def real(*values: Any, rejections: int = 0, progress: int) -> Page:
    running, waiting, kv_usage, hits, queries, preemptions, started_s = values
    return Page(running, waiting, kv_usage, hits, queries, preemptions, started_s, 0, rejections, progress)


RECORDED = {
    "vllm-0.32.0-cpu/metrics_idle.txt": real(0, 0, 0.0, 0, 0, 0, STARTED_S, progress=0),
    "vllm-0.32.0-cpu/metrics_loaded.txt": real(8, 15, 0.0009766817238432424, 0, 818, 0, STARTED_S, progress=105),
    "vllm-0.32.0-cpu/metrics_after.txt": real(0, 0, 0.0, 0, 1954, 0, STARTED_S, progress=522),
    "vllm-0.32.0-cpu/metrics_saturated_0.txt": real(
        4, 0, 0.7142857142857143, 0, 300, 0, SATURATED_S, rejections=16, progress=55
    ),
    "vllm-0.32.0-cpu/metrics_saturated_1.txt": real(
        3, 1, 0.8571428571428572, 0, 300, 0, SATURATED_S, rejections=16, progress=151
    ),
    "vllm-0.32.0-cpu/metrics_saturated_2.txt": real(
        1, 0, 0.2857142857142857, 0, 300, 2, SATURATED_S, rejections=16, progress=250
    ),
    "llm-d-inference-sim/metrics_loaded.txt": Page(4, 4, 0.015625, 0, 91),
    "llm-d-inference-sim/metrics_lora.txt": Page(1, 0, 0.0),
}
DOCUMENTED = {
    "vllm-v0.txt": ("vllm", Page(12, 3, 0.625, preemptions=7, started_s=1.73e9, progress=250)),
    "vllm-v1-early.txt": ("vllm", Page(5, 0, 0.25, 300, 900, 0)),
    "vllm-dp2.txt": ("vllm", Page(7, 9, 0.875, 110, 300, 3, 1.79e9, deferred=2, rejections=20, progress=30)),
    "sglang-0.4.txt": ("sglang", Page(162, 2826, 0.28, prefix_queries=8_000_000)),
    "sglang-dp2-priority.txt": ("sglang", Page(9, 9, 0.75, 1500, 4000, 3, progress=1500)),
    "trtllm-prometheus.txt": ("trtllm", Page(5, 4, 0.6, 85, 100)),
    "trtllm-iterations.json": ("trtllm", Page(5, 4, 0.6, 85, 100, progress=42)),
    "triton-trtllm.txt": ("triton", Page(6, 2, 0.4)),
    "tgi.txt": ("tgi", Page(4, 7, progress=6520, offers=QUEUE)),
    "llamacpp-old.txt": ("llamacpp", Page(2, 1, 0.5, progress=321, offers=QUEUE)),
    "llamacpp-new.txt": ("llamacpp", Page(4, 0, progress=400, offers=QUEUE)),
}


@pytest.mark.parametrize("name", RECORDED)
def test_a_page_of_a_real_engine_says_what_it_says(shared_dir: Path, name: str) -> None:
    page = (shared_dir / "captures" / name).read_bytes()
    found = recognise(page)
    assert found is not None
    assert (found.kind, found.parse(page)) == ("vllm", RECORDED[name])


@pytest.mark.parametrize("name", DOCUMENTED)
def test_a_page_after_the_documentation_is_recognised_and_read(name: str) -> None:
    page = (GOLDEN / name).read_bytes()
    found = recognise(page)
    assert found is not None
    assert (found.kind, found.parse(page)) == DOCUMENTED[name]
    assert found.parse(page).missing == ()


def test_every_golden_file_is_tested() -> None:
    assert {path.name for path in GOLDEN.iterdir()} == {*DOCUMENTED, "README.md"}
    assert {kind for kind, _ in DOCUMENTED.values()} == {adapter.kind for adapter in ADAPTERS}


def test_the_old_name_of_the_kv_metric_is_read_and_the_new_one_goes_first() -> None:
    old = b'vllm:gpu_cache_usage_perc{model_name="m"} 0.25\n'
    assert parse(old).kv_usage == 0.25
    assert parse(old + b'vllm:kv_cache_usage_perc{engine="0"} 0.5\n').kv_usage == 0.5


def test_without_a_kv_metric_the_use_is_unknown_and_said_to_be_missing() -> None:
    page = parse(b"vllm:num_requests_running 1\nvllm:num_requests_waiting 0\n")
    assert page.kv_usage is None
    assert page.missing == ("kv_usage",)
    assert parse(b"").missing == ("running", "waiting", "kv_usage")


def test_waiting_is_the_sum_of_its_reasons_where_only_those_are_said() -> None:
    reasons = b'vllm:num_requests_waiting_by_reason{reason="capacity"} 3\n' + (
        b'vllm:num_requests_waiting_by_reason{reason="deferred"} 2\n'
    )
    assert parse(reasons) == Page(waiting=5, deferred=2)
    assert parse(b"vllm:num_requests_waiting 6\n" + reasons).waiting == 6


def test_a_page_joined_of_several_engines_is_searched_to_its_end() -> None:
    page = (
        b'vllm:num_requests_running{engine="%d"} 3\n# TYPE x gauge\nvllm:num_requests_waiting{engine="%d"} 2\n'
        b'# TYPE y gauge\nvllm:num_requests_waiting_by_reason{engine="%d",reason="deferred"} 1\n'
        b'vllm:num_preemptions_total{engine="%d"} 5\n'
    )
    assert parse(page % (0, 0, 0, 0) + page % (1, 1, 1, 1)) == Page(6, 4, preemptions=10, deferred=2)


def test_an_engine_is_asleep_when_none_of_its_series_is_awake() -> None:
    line = b'vllm:engine_sleep_state{engine="%d",sleep_state="awake"} %d\n'
    assert parse(line % (0, 0) + line % (1, 0)).asleep
    assert not parse(line % (0, 0) + line % (1, 1)).asleep
    assert not parse(b"").asleep


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


def test_a_series_said_twice_counts_once_and_is_unknown_if_it_contradicts_itself() -> None:
    line = b'vllm:num_requests_waiting{engine="0"} %d\n'
    assert parse(line % 4 + line % 4) == Page(waiting=4, dropped=1)
    assert parse(line % 4 + b"# far below, on a page joined of two\n" + line % 5) == Page(dropped=1)


def test_labels_may_hold_anything_and_a_timestamp_may_follow() -> None:
    page = parse(b'vllm:num_requests_waiting{model_name="a} 9 \\" {",x="\\\\"} 4 1795985267314\r\n')
    assert page.waiting == 4


def test_longer_names_and_comments_are_no_values() -> None:
    page = parse(
        b'# HELP vllm:num_requests_waiting x\nvllm:num_requests_waiting_of_others{reason="capacity"} 15\n'
        b"#vllm:num_requests_waiting 3\nxvllm:num_requests_waiting 3\n"
    )
    assert page == Page()


def test_iterations_that_are_empty_say_nothing_new_rather_than_nothing_known() -> None:
    page = parse_trtllm(b"[]")
    assert page == Page(quiet=True)
    assert page.missing == ()


@pytest.mark.parametrize(
    ("body", "page"),
    [
        (b'[{"numActiveRequests": -1, "numQueuedRequests": 2}]', Page(waiting=2, dropped=1)),
        (b'[{"numActiveRequests": true, "numQueuedRequests": "2"}]', Page(dropped=2)),
        (b'[{"kvCacheStats": {"usedNumBlocks": 11, "maxNumBlocks": 10}}]', Page(dropped=1)),
        (b'[{"kvCacheStats": {"usedNumBlocks": 0, "maxNumBlocks": 0}}]', Page()),
        (b'[{"kvCacheStats": [1]}]', Page(dropped=1)),
        (b"[7]", Page(dropped=1)),
        (b"[{", Page(dropped=1)),
        (b"[" * 100_000, Page(dropped=1)),
    ],
)
def test_iterations_that_cannot_be_are_unknown_and_counted(body: bytes, page: Page) -> None:
    assert parse_trtllm(body) == page


LINES = st.sampled_from(
    [
        b"vllm:num_requests_waiting",
        b"vllm:kv_cache_usage_perc",
        b"process_start_time_seconds",
        b"vllm:num_preemptions_total",
        b"sglang:num_running_reqs",
        b"trtllm_num_requests_running",
        b"trtllm_kv_cache_utilization",
        b"nv_trt_llm_request_metrics",
        b"tgi_queue_size",
        b"llamacpp:requests_deferred",
    ]
)
VALUES = st.one_of(
    st.floats().map(lambda x: repr(x).encode()), st.integers().map(lambda x: str(x).encode()), st.binary()
)
LABELS = st.one_of(
    st.just(b""),
    st.sampled_from([b'{engine="0"}', b'{dp_rank="1",tp_rank="0"}', b'{request_type="waiting"}']),
    st.binary().map(lambda x: b"{" + x + b"}"),
)
PAGES = st.lists(st.tuples(LINES, LABELS, VALUES).map(lambda x: x[0] + x[1] + b" " + x[2])).map(b"\n".join)
NUMBERS = st.one_of(st.integers(), st.floats(), st.text(), st.booleans(), st.none())
FIELDS = ("numActiveRequests", "numQueuedRequests", "usedNumBlocks", "maxNumBlocks", "reusedBlocks", "iter")
OBJECTS = st.dictionaries(st.sampled_from(FIELDS), NUMBERS)
ITERATIONS = st.builds(
    lambda fields, cache: repr([fields | {"kvCacheStats": cache}]).replace("'", '"').encode("utf-8", "replace"),
    OBJECTS,
    st.one_of(OBJECTS, NUMBERS),
)


@pytest.mark.parametrize("adapter", ADAPTERS, ids=lambda adapter: adapter.kind)
@settings(max_examples=150, deadline=None)
@given(data=st.one_of(PAGES, ITERATIONS, st.binary()))
def test_whatever_a_page_holds_the_event_can_be_read_back(adapter: Adapter, data: bytes) -> None:
    page = adapter.parse(data)
    batch = Batch(producer="p", incarnation=0, seq=0, events=[page.event("i")], v=WIRE_VERSION)
    assert decode_batch(encode(batch)) == batch
    for count in (page.running, page.waiting, page.prefix_hits, page.prefix_queries, page.preemptions, page.deferred):
        assert count is None or 0 <= count <= COUNT_MAX


VLLM_PAGE = b"vllm:num_requests_running 1\n"
SGLANG_PAGE = b"sglang:num_running_reqs 2\n"


def test_an_endpoint_finds_out_which_engine_it_is_and_stays_with_it() -> None:
    endpoint = Endpoint("auto")
    assert (endpoint.kind, endpoint.path) == ("unknown", "/metrics")
    assert endpoint.read(200, SGLANG_PAGE + VLLM_PAGE) == Page(
        running=1
    )  # a page of both is vLLM's, the first in order
    assert endpoint.read(200, SGLANG_PAGE + VLLM_PAGE) == Page(running=1)
    assert endpoint.kind == "vllm"


def test_another_engine_behind_the_same_address_is_recognised() -> None:
    endpoint = Endpoint("auto")
    endpoint.read(200, VLLM_PAGE)
    assert endpoint.read(200, SGLANG_PAGE) == Page(running=2)
    assert endpoint.kind == "sglang"


def test_when_all_lines_of_the_engine_vanish_everything_is_unknown() -> None:
    endpoint = Endpoint("auto")
    assert endpoint.read(200, b"renamed:running 1\n") is None
    endpoint.read(200, VLLM_PAGE)
    assert endpoint.read(200, b"renamed:running 1\n") == Page()


def test_both_places_of_a_page_are_tried_in_turn() -> None:
    endpoint = Endpoint("auto")
    asked = []
    for _ in range(3):
        asked.append(endpoint.path)
        assert endpoint.read(404, b"") is None
    assert asked == ["/metrics", "/prometheus/metrics", "/metrics"]


def test_iteration_statistics_lead_to_the_prometheus_page_where_there_is_one() -> None:
    json_page, text_page = b'[{"numActiveRequests": 3}]', b"trtllm_num_requests_running 4\n"
    endpoint = Endpoint("auto")
    assert endpoint.read(200, json_page) == Page(running=3)
    assert endpoint.path == "/prometheus/metrics"
    assert endpoint.read(200, text_page) == Page(running=4)
    assert endpoint.path == "/prometheus/metrics"

    endpoint = Endpoint("auto")
    endpoint.read(200, json_page)
    assert endpoint.read(404, b"") is None
    assert [endpoint.read(200, json_page), endpoint.path, endpoint.read(200, b"[]"), endpoint.path] == [
        Page(running=3),
        "/metrics",
        Page(quiet=True),
        "/metrics",
    ]


def test_a_kind_that_is_set_is_believed_and_a_set_path_kept() -> None:
    endpoint = Endpoint("triton", "/metrics2")
    assert (endpoint.kind, endpoint.path) == ("triton", "/metrics2")
    assert endpoint.read(200, VLLM_PAGE) == Page()
    assert endpoint.read(500, b"") is None
    assert endpoint.path == "/metrics2"
