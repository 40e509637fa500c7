"""`sluice recover`: brings the ledger up to date after it, or its newest commits, were lost."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import typer

from sluice.commands.activity_notes import note_activity
from sluice.commands.command_arguments import PipelineName
from sluice.commands.console import errors_as_messages, out
from sluice.commands.pipeline_submission import load, settings_of
from sluice.settings import settings
from sluice.values.phrases import counted


def recover(
    pipeline: PipelineName,
    dry_run: Annotated[
        bool,
        typer.Option("--dry-run", help="Only say what would be recovered, lost and written again."),
    ] = False,
    anew: Annotated[
        bool,
        typer.Option(
            "--anew",
            help=(
                "If nothing can be recovered: remove what is left of the state. The next run then "
                "reads the topics from their beginning, and writes the output of all records again."
            ),
        ),
    ] = False,
) -> None:
    """Bring the ledger up to date after it, or its newest commits, were lost.

    Reads no topics, and writes no output.

    The markers in Kafka say which batch was written last, and the shards have its state.
    """
    from sluice.operations import recovery
    from sluice.plan import plan
    from sluice.state.ledger.ledger import Ledger

    with errors_as_messages():
        job = plan(load(pipeline)).job
        if anew:
            shards = recovery.forget(job, settings_of(pipeline), dry_run=dry_run)
            if not dry_run:
                note_activity(pipeline, "recover", "anew, without its state")
            _print_anew(pipeline, shards, is_done=not dry_run)
            return
        if dry_run:
            with Ledger.open(settings().ledger) as ledger:
                outcome = recovery.find_recovery(ledger, job, settings_of(pipeline))
        else:
            outcome = recovery.recover(job, settings_of(pipeline))
            note_activity(pipeline, "recover")
        if outcome is None:
            out.print(
                f"{pipeline}: the ledger is up to date; there is nothing to recover", soft_wrap=True
            )
            return
        for line in outcome.lines():
            out.print(line, markup=False, soft_wrap=True)
        if dry_run:
            out.print(
                f"Nothing was changed. To recover it: sluice recover {pipeline}", soft_wrap=True
            )


def _print_anew(pipeline: str, shards: Sequence[str], *, is_done: bool) -> None:
    """Print which shards were removed, or would be removed, and what the next run will do."""
    for shard in shards:
        out.print(
            f"{'Removed' if is_done else 'Would be removed'}: {shard}", markup=False, soft_wrap=True
        )
    next_run = "The next run reads all records, and writes their output again."
    removed = counted(len(shards), "shard")
    text = f"{pipeline} begins anew: {removed} removed. {next_run}"
    if not is_done:
        text = (
            f"Nothing was changed. To remove {removed} and begin anew: sluice recover {pipeline} "
            f"--anew. {next_run}"
        )
    out.print(text, markup=False, soft_wrap=True)
