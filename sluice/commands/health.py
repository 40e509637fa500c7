"""How the pipelines are, as the command line says it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from sluice.commands.console import out, said
from sluice.settings import settings

if TYPE_CHECKING:
    from sluice.state.ledger.ledger import Ledger


def status() -> None:
    """Say how each pipeline is; 1 if a file cannot be loaded, or if the last run of a job failed."""
    from rich.table import Table
    from rich.text import Text

    from sluice.state.ledger.ledger import Ledger
    from sluice.topology import load_pipelines

    table = Table("pipeline", "status", "newest snapshot", box=None)
    wrong: list[str] = []
    with said(), Ledger.open(settings().ledger) as ledger:
        loaded = load_pipelines(settings().pipelines)
        failures = [one for one in ledger.failures.all() if one.kind == "run"]
        failed, broken = {one.pipeline for one in failures}, {one.name for one in loaded.broken}
        for name in sorted({one.name for one in loaded.pipelines} | broken | failed | {*ledger.jobs.pipelines()}):
            state = "broken" if name in broken else "failed" if name in failed else "ok"
            table.add_row(Text(name), Text(state, "green" if state == "ok" else "red"), _newest(ledger, name))
        wrong += [f"{one.error}" for one in loaded.broken]
        wrong += [
            f"{' / '.join(filter(None, (one.pipeline, one.job)))} failed at {one.at:%Y-%m-%d %H:%M:%S} UTC"
            f"{f', run {one.run}' if one.run else ''}: {one.title}. {one.detail}"
            for one in failures
        ]
        out.print(table)
    for sentence in wrong:
        out.print(f"✗ {sentence}", markup=False, soft_wrap=True)
    raise typer.Exit(1 if wrong else 0)


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
