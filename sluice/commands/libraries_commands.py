"""`sluice libraries`: the libraries that sluice.toml names for individual pipelines."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sluice.commands.console import errors_as_messages, out, say, show
from sluice.errors import SettingsError, SluiceError, TopologyError
from sluice.settings import settings
from sluice.values.phrases import counted

if TYPE_CHECKING:
    from sluice.provision.libraries import Libraries

app = typer.Typer(no_args_is_help=True, help="The libraries of single pipelines, on this host.")
_MB = 1_000_000


@app.command("build")
def build(
    pipeline: Annotated[
        str, typer.Argument(metavar="[PIPELINE]", help="The pipeline's name; default: all.")
    ] = "",
) -> None:
    """Install the libraries that sluice.toml names, unless they are installed on this host.

    A run does the same. Call this ahead of time, for example when an image is built.
    """
    with errors_as_messages():
        if pipeline:
            _require_known(pipeline)
        errors: list[SluiceError] = []
        wanted = [*_libraries(pipeline, errors)]
        of = f" for {pipeline}" if pipeline else ""
        if not wanted and not errors:
            out.print(f"No requirements in sluice.toml{of}.")
        failed: set[Path] = set()
        for name, libraries in wanted:
            if libraries.requirements in failed:
                continue
            # The mistake of one team must not keep other teams from their libraries.
            try:
                folder = libraries.build(say)
            except SluiceError as error:
                failed.add(libraries.requirements)
                errors.append(error)
                continue
            out.print(f"{name}: {folder}", markup=False, soft_wrap=True)
        for mistake in errors:
            show(mistake)
    if errors:
        raise typer.Exit(1)


@app.command("list")
def list_libraries() -> None:
    """List the installed libraries, and which pipelines use them."""
    from sluice.provision.libraries import installed

    with errors_as_messages():
        users: dict[str, list[str]] = {}
        errors: list[SluiceError] = []
        for name, libraries in _libraries("", errors):
            with suppress(SettingsError):
                users.setdefault(libraries.digest, []).append(name)
        for each in installed(settings().home):
            used_by = ", ".join(users.pop(each.digest, [])) or "no pipeline"
            size = f"{each.size / _MB:.1f} MB"
            used = f"used {each.unused_days:.0f} days ago"
            out.print(f"{each.digest}  {used_by}, {size}, {used}", markup=False, soft_wrap=True)
            for package in each.packages:
                out.print(f"  {package}", markup=False)
        for digest, names in users.items():
            out.print(f"{digest}  {', '.join(names)}, not installed", markup=False, soft_wrap=True)
        for error in errors:
            show(error)


@app.command("prune")
def prune(
    days: Annotated[
        int,
        typer.Option(min=0, help="Remove the libraries that no run has used for this many days."),
    ] = 30,
) -> None:
    """Remove libraries that no run has used for some time. No run may be using them."""
    from sluice.provision.libraries import remove_unused

    with errors_as_messages():
        removed = remove_unused(settings().home, days)
        for each in removed:
            out.print(f"removed {each.digest}", markup=False)
        out.print(f"{counted(len(removed), 'folder')} removed", markup=False)


def _libraries(only: str, errors: list[SluiceError]) -> Iterator[tuple[str, Libraries]]:
    """Yield the pipelines that have libraries, with their libraries.

    Add the errors of pipelines whose `sluice.toml` is refused to `errors`. No pipeline's file is
    imported, because that may need the libraries.
    """
    from sluice.topology.loading.run_options import run_options

    for name, file in _named_files():
        if only in ("", name):
            try:
                options = run_options(settings().pipelines, file, name)
            except SettingsError as error:
                errors.append(error)
                continue
            libraries = options.libraries(settings().home)
            if libraries is not None:
                yield name, libraries


def _require_known(pipeline: str) -> None:
    names = sorted(name for name, _ in _named_files())
    if pipeline not in names:
        raise TopologyError(
            f"There is no pipeline {pipeline!r} in {settings().pipelines}.",
            next_step=f"Known pipelines: {', '.join(names)}.",
        )


def _named_files() -> Iterator[tuple[str, Path]]:
    """Yield the names of all pipelines, with their files.

    If a file computes its pipeline's name, use the file's own name.
    """
    from sluice.topology.loading.declared_names import declared_names
    from sluice.topology.loading.pipeline_files import pipeline_files

    for file in pipeline_files(settings().pipelines):
        for name in declared_names(file) or (file.stem,):
            yield name, file
