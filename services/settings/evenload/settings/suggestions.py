"""Did you mean: the nearest known key to an unknown one."""

import difflib
import types
import typing
from collections.abc import Iterable
from typing import Any

from pydantic import BaseModel

from evenload.settings.problems import Location


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return `; did you mean 'x'?`, or all known words when none is near and they are few, or nothing."""
    words = list(known)
    near = difflib.get_close_matches(word.lower(), words, n=1, cutoff=0.6)
    if near:
        return f"; did you mean {near[0]!r}?"
    return f"; known here: {', '.join(words)}" if 0 < len(words) <= 12 else ""


def model_at(model: type[BaseModel], location: Location) -> type[BaseModel] | None:
    """Find the model that holds the keys below `location`, or None if no model does."""
    current: type[BaseModel] | None = model
    for part in location:
        if isinstance(part, int):
            continue
        if current is None or part not in current.model_fields:
            return None
        current = model_in(current.model_fields[part].annotation)
    return current


def model_in(annotation: Any) -> type[BaseModel] | None:
    """Unwrap `tuple[X, ...]`, `X | None` and `Annotated[X, ...]` down to a model."""
    if isinstance(annotation, type) and not isinstance(annotation, types.GenericAlias):
        return annotation if issubclass(annotation, BaseModel) else None
    for argument in typing.get_args(annotation):
        found = model_in(argument)
        if found is not None:
            return found
    return None
