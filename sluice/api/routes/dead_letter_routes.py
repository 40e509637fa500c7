"""Routes that list and re-drive a pipeline's dead letters."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping
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
    MatchingLetters,
    find_dead_letters,
    topic_of,
)
from sluice.kafka.redrive import MOST, redrive_obstacle
from sluice.kafka.redrive import redrive as redrive_chosen
from sluice.query.scan_slots import Gate
from sluice.query.time_texts import parse_time
from sluice.values.contract_check import problems_of
from sluice.values.phrases import counted
from sluice.values.topic_patterns import is_pattern
from sluice.values.topic_patterns import matches as matches_pattern

router = Router("dead letters", "/v1/pipelines", 400, 404, 429)

_gate = Gate(running=1, waiting=4)

Reason = Annotated[str, Meta(description="Only dead letters with this reason.", max_length=200)]
Since = Annotated[
    str, Meta(description="Only dead letters written at this time or later.", max_length=100)
]
Partition = Annotated[
    int, Meta(description="Only dead letters of records from this partition.", ge=0, le=2**31 - 1)
]


Step = Annotated[
    str,
    Meta(
        description="Only dead letters of this step, or, if empty, of records that no step has "
        "processed.",
        max_length=1_000,
    ),
]


Key = Annotated[
    str,
    Meta(
        description="Only dead letters with this key: the record's key, or the key that the step "
        "received.",
        max_length=10_000,
    ),
]


class DeadLettersQuery(PipelineQuery, frozen=True, kw_only=True):
    """The parameters of `list_dead_letters`."""

    reason: Reason = ""
    since: Since | None = None
    partition: Partition | None = None
    step: Step | None = None
    key: Key | None = None
    limit: Annotated[int, Meta(description="Maximum number of dead letters.", ge=1, le=1_000)] = 100


class Redrive(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The dead letters to re-drive.

    If the request has neither `reason` nor `place`, only records that could not be read are
    re-driven.
    """

    reason: Reason = ""
    since: Since | None = None
    partition: Partition | None = None
    place: (
        Annotated[
            str, Meta(description="Only the dead letter at this PARTITION/OFFSET.", max_length=40)
        ]
        | None
    ) = None
    step: Step | None = None
    key: Key | None = None
    value: (
        Annotated[
            str,
            Meta(description="Write this value in place of the record's value; requires `place`."),
        ]
        | None
    ) = None
    limit: Annotated[int, Meta(description="Maximum number of dead letters.", ge=1, le=MOST)] = (
        1_000
    )


class Value(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A value to check against the contract of a topic."""

    topic: Annotated[str, Meta(description="A topic that the pipeline reads.", max_length=249)]
    value: Annotated[str, Meta(description="The value as JSON.")]


@router.get("/{pipeline}/dead_letters", answers.DeadLetters, parameters=DeadLettersQuery)
async def list_dead_letters(request: Request, query: DeadLettersQuery) -> Response:
    """Return the newest dead letters, and the number of matches by reason.

    A dead letter has the record's place, bytes and headers, and the error.
    """
    access = await access_of(request)
    generation = await access.generation(query.pipeline)
    since = _time(query.since)
    chosen = DeadLetterFilter(query.reason, since, query.partition, step=query.step, key=query.key)
    async with _gate:
        kafka = access.services.kafka_of(query.pipeline)
        matches = await asyncio.to_thread(
            find_dead_letters, kafka, query.pipeline, chosen, query.limit
        )
    letters = [_letter(letter, generation.topics, matches) for letter in matches.letters]
    return reply(
        answers.DeadLetters(
            query.pipeline,
            topic_of(query.pipeline),
            dict(matches.reasons.most_common()),
            matches.complete,
            letters,
            _groups(matches, generation.topics),
            generation.contracts,
        )
    )


def _groups(matches: MatchingLetters, topics: Collection[str]) -> list[answers.DeadLetterGroup]:
    groups: list[answers.DeadLetterGroup] = []
    for (reason, step), group in matches.groups.items():
        groups.append(
            answers.DeadLetterGroup(
                reason=reason,
                step=step,
                count=group.count,
                redriven=len(group.redriven_to),
                failed_again=len(group.redriven_to & matches.failed_again),
                example=_letter(group.example, topics, matches),
            )
        )
    return sorted(groups, key=lambda group: -group.count)


@router.post(
    "/{pipeline}/dead_letters/check", answers.ContractCheck, body=Value, parameters=PipelineQuery
)
async def check_value(request: Request, query: PipelineQuery, given: Value) -> Response:
    """Check a value against the recorded contract of a topic, and write nothing.

    The check finds missing fields, wrong types, forbidden nulls, values outside the choices, and
    too many digits. A run may reject a value for other reasons, too.
    """
    access = await access_of(request)
    generation = await access.generation(query.pipeline)
    fields = _contract(generation.contracts, given.topic)
    problems: list[answers.FieldProblem] = []
    if fields is not None:
        for problem in await asyncio.to_thread(problems_of, fields, given.value):
            problems.append(answers.FieldProblem(*problem))
    return reply(answers.ContractCheck(given.topic, fields is not None, problems))


@router.post(
    "/{pipeline}/dead_letters/redrive", answers.Redriven, body=Redrive, parameters=PipelineQuery
)
async def redrive(request: Request, query: PipelineQuery, chosen: Redrive) -> Response:
    """Write the records of dead letters to their source topics again, each once.

    The user needs the permission to edit the DAG.
    """
    access = await access_of(request)
    await access.require_edit(query.pipeline)
    topics = {*(await access.generation(query.pipeline)).topics}
    place = _place(chosen.place)
    if chosen.value is not None and place is None:
        raise QueryError(
            "`value` needs `place`: it replaces the value of one dead letter, the one at `place`.",
            next_step="Add the dead letter's place, such as 0/17.",
        )
    since = _time(chosen.since)
    which = DeadLetterFilter(chosen.reason, since, chosen.partition, place, chosen.step, chosen.key)
    value = None if chosen.value is None else chosen.value.encode()
    async with _gate:
        kafka = access.services.kafka_of(query.pipeline)
        outcome = await asyncio.to_thread(
            redrive_chosen, kafka, query.pipeline, topics, which, chosen.limit, value
        )
    if outcome.redriven:
        which_ones = ", ".join(filter(None, (chosen.reason, chosen.step, chosen.key, chosen.place)))
        corrected = ", with a corrected value" if value is not None else ""
        of_these = f": {which_ones}" if which_ones else ""
        detail = f"{counted(outcome.redriven, 'record')}{of_these}{corrected}"
        await access.note(query.pipeline, "re-drive", detail)
    return reply(answers.Redriven(outcome.redriven, dict(outcome.skipped), outcome.more))


def _contract(contracts: Mapping[str, Mapping[str, str]], topic: str) -> Mapping[str, str] | None:
    """Return the fields of a topic's contract, or of the contract of a pattern that matches it.

    Return None if there is no such contract.
    """
    if topic in contracts:
        return contracts[topic]
    for pattern, fields in contracts.items():
        if is_pattern(pattern) and matches_pattern(pattern, topic):
            return fields
    return None


def _letter(
    letter: DeadLetter,
    topics: Collection[str],
    matches: MatchingLetters,
) -> answers.DeadLetter:
    redriven_at, redriven_to = None, ""
    marker = matches.marker(letter)
    if marker is not None:
        redriven_at = marker.at
        redriven_to = f"{marker.topic}/{marker.partition}/{marker.offset}"
    return answers.DeadLetter(
        place=f"{letter.partition}/{letter.offset}",
        at=letter.at,
        reason=letter.reason,
        detail=letter.header("detail"),
        source="/".join(map(str, letter.source or ())),
        step=" ".join(filter(None, (letter.header("step"), letter.header("at")))),
        key=letter.header("key") or _text(letter.key),
        value=_text(letter.value),
        bytes=letter.size,
        headers=[answers.Header(name, _text(value)) for name, value in letter.headers],
        sluice_headers=dict(letter.sluice_headers),
        history=list(letter.history),
        redriven_at=redriven_at,
        not_redrivable=redrive_obstacle(letter, topics, marker),
        redriven_to=redriven_to,
        failed_again=matches.has_failed_again(letter),
    )


def _text(content: bytes | None) -> str | None:
    return None if content is None else content.decode(errors="replace")


def _time(text: str | None) -> datetime | None:
    ms = parse_time("since", text)
    if ms is None:
        return None
    # Kafka has no timestamps before 1970, so an earlier time selects all dead letters.
    return datetime.fromtimestamp(max(ms, 0) / 1_000, UTC)


def _place(text: str | None) -> tuple[int, int] | None:
    if text is None:
        return None
    partition, _, offset = text.partition("/")
    # `isdigit` alone accepts characters that `int` rejects, such as ².
    if not (partition.isascii() and partition.isdigit() and offset.isascii() and offset.isdigit()):
        raise QueryError(
            "`place` is not a dead letter's position.",
            next_step="Write PARTITION/OFFSET, such as 0/17.",
        )
    return int(partition), int(offset)
