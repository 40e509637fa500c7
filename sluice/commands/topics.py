"""Kafka topics from the command line: `sluice topics`, and `sluice dead-letters`."""

from __future__ import annotations

import heapq
import sys
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sluice.commands.console import Form, FormOption, errors_as_messages, out, print_rows, printable
from sluice.settings import settings

if TYPE_CHECKING:
    from confluent_kafka import Message

app = typer.Typer(no_args_is_help=True, help="Create, fill and read Kafka topics.")

Pipeline = Annotated[str, typer.Argument(help="The pipeline's name.", metavar="PIPELINE")]
TopicName = Annotated[str, typer.Argument(help="The topic's name.", metavar="TOPIC")]


@app.command()
def create(
    pipeline: Pipeline,
    partitions: Annotated[int, typer.Option(min=1, help="Partitions of each topic.")] = 1,
    replication: Annotated[int, typer.Option(min=0, help="Replicas of each partition; 0: the broker's default.")] = 0,
) -> None:
    """Create the missing topics that a pipeline reads and writes, including the topic for dead letters."""
    from sluice.plan import plan
    from sluice.topics import Topic, create_topics
    from sluice.topology import load_pipeline

    with errors_as_messages():
        definition = load_pipeline(settings().pipelines, pipeline)
        job = plan(definition).job
        names = dict.fromkeys((*job.topics, *job.outputs))
        topics = [Topic(name, partitions, replication) for name in names]
        topics.append(Topic(definition.dead_letters, 1, replication))
        created = create_topics(settings().kafka, topics)
        for topic in topics:
            out.print(f"{'created' if topic.name in created else 'exists '} {topic.name}", markup=False)


@app.command()
def write(topic: TopicName) -> None:
    """Send each line of standard input to a topic, as the value of a record without a key."""
    from sluice.topics import produce

    with errors_as_messages():
        lines = sys.stdin.read().splitlines()
        produce(settings().kafka, topic, ((None, line.encode(), 0) for line in lines))
        out.print(f"{len(lines)} records sent to {topic}", markup=False)


@app.command()
def read(topic: TopicName) -> None:
    """Print the values of a topic's committed records, one per line."""
    from sluice.topics import read_topic

    with errors_as_messages():
        for message in read_topic(settings().kafka, topic):
            out.print(printable((message.value() or b"").decode(errors="replace")), soft_wrap=True)


def dead_letters(
    pipeline: Pipeline,
    reason: Annotated[str, typer.Option(help="Only dead letters with this reason, such as contract.")] = "",
    limit: Annotated[int, typer.Option(min=1, help="Maximum number of dead letters.")] = 20,
    form: FormOption = Form.TABLE,
) -> None:
    """List a pipeline's newest dead letters: reason, position of the record, error, key and value."""
    from sluice.topics import read_topic
    from sluice.topology import load_pipeline

    with errors_as_messages():
        topic = load_pipeline(settings().pipelines, pipeline).dead_letters
        rows = (_row(message) for message in read_topic(settings().kafka, topic))
        matching = ((row["time"], number, row) for number, row in enumerate(rows) if reason in ("", row["reason"]))
        print_rows([row for *_, row in heapq.nlargest(limit, matching)], form)


def _row(message: Message) -> dict[str, Any]:
    from sluice.topics import text_headers

    headers = {name.removeprefix("sluice."): text for name, text in text_headers(message).items()}
    place = "/".join(headers.get(name, "-") for name in ("topic", "partition", "offset"))
    row = {
        "time": datetime.fromtimestamp(message.timestamp()[1] / 1_000, UTC).isoformat(timespec="milliseconds"),
        "reason": headers.get("reason", ""),
        "record": place,
        "error": headers.get("detail", ""),
        "step": headers.get("step"),
        "key": headers.get("key") or _decoded(message.key()),
        "value": _decoded(message.value()),
    }
    return {name: value for name, value in row.items() if value is not None}


def _decoded(content: bytes | str | None) -> str | None:
    return content.decode(errors="replace") if isinstance(content, bytes) else content
