"""Bounds of the data plane, with their reasons."""

import msgspec


class Limits(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Sizes in bytes, times in seconds.

    Attributes:
        body_bytes_max: of a request; long prompts and images need megabytes.
        attempts_max: instances tried for one request.
        first_token_s: from sending to the first content of a stream; beyond it another instance is tried.
        answer_s: from sending to the first byte of an answer that is no stream; not retried.
        idle_s: between bytes. There is no total.
        hold_bytes_max: of a response, held back until it has been judged.
        error_body_bytes_max: of an upstream's error; a longer one is replaced by Evenload's own.
        back_off_s: mean wait before the same instance is asked again; doubles, with jitter from 0.5 to 1.5.
        back_off_s_max: of the wait; an instance that asks for more is not asked again.
    """

    body_bytes_max: int = 32 * 1024 * 1024
    attempts_max: int = 3
    first_token_s: float = 60.0
    answer_s: float = 600.0
    idle_s: float = 60.0
    hold_bytes_max: int = 64 * 1024
    error_body_bytes_max: int = 64 * 1024
    back_off_s: float = 0.1
    back_off_s_max: float = 1.0
