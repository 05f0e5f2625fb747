"""Whose fault a refusal is that its status leaves open: the credential's, the settings', or the content's.

Pure; docs/providers.md says where each word comes from. Words stand in `type` or `code`, lower case, without `_`, `-`,
`.` and spaces; a client's text never gets there. Phrases count only where a message begins, for a 4xx may echo input.
"""

from .error_fields import has_any

# Evenload's own credential is bad. No request of a client can bring these about: its credential never goes upstream.
_CREDENTIAL_WORDS = (
    "expiredtoken",  # AWS, as all up to optinrequired
    "unrecognizedclient",
    "invalidsignature",
    "signaturedoesnotmatch",
    "missingauthenticationtoken",
    "incompletesignature",
    "invalidclienttokenid",
    "requestexpired",
    "optinrequired",
)
# These only where a key was sent that is Evenload's: an engine may mean something else by them.
_KEY_WORDS = (
    "invalidapikey",  # OpenAI invalid_api_key, DashScope InvalidApiKey
    "incorrectapikey",
    "authenticationerror",
    "authenticationfailed",
    "authfailure",  # Tencent AuthFailure.*
    "notauthorized",
    "accountdeactivated",
)
_KEY_PHRASES = (
    "authentication failed",  # Bedrock, of a bearer key
    "the security token included in the request is",  # AWS, where only the message came
    "the request signature we calculated",
    "incorrect api key",
    "invalid api key",
    "access denied due to",  # Azure: a wrong key, or the resource's network rules
)
# The account may not do this. Where the client has chosen the model, that may be why.
_PERMISSION_WORDS = (
    "accessdenied",  # AWS, DashScope, Ark
    "permission",  # Anthropic permission_error, OpenAI insufficient_permissions
    "unauthorizedoperation",  # Tencent
)
_MODEL_WORDS = (
    "modelnotfound",  # OpenAI, DashScope
    "deploymentnotfound",  # Azure
    "modelnotopen",  # Ark
    "invalidendpointormodel",  # Ark
    "modelnotexist",
)
_MODEL_PHRASES = (
    "the provided model identifier is invalid",  # Bedrock
    "model not exist",  # DashScope
    "the api deployment for this resource does not exist",  # Azure
    "model: ",  # Anthropic, with 404
)
_CONTENT_WORDS = (
    "datainspectionfailed",  # DashScope
    "contentfilter",  # OpenAI, Azure
    "contentpolicyviolation",  # OpenAI
    "responsibleaipolicyviolation",  # Azure
    "moderationblocked",  # OpenAI, of pictures
    "sensitivecontentdetected",  # Ark, InputTextSensitiveContentDetected too
    "illegaldetected",  # Hunyuan TextIllegalDetected, ImageIllegalDetected
)


def is_credentials(status: int, words: str, message: str, *, own_key: bool, own_model: bool) -> bool:
    """Tell whether a 4xx says that Evenload's own credential is bad or lacks rights."""
    if status == 401 or (status in (400, 403) and has_any(words, _CREDENTIAL_WORDS)):
        return True
    if not own_key or status not in (400, 403):
        return False
    if has_any(words, _KEY_WORDS) or message.startswith(_KEY_PHRASES):
        return True
    return own_model and status == 403 and has_any(words, _PERMISSION_WORDS)


def is_model(status: int, words: str, message: str) -> bool:
    """Tell whether a 4xx says that there is no such model; whose fault that is, who has named it tells."""
    if status not in (400, 404):
        return False
    if has_any(words, _MODEL_WORDS):
        return True
    if status == 404 and "resourcenotfoundexception" in words:  # Bedrock
        return True
    if message.startswith(_MODEL_PHRASES):
        return status == 404 or not message.startswith("model: ")
    return status == 404 and message.startswith(("the model", "model")) and has_any(message[:300], _ABSENT)


_ABSENT = ("does not exist", "not found")


def is_content(words: str) -> bool:
    """Tell whether the provider's inspection has refused what was asked, or what was generated."""
    return has_any(words, _CONTENT_WORDS)


def status_of(words: str, *, own_key: bool) -> int | None:
    """Return the status that an error without a numeric code stands for, if it is one of these."""
    if has_any(words, _CREDENTIAL_WORDS) or (own_key and has_any(words, _KEY_WORDS + _PERMISSION_WORDS)):
        return 403
    return 404 if has_any(words, _MODEL_WORDS) else None
