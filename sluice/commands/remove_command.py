"""`sluice remove`: removes a pipeline that is no longer run."""

from __future__ import annotations

from typing import Annotated

import typer

from sluice.commands.activity_notes import note_activity
from sluice.commands.command_arguments import PipelineName
from sluice.commands.console import errors_as_messages, out
from sluice.commands.pipeline_submission import settings_of
from sluice.settings import settings


def remove(
    pipeline: PipelineName,
    yes: Annotated[
        bool,
        typer.Option("--yes", help="Remove it. Without --yes, only print what would be removed."),
    ] = False,
    keep_dead_letters: Annotated[
        bool, typer.Option("--keep-dead-letters", help="Keep the topics of dead letters.")
    ] = False,
) -> None:
    """Remove a pipeline for good: its stores, its history, and its own topics.

    Remove the pipeline's file first. What the pipeline has written to topics and tables stays. To
    keep the stores for queries: sluice retire.
    """
    from sluice.errors import Refused
    from sluice.operations.removal import find_removal, remove, require_removable
    from sluice.state.ledger.ledger import Ledger
    from sluice.topology.loading.pipeline_files import named_files

    with errors_as_messages():
        for name, file in named_files(settings().pipelines):
            if name == pipeline:
                raise Refused(
                    f"{file} still defines {pipeline}, so Airflow would run it again.",
                    next_step="Remove the file first.",
                )
        with Ledger.open(settings().ledger) as ledger:
            current = ledger.generations.current(pipeline)
        own = settings_of(pipeline, "" if current is None else current.file)
        if yes:
            removal = remove(own, pipeline, keep_dead_letters=keep_dead_letters)
            # The ledger has also forgotten the activities of a removed pipeline.
            if removal.renamed_to:
                note_activity(removal.renamed_to, "remove", f"the former name {pipeline}")
        else:
            with Ledger.open(settings().ledger) as ledger:
                removal = find_removal(ledger, own, pipeline, keep_dead_letters=keep_dead_letters)
                if not removal.renamed_to:
                    require_removable(ledger, pipeline)
        for line in removal.lines():
            out.print(line, markup=False, soft_wrap=True)
        last = f"Airflow keeps the history of the DAG. To delete it: airflow dags delete {pipeline}"
        if not yes:
            last = f"Nothing was changed. To remove it for good: sluice remove {pipeline} --yes"
        out.print(last, markup=False, soft_wrap=True)
