"""Reading the YAML file, with the line of every key, so that an error can point at it."""

import os
import stat
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from yaml.nodes import MappingNode, Node, SequenceNode

from evenload.settings.problems import Location, Problem, dotted

FILE_BYTES_MAX = 4 * 1024 * 1024
NODES_MAX = 500_000  # aliases counted: a few lines of them can stand for more than there is memory
MERGE_KEY = "<<"

# What the library lets out for a scalar that is none of its kind, 2024-13-45 or `!!bool x` for instance.
_NO_VALUE = (ValueError, LookupError, AttributeError, TypeError, ArithmeticError)


@dataclass(slots=True)
class FileContent:
    """A configuration file as read.

    Attributes:
        data: The mapping in it.
        lines: Line number, from 1, by location.
        problems: What was wrong with the file itself.
    """

    data: dict[str, Any] = field(default_factory=dict)
    lines: dict[Location, int] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)


def read_yaml(path: Path, *, regular: bool = False) -> FileContent:
    """Read one YAML file. Whatever is wrong with it is in `problems`; nothing is raised.

    Args:
        path: of the file.
        regular: whether it must be a file on a disk. A pipe, which settings may come by, waits for its writer, and has
            its content once.
    """
    content = FileContent()
    try:
        with open(path, "rb", opener=_open_regular if regular else None) as stream:
            raw = stream.read(FILE_BYTES_MAX + 1)
        if len(raw) > FILE_BYTES_MAX:
            content.problems.append(Problem(str(path), "", f"is larger than {FILE_BYTES_MAX} bytes"))
            return content
        _parse(raw.decode(), path, content)
    except OSError as error:
        content.problems.append(Problem(str(path), "", f"cannot be read: {error.strerror or error}"))
    except UnicodeDecodeError as error:
        content.problems.append(Problem(str(path), "", f"is not UTF-8 (byte {error.start})"))
    except yaml.YAMLError as error:
        content.problems.append(_syntax_problem(path, error))
    except RecursionError:
        content.problems.append(Problem(str(path), "", "is nested too deeply"))
    return content


def _open_regular(path: str, flags: int) -> int:
    descriptor = os.open(path, flags | os.O_NONBLOCK)  # else opening a pipe waits, too
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError("is not a regular file")
    return descriptor


def _parse(text: str, path: Path, content: FileContent) -> None:
    loader = yaml.SafeLoader(text)
    try:
        root: Node | None = loader.get_single_node()
        if root is None:
            return
        _walk(root, (), path, content, ())
        data = loader.construct_document(root)
    except _NO_VALUE as error:
        content.problems.append(Problem(str(path), "", f"is not valid YAML: {error}"))
        return
    finally:
        loader.dispose()
    if not isinstance(data, dict):
        content.problems.append(Problem(f"{path}:1", "", "must be a mapping of sections"))
        return
    # `router:` with everything below it commented out is an empty section, not a null.
    content.data = {str(key): {} if value is None else value for key, value in data.items()}


def _walk(node: Node, location: Location, path: Path, content: FileContent, parents: tuple[Node, ...]) -> None:
    """Note the line of every key, and keys that stand twice (YAML would silently take the last)."""
    if any(node is parent for parent in parents):
        content.problems.append(Problem(f"{path}:{node.start_mark.line + 1}", dotted(location), "contains itself"))
        return
    if len(content.lines) > NODES_MAX:
        raise yaml.YAMLError(f"more than {NODES_MAX} values, aliases counted")
    parents = (*parents, node)
    if isinstance(node, SequenceNode):
        for index, item in enumerate(node.value):
            content.lines[(*location, index)] = item.start_mark.line + 1
            _walk(item, (*location, index), path, content, parents)
    elif isinstance(node, MappingNode):
        seen: set[str] = set()
        for key_node, value in node.value:
            key, line = str(key_node.value), key_node.start_mark.line + 1
            if key in seen:
                content.problems.append(Problem(f"{path}:{line}", dotted((*location, key)), "stands twice"))
            if key != MERGE_KEY:
                seen.add(key)
            content.lines[(*location, key)] = line
            _walk(value, (*location, key), path, content, parents)


def _syntax_problem(path: Path, error: yaml.YAMLError) -> Problem:
    if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark is not None:
        return Problem(f"{path}:{error.problem_mark.line + 1}", "", f"is not valid YAML: {error.problem}")
    return Problem(str(path), "", f"is not valid YAML: {error}")
