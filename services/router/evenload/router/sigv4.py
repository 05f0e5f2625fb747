"""Signing requests with AWS credentials (Signature Version 4), by botocore; it comes with the extra `bedrock`.

Credentials are found as AWS' own tools find them: variables, profile, web identity, container or instance role. Those
that expire are fetched again in a thread, well before they do, so that no request waits for that. A signature costs
some 0.2 ms and a SHA-256 of the body.
"""

import asyncio
import logging
from typing import Any

from .headers import Headers

log = logging.getLogger(__name__)

REFRESH_EVERY_S = 60.0  # botocore fetches new ones some 15 minutes before the old ones expire


class Unavailable(Exception):
    """Requests cannot be signed; the message says what to do."""


class Signer:
    """Signs requests to one service in one region.

    Args:
        region: as in the endpoint's name.
        service: name under which AWS knows it, `bedrock` for the runtime.

    Raises:
        Unavailable: botocore is not installed, or finds no credentials.
    """

    def __init__(self, region: str, service: str) -> None:
        try:
            from botocore.auth import SigV4Auth
            from botocore.awsrequest import AWSRequest
            from botocore.session import get_session
        except ImportError:
            raise Unavailable("auth sigv4 needs botocore: pip install 'evenload[bedrock]'") from None
        credentials = get_session().get_credentials()
        if credentials is None:
            raise Unavailable("auth sigv4 finds no AWS credentials: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY")
        self._credentials: Any = credentials
        self._frozen: Any = credentials.get_frozen_credentials()
        self._request_of, self._auth_of = AWSRequest, SigV4Auth
        self._region, self._service = region, service
        self._refreshed_at_s: float | None = None
        self._refreshing: asyncio.Future[Any] | None = None

    def __repr__(self) -> str:
        return f"Signer({self._service}, {self._region})"

    def signed(self, method: str, url: str, headers: Headers, body: bytes) -> Headers:
        """Return the headers that authenticate a request.

        Args:
            method: of HTTP.
            url: as it is sent, with host and query.
            headers: signed with it; they must reach AWS unchanged.
            body: of which the signature has the hash.
        """
        self._refresh_in_time()
        plain = {name.decode("ascii"): value.decode("ascii") for name, value in headers}
        request = self._request_of(method=method, url=url, data=body, headers=plain)
        self._auth_of(self._frozen, self._service, self._region).add_auth(request)
        return [
            (name.lower().encode(), value.encode())
            for name, value in request.headers.items()
            if name.lower() in ("authorization", "x-amz-date", "x-amz-security-token", "x-amz-content-sha256")
        ]

    def _refresh_in_time(self) -> None:
        loop = asyncio.get_running_loop()
        now_s = loop.time()
        if self._refreshed_at_s is None:
            self._refreshed_at_s = now_s
        if self._refreshing is None and now_s - self._refreshed_at_s >= REFRESH_EVERY_S:
            self._refreshed_at_s = now_s
            self._refreshing = loop.run_in_executor(None, self._credentials.get_frozen_credentials)
            self._refreshing.add_done_callback(self._refreshed)

    def _refreshed(self, done: "asyncio.Future[Any]") -> None:
        self._refreshing = None
        if done.cancelled():
            return
        error = done.exception()
        if error is not None:
            log.warning("AWS credentials could not be fetched again (%s); the last ones stay", type(error).__name__)
        else:
            self._frozen = done.result()
