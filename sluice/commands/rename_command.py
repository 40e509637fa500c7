"""`sluice rename`: renames a pipeline, or its stores and steps, and keeps the state."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from sluice.commands.activity_notes import note_activity
from sluice.commands.command_arguments import PipelineName
from sluice.commands.console import errors_as_messages, out
from sluice.commands.pipeline_submission import settings_of
from sluice.errors import QueryError
from sluice.settings import settings

if TYPE_CHECKING:
    from sluice.state.ledger.renames import Kind

_PAIR = "OLD=NEW"


def rename(
    pipeline: PipelineName,
    new: Annotated[str, typer.Argument(metavar="[NEW]", help="The pipeline's new name.")] = "",
    store: Annotated[
        list[str] | None,
        typer.Option(metavar=_PAIR, help="Rename this store; may be repeated."),
    ] = None,
    step: Annotated[
        list[str] | None,
        typer.Option(metavar=_PAIR, help="Rename this step; may be repeated."),
    ] = None,
    yes: Annotated[
        bool, typer.Option("--yes", help="Rename it. Without --yes, only print what would change.")
    ] = False,
    undo: Annotated[
        bool,
        typer.Option("--undo", help="Go back to the old name, if the renaming was interrupted."),
    ] = False,
) -> None:
    """Rename a pipeline, or its stores and steps, and keep the state.

    Shards and the pipeline's own topics are copied, so no topic is read again. If the command is
    killed, repeat it. Rename first, and change the file then; to rename stores and steps, change
    the file first.
    """
    with errors_as_messages():
        parts = _pairs(store, step)
        if bool(new) == bool(parts) or (undo and not new):
            raise QueryError(
                "Pass either the pipeline's new name, or stores and steps to rename.",
                next_step=f"Write sluice rename {pipeline} NEW, or sluice rename {pipeline} "
                f"--store {_PAIR}.",
            )
        if new:
            _rename_pipeline(pipeline, new, yes=yes, undo=undo)
        else:
            _rename_parts(pipeline, parts, yes=yes)


def _pairs(stores: list[str] | None, steps: list[str] | None) -> dict[tuple[Kind, str], str]:
    names: dict[tuple[Kind, str], str] = {}
    given: tuple[tuple[Kind, list[str]], ...] = (("store", stores or []), ("step", steps or []))
    for kind, pairs in given:
        for pair in pairs:
            former, equals, name = pair.partition("=")
            if not (former and equals and name) or former == name:
                raise QueryError(
                    f"--{kind} {pair!r} is not {_PAIR}.",
                    next_step=f"Write for example --{kind} totals=totals_by_shop.",
                )
            names[kind, former] = name
    return names


def _rename_pipeline(pipeline: str, new: str, *, yes: bool, undo: bool) -> None:
    from sluice.operations.renaming import find_renaming, rename
    from sluice.operations.renaming import undo as go_back
    from sluice.state.ledger.ledger import Ledger
    from sluice.topology.pipeline import is_free_name

    own = settings_of(pipeline)
    if own.kafka == settings().kafka:
        # The file may have the new name already.
        own = settings_of(new)
    if undo:
        go_back(own, pipeline, new)
        out.print(f"{pipeline} keeps its name. The copies were removed.", markup=False)
        return
    if not is_free_name(new):
        raise QueryError(
            f"{new!r} is not a valid pipeline name.", next_step="Use letters, digits, '_', '-'."
        )
    if yes:
        renaming = rename(own, pipeline, new)
        note_activity(new, "rename", f"from {pipeline}")
    else:
        with Ledger.open(settings().ledger) as ledger:
            renaming = find_renaming(ledger, own, pipeline, new)
    for line in renaming.lines():
        out.print(line, markup=False, soft_wrap=True)
    out.print("" if yes else "Afterwards:", markup=False)
    for line in renaming.next_lines():
        out.print(line, markup=False, soft_wrap=True)
    if not yes:
        last = f"Nothing was changed. To rename it: sluice rename {pipeline} {new} --yes"
        out.print(last, markup=False, soft_wrap=True)


def _rename_parts(pipeline: str, names: dict[tuple[Kind, str], str], *, yes: bool) -> None:
    from sluice.commands.pipeline_submission import load
    from sluice.operations.renaming import rename_parts
    from sluice.plan import plan

    job = plan(load(pipeline)).job
    for line in rename_parts(job, settings_of(pipeline), names, only_look=not yes):
        out.print(line, markup=False, soft_wrap=True)
    if not yes:
        out.print("Nothing was changed. To rename: add --yes.", markup=False, soft_wrap=True)
        return
    pairs = [f"{kind} {former} to {name}" for (kind, former), name in names.items()]
    note_activity(pipeline, "rename", ", ".join(pairs))
