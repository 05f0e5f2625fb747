"""How an instance is asked: with its key, its headers and the authorities to trust, as requests to it are."""

import logging
import ssl
import time
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import NamedTuple

from evenload.settings import InstanceSettings, SettingsError
from evenload.settings.instance_keys import FileKey, FixedKey, Key
from evenload.settings.load import NoKey, key_of
from evenload.settings.problems import Problem
from evenload.settings.providers import auth_headers, read_key

log = logging.getLogger(__name__)


class Access(NamedTuple):
    """What is needed to ask one instance.

    Attributes:
        headers: lines for each request; a key in a file may change.
        tls: for https.
    """

    headers: Callable[[], Mapping[str, str]]
    tls: ssl.SSLContext | None = None


def access_of(instance: InstanceSettings, environ: Mapping[str, str]) -> Access:
    """Return how an instance is asked. A key that is missing is warned of: many engines want none for their metrics.

    Raises:
        SettingsError: `ca_file` cannot be used.
    """
    try:
        key = key_of(instance, environ)
    except NoKey as missing:
        log.warning("%s is asked without its key, which %s (%s)", instance.id, missing.reason, missing.source)
        key = None
    found: Key | None = None
    if key is not None:
        by_file = instance.api_key_file
        found = FixedKey(key) if by_file is None else FileKey(by_file, key, read_key, time.monotonic)

    def headers() -> Mapping[str, str]:
        if found is None:
            return instance.headers
        return {**instance.headers, **dict(auth_headers(instance.auth, found.current()))}

    return Access(headers, _trust(instance))


def _trust(instance: InstanceSettings) -> ssl.SSLContext | None:
    if instance.ca_file is None:
        return None
    try:
        return _context(instance.ca_file)
    except OSError as error:
        reason = f"instance {instance.id!r}: {error.strerror or error}"
        raise SettingsError([Problem(f"file {instance.ca_file}", "ca_file", reason)]) from error


@cache
def _context(path: Path) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=path)
