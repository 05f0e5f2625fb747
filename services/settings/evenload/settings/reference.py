"""The reference of all settings, rendered from the models: `docs/configuration.md`."""

import types
import typing
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import annotated_types
from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from evenload.settings.models import ENV_DELIMITER, ENV_PREFIX, Settings
from evenload.settings.suggestions import model_in

HEAD = """# Configuration

<!-- Generated from the settings models: `python -m evenload.settings docs/configuration.md`. -->

Settings come from the command line, the environment and one YAML file, in this order of precedence; then come the
defaults below. The file is the one that `--config` or `EVENLOAD_CONFIG` names, else `evenload.yaml` in the working
folder if there is one. Unknown keys and bad values stop the start; the error lists each with source, key and reason.

In the environment lists and mappings are JSON, and `null` is no value. A list is replaced as a whole, never merged.
"""
# Filled in by a validator, so the model's own default is empty.
DERIVED_DEFAULTS = {
    "router.name": "HOSTNAME-PORT",
    "collector.name": "HOSTNAME-PORT",
    "pools[].policy": "`predictive`; `peak-ewma-decay` for providers only",
    "pools[].instances[].id": "HOST:PORT of the URL",
    "pools[].instances[].url": "the preset's, else required",
}


@dataclass(frozen=True, slots=True)
class Entry:
    """One setting, described."""

    key: str
    kind: str
    default: str
    bounds: str
    env: str
    description: str


def entries(model: type[BaseModel], prefix: str = "") -> Iterator[Entry]:
    """Walk through all settings below a model, depth first, in the order of the file."""
    for name, field in model.model_fields.items():
        inner = model_in(field.annotation)
        is_list = typing.get_origin(field.annotation) is tuple
        if inner is None:
            yield _entry(f"{prefix}{name}", field)
        elif is_list:
            yield _entry(f"{prefix}{name}", field)
            yield from entries(inner, f"{prefix}{name}[].")
        else:
            yield from entries(inner, f"{prefix}{name}.")


def reference() -> str:
    """Render the Markdown page of all keys with default, bounds and environment variable."""
    lines = [HEAD]
    for section, field in Settings.model_fields.items():
        lines += [f"\n## {section}\n\n{field.description}\n"]
        rows = [entry for entry in entries(Settings) if entry.key.split(".")[0].split("[")[0] == section]
        with_env = any(entry.env for entry in rows)
        lines += list(_table(rows, with_env=with_env))
    return "\n".join(lines) + "\n"


def _table(rows: list[Entry], *, with_env: bool) -> Iterator[str]:
    env_head = (" Environment |", " --- |") if with_env else ("", "")
    yield f"| Key | Type | Default | Bounds |{env_head[0]} Meaning |"
    yield f"| --- | --- | --- | --- |{env_head[1]} --- |"
    for row in rows:
        env = f" {row.env and f'`{row.env}`'} |" if with_env else ""
        yield f"| `{row.key}` | {row.kind} | {row.default} | {row.bounds} |{env} {row.description} |"


def _entry(key: str, field: FieldInfo) -> Entry:
    env = "" if "[]" in key else ENV_PREFIX + key.upper().replace(".", ENV_DELIMITER)
    description = (field.description or "").replace("|", "\\|")
    return Entry(key, _kind(field.annotation), _default(key, field), _bounds(field), env, description)


def _default(key: str, field: FieldInfo) -> str:
    if key in DERIVED_DEFAULTS:
        return DERIVED_DEFAULTS[key]
    if field.default_factory is dict:
        return "`{}`"
    if field.default is PydanticUndefined:
        return "required"
    if field.default is None:
        return "`null`"
    if isinstance(field.default, bool):
        return f"`{str(field.default).lower()}`"
    return "`[]`" if field.default == () else f"`{field.default}`"


def _kind(annotation: Any) -> str:
    """Describe a type in the words of YAML."""
    if isinstance(annotation, type) and not isinstance(annotation, types.GenericAlias):
        names = {str: "text", int: "integer", float: "number", bool: "true or false", Path: "path"}
        return names.get(annotation, "mapping")
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is dict:
        return f"mapping to {_kind(arguments[1])}"
    if origin is tuple:
        return f"list of {_kind(arguments[0])}"
    if origin is typing.Literal:
        return " \\| ".join(f"`{argument}`" for argument in arguments)
    if origin in (typing.Union, types.UnionType):
        return " \\| ".join("`null`" if argument is type(None) else _kind(argument) for argument in arguments)
    return _kind(arguments[0])


def _bounds(field: FieldInfo) -> str:
    metadata = list(field.metadata)
    for argument in typing.get_args(field.annotation):
        metadata += getattr(argument, "__metadata__", ())
    parts: list[str] = []
    for bound in metadata:
        match bound:
            case annotated_types.Ge(ge=value):
                parts.append(f"≥ {value}")
            case annotated_types.Gt(gt=value):
                parts.append(f"> {value}")
            case annotated_types.Le(le=value):
                parts.append(f"≤ {value}")
            case annotated_types.Lt(lt=value):
                parts.append(f"< {value}")
            case annotated_types.MinLen(min_length=value):
                parts.append(f"at least {value} long")
            case annotated_types.MaxLen(max_length=value):
                parts.append(f"at most {value} long")
    return ", ".join(parts)
