"""Budgets: the most that the runs of a pipeline, or of a team's pipelines, may cost a day."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated

import msgspec

_HOUR_S = 3_600.0
Hours = Annotated[float, msgspec.Meta(gt=0)]


class Budget(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Limits of the cost of runs per UTC day; above them, a warning appears. None: no limit."""

    cpu_hours_per_day: Hours | None = None
    gigabyte_hours_per_day: Hours | None = None
    """The memory of runs, times their duration."""

    def __str__(self) -> str:
        parts: list[str] = []
        if self.cpu_hours_per_day is not None:
            parts.append(f"{self.cpu_hours_per_day:g} CPU hours")
        if self.gigabyte_hours_per_day is not None:
            parts.append(f"{self.gigabyte_hours_per_day:g} GB hours")
        return f"{' and '.join(parts) or 'any amount'} a day"

    def exceeded(self, cpu_seconds: float, gigabyte_seconds: float) -> list[str]:
        """Return a clause for each part of the budget that has been exceeded."""
        amounts = (
            (cpu_seconds, self.cpu_hours_per_day, "CPU hours"),
            (gigabyte_seconds, self.gigabyte_hours_per_day, "GB hours"),
        )
        exceeded: list[str] = []
        for seconds, most, unit in amounts:
            if most is not None and seconds > most * _HOUR_S:
                exceeded.append(f"{seconds / _HOUR_S:.2f} {unit} of {most:g}")
        return exceeded


@dataclass(frozen=True)
class Allowance:
    """A budget, and the pipelines that share it."""

    budget: Budget
    whose: str
    """The owner of the budget, as a phrase for messages: `orders`, or `the pipelines of FOLDER`."""
    pipelines: frozenset[str] | None
    """The pipelines that share the budget; None for all pipelines of the ledger."""

    def includes(self, pipeline: str) -> bool:
        return self.pipelines is None or pipeline in self.pipelines


def clauses_of(allowances: Iterable[tuple[Allowance, float, float]]) -> list[str]:
    """Return a sentence for each allowance that has been exceeded.

    `allowances`: each allowance, with the CPU seconds and the gigabyte seconds used.
    """
    sentences: list[str] = []
    for allowance, cpu_seconds, gigabyte_seconds in allowances:
        exceeded = allowance.budget.exceeded(cpu_seconds, gigabyte_seconds)
        if exceeded:
            sentences.append(f"{allowance.whose} used {' and '.join(exceeded)} today.")
    return sentences
