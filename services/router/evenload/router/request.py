"""What is sent upstream, and what is left of an attempt that gave the client nothing."""

import msgspec

from .classify import Verdict
from .headers import Headers
from .sse import SseObserver
from .sse_chat import ChatObserver


class Request(msgspec.Struct, frozen=True):
    """What is sent upstream, the same for each attempt.

    Attributes:
        stream: the client wants events.
        choices: how many answers it wants.
        observer: of the events that come.
        wants_object: a 2xx that is no stream has to be one JSON object.
        model: as the client named it.
        listed: the settings name it so, too.
    """

    path: bytes
    headers: Headers
    body: bytes
    stream: bool
    choices: int = 1
    observer: type[SseObserver] = ChatObserver
    wants_object: bool = False
    model: str = ""
    listed: bool = False


class Failure(msgspec.Struct, frozen=True):
    """An attempt that gave the client nothing.

    Attributes:
        verdict: what it means.
        instance: where it happened.
        status: of the upstream's error, 0 if there was none.
        headers: of it, filtered.
        body: of it, empty if there is none to pass on.
    """

    verdict: Verdict
    instance: str
    status: int = 0
    headers: Headers = []
    body: bytes = b""
