"""The golden bytes: files that are written once per change of the wire and never edited.

`golden/<set>/<name>.hex` holds the bytes of `samples.SAMPLES[name]` in hexadecimal, 64 bytes a line. A set is what some
release wrote. Every set must decode for ever; `encode` must give the bytes of the newest set.

To add a field: give it a default, leave the samples as they are, and see whether the bytes of the newest set still
come out. Where they do not (states, snapshots and decisions write their defaults), add a set, its name to `SETS`, and
the field with its default to the plain dicts of that set.
"""

from pathlib import Path

SETS = ("v1", "v1-predicted", "v1-tiers", "v1-prefix")  # oldest first
FOLDER = Path(__file__).parent / "golden"
_LINE_DIGITS = 128


def path_of(set_name: str, name: str) -> Path:
    """Return where the bytes of one sample lie."""
    return FOLDER / set_name / f"{name}.hex"


def read(set_name: str, name: str) -> bytes:
    """Return the golden bytes of one sample."""
    return bytes.fromhex(path_of(set_name, name).read_text())


def write(set_name: str, name: str, data: bytes) -> None:
    """Store the golden bytes of one sample; FileExistsError when they are there already."""
    digits = data.hex()
    lines = [digits[start : start + _LINE_DIGITS] for start in range(0, len(digits), _LINE_DIGITS)]
    path = path_of(set_name, name)
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("x") as file:
        file.write("\n".join(lines) + "\n")
