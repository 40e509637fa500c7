"""Output of commands: rows and errors."""

from __future__ import annotations

import csv
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from decimal import Decimal
from enum import StrEnum
from functools import cached_property, partial
from itertools import chain
from typing import TYPE_CHECKING, Annotated, Any, get_args

import msgspec
import typer
from typer.core import TyperGroup

from sluice.errors import PreflightError, SluiceError
from sluice.settings import masked

if TYPE_CHECKING:
    from rich.console import Console
    from rich.status import Status
    from rich.text import Text


class Output:
    """A console of Rich, which takes 20 ms to import and is imported when it is first used."""

    def __init__(self, **options: Any) -> None:
        self._options = options

    @cached_property
    def console(self) -> Console:
        from rich.console import Console

        # By default, Rich colors numbers, and shows a text such as :heart: in a key as an emoji.
        return Console(highlight=False, emoji=False, **self._options)

    def print(self, *parts: Any, **how: Any) -> None:
        """Print the parts, as `Console.print` does."""
        self.console.print(*parts, **how)

    def status(self, text: str) -> Status:
        """Show a text in a terminal during a block."""
        return self.console.status(text)


err = Output(stderr=True)
out = Output()
wide = Output(width=1_000_000)
"""The console for tables. It prints them at their full width, so that nothing is cut in a narrow
terminal or in a pipe."""

# Writes a Decimal as a number. By default, msgspec would write it as text.
_ENCODER = msgspec.json.Encoder(decimal_format="number")


class Form(StrEnum):
    """An output format of the commands."""

    TABLE = "table"
    JSON = "json"
    CSV = "csv"


FormOption = Annotated[Form, typer.Option("--format", help="The output format.")]


@contextmanager
def errors_as_messages() -> Iterator[None]:
    """Print a SluiceError as a message without a traceback, and end the command with status 1."""
    try:
        yield
    except SluiceError as error:
        show(error)
        raise typer.Exit(1) from None


def say(line: str) -> None:
    """Print a line of progress to standard error."""
    err.print(line, markup=False, soft_wrap=True)


def show(error: SluiceError) -> None:
    """Print an error and its next step."""
    err.print(f"[bold red]{type(error).title}:[/] ", end="")
    err.print(masked(error.detail), markup=False, soft_wrap=True)
    if error.next_step:
        err.print(masked(error.next_step), markup=False, soft_wrap=True)


class Commands(TyperGroup):
    """The group of all commands. The commands accept numbers only in plain digits.

    If a command needs a package that is not installed, the error names the extra to install.
    """

    def get_params(self, ctx: Any) -> list[Any]:
        parameters = super().get_params(ctx)
        _prepare(parameters)
        return parameters

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        command = super().get_command(ctx, cmd_name)
        if command is not None:
            _prepare_all(command, ctx)
        return command

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except ModuleNotFoundError as error:
            package = (error.name or "").partition(".")[0]
            if package in ("", "sluice"):
                # A module of Sluice itself is missing: a mistake in Sluice, which the user cannot
                # correct.
                raise
            extra = "client" if package == "httpx" else "spark"
            missing = PreflightError(
                f"This command needs the package {package}, which is not installed.",
                next_step=f"Run: pip install 'sluice-streams[{extra}]'",
            )
            show(missing)
            raise typer.Exit(1) from None


_KINDS = {"integer": int, "integer range": int, "float": float, "float range": float}
"""Click's name of a type → the type."""
_NUMBER = re.compile(r"-?[0-9]+(\.[0-9]+)?")


class _AsGiven:
    """Accepts any text or flag. Typer's parameter type would import pydantic in 35 ms."""

    @staticmethod
    def coerce(value: Any, **_: Any) -> Any:
        return value


def _prepare_all(command: Any, ctx: Any) -> None:
    """Prepare the parameters of a command, or of a group and its commands."""
    _prepare(command.get_params(ctx))
    for inner in getattr(command, "commands", {}).values():
        _prepare_all(inner, ctx)


def _prepare(parameters: Iterable[Any]) -> None:
    """Make parameters refuse numbers such as `1_000` and ` 5 `, which typer accepts.

    Parameters that are texts or flags accept any value, without typer's slow checks.
    """
    for parameter in parameters:
        described = getattr(parameter, "type_descriptor", None)
        if described is None:
            # Before typer 0.27, parameters have types of click, which does not import pydantic.
            kind = _KINDS.get(parameter.type.name)
        else:
            kind = described.annotation
        if {int, float} & {kind, *get_args(kind)}:
            parameter.process_value = partial(_number, parameter, parameter.process_value)
        elif described is not None and kind in (str, bool):
            parameter.get_runtime_param = _AsGiven


def _number(parameter: Any, process: Callable[[Any, Any], Any], ctx: Any, value: Any) -> Any:
    if isinstance(value, str) and not _NUMBER.fullmatch(value):
        raise typer.BadParameter(f"{value!r} is not a number.", ctx=ctx, param=parameter)
    return process(ctx, value)


def print_rows(rows: list[dict[str, Any]], form: Form) -> None:
    """Print rows, with a column for each name that occurs in a row."""
    if form is Form.TABLE:
        _print_table(rows)
    elif form is Form.CSV:
        _print_csv(rows)
    else:
        print_json(rows)


def print_json(value: Any) -> None:
    """Print a value as one line of JSON."""
    out.print(_ENCODER.encode(value).decode(), markup=False, soft_wrap=True)


def printable(text: str) -> Text:
    """Return the text without control characters, and never interpreted as markup."""
    from rich.text import Text

    letters = list(text)
    for position, letter in enumerate(letters):
        # Control characters in a record could change what the terminal shows.
        if not letter.isprintable():
            letters[position] = "�"
    return Text("".join(letters))


def _print_csv(rows: list[dict[str, Any]]) -> None:
    writer = csv.DictWriter(sys.stdout, _columns(rows))
    writer.writeheader()
    for row in rows:
        writer.writerow({name: _text(value) for name, value in row.items()})


def _print_table(rows: list[dict[str, Any]]) -> None:
    from rich.table import Table

    table = Table(box=None)
    names = _columns(rows)
    for name in names:
        is_number = all(isinstance(row.get(name), int | Decimal | None) for row in rows)
        table.add_column(printable(name), justify="right" if is_number else "left", no_wrap=True)
    for row in rows:
        cells = [printable(_text(row.get(name))) for name in names]
        table.add_row(*cells)
    wide.print(table)


def _columns(rows: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return the names that occur in rows, in the order in which they occur first."""
    return list(dict.fromkeys(chain.from_iterable(rows)))


def _text(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    return _ENCODER.encode(value).decode()
