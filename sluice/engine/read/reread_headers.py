"""Reads the headers of single records again, for dead letters of rows without headers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from sluice.kafka.topics import headers_of, records_at
from sluice.values.record_places import Place

Headers = list[Mapping[str, str | bytes | None]]


def headers_at(kafka: Mapping[str, str], places: Iterable[Place]) -> dict[Place, Headers]:
    """Return place → the headers of the record at this place.

    Omit records without headers, and records that are no longer in the topics. Raise the errors of
    `records_at`.
    """
    headers_by_place: dict[Place, Headers] = {}
    for place, record in records_at(kafka, places):
        if headers := headers_of(record):
            headers_by_place[place] = [{"key": name, "value": text} for name, text in headers]
    return headers_by_place
