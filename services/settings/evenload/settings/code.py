"""Which code computed a decision: a digest of the pure packages."""

import hashlib
from functools import cache
from importlib.resources import files

PURE_PACKAGES = ("evenload.schemas", "evenload.scoring", "evenload.routing")


@cache
def code_digest() -> str:
    """Return 12 hex digits that differ when a line of the pure packages differs."""
    whole = hashlib.sha256()
    for package in PURE_PACKAGES:
        sources = sorted((item for item in files(package).iterdir() if item.name.endswith(".py")), key=lambda f: f.name)
        for source in sources:
            whole.update(f"{package}/{source.name}\n".encode())
            whole.update(source.read_bytes())
    return whole.hexdigest()[:12]
