"""The health of the pipelines: `sluice status`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from sluice.commands.console import errors_as_messages, out, wide
from sluice.settings import settings

if TYPE_CHECKING:
    from sluice.state.ledger.ledger import Ledger


def status() -> None:
    """Print the health of each pipeline. Exit with status 1 if a file is broken, a run failed, or data are overdue."""
    from rich.table import Table
    from rich.text import Text

    from sluice.state.ledger.ledger import Ledger
    from sluice.topology import load_pipelines

    table = Table("pipeline", "status", "newest snapshot", box=None)
    problems: list[str] = []
    with errors_as_messages(), Ledger.open(settings().ledger) as ledger:
        loaded = load_pipelines(settings().pipelines)
        failures = [failure for failure in ledger.failures.all() if failure.kind != "file"]
        failed, broken = {failure.pipeline for failure in failures}, {file.name for file in loaded.broken}
        names = {pipeline.name for pipeline in loaded.pipelines} | broken | failed | {*ledger.jobs.pipelines()}
        for name in sorted(names):
            state = "broken" if name in broken else "failed" if name in failed else "ok"
            table.add_row(Text(name), Text(state, "green" if state == "ok" else "red"), _newest(ledger, name))
        problems += [str(file.error) for file in loaded.broken]
        problems += [
            f"{' / '.join(filter(None, (failure.pipeline, failure.job)))} "
            f"{'is overdue since' if failure.kind == 'overdue' else 'failed at'} {failure.at:%Y-%m-%d %H:%M:%S} UTC"
            f"{f', run {failure.run}' if failure.run else ''}: {failure.title}. {failure.detail}"
            for failure in failures
        ]
        wide.print(table)
    for problem in problems:
        out.print(f"✗ {problem}", markup=False, soft_wrap=True)
    raise typer.Exit(1 if problems else 0)


def _newest(ledger: Ledger, pipeline: str) -> str:
    snapshots = [
        snapshot
        for job in ledger.jobs.current(pipeline)
        if (snapshot := ledger.snapshots.latest(pipeline, job.job)) is not None
    ]
    if not snapshots:
        return "none"
    newest = max(snapshots, key=lambda snapshot: snapshot.published_at)
    return f"{newest.id}, {newest.published_at:%Y-%m-%d %H:%M:%S} UTC"
