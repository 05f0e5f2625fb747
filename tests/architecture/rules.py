"""The import rules of Evenload and what pure code may not touch, checked on source text.

A package may import those that `LAYERS` lists for it. A shell is imported by nobody; the command line and the demo may
name one inside a function, where it is loaded only when that command runs, and for type checking.
"""

import ast
from collections.abc import Iterator
from dataclasses import dataclass

SHELLS = frozenset({"router", "scorer", "collector", "audit", "cli", "demo", "bench"})
PURE = frozenset({"schemas", "scoring", "routing", "sim"})
AUDITED = frozenset({"scoring", "routing"})

CORE = frozenset({"schemas", "scoring", "routing"})
SHELL_MAY = CORE | {"api", "bus", "settings"}
FOLLOWS = SHELL_MAY | {"discovery"}  # those that know instances by their addresses
LAYERS: dict[str, frozenset[str]] = {
    "schemas": frozenset(),
    "scoring": frozenset({"schemas"}),
    "routing": frozenset({"schemas", "scoring"}),
    "sim": CORE,
    "settings": frozenset({"schemas", "scoring"}),
    "api": frozenset({"settings"}),
    "broker": frozenset(),
    "bus": frozenset({"schemas", "settings"}),
    "discovery": frozenset({"schemas", "settings", "bus"}),
    "scorer": SHELL_MAY,
    "collector": FOLLOWS,
    "router": FOLLOWS,
    "audit": SHELL_MAY,
    "cli": frozenset({"schemas", "settings", "api", "broker", "bus"}),
    "workload": frozenset(),
    "demo": SHELL_MAY | {"broker", "sim", "cli", "workload"},
    "bench": CORE | {"sim", "workload"},
}
MAY_START_SHELLS = frozenset({"cli", "demo"})

# Third-party package -> the only packages that may import it.
OWNERS = {"aiokafka": {"bus"}, "faust": {"scorer"}, "mode": {"scorer"}}

ROUND_TRIP = "pure code does no I/O; take the value as an argument, or return what is to be done"
CLOCK = "pure code has no clock; take now_ms as an argument"
CHANCE = "pure code has no entropy; take rng as an argument and call rng.random()"
CONCURRENCY = "pure code is synchronous; the shell around it awaits"
FRAMEWORK = "pure code knows no framework; the shell translates"
LIBM = "libm differs between machines and audited results must not; use + - * / and comparisons"

BANNED_IN_PURE = {
    "asyncio": CONCURRENCY,
    "threading": CONCURRENCY,
    "multiprocessing": CONCURRENCY,
    "concurrent": CONCURRENCY,
    "time": CLOCK,
    "datetime": CLOCK,
    "random": CHANCE,
    "secrets": CHANCE,
    "uuid": CHANCE,
    "os": ROUND_TRIP,
    "pathlib": ROUND_TRIP,
    "socket": ROUND_TRIP,
    "subprocess": ROUND_TRIP,
    "http": ROUND_TRIP,
    "urllib": ROUND_TRIP,
    "logging": "pure code does not log; count it, or return it",
    "fastapi": FRAMEWORK,
    "starlette": FRAMEWORK,
    "uvicorn": FRAMEWORK,
    "httptools": FRAMEWORK,
    "pydantic": FRAMEWORK,
    "prometheus_client": FRAMEWORK,
    "typer": FRAMEWORK,
    "rich": FRAMEWORK,
}
BANNED_IN_AUDITED = {
    "math": LIBM,
    "cmath": LIBM,
    "statistics": LIBM,
    "numpy": "numpy's sums depend on the processor; use plain floats in a fixed order",
}
CALLS_BANNED_IN_PURE = {"open": ROUND_TRIP, "input": ROUND_TRIP, "print": ROUND_TRIP}
CALLS_BANNED_IN_AUDITED = {
    "sum": "sum() of floats rounds differently from Python 3.12 on; add in a loop, in a fixed order",
    "pow": LIBM,
    "hash": "hash() of text differs between processes; use a digest",
}


@dataclass(frozen=True, slots=True)
class Violation:
    """A broken rule: line, what was found, and what to do instead."""

    line: int
    found: str
    reason: str

    def __str__(self) -> str:
        return f"{self.line}: {self.found}: {self.reason}"


@dataclass(frozen=True, slots=True)
class Import:
    """One imported module (`random.choice` for `from random import choice`), and in which circumstances."""

    line: int
    name: str
    lazy: bool
    typing_only: bool


def violations(source: str, package: str) -> list[Violation]:
    """Check the source of one module of `evenload.PACKAGE`.

    Raises:
        SyntaxError: It is not Python.
        KeyError: The package has no place in `LAYERS`.
    """
    tree = ast.parse(source)
    found = list(_import_violations(tree, package))
    if package in PURE:
        found += _code_violations(tree, package)
    return sorted(found, key=lambda violation: violation.line)


def imports(tree: ast.Module) -> Iterator[Import]:
    """All imports of a module, relative ones with their dots."""
    todo: list[tuple[ast.AST, bool, bool]] = [(tree, False, False)]
    while todo:
        node, lazy, typing_only = todo.pop()
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Import(node.lineno, alias.name, lazy, typing_only)
        elif isinstance(node, ast.ImportFrom):
            module = "." * node.level + (f"{node.module}." if node.module else "")
            for alias in node.names:
                yield Import(node.lineno, module + alias.name, lazy, typing_only)
        inside = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            todo += [(child, lazy, True) for child in node.body]
            todo += [(child, lazy, typing_only) for child in node.orelse]
            continue
        todo += [(child, lazy or inside, typing_only) for child in ast.iter_child_nodes(node)]


def _import_violations(tree: ast.Module, package: str) -> Iterator[Violation]:
    allowed = LAYERS[package]
    banned = (BANNED_IN_PURE if package in PURE else {}) | (BANNED_IN_AUDITED if package in AUDITED else {})
    for item in imports(tree):
        top, _, rest = item.name.partition(".")
        if item.name.startswith(".."):
            yield Violation(item.line, item.name, "write imports from other packages in full")
        elif not top:
            continue  # a neighbour in the same package
        elif top == "evenload":
            yield from _layer_violation(item, rest.partition(".")[0], package, allowed)
        elif package not in OWNERS.get(top, {package}):
            owner = "evenload." + ", evenload.".join(OWNERS[top])
            yield Violation(item.line, item.name, f"only {owner} imports {top}; call that package instead")
        elif top in banned and not item.typing_only and not (top == "random" and _seeded_only(item, package)):
            yield Violation(item.line, item.name, banned[top])


def _layer_violation(item: Import, other: str, package: str, allowed: frozenset[str]) -> Iterator[Violation]:
    if other == package or other in allowed:
        return
    if other in SHELLS and package in MAY_START_SHELLS and (item.lazy or item.typing_only):
        return
    if other in SHELLS:
        reason = "nobody imports a shell; move what is shared below both"
        if package in MAY_START_SHELLS:
            reason = "import a shell inside the function that runs it, so that other commands do not load it"
    else:
        reason = f"evenload.{package} may import {', '.join(sorted(allowed)) or 'no other package'}"
    yield Violation(item.line, item.name, reason)


def _seeded_only(item: Import, package: str) -> bool:
    """`random.Random(seed)` is deterministic: the simulator may make one; audited code is given it."""
    return package not in AUDITED and item.name in {"random", "random.Random"}


def _code_violations(tree: ast.Module, package: str) -> Iterator[Violation]:
    calls = CALLS_BANNED_IN_PURE | (CALLS_BANNED_IN_AUDITED if package in AUDITED else {})
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            name = ast.unparse(node.func)
            if name in calls:
                yield Violation(node.lineno, f"{name}()", calls[name])
            if name in {"Random", "random.Random"} and not node.args and not node.keywords:
                yield Violation(node.lineno, f"{name}()", CHANCE)
        elif isinstance(node, ast.Attribute) and ast.unparse(node.value) == "random" and node.attr != "Random":
            yield Violation(node.lineno, ast.unparse(node), CHANCE)
        elif isinstance(node, ast.AsyncFunctionDef | ast.Await):
            yield Violation(node.lineno, "async", CONCURRENCY)
        elif package in AUDITED and isinstance(node, ast.BinOp | ast.AugAssign) and isinstance(node.op, ast.Pow):
            yield Violation(node.lineno, "**", f"{LIBM}: write x * x")
