"""Reads the headers of individual records from Kafka again.

Dead letters need these headers if the rows of the failed step do not have them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from sluice.kafka.topics import headers_of, records_at
from sluice.values.record_places import Place

Headers = list[Mapping[str, str | bytes | None]]


def headers_at(kafka: Mapping[str, str], places: Iterable[Place]) -> dict[Place, Headers]:
    """Place → the headers of the record at this place.

    Omits records without headers, and records that are no longer in the topics. Raises the errors
    of `records_at`.
    """
    headers_by_place: dict[Place, Headers] = {}
    for place, record in records_at(kafka, places):
        if headers := headers_of(record):
            headers_by_place[place] = [{"key": name, "value": text} for name, text in headers]
    return headers_by_place
