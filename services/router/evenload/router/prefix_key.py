"""The key of beginnings: of a file that the routers share, else drawn at the start, for this process alone.

Nothing that all routers know anyhow, such as the topics' prefix, would do: who reads the decisions knows it as well.
"""

import secrets
from hashlib import blake2b
from pathlib import Path

from evenload.settings.problems import Problem, SettingsError

KEY_BYTES = 32
SECRET_BYTES_MIN, SECRET_BYTES_MAX = 16, 4096


def prefix_key(path: Path | None) -> bytes:
    """Return the key, 32 bytes.

    Args:
        path: file of the secret, 16 to 4,096 bytes of any kind; a line end after it is not part of it.

    Raises:
        SettingsError: it cannot be read, or is too short or too long.
    """
    if path is None:
        return secrets.token_bytes(KEY_BYTES)
    try:
        with path.open("rb") as file:
            secret = file.read(SECRET_BYTES_MAX + 3).rstrip(b"\r\n")
    except OSError as error:
        raise _problem(path, f"cannot be read: {error.strerror or error}") from error
    if not SECRET_BYTES_MIN <= len(secret) <= SECRET_BYTES_MAX:
        raise _problem(path, f"must hold a secret of {SECRET_BYTES_MIN} to {SECRET_BYTES_MAX} bytes")
    return blake2b(secret, digest_size=KEY_BYTES).digest()


def _problem(path: Path, reason: str) -> SettingsError:
    return SettingsError([Problem(str(path), "router.prefix_key_file", reason)])
