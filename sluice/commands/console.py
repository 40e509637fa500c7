"""What commands print, and how they fail."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import typer
from rich.console import Console

from sluice.errors import SluiceError

err = Console(stderr=True, highlight=False, emoji=False)
out = Console(highlight=False, emoji=False)


@contextmanager
def said() -> Iterator[None]:
    """Errors that are made for people end the command with their sentences, not with a traceback."""
    try:
        yield
    except SluiceError as error:
        show(error)
        raise typer.Exit(1) from None


def show(error: SluiceError) -> None:
    """Print what is wrong, and the next step."""
    err.print(f"[bold red]{type(error).title}:[/] ", end="")
    err.print(error.detail, markup=False, soft_wrap=True)
    if error.next_step:
        err.print(error.next_step, markup=False, soft_wrap=True)
