"""F04: whatever an attempt is told twice, the fleet is told once."""

from evenload.router.ports import Ask
from tests.router.stage import GOOD, fleet


async def test_an_attempt_ends_once_and_has_one_first_token() -> None:
    async with fleet(GOOD) as f:
        ask = Ask(request_id="r", model="tiny", prompt_tokens=7, stream=True, endpoint="completions")
        lease = f.router.dispatcher.choose(ask, (), 0)
        for _ in range(2):
            lease.first_token(5.0)
        for kind in ("ok", "http_error"):
            lease.finish(kind, status=200, cause="", retry_after_ms=None, ttft_ms=5.0, duration_ms=9.0, output_tokens=1)
        lease.first_token(6.0)
        state = f.state("a")
        assert (state.successes, state.errors, state.first_tokens) == (1, 0, 1)
        assert await f.outcomes("a") == {"ok": 1}
        samples = await f.metrics()
        assert samples['evenload_router_ttft_seconds_count{instance="a",pool="p"}'] == 1
        assert samples['evenload_router_ttft_seconds_sum{instance="a",pool="p"}'] == 0.005
        assert samples['evenload_router_attempt_seconds_count{instance="a",pool="p"}'] == 1
        assert samples['evenload_router_attempt_seconds_sum{instance="a",pool="p"}'] == 0.009
