"""The one command, `evenload`. Start reading at `app.py`; each sub-command is a module in `commands/`."""
