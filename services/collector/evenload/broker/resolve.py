"""Child process: `python -m evenload.broker.resolve ENDPOINT` prints the resolved jars as one JSON line, the last one.

A process of its own, since jgo wants Java on PATH, prints notes of its own and takes a while to import.
"""

import json
import sys


def main(endpoint: str) -> int:
    """Resolve the endpoint (from jgo's cache when it is there); 3 when jgo is not installed, 1 on any other failure."""
    try:
        import jgo
    except ImportError as error:
        sys.stderr.write(f"{error}\n")
        return 3
    try:
        environment = jgo.build(endpoint=endpoint)
        jars = [str(path) for path in environment.all_jars]
    except Exception as error:  # jgo raises many types; the parent reports the text
        sys.stderr.write(f"{type(error).__name__}: {error}\n")
        return 1
    sys.stdout.write("\n" + json.dumps(jars) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
