"""`python -m evenload.scorer`: a worker with the settings of `evenload.yaml` and the environment."""

import sys

from evenload.scorer.main import run
from evenload.settings import SettingsError, load_settings

if __name__ == "__main__":
    try:
        run(load_settings())
    except SettingsError as error:
        sys.exit(str(error))
