"""Checksums of state: equal states have equal checksums, however they were computed.

The checksum is the sum, modulo 2**64, of a digest of each current row. It does not depend on the
order of rows or on the batches that wrote them. Tombstones add nothing. Each row also stores its
digest, so that readers can detect an altered row.
"""

from __future__ import annotations

from functools import lru_cache

from xxhash import xxh3_64_intdigest

from sluice.state.shard.row_tuples import Row

NO_CHECKSUM = "0" * 16
"""The checksum of an empty state."""


def checksum_of(total: int) -> str:
    """Format a sum of digests as a checksum."""
    return f"{total % 2**64:016x}"


def row_digest(row: Row) -> int:
    """Return the digest of a state row, as the signed integer that databases store.

    Return 0 for a tombstone.
    """
    group_id, key, start, end, value = row
    # The key's length marks where the key ends and the value begins, whatever characters they
    # contain.
    if value is None:
        return 0
    return _digest(f"{group_id} {start} {end} {len(key)} {key}{value}".encode())


def state_digest(
    operator: int,
    shared: bool,
    key: str,
    due: int | None,
    wall: int | None,
    data: bytes | None,
) -> int:
    """Return the digest of an operator's state of a key; 0 if the operator has removed it."""
    if data is None:
        return 0
    if due is wall is None:
        begin = _undue(operator, shared)
    else:
        begin = f"{operator} {shared:d} {due} {wall}"
    return _digest(f"{begin} {len(key)} {key}".encode() + data)


@lru_cache(64)
def _undue(operator: int, shared: bool) -> str:
    """Return the beginning of the digested text, for an operator's states that are never due.

    It is cached, because formatting it for each state takes as long as the rest of the digest.
    """
    return f"{operator} {shared:d} None None"


def _digest(content: bytes) -> int:
    # The digest detects damage, not forgery. A cryptographic digest of a short row takes several
    # times as long.
    digest = xxh3_64_intdigest(content)
    return digest if digest < 2**63 else digest - 2**64
