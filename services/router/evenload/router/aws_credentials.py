"""AWS credentials, found as AWS' own tools find them: variables, profile, web identity, container or instance role.

A process has one set of them. They are looked for once, which takes from 30 ms to seconds, and those that expire are
fetched again in a thread. botocore does that some 15 minutes before the end, and what it has just handed out is good
for 10: whoever asks later than `TRUSTED_S` after that, as after a night without requests, waits for new ones, the event
loop does not.
"""

import asyncio
import logging
import math
from collections.abc import Callable
from typing import Any

log = logging.getLogger(__name__)

REFRESH_EVERY_S = 60.0
RETRY_S = 5.0  # after a failure
TRUSTED_S = 540.0


class Unavailable(Exception):
    """Requests cannot be signed; the message says what to do."""


def found() -> Any:
    """Find credentials by botocore, and fetch them; blocks.

    Raises:
        Unavailable: botocore is not installed, there are no credentials, or they cannot be had.
    """
    try:
        import botocore.auth
        import botocore.awsrequest  # noqa: F401 - what signing will need, so that it is there
        from botocore.exceptions import BotoCoreError
        from botocore.session import get_session
    except ImportError:
        raise Unavailable("auth sigv4 needs botocore: pip install 'evenload[bedrock]'") from None
    try:
        source = get_session().get_credentials()
        if source is not None:
            source.get_frozen_credentials()
    except BotoCoreError as error:
        raise Unavailable(f"auth sigv4 cannot get AWS credentials: {error}") from None
    if source is None:
        raise Unavailable("auth sigv4 finds no AWS credentials: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY")
    return source


class AwsCredentials:
    """See the module docstring.

    Args:
        find: returns botocore's `Credentials`.
    """

    def __init__(self, find: Callable[[], Any] = found) -> None:
        self._find = find
        self._source: Any = None
        self._frozen: Any = None
        self._refreshing: asyncio.Future[Any] | None = None
        self._next_s = -math.inf  # when they are to be asked for again
        self._trusted_until_s = -math.inf

    def __repr__(self) -> str:
        return f"AwsCredentials({'none' if self._source is None else 'found'})"

    def load(self) -> None:
        """Find them, unless they have been found; blocks, so in a running event loop it is for a thread.

        Raises:
            Unavailable: there are none.
        """
        if self._source is None:
            source = self._find()
            self._frozen = source.get_frozen_credentials()
            self._source = source

    async def current(self) -> Any:
        """Return them as they are now, botocore's `ReadOnlyCredentials`; they have been loaded."""
        assert self._source is not None, "load comes first"
        loop = asyncio.get_running_loop()
        now_s = loop.time()
        if self._refreshing is None and now_s >= self._next_s:
            self._next_s = now_s + REFRESH_EVERY_S
            self._refreshing = loop.run_in_executor(None, self._source.get_frozen_credentials)
            self._refreshing.add_done_callback(self._refreshed)
        if self._refreshing is not None and now_s >= self._trusted_until_s:
            await asyncio.wait((self._refreshing,))  # who is interrupted leaves it to the others
        return self._frozen

    def _refreshed(self, done: "asyncio.Future[Any]") -> None:
        self._refreshing = None
        if done.cancelled():
            return
        now_s = done.get_loop().time()
        error = done.exception()
        if error is not None:
            self._next_s = now_s + RETRY_S
            log.warning("AWS credentials could not be fetched again (%s); the last ones stay", type(error).__name__)
        else:
            self._frozen = done.result()
            self._trusted_until_s = now_s + TRUSTED_S
