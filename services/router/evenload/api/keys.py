"""Whose requests are served: client keys, of which only hashes are kept, each with an optional rate.

The file has one key a line, `NAME:SHA256[:RATE[:BURST]]`: a name for metrics, the hash in hex, requests per second and
how many may come at once (default: a second's worth). Empty lines and lines with # are skipped; `evenload keys new`
makes lines. Keys are 256 random bits, so a plain hash is enough; they are looked up by it, so what a timing tells is
about a hash that the caller cannot steer, and the last comparison takes constant time.

A rate is one process's: N replicas allow N times as much. It is a token bucket: https://en.wikipedia.org/wiki/Token_bucket
"""

import hashlib
import hmac
import math
import re
import secrets
from collections.abc import Iterable, Mapping
from pathlib import Path

from evenload.api.errors import ApiError
from evenload.settings.problems import Problem, SettingsError

PREFIX = "ev-"
FILE_BYTES_MAX = 16 * 1024 * 1024
RATE_MAX = 1_000_000.0
RATE_MIN = 1e-6  # one request in eleven days; of less, Retry-After would be no number of seconds
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_HASH = re.compile(r"[0-9a-f]{64}")


class Refused(Exception):
    """The request is not served; `error` is for the client."""

    def __init__(self, error: ApiError) -> None:
        super().__init__(error.code)
        self.error = error


class TokenBucket:
    """So many per second on average, up to `burst` at once; starts full."""

    __slots__ = ("_at_s", "_tokens", "burst", "rate_per_s")

    def __init__(self, rate_per_s: float, burst: float) -> None:
        self.rate_per_s = rate_per_s
        self.burst = burst
        self._tokens = burst
        self._at_s: float | None = None

    def take(self, now_s: float) -> float:
        """Take one; returns 0, or the seconds until there is one to take."""
        if self._at_s is not None:
            self._tokens = min(self.burst, self._tokens + (now_s - self._at_s) * self.rate_per_s)
        self._at_s = now_s
        if self._tokens >= 1.0:
            self._tokens -= 1.0
            return 0.0
        return (1.0 - self._tokens) / self.rate_per_s


class Key:
    """One client.

    Attributes:
        name: for people and metrics.
        digest: SHA-256 of the key.
        bucket: its rate; None for no limit.
        taken, limited: requests let pass and refused by the rate.
    """

    __slots__ = ("bucket", "digest", "limited", "name", "taken")

    def __init__(self, name: str, digest: bytes, bucket: TokenBucket | None = None) -> None:
        self.name = name
        self.digest = digest
        self.bucket = bucket
        self.taken = self.limited = 0

    def __repr__(self) -> str:
        return f"<Key {self.name}>"


class ClientKeys:
    """The keys in force.

    Attributes:
        unknown: requests refused for want of a key that is known.
    """

    def __init__(self, keys: Iterable[Key]) -> None:
        self._by_digest = {key.digest: key for key in keys}
        self.unknown = 0

    def __len__(self) -> int:
        return len(self._by_digest)

    @property
    def keys(self) -> list[Key]:
        """All of them, in the order of the file."""
        return list(self._by_digest.values())

    def identify(self, headers: Mapping[bytes, bytes]) -> Key:
        """Return the key that a request's headers carry, as a bearer token or as `x-api-key`.

        Raises:
            Refused: 401.
        """
        scheme, _, token = headers.get(b"authorization", b"").partition(b" ")
        presented = token.strip() if scheme.lower() == b"bearer" else headers.get(b"x-api-key", b"").strip()
        digest = hashlib.sha256(presented).digest()
        key = self._by_digest.get(digest)
        if key is None or not hmac.compare_digest(key.digest, digest):
            self.unknown += 1
            raise Refused(_UNKNOWN if presented else _MISSING)
        return key

    def admit(self, headers: Mapping[bytes, bytes], now_s: float) -> None:
        """Count a request against its key's rate.

        Raises:
            Refused: 401, or 429 with the time until the rate allows the next.
        """
        key = self.identify(headers)
        wait_s = key.bucket.take(now_s) if key.bucket is not None else 0.0
        if wait_s:
            key.limited += 1
            raise Refused(_too_fast(math.ceil(wait_s)))
        key.taken += 1

    def inherit(self, before: "ClientKeys") -> None:
        """Go on from the counts of those before, and from their buckets where the rate is still the same."""
        self.unknown = before.unknown
        old = {key.name: key for key in before.keys}
        for key in self.keys:
            was = old.get(key.name)
            if was is None:
                continue
            key.taken, key.limited = was.taken, was.limited
            if was.bucket and key.bucket and _rate(was.bucket) == _rate(key.bucket):
                key.bucket = was.bucket


def new_key(name: str, rate_per_s: float | None = None, burst: float | None = None) -> tuple[str, str]:
    """Make a key; returns it and its line for the file.

    Raises:
        ValueError: the name or the rate is none that the file may have.
    """
    secret = PREFIX + secrets.token_urlsafe(32)
    parts = [name, hashlib.sha256(secret.encode()).hexdigest()]
    parts += [f"{number:g}" for number in (rate_per_s, burst) if number is not None]
    if burst is not None and rate_per_s is None:
        raise ValueError("a burst needs a rate")
    line = ":".join(parts)
    _key(line)
    return secret, line


def read_keys(path: Path, setting: str = "router.keys_file") -> ClientKeys:
    """Read the file that a setting names.

    Raises:
        SettingsError: it cannot be read, has no key, or has lines that are none; names all of them.
    """
    try:
        with path.open("rb") as file:
            text = file.read(FILE_BYTES_MAX + 1).decode()
    except OSError as error:
        raise SettingsError([Problem(str(path), setting, f"cannot be read: {error.strerror or error}")]) from error
    except UnicodeDecodeError:
        raise SettingsError([Problem(str(path), setting, "is not UTF-8")]) from None
    if len(text) > FILE_BYTES_MAX:
        raise SettingsError([Problem(str(path), setting, f"is larger than {FILE_BYTES_MAX} bytes")])
    return ClientKeys(_parse(text, path, setting))


def _parse(text: str, path: Path, setting: str) -> list[Key]:
    keys: list[Key] = []
    problems: list[Problem] = []
    seen: dict[str | bytes, int] = {}
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        try:
            key = _key(line.strip())
            for unique in (key.name, key.digest):
                if unique in seen:
                    raise ValueError(f"has the name or the hash of line {seen[unique]}")
                seen[unique] = number
            keys.append(key)
        except ValueError as error:
            problems.append(Problem(f"{path}:{number}", setting, str(error)))
    if not keys and not problems:
        problems = [
            Problem(str(path), setting, "holds no key, so nobody could ask; `evenload keys new NAME` makes one")
        ]
    if problems:
        raise SettingsError(problems)
    return keys


def _key(line: str) -> Key:
    """Read a line; what it says is not repeated in errors, for somebody may have put a key there."""
    name, *rest = line.split(":")
    if not _NAME.fullmatch(name):
        raise ValueError("must begin with a name of letters, digits, `.`, `_` and `-`")
    if not rest or not _HASH.fullmatch(rest[0]):
        raise ValueError("needs 64 lower-case hex digits after the name, the SHA-256 of the key")
    if len(rest) > 3:
        raise ValueError("has more than NAME:SHA256:RATE:BURST")
    rate, burst = _number(rest[1:2], "rate", RATE_MIN), _number(rest[2:3], "burst", 1.0)
    digest = bytes.fromhex(rest[0])
    return Key(name, digest, None if rate is None else TokenBucket(rate, burst or max(1.0, rate)))


def _number(given: list[str], what: str, least: float) -> float | None:
    if not given:
        return None
    try:
        number = float(given[0])
    except ValueError:
        number = math.nan
    if not least <= number <= RATE_MAX:
        raise ValueError(f"has a {what} that is no number from {least:g} to {RATE_MAX:g}")
    return number


def _rate(bucket: TokenBucket) -> tuple[float, float]:
    return bucket.rate_per_s, bucket.burst


_HOW = "Send one as `Authorization: Bearer KEY` or `x-api-key: KEY`."
_MISSING = ApiError(status=401, code="invalid_api_key", message=f"The request carries no API key. {_HOW}")
_UNKNOWN = ApiError(status=401, code="invalid_api_key", message=f"The API key is not known here. {_HOW}")


def _too_fast(wait_s: int) -> ApiError:
    message = f"Requests come faster than this key's rate allows; ask again in {wait_s} s."
    return ApiError(status=429, code="rate_limited", message=message, retry_after_s=wait_s)
