"""`sluice pause` and `sluice resume`: keep a pipeline from running, and say why."""

from __future__ import annotations

from typing import Annotated

import typer

from sluice.commands.activity_notes import user_name
from sluice.commands.command_arguments import PipelineName
from sluice.commands.console import errors_as_messages, out
from sluice.errors import NotFound, QueryError
from sluice.settings import settings


def pause(
    pipeline: PipelineName,
    reason: Annotated[str, typer.Option(help="Why; shown on the page, in REST and in status.")],
) -> None:
    """Pause a pipeline: its runs do not start, and nothing counts as wrong with it.

    Its trigger, its schedule, Airflow's button and sluice run do not start a run. A run in progress
    ends when it has read all records. The state can be queried. A second pause replaces the reason.
    """
    from sluice.state.ledger.ledger import Ledger
    from sluice.state.ledger.pauses import LONGEST_REASON

    with errors_as_messages(), Ledger.open(settings().ledger) as ledger:
        reason = reason.strip()
        if not reason or len(reason) > LONGEST_REASON:
            raise QueryError(
                f"A pause needs a reason of at most {LONGEST_REASON} characters.",
                next_step='Write for example --reason "new prices on Monday".',
            )
        _require_known(ledger, pipeline)
        paused = ledger.pauses.pause(pipeline, reason, user_name())
        ledger.activities.add(pipeline, "pause", user_name(), reason)
        out.print(f"{pipeline} is {paused}", markup=False, soft_wrap=True)
        out.print(f"To let it run again: sluice resume {pipeline}", markup=False, soft_wrap=True)


def resume(pipeline: PipelineName) -> None:
    """Let a paused pipeline run again; unread records start a run at once."""
    from sluice.state.ledger.ledger import Ledger

    with errors_as_messages(), Ledger.open(settings().ledger) as ledger:
        paused = ledger.pauses.of(pipeline)
        if not ledger.pauses.resume(pipeline):
            _require_known(ledger, pipeline)
            out.print(f"{pipeline} was not paused", markup=False, soft_wrap=True)
            return
        ledger.activities.add(pipeline, "resume", user_name())
        was = "" if paused is None else f" It was {paused}"
        out.print(f"{pipeline} may run again.{was}", markup=False, soft_wrap=True)


def _require_known(ledger: object, pipeline: str) -> None:
    """Raise NotFound unless the pipeline has run, or a file defines it."""
    from sluice.state.ledger.ledger import Ledger
    from sluice.topology.loading.pipeline_files import named_files

    assert isinstance(ledger, Ledger)
    if ledger.generations.current_number(pipeline) is not None:
        return
    if any(name == pipeline for name, _ in named_files(settings().pipelines)):
        return
    raise NotFound(
        f"The ledger has no pipeline {pipeline!r}, and no file in {settings().pipelines} defines "
        "it.",
        next_step="Look for its name in: sluice status.",
    )
