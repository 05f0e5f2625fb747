"""Write the configuration reference: `python -m evenload.settings docs/configuration.md`."""

import argparse
from pathlib import Path

from evenload.settings.reference import reference

parser = argparse.ArgumentParser(prog="python -m evenload.settings", description="Write the configuration reference.")
parser.add_argument("file", type=Path, help="where to, usually docs/configuration.md")
parser.parse_args().file.write_text(reference(), encoding="utf-8")
