"""How an exchange with an upstream can fail; named by what had happened by then, because that decides about retries."""


class UpstreamError(Exception):
    """Base of all failures of an exchange with an upstream.

    Attributes:
        cause: short stable code of the reason; never holds an address or text of the upstream.
    """

    def __init__(self, cause: str) -> None:
        super().__init__(cause)
        self.cause = cause


class ConnectFailed(UpstreamError):
    """No connection could be made: no live server has got anything of this request.

    `cause` is one of refused, connect_timeout, dns, tls, unreachable.
    """


class UpstreamReset(UpstreamError):
    """The connection was lost after the request was written and before the response was complete.

    Attributes:
        sent_any_response: whether at least one byte of the response had arrived.
    """

    def __init__(self, cause: str, *, sent_any_response: bool) -> None:
        super().__init__(cause)
        self.sent_any_response = sent_any_response


class BadResponse(UpstreamError):
    """What arrived is not an HTTP/1.1 response, or is over a limit."""
