"""Files of instances: a list `instances`, checked like the one in a pool, with the line of whatever is wrong."""

from pathlib import Path
from typing import Any

from pydantic import Field, ValidationError

from evenload.settings.base import Section
from evenload.settings.discovery import SourceSettings
from evenload.settings.files import FileContent, read_yaml
from evenload.settings.instances import InstanceSettings
from evenload.settings.load import problems_of
from evenload.settings.problems import Problem, SettingsError
from evenload.settings.sources import Sources


class InstancesFile(Section):
    """What such a file holds."""

    instances: tuple[InstanceSettings, ...] = Field(max_length=10_000)


class ChangesFile(Section):
    """What operators have changed by the admin API.

    Attributes:
        added: instances by pool, with their full ids.
        removed: ids of instances that a list or a source has.
    """

    added: dict[str, tuple[InstanceSettings, ...]] = Field(default_factory=dict, max_length=1000)
    removed: tuple[str, ...] = Field((), max_length=100_000)


def read_instances(path: Path, source: SourceSettings) -> tuple[InstanceSettings, ...]:
    """Read a file of instances; the source's template is filled in.

    Raises:
        SettingsError: it cannot be read or used, or names an instance twice; lists all of it.
    """
    content = _read(path)
    data = content.data
    listed = data.get("instances")
    if isinstance(listed, list):
        data = {**data, "instances": [_filled(item, source.template) for item in listed]}
    sources = Sources({}, {}, {}, data, content.lines, path)
    try:
        found = InstancesFile.model_validate(data).instances
    except ValidationError as error:
        raise SettingsError(list(problems_of(error, sources, InstancesFile))) from None
    seen: dict[str, int] = {}
    problems: list[Problem] = []
    for number, instance in enumerate(found):
        where = ("instances", number)
        if instance.id in seen:
            problems.append(Problem(sources.describe(where), f"instances[{number}]", f"{instance.id!r} stands twice"))
        seen[instance.id] = number
    if problems:
        raise SettingsError(problems)
    return found


def read_changes(path: Path) -> ChangesFile:
    """Read a file of changes; one that is not there holds none.

    Raises:
        SettingsError: it cannot be read or used; lists all of it.
    """
    if not path.exists():
        return ChangesFile()
    content = _read(path)
    try:
        return ChangesFile.model_validate(content.data)
    except ValidationError as error:
        sources = Sources({}, {}, {}, content.data, content.lines, path)
        raise SettingsError(list(problems_of(error, sources, ChangesFile))) from None


def _read(path: Path) -> FileContent:
    content = read_yaml(path, regular=True)
    if content.problems:
        raise SettingsError(content.problems)
    return content


def _filled(item: Any, template: dict[str, Any]) -> Any:
    return {**template, **item} if isinstance(item, dict) else item
