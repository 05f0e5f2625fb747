"""What providers call a limit, and how long it lasts. Pure; docs/providers.md says where each word comes from.

| lasts                                        | cause            | until                                             |
|----------------------------------------------|------------------|---------------------------------------------------|
| short: a rate, refilled within a minute      | `rate_limit`     | what it asks for, else some seconds               |
| long: money, or a quota that time alone does | `provider_quota` | what it asks for, else `scoring.cooling_ms_cap`   |
|   not bring back                             |                  |                                                   |

Words stand in `type` or `code`, lower case, without `_`, `-`, `.` and spaces; a client's text never gets there. Phrases
stand in messages, lower case.
"""

LONG_QUOTA_MS = 3_600_000.0  # the most that `scoring.cooling_ms_cap` may be: the cap decides

LONG_WORDS = (
    "insufficientquota",  # OpenAI, Azure: no credit left
    "quotaexceeded",  # Ark: free trial used up; Bedrock ServiceQuotaExceededException
    "billinghardlimit",  # OpenAI
    "insufficientbalance",
    "freetieronly",  # DashScope AllocationQuota.FreeTierOnly
    "arrear",  # DashScope Arrearage; Hunyuan ServiceStopArrears, InArrears
    "overdue",  # Ark AccountOverdueError, OperationDenied.ServiceOverdue; DashScope PrepaidBillOverdue
    "commoditynotpurchased",  # DashScope
    "setlimitexceeded",  # Ark: the limit that the account has set itself
    "resourcepackexhausted",  # Hunyuan, the free one too
    "chargeresourceexhaust",  # Hunyuan
    "lowbalance",  # Hunyuan
    "servicestop",  # Hunyuan
    "stopusing",  # Hunyuan
)
SHORT_WORDS = (
    "ratelimit",  # OpenAI rate_limit_exceeded, Ark RateLimitExceeded.*, Azure RateLimitReached
    "throttling",  # DashScope Throttling.*, Bedrock ThrottlingException
    "allocationquota",  # DashScope: tokens per minute, in spite of its name
    "limitrequests",  # DashScope, compatible mode
    "limitburstrate",  # DashScope, compatible mode
    "requestbursttoofast",  # Ark
    "inflightbatchsize",  # Ark
    "limitexceeded",  # Hunyuan LimitExceeded, RequestLimitExceeded, EngineServerLimitExceeded
    "toomanyrequestsexception",
    "resourceexhausted",
)
BUSY_WORDS = (
    "serveroverloaded",  # Ark: the service, not the account
    "engineoverloaded",
    "overloadederror",
    "nocapacity",  # Azure
    "modelnotready",  # Bedrock: it is being loaded
)
# With a 503 these say as much, and there only: a service says of itself that it has too much to do.
LOAD_WORDS = (
    "throttl",  # AWS ThrottlingException
    "capacity",
    "slowdown",  # OpenAI slow_down
    "overloaded",
    "serviceunavailableexception",  # Bedrock
)
LOAD_PHRASES = ("being throttled", "capacity limits")  # DashScope
LONG_PHRASES = (
    "you exceeded your current quota",
    "your credit balance is too low",
    "insufficient balance",
    "you have reached your specified api usage limits",
    "quota exceeded",
    "too many tokens per day",  # Bedrock
    "out of call volume quota",  # Azure's API gateway
)
SHORT_PHRASES = (
    "requests per min",
    "tokens per min",
    "requests per day",
    "tokens per day",
    "too many tokens",
    "too many requests, please wait",  # Bedrock, where only a header has the type
    "token rate limit",  # Azure
    "call rate limit",  # Azure
    "rate limit is exceeded",  # Azure
)
# These say of a minute's tokens what others say of an empty account.
SHORT_AT = {"qwen": ("insufficientquota",)}
# Hunyuan tells of its limits with a 400, elsewhere a code that ends so is about the client's text.
SHORT_AT_400 = {"hunyuan": ("limitexceeded",)}


def long_by_word(words: str, provider: str) -> bool:
    """Tell whether type or code name a quota that time alone does not bring back."""
    short_here = SHORT_AT.get(provider, ())
    return any(word in words and word not in short_here for word in LONG_WORDS)


def short_by_word(words: str, provider: str) -> bool:
    """Tell whether type or code name a rate."""
    return any(word in words for word in (*SHORT_AT.get(provider, ()), *SHORT_WORDS))
