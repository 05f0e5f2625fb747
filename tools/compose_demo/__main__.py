"""`python -m tools.compose_demo`: exit code 0 if everything held, 1 if not, 2 if the stack is not there."""

import argparse
import asyncio
import os
import sys
from collections.abc import Sequence

from tools.compose_demo.stack import Stack, StackError, fresh, seen
from tools.compose_demo.traffic import Traffic
from tools.compose_demo.verdict import BACK_WITHIN_S, FRESH_WITHIN_S, Check, Kill, judge, judge_audit, phases


def main(argv: Sequence[str] | None = None) -> int:
    """Run the story once."""
    options = argparse.ArgumentParser(prog="python -m tools.compose_demo", description=__doc__)
    port = os.environ.get("PROXY_PORT", "8080")
    options.add_argument("--url", default=f"http://127.0.0.1:{port}", help="the proxy (default %(default)s)")
    options.add_argument("--model", default="demo-8b", help="model asked for (default %(default)s)")
    options.add_argument("--rate", type=float, default=6.0, help="requests per second (default %(default)s)")
    options.add_argument("--phase", type=float, default=15.0, help="seconds before each kill (default %(default)s)")
    options.add_argument("--seed", type=int, default=1, help="of the workload (default %(default)s)")
    arguments = options.parse_args(argv)
    try:
        return asyncio.run(story(arguments))
    except* StackError as errors:
        for error in errors.exceptions:
            print(f"compose-demo: {error}", file=sys.stderr)
    return 2


async def story(arguments: argparse.Namespace) -> int:
    """Load, kill a router, kill a scorer, audit, judge."""
    stack = Stack(arguments.url)
    traffic = Traffic(arguments.url, arguments.model, arguments.rate, arguments.seed)
    if await seen(lambda: fresh(stack), lambda: 0.0, FRESH_WITHIN_S) is None:
        raise StackError("the routers get no fresh snapshots; look at: docker compose logs scorer")
    async with asyncio.TaskGroup() as group:
        group.create_task(traffic.run())
        try:
            print(f"load: {arguments.rate:g} requests/s through {arguments.url}", flush=True)
            await asyncio.sleep(arguments.phase)
            router = await _kill_router(stack, traffic)
            await asyncio.sleep(arguments.phase)
            scorer = await _kill_scorer(stack, traffic)
            await asyncio.sleep(arguments.phase)
        finally:
            traffic.stop()
    print(f"{traffic.now_s():5.1f} s  load ended; the auditor recomputes it", flush=True)
    audit = judge_audit(await stack.audit(traffic.now_s()))
    return _tell(traffic, router, scorer, audit)


async def _kill_router(stack: Stack, traffic: Traffic) -> Kill:
    at = await stack.router()
    begin_s = traffic.now_s()
    await stack.kill(at.container)
    end_s = traffic.now_s()
    print(f"{begin_s:5.1f} s  SIGKILL to {at.slot} ({at.container[:12]})", flush=True)

    async def back() -> bool:
        return await stack.restarts(at.container) > 0 and await stack.serves(at.container)

    back_s = await seen(back, traffic.now_s, BACK_WITHIN_S)
    print(f"{traffic.now_s():5.1f} s  {at.slot} {'takes requests again' if back_s else 'is not back'}", flush=True)
    return Kill(at.slot, at.slot, begin_s, end_s, back_s)


async def _kill_scorer(stack: Stack, traffic: Traffic) -> Kill:
    container = (await stack.containers("scorer"))[0]
    begin_s = traffic.now_s()
    await stack.kill(container)
    end_s = traffic.now_s()
    print(f"{begin_s:5.1f} s  SIGKILL to a scorer ({container[:12]})", flush=True)

    async def stale() -> bool:
        return not await fresh(stack)

    # Its partitions stay silent until the group notices; fresh before that would be the state before the kill.
    if await seen(stale, traffic.now_s, FRESH_WITHIN_S / 2) is None:
        print(f"{traffic.now_s():5.1f} s  no snapshot was missed", flush=True)
        return Kill("scorer", "", begin_s, end_s, traffic.now_s())
    fresh_s = await seen(lambda: fresh(stack), traffic.now_s, FRESH_WITHIN_S)
    print(f"{traffic.now_s():5.1f} s  snapshots are {'fresh again' if fresh_s else 'still stale'}", flush=True)
    return Kill("scorer", "", begin_s, end_s, fresh_s)


def _tell(traffic: Traffic, router: Kill, scorer: Kill, audit: Check) -> int:
    print()
    for line in phases(traffic.requests, router, scorer):
        print(line)
    if traffic.skipped:
        print(f"{traffic.skipped} arrivals were not sent: too many in flight")
    print()
    checks = [*judge(traffic.requests, router, scorer), audit]
    for check in checks:
        print(f"{'held    ' if check.held else 'NOT held'}  {check.promise}: {check.figure}")
    return 0 if all(check.held for check in checks) else 1


if __name__ == "__main__":
    sys.exit(main())
