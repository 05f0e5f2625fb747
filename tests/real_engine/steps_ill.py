"""Steps with engines that are full, killed and told to stop."""

import asyncio
from collections import Counter

from .chat import Load, Said, ask, client, many, question
from .engine import SEQUENCES, RealEngine
from .world import Check, World, said

UNFINISHED_MAX = 6  # what `--max-num-queued-reqs` counts, running ones included
DRAIN_S = 10
GIVEN_UP_S = 8.0  # `router/gone.py` takes four or five; the pool's own limit is two minutes
DIRECT_SILENT_S = 40.0
LONG = 440  # tokens, some seconds of stream; prompt and answer fit into the context
SHORT = 150  # less than what it finishes when it drains
STREAMS = 8
CROWD = 40
SETTLE_S = 2.0


async def saturated(world: World) -> list[Check]:
    """One engine is full and refuses, partly inside a 200; its gauges say that nobody waits; no client notices."""
    tight = world.tight
    async with client() as asker:
        burst = await many(asker, tight.url, 2 * UNFINISHED_MAX, tokens=SHORT)
        await world.within(lambda: world.front.of(tight)["running"] == 0, 10)
        crowd = asyncio.create_task(many(asker, tight.url, UNFINISHED_MAX, tokens=LONG))
        full_s = await world.within(lambda: world.front.of(tight)["running"] == UNFINISHED_MAX, 10)
        before = world.front.attempts(tight)
        direct = await asyncio.gather(
            ask(asker, tight.url, question(tokens=1)), ask(asker, tight.url, question(tokens=1, stream=False))
        )
        await world.page(tight, "full")
        state = world.front.of(tight)
        through = await many(asker, world.front.url, 12, tokens=8)
        world.record.json("full-fleet", _view(world))
        await crowd
    for name, answer in zip(("full-stream", "full-plain"), direct, strict=True):
        world.record.answer(name, answer)
    for leaked in [each for each in burst if each.verdict == "leaked"][:1]:
        world.record.answer("burst-stream", leaked)
    bursts = Counter(f"{each.verdict} ({each.status})" for each in burst)
    verdicts = Counter(each.verdict for each in through)
    after = world.front.attempts(tight)
    tried = {kind: after[kind] - before.get(kind, 0) for kind in after if after[kind] > before.get(kind, 0)}
    return [
        Check(
            f"{2 * UNFINISHED_MAX} streams at once to it, idle, by no router: {UNFINISHED_MAX} whole at most",
            _counts(bursts),
            sum(each.verdict == "whole" for each in burst) <= UNFINISHED_MAX,
        ),
        Check(
            f"full, its gauges say that {UNFINISHED_MAX} run",
            f"running {state['running']}, waiting {state['waiting']}, after {said(full_s)}",
            full_s is not None,
        ),
        Check(
            "asked directly it refuses with 503",
            f"stream {direct[0].status}, plain {direct[1].status}",
            (direct[0].status, direct[1].status) == (503, 503),
        ),
        Check(
            "12 streams through the router meanwhile are whole",
            f"{_counts(verdicts)}; attempts at {tight.name}: {_counts(tried) or 'none'}",
            verdicts == {"whole": 12},
        ),
    ]


async def killed(world: World) -> list[Check]:
    """kill -9 of an engine core under load."""
    tight = world.tight
    async with Load(world.front.url, STREAMS, tokens=LONG) as load, client() as asker:
        own = asyncio.create_task(ask(asker, tight.url, question(tokens=LONG)))
        await asyncio.sleep(SETTLE_S)
        here = int(world.front.of(tight)["in_flight"])
        tight.kill_core()
        healths = asyncio.create_task(_healths(tight, 6.0))
        out_s = await world.within(lambda: bool(world.front.of(tight)["excluded"]), 10)
        world.record.json("killed-fleet", _view(world))
        world.record.answer("killed-stream", await own)
        await asyncio.sleep(SETTLE_S)
        cut = len(load.results)
        await asyncio.sleep(3 * SETTLE_S)
    broken = [each for each in load.results if each.verdict != "whole"]
    for each in broken[:1]:
        world.record.answer("killed-stream-routed", each)
    after = Counter(each.verdict for each in load.results[cut:])
    reason = world.front.of(tight)["why"]
    world.record.json("killed-health", await healths)
    direct = await own
    checks = [
        Check(
            "a stream of its own ends with an error, framed as if it were whole",
            _ending(direct),
            direct.verdict == "told",
        ),
        Check(
            "through the router, streams that had content are told, all else is made good",
            f"{here} were there; {_counts(load.verdicts)}",
            load.verdicts.keys() <= {"whole", "told"} and load.verdicts["told"] <= here,
        ),
        Check("it is out of use within 5 s", f"after {said(out_s)}: {reason}", out_s is not None and out_s <= 5),
        Check("later streams are all whole", _counts(after), set(after) == {"whole"}),
        Check("/health meanwhile", ", ".join(await healths), None),
    ]
    tight.stop()
    return checks


async def drained(world: World) -> list[Check]:
    """SIGTERM to an engine that finishes what runs, for 10 s; then the other one alone, with a crowd before it."""
    roomy, tight = world.roomy, world.tight
    url = world.front.url
    async with client(DRAIN_S + 3 * SETTLE_S) as asker, client() as patient:
        short = [asyncio.create_task(ask(asker, roomy.url, question(tokens=SHORT))) for _ in range(2)]
        # No more at once than `tight` takes alone; some are quick, as who asks nothing notices nothing.
        async with Load(url, 3, tokens=SHORT) as load, Load(url, 2, tokens=1) as quick:
            await world.within(lambda: (world.front.of(roomy)["running"] or 0) > 2, 10)
            # More than can be done within the 10 s, so that some of it outlives them.
            long = [asyncio.create_task(ask(asker, roomy.url, question(tokens=LONG))) for _ in range(3 * SEQUENCES)]
            await asyncio.sleep(0.2)  # not until they wait: the router would leave it alone, and not notice
            roomy.terminate()
            noticed = asyncio.create_task(world.within(lambda: bool(world.front.of(roomy)["excluded"]), 10))
            await asyncio.sleep(0.3)
            refused, refused_stream = await asyncio.gather(
                ask(patient, roomy.url, question(tokens=1, stream=False)), ask(patient, roomy.url, question(tokens=1))
            )
            health = await asyncio.to_thread(roomy.health)
            out_s = await noticed
            world.record.json("draining-fleet", _view(world))
            await _page_if_any(world, roomy, "draining")
            closed_s = await world.within(lambda: roomy.health() == "refused", DRAIN_S + 20)
            await asyncio.gather(*short, *long)
            gone_s = await world.within(lambda: not roomy.child.running, 20)
        crowd = await many(patient, url, CROWD, tokens=SHORT)
    answers = {"draining-plain": refused, "draining-stream": refused_stream, "drained": short[0].result()}
    answers |= {
        f"outlived-{each.verdict}": each for each in (task.result() for task in long) if each.verdict != "whole"
    }
    refusals = [each for each in crowd if each.verdict != "whole"]
    answers |= {"crowd-refused": refusals[0]} if refusals else {}
    for name, answer in answers.items():
        world.record.answer(name, answer)
    verdicts = load.verdicts + quick.verdicts
    had_content = len(load.at(roomy.name) + quick.at(roomy.name))
    roomy.stop()
    return [
        Check(
            "new requests are refused while /health says 200",
            f"plain {refused.status}, stream {refused_stream.status} {refused_stream.ending}; /health {health}",
            refused.status == 500 and health == "200",
        ),
        Check("it is out of use within 5 s", f"after {said(out_s)}", out_s is not None and out_s <= 5),
        Check(
            "streams of its own, two short and many long ones",
            f"{_verdicts(short)}; {_verdicts(long)}; port closed after {said(closed_s)}; gone {said(gone_s)} after all",
            None,
        ),
        Check(
            "streams through the router: whole, or told if they had content at its end",
            _counts(verdicts),
            verdicts.keys() <= {"whole", "told"} and verdicts["told"] <= had_content,
        ),
        Check(
            f"{CROWD} at once before {tight.name} alone: whole, or refused with 429 or 503 and when to come back",
            _counts(Counter(each.verdict for each in crowd)) + "; " + _refusals(refusals),
            all(each.status in (429, 503) and "retry-after" in each.headers for each in refusals),
        ),
    ]


async def stopped(world: World) -> list[Check]:
    """SIGTERM by default, in the middle of streams: they go silent, or end with an error."""
    tight = world.tight
    async with client(DIRECT_SILENT_S) as asker, Load(world.front.url, STREAMS, tokens=LONG) as load:
        own = asyncio.create_task(ask(asker, tight.url, question(tokens=LONG)))
        await world.within(lambda: world.front.of(tight)["in_flight"] > 1, 10)
        await asyncio.sleep(1.0)
        here = int(world.front.of(tight)["in_flight"])
        tight.terminate()
        healths = asyncio.create_task(_healths(tight, 6.0))
        out_s = await world.within(lambda: bool(world.front.of(tight)["excluded"]), 20)
        world.record.json("stopped-fleet", _view(world))
        late = await ask(asker, tight.url, question(tokens=1, stream=False))
        freed_s = await world.within(lambda: world.front.of(tight)["in_flight"] == 0, 3 * GIVEN_UP_S)
        settled = len(load.results)
        await asyncio.sleep(4 * SETTLE_S)
        direct = await own
    after = Counter(each.verdict for each in load.results[settled:])
    world.record.answer("stopped-stream", direct)
    world.record.json("stopped-health", await healths)
    for each in [each for each in load.results if each.verdict != "whole"][:1]:
        world.record.answer("stopped-stream-routed", each)
    why = world.front.of(tight)["why"]
    tight.stop()
    return [
        Check("its own stream", _ending(direct), None),
        Check("/health and a new request meanwhile", f"{', '.join(await healths)}; {late.ending}", None),
        Check("it is out of use within 5 s", f"after {said(out_s)}: {why}", out_s is not None and out_s <= 5),
        Check(
            f"through the router nothing waits for it after {GIVEN_UP_S:g} s; what had content is told, all else whole",
            f"{here} were there, none {said(freed_s)} later; {_counts(load.verdicts)}",
            freed_s is not None
            and freed_s <= GIVEN_UP_S
            and load.verdicts.keys() <= {"whole", "told"}
            and load.verdicts["told"] <= here,
        ),
        Check("later streams are all whole", _counts(after), set(after) == {"whole"}),
    ]


async def _healths(engine: RealEngine, seconds: float) -> list[str]:
    """Return what `/health` says, each time that it says something else."""
    found: list[str] = []
    began = asyncio.get_running_loop().time()
    while (now := asyncio.get_running_loop().time()) - began < seconds:
        health = await asyncio.to_thread(engine.health)
        if not found or found[-1].partition(" at ")[0] != health:
            found.append(f"{health} at {now - began:.1f} s")
        await asyncio.sleep(0.1)
    return found


async def _page_if_any(world: World, engine: RealEngine, name: str) -> None:
    try:
        await world.page(engine, name)
    except OSError as error:
        world.record.json(f"{name}-no-page", type(error).__name__)


def _view(world: World) -> dict[str, dict[str, object]]:
    """Return what the router believes, less what differs with every run."""
    names = ("score", "running", "waiting", "ready", "draining", "excluded", "saturations", "errors", "restarts", "why")
    return {name: {key: each[key] for key in names} for name, each in world.front.fleet().items()}


def _verdicts(tasks: "list[asyncio.Task[Said]]") -> str:
    return _counts(Counter(task.result().verdict for task in tasks))


def _counts(counts: "Counter[str] | dict[str, float]") -> str:
    return ", ".join(f"{count:g} {name}" for name, count in sorted(counts.items()))


def _ending(answer: Said) -> str:
    error = answer.observer.error
    cause = f", error {error.code} ({error.verdict.cause})" if error else ""
    return (
        f"{answer.verdict}: {answer.ending} after {answer.seconds:.1f} s{cause}; longest silence {answer.gap_s:.1f} s"
    )


def _refusals(refusals: list[Said]) -> str:
    found = Counter(f"{each.status} retry-after {each.headers.get('retry-after')}" for each in refusals)
    return _counts(found) or "no refusal"
