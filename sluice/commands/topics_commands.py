"""`sluice topics`: creates, fills and reads Kafka topics, and accepts topics that were deleted."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from sluice.commands.activity_notes import note_activity
from sluice.commands.command_arguments import PipelineName
from sluice.commands.console import errors_as_messages, out, printable
from sluice.commands.pipeline_submission import load, settings_of
from sluice.errors import SettingsError
from sluice.settings import settings
from sluice.values.phrases import counted

if TYPE_CHECKING:
    from sluice.kafka.topics import Topic
    from sluice.topology import Pipeline

app = typer.Typer(no_args_is_help=True, help="Create, fill and read Kafka topics.")

TopicName = Annotated[str, typer.Argument(help="The topic's name.", metavar="TOPIC")]
KeySeparator = Annotated[
    str,
    typer.Option(
        "--key-separator",
        "-K",
        help=(
            "Text between key and value in a line. A line without this text stands for a key with "
            "a null value."
        ),
    ),
]


@app.command()
def create(
    pipeline: PipelineName,
    partitions: Annotated[int, typer.Option(min=1, help="Partitions of each topic.")] = 1,
    replication: Annotated[
        int, typer.Option(min=0, help="Replicas of each partition; 0: the broker's default.")
    ] = 0,
) -> None:
    """Create the missing topics of a pipeline: its inputs, its outputs, and its own topics.

    Its own topics are those for dead letters, markers and re-drives.
    """
    from sluice.kafka.topics import create_topics

    with errors_as_messages():
        topics = topics_of(load(pipeline), partitions, replication)
        created = create_topics(settings_of(pipeline).kafka, topics)
        for topic in topics:
            outcome = "created" if topic.name in created else "exists "
            out.print(f"{outcome} {topic.name}", markup=False)


def topics_of(pipeline: Pipeline, partitions: int, replication: int) -> list[Topic]:
    """Return the topics of a pipeline, and those that Sluice needs for it.

    Patterns are left out, because Sluice does not know which topics will match them.
    """
    from sluice.engine.publish.markers import MARKER_SETTINGS
    from sluice.kafka.dead_letter_topic import markers_of
    from sluice.kafka.redrive_topic import REDRIVE_SETTINGS
    from sluice.kafka.topics import Topic
    from sluice.plan import plan
    from sluice.values.topic_patterns import is_pattern

    job = plan(pipeline).job
    topics: list[Topic] = []
    for name in dict.fromkeys((*job.topics, *job.outputs)):
        if not is_pattern(name):
            topics.append(Topic(name, partitions, replication))
    topics.append(Topic(pipeline.dead_letters, 1, replication))
    topics.append(Topic(pipeline.markers, 1, replication, MARKER_SETTINGS))
    topics.append(Topic(markers_of(pipeline.name), 1, replication, REDRIVE_SETTINGS))
    return topics


@app.command()
def accept(
    pipeline: PipelineName,
    restored: Annotated[
        bool,
        typer.Option("--restored", help="Pass this if you have restored all of the records."),
    ] = False,
    may_repeat: Annotated[
        bool,
        typer.Option(
            "--may-repeat",
            help=(
                "If the markers are lost: accept that the output of an unpublished batch may be "
                "written twice."
            ),
        ),
    ] = False,
) -> None:
    """Let a pipeline continue with its output topics as they are, after some were deleted.

    No run may be in progress. The command accepts the topics of outputs, dead letters, markers and
    re-drive markers. Without --restored, the deleted records stay lost.
    """
    from sluice.kafka.brokers import require_brokers
    from sluice.operations.accepted_topics import accept_topics
    from sluice.plan import plan

    with errors_as_messages():
        job = plan(load(pipeline)).job
        own = settings_of(pipeline)
        require_brokers(own.kafka)
        accepted = accept_topics(job, own, restored=restored, may_repeat=may_repeat)
        for topic in accepted:
            out.print(f"accepted {topic}", markup=False)
        if accepted:
            note_activity(pipeline, "accept topics", ", ".join(accepted))
        else:
            out.print(f"{pipeline} has lost no topic that it writes", markup=False)


@app.command()
def write(topic: TopicName, separator: KeySeparator = "") -> None:
    """Send each line of standard input to a topic, as a value without a key or as key and value."""
    from sluice.kafka.topics import produce

    with errors_as_messages():
        lines = _standard_input().splitlines()
        produce(settings().kafka, topic, (record_of(line, separator) for line in lines))
        out.print(f"{counted(len(lines), 'record')} sent to {topic}", markup=False)


def _standard_input() -> str:
    try:
        return sys.stdin.buffer.read().decode()
    except UnicodeDecodeError as error:
        raise SettingsError(
            f"Standard input is not UTF-8 text: byte {error.start} cannot be decoded.",
            next_step="Nothing was sent. Convert the text, for example with iconv.",
        ) from None


@app.command()
def read(topic: TopicName, separator: KeySeparator = "") -> None:
    """Print a topic's committed records, one per line: their values, or their keys and values."""
    from sluice.kafka.brokers import require_brokers
    from sluice.kafka.topics import read_topic

    with errors_as_messages():
        require_brokers(settings().kafka)
        for message in read_topic(settings().kafka, topic):
            out.print(printable(line_of(message.key(), message.value(), separator)), soft_wrap=True)


def record_of(line: str, separator: str) -> tuple[str | None, bytes | None, int]:
    """Return the key, value and timestamp to send for a line.

    The timestamp 0 stands for the current time.
    """
    if not separator:
        return None, line.encode(), 0
    key, has_value, value = line.partition(separator)
    return key, value.encode() if has_value else None, 0


def line_of(key: str | bytes | None, value: str | bytes | None, separator: str) -> str:
    """Return the line for a record, in the form that `record_of` reads."""
    if not separator:
        return _text(value or "")
    if value is None:
        return _text(key or "")
    return f"{_text(key or '')}{separator}{_text(value)}"


def _text(content: str | bytes) -> str:
    return content.decode(errors="replace") if isinstance(content, bytes) else content
