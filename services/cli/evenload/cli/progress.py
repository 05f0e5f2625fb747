"""Progress of long reads on a terminal; silent elsewhere."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import Progress, TaskID, TextColumn, TimeElapsedColumn

EVERY = 500  # records between two updates


@contextmanager
def record_progress() -> Iterator[Callable[[str, int], None]]:
    """Yield a function that takes what is being read and the records so far."""
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), TextColumn("{task.completed:,.0f} records"), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        tasks: dict[str, TaskID] = {}

        def progress(what: str, count: int) -> None:
            if what not in tasks:
                tasks[what] = bar.add_task(f"reading {what}", total=None)
            if count % EVERY == 0:
                bar.update(tasks[what], completed=count)

        yield progress
