"""Places in Kafka: a partition, the place of one record, and ranges of offsets."""

from __future__ import annotations

import msgspec

Partition = tuple[str, int]
"""A topic and the number of a partition."""
Place = tuple[str, int, int]
"""Topic, partition and offset of a record."""


class Range(msgspec.Struct, frozen=True):
    """The records of a partition from the offset `begin` to the offset `end`, which is excluded."""

    topic: str
    partition: int
    begin: int
    end: int
