"""Whether an engine has loaded what it is to serve, by its `/v1/models`. Pure."""

from collections.abc import Collection

import msgspec


def listed(status: int, body: bytes, wanted: Collection[str]) -> bool | None:
    """Tell whether the answer lists a model, one of `wanted` if there are any.

    Returns:
        True or False as the list says; False for 503, which is how llama.cpp says that it loads; None when the answer
        says nothing, because the path is not there, needs a key or is not in OpenAI's form.
    """
    if status == 503:
        return False
    if status != 200:
        return None
    try:
        names = {model["id"] for model in msgspec.json.decode(body)["data"]}
    except (msgspec.DecodeError, RecursionError, TypeError, KeyError):
        return None
    return bool(names & set(wanted)) if wanted else bool(names)
