"""`sluice recover`: brings the ledger up to date after it was lost, or has lost its newest commits."""

from __future__ import annotations

from typing import Annotated

import typer

from sluice.commands.command_arguments import PipelineName
from sluice.commands.console import errors_as_messages, out
from sluice.commands.pipeline_submission import load
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
            help="If nothing can be recovered: remove what is left of the state. The next run then reads the topics "
            "from their beginning, and writes the output of all records again.",
        ),
    ] = False,
) -> None:
    """Bring the ledger up to date after it was lost, or has lost its newest commits. Reads no topics, writes no output.

    The markers in Kafka say which batch was written last, and the shards have its state.
    """
    from sluice.operations import recovery
    from sluice.plan import plan
    from sluice.state.ledger.ledger import Ledger

    with errors_as_messages():
        job = plan(load(pipeline)).job
        if anew:
            shards = recovery.forget(job, settings())
            out.print(
                f"{pipeline} begins anew: {counted(len(shards), 'shard')} removed. The next run reads all records, "
                "and writes their output again.",
                soft_wrap=True,
            )
            return
        if dry_run:
            with Ledger.open(settings().ledger) as ledger:
                found = recovery.find_recovery(ledger, job, settings())
        else:
            found = recovery.recover(job, settings())
        if found is None:
            out.print(
                f"{pipeline}: the ledger is up to date; there is nothing to recover", soft_wrap=True
            )
            return
        for line in found.lines():
            out.print(line, markup=False, soft_wrap=True)
        if dry_run:
            out.print(
                f"Nothing was changed. To recover it: sluice recover {pipeline}", soft_wrap=True
            )
