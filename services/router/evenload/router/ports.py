"""What the data plane needs from the routing side. It knows nothing of views, scores, policies or Kafka."""

from typing import Protocol

import msgspec

from evenload.schemas.telemetry import OutcomeKind

from .admission import Gate
from .beginnings import Beginnings
from .limits import Limits
from .upstream import Upstream


class Ask(msgspec.Struct, frozen=True):
    """A request as routing sees it; nothing of its text.

    Attributes:
        request_id: the client's or a made one, at most 128 plain characters.
        model: as the client named it.
        prompt_tokens: estimated; 1 where no prompt has to be read.
        stream: whether the client wants server-sent events.
        endpoint: name in the table of `endpoints.py`, "chat/completions" for instance.
        max_tokens: the client's limit of the answer, None if it gave none.
        beginning: keyed hash of how the prompt begins (`beginnings.py`), 0 for none.
    """

    request_id: str
    model: str
    prompt_tokens: int
    stream: bool
    endpoint: str
    max_tokens: int | None = None
    beginning: int = 0


class Lease(Protocol):
    """A booking of one instance for one attempt."""

    instance: str
    upstream: Upstream
    attempt: int
    expected_ms: float | None  # TTFT, where enough is known to predict one

    def first_token(self, ttft_ms: float) -> None:
        """The first content token arrived `ttft_ms` after the attempt was sent. Called at most once, before finish."""

    def finish(
        self,
        kind: OutcomeKind,
        *,
        status: int,
        cause: str,
        retry_after_ms: float | None,
        ttft_ms: float | None,
        duration_ms: float,
        output_tokens: int,
    ) -> None:
        """Release the booking. The data plane calls it exactly once; an implementation ignores later calls."""


class NoInstance(Exception):
    """There is nobody to send the request to.

    Attributes:
        status: HTTP status for the client: 404 unknown model, 429 or 503 otherwise.
        code: stable code in the error body.
        message: says what to do.
        retry_after_s: whole seconds, None if unknown.
    """

    def __init__(self, status: int, code: str, message: str, retry_after_s: int | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.message = message
        self.retry_after_s = retry_after_s


class Service(Protocol):
    """What serves a model.

    Attributes:
        limits: sizes and times of its requests; None for the proxy's own.
        gate: bounds them; None for no bound of its own.
        models: what the settings call them; `*` for any.
        renames: whether answers name the model as the client did, instead of as the upstream does.
    """

    @property
    def models(self) -> tuple[str, ...]: ...  # noqa: D102 - above

    @property
    def limits(self) -> Limits | None: ...  # noqa: D102 - above

    @property
    def gate(self) -> Gate | None: ...  # noqa: D102

    @property
    def renames(self) -> bool: ...  # noqa: D102

    @property
    def beginnings(self) -> Beginnings | None:
        """What hashes how prompts begin; None where nobody wants to know."""

    def estimate_tokens(self, prompt_bytes: int) -> int:
        """Estimate prompt tokens from the size of the prompt."""

    def learn_tokens(self, prompt_bytes: int, prompt_tokens: int) -> None:
        """Learn from what an engine counted."""


class Dispatcher(Protocol):
    """Chooses and books."""

    def service(self, model: str) -> Service | None:
        """Return what serves a model; None if nobody does, as `choose` will say."""

    def choose(self, request: Ask, tried: tuple[str, ...], attempt: int) -> Lease:
        """Choose an instance and book it, in one synchronous step.

        Args:
            request: what is to be served.
            tried: instances of earlier attempts, oldest first. Prefer others; one of these may be returned when no
                other is usable, and the data plane then backs off before it sends.
            attempt: 0 for the first.

        Raises:
            NoInstance: nobody can serve it.
        """

    def may_retry(self, model: str) -> bool:
        """Take one retry from the budget of the pool that serves a model; False if it is used up."""

    def retry_after_s(self, model: str) -> int | None:
        """Return when the first instance of the model has cooled down, rounded up; None if one does not cool."""

    def models(self) -> list[str]:
        """Names that `choose` knows."""
