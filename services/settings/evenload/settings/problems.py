"""What can be wrong with a configuration, and the one error that reports all of it."""

from dataclasses import dataclass

# `extra` of a log record that tells somebody who has just asked, by a signal: never held back as a repetition.
EVERY = {"every": True}

# Where a value stands in nested data: keys, and indexes of lists.
Location = tuple[str | int, ...]


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing wrong with the configuration.

    Attributes:
        source: Where it stands: `FILE:LINE`, `environment EVENLOAD_X` or `command line`.
        key: The dotted key, for instance `pools[0].scoring.kv_threshold`; empty when the source as a whole is meant.
        reason: What is wrong with it, and what to write instead.
    """

    source: str
    key: str
    reason: str

    def __str__(self) -> str:
        return ": ".join(part for part in (self.source, self.key, self.reason) if part)


class SettingsError(Exception):
    """The configuration cannot be used; nothing was started.

    Args:
        problems: Every problem that was found, in the order found.
    """

    def __init__(self, problems: list[Problem]) -> None:
        self.problems = tuple(problems)
        super().__init__("\n".join(str(problem) for problem in self.problems))


def dotted(location: Location) -> str:
    """Write a location as people do: `("pools", 0, "name")` is `pools[0].name`."""
    text = ""
    for part in location:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else str(part)
    return text
