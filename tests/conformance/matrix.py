"""Makes the table of docs/conformance.md from the JSON files of runs: `python -m tests.conformance.matrix FOLDER FILE`.

What stands between the two marks in FILE is replaced. Rows are the checks in the order of the files and of their lines;
columns are the proxies in the order of `peers.NAMES`. Nothing in the table is written by hand.
"""

import ast
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .peers import NAMES

BEGIN = "<!-- matrix: made by python -m tests.conformance.matrix -->"
END = "<!-- end of matrix -->"
FILES = ("passing", "before_content", "after_content", "load", "leaving", "http", "api", "stopping")
# What names of functions cannot say.
WORDS = (
    ("apis", "API's"), ("clients error", "client's error"), ("clients credential", "client's credential"),
    ("clients request", "client's request"), ("http 1 0", "HTTP/1.0"), ("http", "HTTP"), ("json", "JSON"),
    ("errors of clients", "client errors"), ("hop by hop", "hop-by-hop"), ("mebibytes", "MiB"), ("two MiB", "2 MiB"),
)  # fmt: skip
SIGNS = {"passed": "yes", "failed": "**no**", "skipped": "–"}
HERE = Path(__file__).parent


def checks() -> list[tuple[str, list[str]]]:
    """Return each file's title and its checks, as `file::name`."""
    found = []
    for name in FILES:
        tree = ast.parse((HERE / f"test_{name}.py").read_text(encoding="utf-8"))
        tests = [node.name for node in tree.body if isinstance(node, ast.AsyncFunctionDef)]
        names = [f"test_{name}::{test}" for test in tests if test.startswith("test_")]
        found.append((ast.get_docstring(tree) or "", names))
    return found


def table(runs: Sequence[dict[str, Any]]) -> list[str]:
    """Return the lines of the table, then what was seen where a check failed."""
    present = [run for run in runs if not run["absent"]]
    lines = ["| check | " + " | ".join(run["title"] for run in present) + " |", "|---" + "|:-:" * len(present) + "|"]
    seen: dict[str, list[str]] = {run["title"]: [] for run in present}
    for title, names in checks():
        lines.append(f"| **{title}** |" + " |" * len(present))
        for name in names:
            text = text_of(name)
            results = [_result(run, name) for run in present]
            lines.append(f"| {text} | " + " | ".join(SIGNS[outcome] for outcome, _ in results) + " |")
            for run, (outcome, detail) in zip(present, results, strict=True):
                if outcome != "passed":
                    seen[run["title"]].append(f"- {text}: {detail}")
    total = sum(len(names) for _, names in checks())
    held = [str(total - len(seen[run["title"]])) for run in present]
    lines.append(f"| **of {total} checks hold** | " + " | ".join(held) + " |")
    lines += [f"\nNot in the table: {run['absent']}" for run in runs if run["absent"]]
    lines.append("\nWhat was seen where a check does not hold:")
    for title, found in seen.items():
        lines += [f"\n{title}:\n", *(found or ["- nothing"])]
    return lines


def text_of(name: str) -> str:
    """Return a check as the table says it."""
    text = name.partition("::test_")[2].replace("_", " ")
    for word, better in WORDS:
        text = text.replace(word, better)
    return text


def _result(run: dict[str, Any], name: str) -> tuple[str, str]:
    """Return the outcome and detail of a check: of one with parameters, that of the first that does not hold."""
    found = [value for key, value in run["checks"].items() if key.partition("[")[0] == name]
    if not found:
        raise SystemExit(f"{run['name']}: no result of {name}; run all checks")
    worst = next((one for one in found if one["outcome"] != "passed"), found[0])
    return worst["outcome"], _plain(worst["detail"])


def _plain(detail: str) -> str:
    """Keep Markdown out of what was seen."""
    return f"`{detail.replace('`', '')}`" if detail else ""


def main(folder: Path, file: Path) -> None:
    """Rewrite the table in a file."""
    runs = [json.loads((folder / f"{name}.json").read_text(encoding="utf-8")) for name in NAMES]
    text = file.read_text(encoding="utf-8")
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end):
        raise SystemExit(f"{file}: the marks {BEGIN!r} and {END!r} are not there")
    file.write_text(f"{before}{BEGIN}\n" + "\n".join(table(runs)) + f"\n{END}{after}", encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
