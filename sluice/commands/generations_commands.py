"""`sluice generations`: builds, promotes or drops a generation beside the current generation."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from sluice.commands.command_arguments import LOCAL, FromTopics, Master, PipelineName
from sluice.commands.console import Form, errors_as_messages, print_rows
from sluice.commands.pipeline_submission import submit
from sluice.settings import settings

if TYPE_CHECKING:
    from sluice.answers import Generation

app = typer.Typer(
    no_args_is_help=True,
    help=(
        "Rebuild a pipeline's state in a new generation, compare it with the current one, and "
        "promote or drop it."
    ),
)


@app.command("list")
def list_generations(pipeline: PipelineName) -> None:
    """List the generations of a pipeline's state; queries read the current generation."""
    from sluice.observe import monitoring
    from sluice.state.ledger.generations import unknown_pipeline
    from sluice.state.ledger.ledger import Ledger

    with errors_as_messages(), Ledger.open(settings().ledger) as ledger:
        rows = [_row(generation) for generation in monitoring.generations(ledger, pipeline)]
        if not rows:
            raise unknown_pipeline(pipeline)
        print_rows(rows, Form.TABLE)


def _row(generation: Generation) -> dict[str, Any]:
    state, topology = "current", ""
    if not generation.current:
        state = "built beside it"
        topology = "the same" if generation.same_topology else "changed"
    snapshot, published = None, None
    if generation.snapshot is not None:
        snapshot = generation.snapshot.id
        published = f"{generation.snapshot.published_at:%Y-%m-%d %H:%M:%S} UTC"
    return {
        "generation": generation.generation,
        "state": state,
        "snapshot": snapshot,
        "published": published,
        "topology": topology,
    }


@app.command()
def replay(
    pipeline: PipelineName,
    begin: Annotated[
        str,
        typer.Option(
            "--from",
            metavar="POINT",
            help=(
                "Where to begin to read the streams: beginning, a time, or "
                "TOPIC/PARTITION/OFFSET,...; default: where the current generation began."
            ),
        ),
    ] = "",
    until: Annotated[
        str,
        typer.Option(
            metavar="POINT",
            help=(
                "Where to end: a time or TOPIC/PARTITION/OFFSET,...; default: the newest snapshot."
            ),
        ),
    ] = "",
    from_topics: FromTopics = False,
    master: Master = LOCAL,
) -> None:
    """Build the state again from the topics in a new generation, beside the current generation.

    A time selects records by their timestamps in Kafka; it is in UTC if it has no zone. Tables are
    always read from their beginning. To compare a store in both generations: sluice query diff
    STORE --before 1.newest --after 2.newest.
    """
    from sluice.values.replay_span import Span

    with errors_as_messages():
        # An invalid point is reported before Spark starts.
        Span.parse(begin, until)
    options = ["--replay"]
    if begin:
        options.append(f"--from={begin}")
    if until:
        options.append(f"--until={until}")
    if from_topics:
        options.append("--from-topics")
    submit(pipeline, master, *options)


@app.command()
def promote(pipeline: PipelineName, master: Master = LOCAL) -> None:
    """Make the generation of a replay current, once it has caught up with the published batches."""
    submit(pipeline, master, "--promote")


@app.command()
def drop(pipeline: PipelineName, master: Master = LOCAL) -> None:
    """Remove the generation that a replay has built."""
    submit(pipeline, master, "--drop")
