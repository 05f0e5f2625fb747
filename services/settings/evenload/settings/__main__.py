"""Write the configuration reference: `python -m evenload.settings docs/configuration.md`."""

import sys
from pathlib import Path

from evenload.settings.reference import reference

Path(sys.argv[1]).write_text(reference(), encoding="utf-8")
