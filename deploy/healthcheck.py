"""The containers' health check: exit code 0 if http://127.0.0.1:PORT/PATH answers 200. Standard library only.

healthcheck.py PORT PATH
"""

import http.client
import sys

TIMEOUT_S = 2.0


def problem(port: int, path: str) -> str | None:
    """Ask once; return what is wrong, or None."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=TIMEOUT_S)
    try:
        connection.request("GET", path)
        reply = connection.getresponse()
        text = reply.read(500).decode("utf-8", "replace").strip()
    except (OSError, http.client.HTTPException) as error:
        return f"no answer: {error!r}"
    finally:
        connection.close()
    return None if reply.status == 200 else f"{reply.status} {text}"


if __name__ == "__main__":
    found = problem(int(sys.argv[1]), sys.argv[2])
    sys.exit(found)
