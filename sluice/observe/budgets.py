"""Warns of pipelines, and of teams, whose runs of a day cost more than their budgets."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime

from sluice.errors import OverBudget, SluiceError
from sluice.settings import Settings
from sluice.values.budgets import Allowance, clauses_of


def note_budgets(configuration: Settings, pipeline: str, allowances: Sequence[Allowance]) -> None:
    """Record the failure `budget` if a budget of the pipeline is exceeded today; else clear it.

    An unreachable ledger does not affect the run.
    """
    # Imported only at the end of a run, because importing SQLAlchemy takes 0.2 seconds.
    from sluice.state.ledger.failures import Failure
    from sluice.state.ledger.ledger import Ledger

    with suppress(SluiceError, OSError), Ledger.open(configuration.ledger) as ledger:
        today = datetime.now(UTC).date()
        costs = ledger.finished_runs.costs(today)
        spent: list[tuple[Allowance, float, float]] = []
        for allowance in allowances:
            cpu_seconds = gigabyte_seconds = 0.0
            for cost in costs:
                if allowance.includes(cost.pipeline):
                    cpu_seconds += cost.cpu_seconds
                    gigabyte_seconds += cost.gigabyte_seconds
            spent.append((allowance, cpu_seconds, gigabyte_seconds))
        exceeded = clauses_of(spent)
        if exceeded:
            ledger.failures.keep(
                Failure.of(OverBudget(" ".join(exceeded)), pipeline, kind="budget")
            )
        else:
            ledger.failures.clear(pipeline, "budget")
