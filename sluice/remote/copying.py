"""Copies the versions of one shard into another, wherever the two are."""

from __future__ import annotations

from collections.abc import Callable

from sluice.state.shard.pages import pages_of_states, pages_of_versions
from sluice.state.shard.protocol import Checksums, Journal, Shard

Progress = Callable[[str], None]


def copy_versions(source: Shard, target: Shard, since: int, progress: Progress) -> int:
    """Copy all versions since batch `since` into a sealed shard. Returns their number."""
    copied = 0
    for versions in pages_of_versions(source, since):
        target.absorb(versions)
        copied += len(versions)
        progress(f"{copied:,} versions copied")
    for states in pages_of_states(source, since):
        target.absorb_states(states)
        copied += len(states)
        progress(f"{copied:,} versions copied")
    return copied


def copy_until(
    source: Shard, target: Shard, since: int, batch: int, published: Checksums | None, progress: Progress
) -> int:
    """Copy the versions of the batches from `since` to `batch` into a sealed shard. Returns the number copied.

    Raises DamagedState if the copy then differs from the checksums that were published with `batch`.
    """
    copied = copy_versions(source, target, since, progress)
    journal = source.journal()
    target.settle(batch + 1, Journal(journal.epoch, [entry for entry in journal.batches if entry.batch <= batch]))
    target.verify(batch, published)
    target.verify_states(batch, published)
    return copied
