"""Routes that list and re-drive a pipeline's dead letters."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from datetime import UTC, datetime
from typing import Annotated

import msgspec
from msgspec import Meta
from starlette.requests import Request
from starlette.responses import Response

from sluice import answers
from sluice.api.http.replies import reply
from sluice.api.http.route import Router
from sluice.api.routes.access import access_of
from sluice.api.routes.pipeline_routes import PipelineQuery
from sluice.errors import QueryError
from sluice.kafka.dead_letter_topic import (
    DeadLetter,
    DeadLetterFilter,
    Marker,
    find_dead_letters,
    topic_of,
)
from sluice.kafka.redrive import MOST, redrive_obstacle
from sluice.kafka.redrive import redrive as redrive_chosen
from sluice.query.scan_slots import Gate
from sluice.query.time_texts import parse_time

router = Router("dead letters", "/v1/pipelines", 400, 404, 429)

_gate = Gate(running=1, waiting=4)

Reason = Annotated[str, Meta(description="Only dead letters with this reason.", max_length=200)]
Since = Annotated[
    str, Meta(description="Only dead letters written at this time or later.", max_length=100)
]
Partition = Annotated[
    int, Meta(description="Only dead letters of records from this partition.", ge=0, le=2**31 - 1)
]


class DeadLettersQuery(PipelineQuery, frozen=True, kw_only=True):
    """Dead letters by reason, time and partition."""

    reason: Reason = ""
    since: Since | None = None
    partition: Partition | None = None
    limit: Annotated[int, Meta(description="Maximum number of dead letters.", ge=1, le=1_000)] = 100


class Redrive(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The dead letters to re-drive.

    Without a reason or a place, only the dead letters of records that could not be read.
    """

    reason: Reason = ""
    since: Since | None = None
    partition: Partition | None = None
    place: (
        Annotated[str, Meta(description="One dead letter, by its PARTITION/OFFSET.", max_length=40)]
        | None
    ) = None
    limit: Annotated[int, Meta(description="Maximum number of dead letters.", ge=1, le=MOST)] = (
        1_000
    )


@router.get("/{pipeline}/dead_letters", answers.DeadLetters, parameters=DeadLettersQuery)
async def list_dead_letters(request: Request, query: DeadLettersQuery) -> Response:
    """The newest dead letters, with place, bytes, headers and error, and the number of matches by reason."""
    access = await access_of(request)
    generation = await access.generation(query.pipeline)
    chosen = DeadLetterFilter(query.reason, _time(query.since), query.partition)
    async with _gate:
        kafka = access.services.kafka()
        matches = await asyncio.to_thread(
            find_dead_letters, kafka, query.pipeline, chosen, query.limit
        )
    letters = [
        _letter(letter, generation.topics, matches.marker(letter)) for letter in matches.letters
    ]
    topic = topic_of(query.pipeline)
    reasons = dict(matches.reasons.most_common())
    return reply(answers.DeadLetters(query.pipeline, topic, reasons, matches.complete, letters))


@router.post(
    "/{pipeline}/dead_letters/redrive", answers.Redriven, body=Redrive, parameters=PipelineQuery
)
async def redrive(request: Request, query: PipelineQuery, chosen: Redrive) -> Response:
    """Write the records of dead letters to their source topics again, each once. Needs permission to edit the DAG."""
    access = await access_of(request)
    await access.require_edit(query.pipeline)
    topics = {*(await access.generation(query.pipeline)).topics}
    which = DeadLetterFilter(
        chosen.reason, _time(chosen.since), chosen.partition, _place(chosen.place)
    )
    async with _gate:
        kafka = access.services.kafka()
        outcome = await asyncio.to_thread(
            redrive_chosen, kafka, query.pipeline, topics, which, chosen.limit
        )
    return reply(answers.Redriven(outcome.redriven, dict(outcome.skipped), outcome.more))


def _letter(
    letter: DeadLetter,
    topics: Collection[str],
    marker: Marker | None,
) -> answers.DeadLetter:
    return answers.DeadLetter(
        place=f"{letter.partition}/{letter.offset}",
        at=letter.at,
        reason=letter.reason,
        detail=letter.header("detail"),
        source="/".join(map(str, letter.source)) if letter.source else "",
        step=" ".join(filter(None, (letter.header("step"), letter.header("at")))),
        key=letter.header("key") or _text(letter.key),
        value=_text(letter.value),
        bytes=letter.size,
        headers=[answers.Header(name, _text(value)) for name, value in letter.headers],
        sluice_headers=dict(letter.sluice_headers),
        history=list(letter.history),
        redriven_at=marker.at if marker else None,
        not_redrivable=redrive_obstacle(letter, topics, marker),
    )


def _text(content: bytes | None) -> str | None:
    return None if content is None else content.decode(errors="replace")


def _time(text: str | None) -> datetime | None:
    ms = parse_time("since", text)
    # Kafka has no timestamps before 1970, so an earlier time selects all dead letters.
    return None if ms is None else datetime.fromtimestamp(max(ms, 0) / 1_000, UTC)


def _place(text: str | None) -> tuple[int, int] | None:
    if text is None:
        return None
    partition, _, offset = text.partition("/")
    # `isdigit` alone accepts characters that `int` rejects, such as ².
    if not (partition.isascii() and partition.isdigit() and offset.isascii() and offset.isdigit()):
        raise QueryError(
            "place is not a dead letter's position.",
            next_step="Write PARTITION/OFFSET, such as 0/17.",
        )
    return int(partition), int(offset)
