"""JSON answers: values are spliced in as they were published, no model in between."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import msgspec
from starlette.responses import Response

from sluice.errors import QueryError
from sluice.query import Answer, Entry, WorkerStatus
from sluice.state.model import NO_WINDOW, Cut


class CutReply(msgspec.Struct, frozen=True):
    """The cut an answer is of."""

    id: str
    published_at: datetime
    age_seconds: float
    positions: dict[str, dict[str, int]]

    @classmethod
    def of(cls, cut: Cut) -> CutReply:
        """A cut and its age now."""
        age = (datetime.now(UTC) - cut.published_at).total_seconds()
        return cls(cut.id, cut.published_at, round(max(age, 0.0), 3), cut.positions)


class EntryReply(msgspec.Struct, frozen=True, omit_defaults=True):
    """One value; `start` and `end` of its window, UTC, if the store has windows."""

    key: str
    value: msgspec.Raw
    start: str | None = None
    end: str | None = None

    @classmethod
    def of(cls, entry: Entry) -> EntryReply:
        """An entry with its window as people write it."""
        if entry.window_start == NO_WINDOW:
            return cls(entry.key, entry.value)
        return cls(entry.key, entry.value, f"{time_text(entry.window_start)}Z", f"{time_text(entry.window_end)}Z")


class EntriesReply(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Entries of a store, and what is to be known about them."""

    pipeline: str
    store: str
    entries: list[EntryReply]
    cut: CutReply
    workers: tuple[WorkerStatus, ...]
    partial: bool
    """Whether entries are missing because a worker is unavailable."""
    cursor: str | None = None
    """Where the next page goes on; absent on the last one."""


def reply(value: Any, headers: dict[str, str] | None = None) -> Response:
    """A JSON answer."""
    return Response(msgspec.json.encode(value), media_type="application/json", headers=headers)


def entries_reply(answer: Answer, cursor: str | None = None) -> Response:
    """Entries with their cut and the workers' status."""
    store = answer.pin.store
    body = EntriesReply(
        pipeline=store.pipeline,
        store=store.name,
        entries=[EntryReply.of(entry) for entry in answer.entries],
        cut=CutReply.of(answer.pin.cut),
        workers=answer.workers,
        partial=answer.partial,
        cursor=cursor,
    )
    return reply(body, provenance(answer))


def provenance(*answers: Answer) -> dict[str, str]:
    """The cut and the workers' status as headers, for bodies whose form is given."""
    cuts = dict.fromkeys(answer.pin.cut.id for answer in answers)
    lost = sorted({one.number for answer in answers for one in answer.workers if one.status != "ok"})
    headers = {"X-Sluice-Cut": ", ".join(cuts), "X-Sluice-Partial": "true" if lost else "false"}
    return headers | ({"X-Sluice-Unavailable": ", ".join(map(str, lost))} if lost else {})


def time_text(ms: int) -> str:
    """Epoch milliseconds as an ISO 8601 date and time in UTC, without a zone."""
    moment = datetime.fromtimestamp(ms / 1_000, UTC).replace(tzinfo=None)
    return moment.isoformat(timespec="milliseconds" if ms % 1_000 else "seconds")


def parse_time(name: str, text: str | None) -> int | None:
    """Epoch milliseconds from themselves, or from ISO 8601, where no zone means UTC."""
    if text is None:
        return None
    try:
        if text.lstrip("-").isdigit():
            datetime.fromtimestamp(int(text) / 1_000, UTC)  # a time that can be shown again
            return int(text)
        moment = datetime.fromisoformat(text)
        return round((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() * 1_000)
    except (ValueError, OverflowError, OSError):
        raise QueryError(
            f"{name} is not a time.", next_step="Write 2022-12-05T08:55:15 (UTC), or epoch milliseconds."
        ) from None
