"""Which paths carry requests to instances, and what kind of API each one is.

A further endpoint is a line here. What distinguishes them: where the body names the model, what its events mean, in
which form errors are told, and whether its size says how much an engine has to read.
"""

from typing import Final

import msgspec

from evenload.api.errors import Form

from .model_name import ModelName, NameRewriter, OuterModelName
from .sse import SseObserver
from .sse_chat import ChatObserver
from .sse_media import MediaObserver
from .sse_messages import MessagesObserver
from .sse_responses import ResponsesObserver


class Endpoint(msgspec.Struct, frozen=True):
    """One kind of API.

    Attributes:
        name: for routing and records.
        observer: of its events.
        form: of errors.
        multipart: the body is a form with a field `model`, not JSON.
        reads: the body is a prompt that an engine has to read, so its bytes say how many tokens that is. Where not,
            a request counts as one token and nothing is learned from it.
        begins: engines keep how its prompts begin, and use that again for others that begin alike.
        gives_object: what is no stream is one JSON object; anything else in a 2xx is a failure.
        rewriter: of the model's name in answers.
        stored: its answers may be asked for in the background, to be fetched later.
    """

    name: str
    observer: type[SseObserver] = ChatObserver
    form: Form = "openai"
    multipart: bool = False
    reads: bool = True
    begins: bool = False
    gives_object: bool = False
    rewriter: type[NameRewriter] = ModelName
    stored: bool = False


def _plain(name: str) -> Endpoint:
    return Endpoint(name)


_COUNT_TOKENS = Endpoint(
    "messages/count_tokens", form="anthropic", reads=False, gives_object=True, rewriter=OuterModelName
)
_RERANK, _SCORE = _plain("rerank"), _plain("score")

ENDPOINTS: Final = {
    "/v1/chat/completions": Endpoint("chat/completions", begins=True, gives_object=True),
    "/v1/completions": Endpoint("completions", begins=True, gives_object=True),
    "/v1/embeddings": Endpoint("embeddings", gives_object=True),
    "/v1/responses": Endpoint(
        "responses", ResponsesObserver, begins=True, gives_object=True, rewriter=OuterModelName, stored=True
    ),
    "/v1/messages": Endpoint(
        "messages", MessagesObserver, "anthropic", begins=True, gives_object=True, rewriter=OuterModelName
    ),
    "/v1/messages/count_tokens": _COUNT_TOKENS,
    "/rerank": _RERANK,
    "/v1/rerank": _RERANK,
    "/v2/rerank": _RERANK,
    "/score": _SCORE,
    "/v1/score": _SCORE,
    "/pooling": _plain("pooling"),
    "/classify": _plain("classify"),
    "/tokenize": Endpoint("tokenize", reads=False),
    "/detokenize": Endpoint("detokenize", reads=False),
    "/v1/audio/transcriptions": Endpoint("audio/transcriptions", MediaObserver, multipart=True, reads=False),
    "/v1/audio/translations": Endpoint("audio/translations", MediaObserver, multipart=True, reads=False),
    "/v1/audio/speech": Endpoint("audio/speech", MediaObserver),
    "/v1/images/generations": Endpoint("images/generations", MediaObserver),
}
# Where the body is a form: the path alone decides, whatever the request says of its content.
FORMS: Final = frozenset(path.encode("ascii") for path, endpoint in ENDPOINTS.items() if endpoint.multipart)


def form_of(path: str, *, anthropic_client: bool = False) -> Form:
    """Return the form of errors about a path, known or not.

    Args:
        path: of the request.
        anthropic_client: it has a header `anthropic-version`; decides where the path does not.
    """
    if path.startswith("/v1/messages"):
        return "anthropic"
    return "anthropic" if anthropic_client and path not in ENDPOINTS else "openai"
