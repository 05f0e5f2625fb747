"""Ports of the loopback address."""

import random
import socket

# Below the range that kernels take outgoing connections from: there, a client that retries while the broker is down
# can be given the broker's own port (it then connects to itself), and the broker could not come back.
_LOW, _HIGH = 20_000, 32_000
_TRIES_MAX = 200


def is_free(host: str, port: int) -> bool:
    """Whether a server could listen there now."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError:
            return False
    return True


def choose_free(host: str, *, besides: int = 0) -> int:
    """A free port that is not `besides`.

    Raises:
        OSError: none of a few hundred was free.
    """
    draw = random.SystemRandom()
    for _ in range(_TRIES_MAX):
        port = draw.randrange(_LOW, _HIGH)
        if port != besides and is_free(host, port):
            return port
    raise OSError(f"no free port found on {host} from {_LOW} to {_HIGH}")
