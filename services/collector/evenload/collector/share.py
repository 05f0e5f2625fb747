"""Who of several collectors polls which instance: rendezvous hashing, so nobody has to coordinate. Pure.

Each collector draws a number for each instance, the same wherever it is computed, and of those alive the highest has
the instance. When one goes, its instances spread over the others and no other instance moves (Thaler, Ravishankar:
"Using name-based mappings to increase hit rates", 1998). While views differ, for a second or so, an instance is polled
twice or not at all; twice does no harm, since gauges replace each other and readiness is stated again when the log
disagrees.
"""

from collections.abc import Collection
from hashlib import blake2b


def owner(instance: str, collectors: Collection[str]) -> str:
    """Return who of the collectors, at least one, polls the instance."""
    return max(collectors, key=lambda collector: (_draw(instance, collector), collector))


def _draw(instance: str, collector: str) -> bytes:
    # Names hold no zero byte, so no two pairs are hashed alike.
    return blake2b(f"{collector}\0{instance}".encode(), digest_size=8).digest()
