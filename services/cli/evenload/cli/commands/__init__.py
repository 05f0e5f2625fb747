"""One module per sub-command, each with a typer `app`; imported only when it is called."""
