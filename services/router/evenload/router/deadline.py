"""The client's own deadline: a header that says how long the whole request may take, counted from its arrival.

It bounds everything: the queue, the first token, the whole answer. When it passes, nobody is to blame: a caller in a
hurry must not cool an instance for all others. Envoy's `x-envoy-upstream-rq-timeout-ms` is between proxies, and the
`x-stainless-*` headers of OpenAI's clients are statistics; so neither is taken for a wish of the caller's.
"""

HEADER = b"x-request-timeout-ms"
ARRIVED_S = "evenload.arrived_s"  # in the scope, where a head has waited for those before it: its time, the loop's
MILLISECONDS_MAX = 86_400_000
CODE = "deadline_exceeded"
MESSAGE = f"The deadline that the request set ({HEADER.decode()}) has passed. Give it more time, or ask for less."
# A retry takes at least a connection and a prefill; with less than this left it could only waste an engine's time.
RETRY_REST_S_MIN = 0.05


def seconds_of(value: bytes) -> float:
    """Return the time that the header's value gives, seconds.

    Raises:
        ValueError: it is not a whole number of milliseconds from 1 to a day; the text is for the client.
    """
    value = value.strip(b" \t")
    if value.isdigit() and len(value) <= 9 and 0 < (milliseconds := int(value)) <= MILLISECONDS_MAX:
        return milliseconds / 1000.0
    raise ValueError(f"The header {HEADER.decode()} must be whole milliseconds from 1 to {MILLISECONDS_MAX}.")
