"""Tasks that make their first step at once: the same as any task, one turn of the loop earlier."""

import asyncio
import contextvars
import gc
from collections.abc import AsyncIterator, Callable

import pytest
import uvloop

from evenload.router import eager

mark: contextvars.ContextVar[str] = contextvars.ContextVar("mark", default="outside")


@pytest.fixture(params=[asyncio.SelectorEventLoop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def run(request: pytest.FixtureRequest) -> Callable[..., None]:
    """Run a function of a loop, in a callback of it as a connection's bytes are, until what it returns is done."""

    def run(begin: Callable[[asyncio.AbstractEventLoop], "asyncio.Future[None]"]) -> None:
        async def wait() -> None:
            loop = asyncio.get_running_loop()
            begun: asyncio.Future[asyncio.Future[None]] = loop.create_future()
            await asyncio.sleep(2 * eager.EVERY_S)  # since the last test's
            loop.call_soon(lambda: begun.set_result(begin(loop)))
            async with asyncio.timeout(5):
                await (await begun)

        with asyncio.Runner(loop_factory=request.param) as runner:
            runner.run(wait())

    return run


Run = Callable[[Callable[[asyncio.AbstractEventLoop], "asyncio.Future[None]"]], None]


def test_the_first_step_is_made_at_once_and_the_rest_by_the_same_task(run: Run) -> None:
    steps: list[object] = []

    async def work() -> None:
        steps.append(asyncio.current_task())
        await asyncio.sleep(0)
        steps.append(asyncio.current_task())
        async with asyncio.timeout(5):  # which needs to know its task
            await asyncio.sleep(0.001)
        steps.append(asyncio.current_task())

    def begin(loop: asyncio.AbstractEventLoop) -> "asyncio.Future[None]":
        task = eager.start(loop, work())
        assert steps == [task]
        assert asyncio.current_task() is None
        assert task is not None
        return task

    run(begin)
    assert len(steps) == 3
    assert len(set(steps)) == 1


async def test_within_a_task_it_waits_for_the_next_turn() -> None:
    begun: list[str] = []

    async def work() -> None:
        begun.append("begun")

    await asyncio.sleep(2 * eager.EVERY_S)
    task = eager.start(asyncio.get_running_loop(), work())
    assert begun == []
    assert task is not None
    await task
    assert begun == ["begun"]


def test_what_ends_in_its_first_step_leaves_no_task(run: Run) -> None:
    steps: list[int] = []

    async def work() -> None:
        steps.append(1)

    def begin(loop: asyncio.AbstractEventLoop) -> "asyncio.Future[None]":
        assert eager.start(loop, work()) is None
        assert steps == [1]
        return loop.create_task(asyncio.sleep(0.01))

    run(begin)


def test_a_first_step_that_fails_is_reported(run: Run) -> None:
    reports: list[dict[str, object]] = []

    async def work() -> None:
        raise ValueError("the first step")

    def begin(loop: asyncio.AbstractEventLoop) -> "asyncio.Future[None]":
        loop.set_exception_handler(lambda _, report: reports.append(report))
        assert eager.start(loop, work()) is None
        return loop.create_task(asyncio.sleep(0.01))

    run(begin)
    gc.collect()
    assert [repr(report["exception"]) for report in reports] == ["ValueError('the first step')"]


@pytest.mark.parametrize("by_itself", [True, False])
def test_a_task_that_is_cancelled_before_its_own_first_step_tells_the_coroutine(run: Run, by_itself: bool) -> None:
    told: list[str] = []

    async def work() -> None:
        task = asyncio.current_task()
        assert task is not None
        if by_itself:
            task.cancel()
        try:
            await asyncio.sleep(5)
        except asyncio.CancelledError:
            task.uncancel()
            told.append("cancelled")
        await asyncio.sleep(0.001)  # it may go on
        told.append("done")

    def begin(loop: asyncio.AbstractEventLoop) -> "asyncio.Future[None]":
        task = eager.start(loop, work())
        assert task is not None
        if not by_itself:
            task.cancel()
        return task

    run(begin)
    assert told == ["cancelled", "done"]


def test_what_it_waits_for_is_cancelled_with_it(run: Run) -> None:
    turns: list[asyncio.Future[None]] = []

    async def work() -> None:
        turns.append(asyncio.get_running_loop().create_future())
        await turns[0]

    def begin(loop: asyncio.AbstractEventLoop) -> "asyncio.Future[None]":
        task = eager.start(loop, work())
        assert task is not None
        task.cancel()
        return task

    with pytest.raises(asyncio.CancelledError):
        run(begin)
    assert turns[0].cancelled()


def test_one_that_has_ended_can_be_cancelled_with_all_others(run: Run) -> None:
    reports: list[dict[str, object]] = []

    async def work() -> None:
        pass

    def begin(loop: asyncio.AbstractEventLoop) -> "asyncio.Future[None]":
        loop.set_exception_handler(lambda _, report: reports.append(report))
        before = asyncio.all_tasks(loop)
        assert eager.start(loop, work()) is None
        for task in asyncio.all_tasks(loop) - before:
            task.cancel()
        return loop.create_task(asyncio.sleep(0.01))

    run(begin)
    gc.collect()
    assert reports == []


def test_each_has_a_context_of_its_own(run: Run) -> None:
    seen: list[str] = []

    async def work() -> None:
        mark.set("inside")
        await asyncio.sleep(0)
        seen.append(mark.get())

    def begin(loop: asyncio.AbstractEventLoop) -> "asyncio.Future[None]":
        task = eager.start(loop, work())
        assert mark.get() == "outside"
        assert task is not None
        return task

    run(begin)
    assert seen == ["inside"]


def test_a_second_one_within_a_millisecond_waits_for_the_next_turn(run: Run) -> None:
    begun: list[str] = []

    async def work(name: str) -> None:
        begun.append(name)
        await asyncio.sleep(0)

    def begin(loop: asyncio.AbstractEventLoop) -> "asyncio.Future[None]":
        one, two = (eager.start(loop, work(name)) for name in ("one", "two"))
        assert begun == ["one"]
        assert one is not None
        assert two is not None
        return asyncio.gather(one, two)  # type: ignore[return-value]

    run(begin)
    assert begun == ["one", "two"]


def test_what_waits_can_be_closed_with_its_loop() -> None:
    ended: list[str] = []

    async def work() -> AsyncIterator[None]:
        try:
            await asyncio.sleep(60)
        finally:
            ended.append("in order")
        yield

    async def main() -> None:
        loop = asyncio.get_running_loop()
        loop.call_later(2 * eager.EVERY_S, lambda: eager.start(loop, anext(work())))  # type: ignore[arg-type]
        await asyncio.sleep(0.02)

    asyncio.run(main())
    assert ended == ["in order"]
