"""Progress of long work on a terminal; silent elsewhere."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

EVERY = 200  # steps between two updates


@contextmanager
def step_progress() -> Iterator[Callable[[str, int, int], None]]:
    """Yield a function that takes what is being done, how much of it so far, and of how much."""
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        tasks: dict[str, TaskID] = {}

        def progress(what: str, count: int, total: int) -> None:
            if what not in tasks:
                tasks[what] = bar.add_task(what, total=total)
            if count % EVERY == 0 or count == total:
                bar.update(tasks[what], completed=count, total=total)

        yield progress
