"""`sluice dead-letters`: lists dead letters, and re-drives them after a fix."""

from __future__ import annotations

import sys
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sluice.commands.activity_notes import note_activity
from sluice.commands.command_arguments import PipelineName
from sluice.commands.console import Form, FormOption, err, errors_as_messages, out, print_rows
from sluice.commands.pipeline_submission import load, settings_of
from sluice.values.phrases import counted

if TYPE_CHECKING:
    from sluice.kafka.dead_letter_topic import DeadLetter, RedriveMarker

app = typer.Typer(no_args_is_help=True, help="List dead letters, and re-drive them after a fix.")

Reason = Annotated[str, typer.Option(help="Only dead letters with this reason, such as contract.")]
Since = Annotated[
    str,
    typer.Option(
        help="Only dead letters written at this time or later; a time without a zone is in UTC."
    ),
]
Partition = Annotated[
    int | None, typer.Option(min=0, help="Only dead letters of records from this partition.")
]

Key = Annotated[
    str | None,
    typer.Option(
        help="Only dead letters with this key: the record's key, or the key that the step received."
    ),
]


@app.command("list")
def list_dead_letters(
    pipeline: PipelineName,
    reason: Reason = "",
    since: Since = "",
    partition: Partition = None,
    key: Key = None,
    limit: Annotated[int, typer.Option(min=1, help="Maximum number of dead letters.")] = 20,
    form: FormOption = Form.TABLE,
) -> None:
    """List a pipeline's newest dead letters: reason, position, error, key and value of a record."""
    from sluice.kafka.dead_letter_topic import DeadLetterFilter, find_dead_letters

    with errors_as_messages():
        chosen = DeadLetterFilter(reason, _time(since), partition, key=key)
        matches = find_dead_letters(
            settings_of(pipeline).kafka, pipeline, chosen, limit, sys.maxsize
        )
        rows = [_row(letter, matches.marker(letter)) for letter in matches.letters]
        print_rows(rows, form)
        if not matches.complete:
            err.print(
                "The dead letters could not all be read in time: limit the search with --since."
            )


@app.command()
def redrive(
    pipeline: PipelineName,
    reason: Reason = "",
    since: Since = "",
    partition: Partition = None,
    key: Key = None,
    limit: Annotated[int, typer.Option(min=1, help="Maximum number of dead letters.")] = 10_000,
) -> None:
    """Write the records of dead letters to their source topics again, each only once.

    Without --reason, only records that could not be read are written. Any other record has already
    been processed by the steps before the failure, which would count it twice.
    """
    from sluice.kafka.dead_letter_topic import DeadLetterFilter
    from sluice.kafka.redrive import redrive as redrive_chosen
    from sluice.plan import plan

    with errors_as_messages():
        topics = plan(load(pipeline)).job.topics
        chosen = DeadLetterFilter(reason, _time(since), partition, key=key)
        outcome = redrive_chosen(settings_of(pipeline).kafka, pipeline, topics, chosen, limit)
        out.print(f"{outcome.redriven:,} re-driven")
        if outcome.redriven:
            note_activity(pipeline, "re-drive", counted(outcome.redriven, "record"))
        for why, count in sorted(outcome.skipped.items()):
            out.print(f"{count:,} left: {why}", markup=False)
        if outcome.more:
            out.print("There are more: run the command again.")


def _time(text: str) -> datetime | None:
    from sluice.query.time_texts import parse_time

    ms = parse_time("--since", text or None)
    if ms is None:
        return None
    # Kafka has no timestamps before 1970, so an earlier time selects all dead letters.
    return datetime.fromtimestamp(max(ms, 0) / 1_000, UTC)


def _row(letter: DeadLetter, marker: RedriveMarker | None) -> dict[str, Any]:
    position = [letter.header(name) or "-" for name in ("topic", "partition", "offset")]
    row: dict[str, Any] = {
        "time": letter.at.isoformat(timespec="milliseconds"),
        "reason": letter.reason,
        "record": "/".join(position),
        "error": letter.header("detail"),
    }
    if letter.header("step"):
        row["step"] = letter.header("step")
    if letter.history:
        row["failures"] = len(letter.history) + 1
    if marker:
        row["redriven"] = marker.at.isoformat(timespec="milliseconds")
    if letter.header("key"):
        row["key"] = letter.header("key")
    elif letter.key is not None:
        row["key"] = letter.key.decode(errors="replace")
    if letter.value is not None:
        row["value"] = letter.value.decode(errors="replace")
    return row
