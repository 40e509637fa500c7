"""The checksum of a state: what tells whether two are equal, whatever they came from.

It is a sum, modulo 2**64, of a digest of each row as it stands: so it does not depend on any order, nor on the batches
by which the rows became what they are. Tombstones add nothing. The digest stands in the row, too, so that whoever reads
the row sees whether it is as it was written.
"""

from __future__ import annotations

from hashlib import blake2b

from sluice.state.shard.drivers import Row

NO_CHECKSUM = "0" * 16
"""The checksum of nothing."""


def checksum_of(total: int) -> str:
    """A sum of digests as text."""
    return f"{total % 2**64:016x}"


def row_digest(row: Row) -> int:
    """The digest of a state row, signed as databases have it; 0 for a tombstone."""
    group_id, key, start, end, value = row
    # The key's length keeps apart what ends the key from what begins the value, whatever signs they have.
    return 0 if value is None else _digest(f"{group_id} {start} {end} {len(key)} {key}{value}".encode())


def state_digest(operator: int, shared: bool, key: str, due: int | None, wall: int | None, data: bytes | None) -> int:
    """The digest of what an operator remembers of a key; 0 if it has forgotten the key."""
    return 0 if data is None else _digest(f"{operator} {shared:d} {due} {wall} {len(key)} {key}".encode() + data)


def _digest(content: bytes) -> int:
    return int.from_bytes(blake2b(content, digest_size=8).digest(), "little", signed=True)
