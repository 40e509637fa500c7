"""`sluice deploy`: tries a changed pipeline on all records before queries read its answers."""

from __future__ import annotations

from typing import Annotated

import typer

from sluice.commands.command_arguments import LOCAL, Master, PipelineName
from sluice.commands.console import errors_as_messages, out
from sluice.commands.pipeline_submission import load, submit
from sluice.errors import QueryError
from sluice.settings import settings

DIFFERS = 4
"""The status with which the command ends if answers differ."""


def deploy(
    pipeline: PipelineName,
    promote: Annotated[
        bool, typer.Option("--promote", help="Let queries read the built state.")
    ] = False,
    if_same: Annotated[
        bool,
        typer.Option("--if-same", help="Build, and promote at once if no answer differs."),
    ] = False,
    roll_back: Annotated[
        bool,
        typer.Option("--roll-back", help="Make the state before the last promotion current."),
    ] = False,
    drop: Annotated[bool, typer.Option("--drop", help="Remove the built state.")] = False,
    compare: Annotated[
        bool, typer.Option("--compare", help="Only compare the built state again.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only print what would be built.")
    ] = False,
    master: Master = LOCAL,
) -> None:
    """Build a changed pipeline's state beside the current one, and compare their answers.

    Runs and queries continue meanwhile. Exit with 4 if an answer differs; then promote the new
    state, or drop
    it. The command writes no output: a run writes the results of each record once, before or after
    the promotion. If the command is killed, repeat it.
    """
    chosen = [promote, if_same, roll_back, drop, compare, dry_run]
    with errors_as_messages():
        if sum(chosen) > 1:
            raise QueryError(
                "Choose one of --promote, --if-same, --roll-back, --drop, --compare, --dry-run."
            )
        if dry_run:
            _describe(pipeline)
            return
        if compare:
            raise typer.Exit(_report(pipeline))
        if not (promote or drop or roll_back):
            _require_readers(pipeline)
    if promote:
        submit(pipeline, master, "--promote")
    if drop:
        submit(pipeline, master, "--drop")
    if roll_back:
        submit(pipeline, master, "--roll-back")
    _submit(pipeline, master, "--replay")
    with errors_as_messages():
        status = _report(pipeline)
    if if_same and status == 0:
        submit(pipeline, master, "--promote")
    raise typer.Exit(status)


def _submit(pipeline: str, master: str, option: str) -> None:
    """Run the driver, and end the command only if the driver fails."""
    try:
        submit(pipeline, master, option)
    except typer.Exit as ended:
        if ended.exit_code:
            raise


def _report(pipeline: str) -> int:
    """Print how the generations differ. Return the status to exit with."""
    from sluice.operations.deployment import compare_generations
    from sluice.state.ledger.ledger import Ledger

    with Ledger.open(settings().ledger) as ledger, out.status("comparing"):
        deployment = compare_generations(ledger, pipeline)
    for line in deployment.lines():
        out.print(line, markup=False, soft_wrap=True)
    out.print(
        f"To let queries read it: sluice deploy {pipeline} --promote. "
        f"To remove it: sluice deploy {pipeline} --drop.",
        markup=False,
        soft_wrap=True,
    )
    return DIFFERS if deployment.differs else 0


def _require_readers(pipeline: str) -> None:
    """Raise BreaksReadersError if the change breaks what other pipelines read.

    The driver knows only the readers that have run. This function also finds readers in files.
    """
    from sluice.commands.readers_in_files import readers_in_files, require_readers
    from sluice.plan import plan
    from sluice.state.ledger.ledger import Ledger

    job = plan(load(pipeline)).job
    others = readers_in_files(settings().pipelines, job.pipeline)
    with Ledger.open(settings().ledger) as ledger:
        require_readers(settings(), ledger, job, others)


def _describe(pipeline: str) -> None:
    """Print what would be built, and how many records would be read."""
    from sluice.engine.run.check_without_spark import compare
    from sluice.plan import plan
    from sluice.state.ledger.ledger import Ledger

    job = plan(load(pipeline)).job
    with Ledger.open(settings().ledger) as ledger:
        compared = compare(job, settings(), ledger)
        current = ledger.generations.current(pipeline)
        newest = ledger.snapshots.latest(pipeline)
        if current is None or newest is None:
            raise QueryError(
                f"{pipeline} has published nothing yet, so there is nothing to compare with.",
                next_step=f"Run it: sluice run {pipeline}.",
            )
        records = 0
        for source in ledger.sources.get(current.ref):
            ends = newest.positions.get(source.topic, {})
            records += ends.get(str(source.partition), source.first) - source.first
        beside = [number for number in ledger.generations.numbers(pipeline)]
    for change in compared.changes:
        out.print(f"{change.weight.name.lower()}: {change}", markup=False, soft_wrap=True)
    if not compared.changes:
        out.print(
            "Nothing has changed: the steps, their expressions, and the code of the functions "
            "that stores and processors use are the same. The code of other functions is not "
            "compared.",
            markup=False,
            soft_wrap=True,
        )
    others = [str(number) for number in beside if number != current.generation]
    removed = f" Generation {', '.join(others)} would be removed." if others else ""
    out.print(
        f"A new generation would be built beside generation {current.generation}, from "
        f"{records:,} offsets up to snapshot {newest.id}, without output.{removed}",
        markup=False,
        soft_wrap=True,
    )
    _require_readers(pipeline)
    last = f"Nothing was changed. To build it and compare the answers: sluice deploy {pipeline}"
    out.print(last, markup=False, soft_wrap=True)
