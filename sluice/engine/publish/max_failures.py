"""Decides from a batch's rejected records whether the pipeline rather than the records is wrong.

If a step fails for most records, then the step is wrong. If most records cannot even be read, then
their producer or the contract is wrong, and a result without them would be misleading. Such a batch
ends the run if it has at least `LEAST_REJECTED` rejected records. A batch with fewer rejected
records is published, and the pipeline is degraded until a batch has hardly any rejected records.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa

from sluice.engine.batch.record_outcomes import PASSED_OVER, Outcome
from sluice.errors import RecordsRejected
from sluice.plan import Job, Step
from sluice.values.dead_letter_headers import FIRST
from sluice.values.phrases import counted

FAILED = "failed/"
"""Prefix of the counts, per step name, of records for which the step failed."""
_REJECTED = ("dead_letter/", "dropped/")
"""Prefixes of the counts, per reason, of records that could not be read."""
_NOT_REJECTED = {
    outcome.count for outcome in (*PASSED_OVER.values(), Outcome.REJECTED, Outcome.SKIPPED)
}
"""Counts that begin like the counts of unreadable records, but count records that operators
ignored, as in Kafka Streams, or for which a step failed."""

LEAST_REJECTED = 100
"""If the limit is a share, fewer rejected records than this never end a run, even if all records of
the batch are rejected. A run often reads only a few records, and a single wrong record must not
stop the pipeline."""
_NOTABLE = 10
_NOTABLE_SHARE = 0.05
"""A pipeline is degraded if a batch has at least `_NOTABLE` rejected records, and more than this
share is rejected."""
_MOST_REASONS = 5


@dataclass(frozen=True)
class Limit:
    """How many records of a batch may be rejected: a number, or a share of the records read."""

    most: float

    def is_exceeded(self, count: int, read: int) -> bool:
        """Return whether `count` of `read` records are too many."""
        if isinstance(self.most, int):
            return count > self.most
        return count >= LEAST_REJECTED and count > self.most * read

    def __str__(self) -> str:
        if isinstance(self.most, int):
            return f"{self.most:,} records of a batch"
        return f"{self.most:.0%} of a batch"


def require_few_failures(
    job: Job,
    counts: Mapping[str, int],
    dead_letters: Sequence[pa.Table],
) -> None:
    """Raise RecordsRejected if too many of a batch's records could not be read or failed in a step.

    The error quotes some of the batch's `dead_letters`.
    """
    read = counts.get("read", 0)
    limit, rejected = Limit(job.pipeline.max_rejected), _rejected(counts)
    if limit.is_exceeded(sum(rejected.values()), read):
        raise RecordsRejected(
            f"{sum(rejected.values()):,} of the {read:,} records that were read were rejected; "
            f"`max_rejected` allows {limit}. {_reasons(rejected, dead_letters)}.",
            next_step="Nothing from the batch was published. Correct the contract or the "
            "producer and run again; if such records are expected, raise the pipeline's "
            "`max_rejected`.",
        )
    limit = Limit(job.pipeline.max_failures)
    for name, failed in counts.items():
        if name.startswith(FAILED) and limit.is_exceeded(failed, read):
            step = job.step_named(name.removeprefix(FAILED))
            example = _example_of(step, dead_letters)
            raise RecordsRejected(
                f"{step or name.removeprefix(FAILED)} failed for {failed:,} of the {read:,} "
                "records that were read; `max_failures` allows "
                f"{limit}.{example and f' The first error: {example}.'}",
                next_step="Nothing from the batch was published. Correct the step and run again; "
                "if such failures are expected, raise the pipeline's `max_failures`.",
            )


def notable_rejections(counts: Mapping[str, int], dead_letters: Iterable[pa.Table]) -> str:
    """Describe a batch's rejected records, with an example for each reason.

    Return an empty text if there are only few.
    """
    rejected = _rejected(counts)
    for name, failed in counts.items():
        if name.startswith(FAILED):
            rejected["processing"] = rejected.get("processing", 0) + failed
        elif name.startswith("unwritten/"):
            rejected["not written"] = rejected.get("not written", 0) + failed
    number, read = sum(rejected.values()), counts.get("read", 0)
    if number < _NOTABLE or number <= _NOTABLE_SHARE * read:
        return ""
    of_batch = f"{counted(number, 'record')} of the newest batch's {read:,}"
    return f"{of_batch} were rejected. {_reasons(rejected, dead_letters)}."


def _rejected(counts: Mapping[str, int]) -> dict[str, int]:
    """Return each reason → the number of records that could not be read."""
    rejected: dict[str, int] = {}
    for name, count in counts.items():
        if name.startswith(_REJECTED) and name not in _NOT_REJECTED:
            reason = name.partition("/")[2]
            rejected[reason] = rejected.get(reason, 0) + count
    return rejected


def _reasons(rejected: Mapping[str, int], dead_letters: Iterable[pa.Table]) -> str:
    """Return the most frequent reasons, each with its number of records and an example."""
    frequent = sorted(rejected.items(), key=lambda of_reason: -of_reason[1])[:_MOST_REASONS]
    examples = _examples([reason for reason, _ in frequent], dead_letters)
    texts: list[str] = []
    for reason, count in frequent:
        text = f"{reason}: {count:,}"
        example = examples.get(reason)
        if example:
            text += f", for example {example.rstrip('.')}"
        texts.append(text)
    return "; ".join(texts)


def _examples(reasons: Collection[str], dead_letters: Iterable[pa.Table]) -> dict[str, str]:
    """Return each reason → the error of a record that was rejected for this reason."""
    examples: dict[str, str] = {}
    for headers in _headers(dead_letters):
        reason = headers.get(FIRST, "")
        if reason in reasons and reason not in examples:
            examples[reason] = headers.get("sluice.detail", "")
            # Stop once each reason has an example: a batch may have millions of dead letters.
            if len(examples) == len(reasons):
                break
    return examples


def _example_of(step: Step | None, dead_letters: Iterable[pa.Table]) -> str:
    if step is None:
        return ""
    for headers in _headers(dead_letters):
        if (headers.get("sluice.step"), headers.get("sluice.at")) == (step.title, step.at):
            return headers.get("sluice.detail", "")
    return ""


def _headers(dead_letters: Iterable[pa.Table]) -> Iterable[dict[str, str]]:
    """Yield the headers of each dead letter."""
    for table in dead_letters:
        for headers in table.column("headers"):
            texts: dict[str, str] = {}
            for header in headers.as_py() or ():
                texts[header["key"]] = (header["value"] or b"").decode(errors="replace")
            yield texts
