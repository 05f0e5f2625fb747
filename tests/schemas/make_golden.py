"""Write the golden bytes of a set that does not exist yet: `python -m tests.schemas.make_golden SET`.

Existing files are never overwritten (FileExistsError): they are what a release wrote. See `golden.py`.
"""

import sys

from evenload.schemas import encode
from tests.schemas import golden
from tests.schemas.samples import SAMPLES


def main(set_name: str) -> None:
    """Write every sample of today's code as set `set_name`."""
    for name, sample in SAMPLES.items():
        golden.write(set_name, name, encode(sample.message))


if __name__ == "__main__":
    main(sys.argv[1])
