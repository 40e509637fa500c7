"""`sluice init`: creates a project from the files in `template/`."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer

import sluice
from sluice.commands.console import errors_as_messages, out
from sluice.errors import SettingsError

_TEMPLATE = Path(__file__).with_name("template")


def init(folder: Annotated[Path, typer.Argument(help="The new project's folder.")]) -> None:
    """Create a project: a pipeline, its test, and the files that Airflow loads."""
    with errors_as_messages():
        for file in create(folder):
            out.print(f"created {file}", markup=False, soft_wrap=True)
        out.print(
            f"Next: cd {shlex.quote(str(folder))}, and follow README.md.",
            markup=False,
            soft_wrap=True,
        )


def create(folder: Path) -> list[Path]:
    """Write the project's files, and return them.

    Raises SettingsError if the folder is not empty or not writable.
    """
    try:
        is_free = not folder.exists()
        if folder.is_dir():
            is_free = not any(folder.iterdir())
    except OSError as error:
        raise SettingsError(
            f"Cannot read {folder}: {error.strerror}.", next_step="Choose another folder."
        ) from None
    if not is_free:
        raise SettingsError(f"{folder} exists and is not empty.", next_step="Choose a new folder.")
    words = {"PROJECT": folder.absolute().name, "VERSION": sluice.__version__}
    created = []
    for source in sorted(_TEMPLATE.rglob("*")):
        # Skip compiled files, which tests of the template leave behind.
        if source.is_dir() or source.suffix == ".pyc":
            continue
        file = folder / source.relative_to(_TEMPLATE)
        # The template's .gitignore has no dot, because packaging tools omit files whose names begin
        # with a dot.
        if file.name == "gitignore":
            file = file.with_name(".gitignore")
        text = source.read_text()
        for word, meaning in words.items():
            text = text.replace(word, meaning)
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)
        except OSError as error:
            raise SettingsError(
                f"Cannot create {file}: {error.strerror}.",
                next_step="Choose a folder that you may write to.",
            ) from None
        created.append(file)
    return created
