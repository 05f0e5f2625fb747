"""The three sources of settings: how they are merged, and which of them decided a value."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from evenload.settings.problems import Location


@dataclass(frozen=True, slots=True)
class Sources:
    """The three sources, each as nested data, and what is needed to say where a value stands."""

    overrides: dict[str, Any]
    env: dict[str, Any]
    env_names: Mapping[Location, str]
    file: dict[str, Any]
    lines: Mapping[Location, int]
    path: Path | None

    def merged(self) -> dict[str, Any]:
        """Merge by precedence: command line, environment, file."""
        return _merge(_merge(self.file, self.env), self.overrides)

    def describe(self, location: Location) -> str:
        """Name the source that decides `location`."""
        # Lists are replaced as a whole: whoever holds the list owns all that is in it.
        head = location[: next((i for i, part in enumerate(location) if isinstance(part, int)), len(location))]
        layers = (self.overrides, self.env, self.file)
        depths = [_depth(layer, head) for layer in layers]
        best = depths.index(max(depths))
        if max(depths) == 0 or best == 2:
            return self._describe_file(location)
        return "command line" if best == 0 else f"environment {self._variable(location)}"

    def _variable(self, location: Location) -> str:
        for end in range(len(location), 0, -1):
            if location[:end] in self.env_names:
                return self.env_names[location[:end]]
        below = [name for key, name in self.env_names.items() if key[: len(location)] == location]
        return below[0] if below else "EVENLOAD_" + "__".join(str(part).upper() for part in location)

    def _describe_file(self, location: Location) -> str:
        if self.path is None:
            return "settings"
        for end in range(len(location), 0, -1):
            if location[:end] in self.lines:
                return f"{self.path}:{self.lines[location[:end]]}"
        return str(self.path)


def nested(values: Mapping[str, Any]) -> dict[str, Any]:
    """Turn dotted keys into nested ones and drop what was not given (None)."""
    result: dict[str, Any] = {}
    for key, value in values.items():
        if value is None:
            continue
        *parents, last = key.split(".")
        inner: Any = nested(value) if isinstance(value, Mapping) else value
        for part in (last, *reversed(parents)):
            inner = {part: inner}
        result = _merge(result, inner)
    return result


def _merge(low: Mapping[str, Any], high: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(low)
    for key, value in high.items():
        below = merged.get(key)
        both = isinstance(below, Mapping) and isinstance(value, Mapping)
        merged[key] = _merge(below, value) if both else value  # type: ignore[arg-type]
    return merged


def _depth(data: Any, location: Location) -> int:
    """Count how many parts of `location` are present in `data`."""
    for depth, part in enumerate(location):
        if not isinstance(data, Mapping) or part not in data:
            return depth
        data = data[part]
    return len(location)
