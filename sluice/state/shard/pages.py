"""Reads all versions of a shard, a page at a time."""

from __future__ import annotations

from collections.abc import Iterator

from sluice.state.shard.answer_rows import RecordedAnswer
from sluice.state.shard.operator_states import StateVersion
from sluice.state.shard.row_tuples import VersionId
from sluice.state.shard.shard import Shard, Version

PAGE = 20_000
_BEFORE_ALL_WINDOWS = -(2**63)
"""The smallest integer of the databases, so no window starts before it. 0 would be too large,
because windows of a time zone can start before 1970."""


def pages_of_versions(
    shard: Shard,
    since: int = 0,
    group: int | None = None,
    after: VersionId | None = None,
) -> Iterator[list[Version]]:
    """Yield the sorted versions of state rows since a batch, of all groups or one.

    They are sorted by group, key, window and batch.

    With `after`, yield only the versions that come after it.
    """
    if group is not None:
        after = group, "", _BEFORE_ALL_WINDOWS, _BEFORE_ALL_WINDOWS, -1
    while page := shard.row_versions(since, after, PAGE):
        if group is not None and page[-1].group_id != group:
            yield [version for version in page if version.group_id == group]
            return
        yield page
        after = page[-1].id


def pages_of_states(
    shard: Shard, since: int = 0, after: tuple[int, int, str, int] | None = None
) -> Iterator[list[StateVersion]]:
    """Yield the versions of operator states since a batch, sorted by operator, key and batch.

    With `after` (operator, shared, key, batch), yield only the versions that come after it.
    """
    while page := shard.state_versions(since, after, PAGE):
        yield page
        after = page[-1].operator, page[-1].shared, page[-1].key, page[-1].batch


def pages_of_answers(
    shard: Shard, after: tuple[int, str, str] | None = None
) -> Iterator[list[RecordedAnswer]]:
    """Yield all recorded answers, sorted by time, step and id.

    With `after` (time, step, id), yield only the answers that come after it.
    """
    while page := shard.answers(after, PAGE):
        yield page
        after = page[-1].at, page[-1].step, page[-1].id
