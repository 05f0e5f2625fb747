"""What a cached result depends on: the code it ran and what it was given.

An edit of one policy leaves the results of all others valid: a policy's digest is over its own module and what that
imports of `evenload.routing`; everything else that a run touches is in the digest of the core.
"""

import ast
import hashlib
from collections.abc import Iterable
from functools import cache
from pathlib import Path

from evenload import routing, schemas, scoring, sim, workload
from evenload.routing import POLICIES
from evenload.sim.policies import policy_name

_ROUTING = Path(next(iter(routing.__path__)))
_CORE_OF_ROUTING = ("policy", "view", "leases", "backlog", "exclusion", "log_clock", "prefixes")
_INPUTS = Path(__file__).with_name("inputs.py")
_LEFT_OUT_OF_SIM = ("comparison.py",)


@cache
def core_digest() -> str:
    """Return a digest of everything but the policies and the scenarios' data."""
    files = [_INPUTS, *_with_imports(_CORE_OF_ROUTING)]
    for package in (schemas, scoring, sim, workload):
        files += sorted(Path(next(iter(package.__path__))).glob("*.py"))
    return _digest([path for path in files if path.name not in _LEFT_OUT_OF_SIM])


@cache
def policy_digest(spec: str) -> str:
    """Return a digest of a policy's module and those it imports; empty for the oracle."""
    policy = POLICIES.get(policy_name(spec))
    if policy is None:
        return ""
    return _digest(_with_imports([policy.__module__.rpartition(".")[2]]))


def _with_imports(names: Iterable[str]) -> list[Path]:
    """Return the files of these modules of `evenload.routing` and of what they import of it."""
    todo, seen = list(names), set[str]()
    while todo:
        name = todo.pop()
        if name in seen or not (_ROUTING / f"{name}.py").is_file():
            continue
        seen.add(name)
        todo += _imported(_ROUTING / f"{name}.py")
    return [_ROUTING / f"{name}.py" for name in sorted(seen)]


def _imported(path: Path) -> list[str]:
    found: list[str] = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("evenload.routing."):
            found.append((node.module or "").split(".")[2])
    return found


def _digest(files: list[Path]) -> str:
    digest = hashlib.sha256()
    for path in files:
        digest.update(path.name.encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]
