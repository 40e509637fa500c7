"""Compares a batch's counts with the pipeline's expectations."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from sluice.errors import ExpectationBroken
from sluice.plan import Expectation, Job
from sluice.values.phrases import counted


def require_expected(job: Job, counts: Mapping[str, int]) -> None:
    """Raise ExpectationBroken if a batch breaks an expectation with `on_breach="fail"`."""
    for expectation in _broken(job, counts):
        if expectation.fails:
            raise ExpectationBroken(
                f"{_detail(expectation, counts)} The expectation is at {expectation.at}.",
                next_step="Nothing from the batch was published. Correct the producer, or filter "
                "such records before expect(...), and run again; if the records are correct, raise "
                'at_most=, or write on_breach="warn".',
            )


def broken_expectations(job: Job, counts: Mapping[str, int]) -> str:
    """Describe the expectations that a batch breaks. Return an empty text if it breaks none."""
    return " ".join([_detail(expectation, counts) for expectation in _broken(job, counts)])


def _broken(job: Job, counts: Mapping[str, int]) -> Iterator[Expectation]:
    for expectation in job.expectations:
        most = expectation.at_most
        if isinstance(most, float):
            most *= counts.get(expectation.count_of_records, 0)
        if counts.get(expectation.count_of_broken, 0) > most:
            yield expectation


def _detail(expectation: Expectation, counts: Mapping[str, int]) -> str:
    broken = counts[expectation.count_of_broken]
    reached = counted(counts[expectation.count_of_records], "record")
    at_most = expectation.at_most
    limit = f"{at_most:,}"
    if isinstance(at_most, float):
        limit = f"{at_most:.2%} of them"
    name = expectation.condition
    if expectation.name != name:
        name = f"{expectation.name} ({name})"
    return f"{name} is not true for {broken:,} of {reached}; at_most allows {limit}."
