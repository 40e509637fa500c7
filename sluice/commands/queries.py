"""Asking stores from the command line."""

from __future__ import annotations

import typer

app = typer.Typer(no_args_is_help=True, help="Ask stores.")
