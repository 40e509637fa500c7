"""Query parameters that select the snapshot to read."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from sluice.query import AsOf
from sluice.query.as_of import parse_positions


class ReadPoint(msgspec.Struct, frozen=True, kw_only=True):
    """The snapshot that a query reads, and whether the answer must be complete."""

    pipeline: (
        Annotated[
            str,
            Meta(description="The pipeline, if several have a store of this name.", max_length=200),
        ]
        | None
    ) = None
    as_of: (
        Annotated[
            str,
            Meta(
                description="A snapshot (1.42), a run (run:NAME), a time, or standby for the "
                "newest snapshot that all standbys have; default: the newest snapshot.",
                max_length=300,
            ),
        ]
        | None
    ) = None
    min_snapshot: (
        Annotated[
            str,
            Meta(
                description="Respond with 412 if the snapshot is older than this one.",
                max_length=30,
            ),
        ]
        | None
    ) = None
    min_position: (
        Annotated[
            str,
            Meta(
                description="Respond with 412 unless the snapshot has reached these positions: "
                "TOPIC:PARTITION:OFFSET, separated by commas.",
                max_length=4_000,
            ),
        ]
        | None
    ) = None
    require: (
        Annotated[
            Literal["complete"],
            Meta(description="Respond with 503 instead of a partial answer if a worker is down."),
        ]
        | None
    ) = None

    @property
    def when(self) -> AsOf:
        """The read point as an argument for the reader."""
        return AsOf(
            self.as_of,
            self.min_snapshot,
            parse_positions(self.min_position) if self.min_position else {},
        )
