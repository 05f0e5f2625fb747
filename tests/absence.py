"""What a test needs and the machine lacks: here the test is skipped and says so; CI has it all, so there it fails."""

import os
from typing import NoReturn

import pytest


def lacking(what: str) -> NoReturn:
    """End the test that needs `what`."""
    if os.environ.get("CI"):
        pytest.fail(f"needs {what}")
    pytest.skip(f"needs {what}")
