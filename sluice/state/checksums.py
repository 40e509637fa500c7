"""The checksum of a state: what tells whether two are equal, whatever they came from."""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import blake2b

from sluice.state.drivers import Row

NO_CHECKSUM = "0" * 16
"""The checksum of nothing."""


def add_up(rows: Iterable[Row], checksum: int = 0, minus: Iterable[Row] = ()) -> int:
    """The checksum of cells, added to what it was before and less that of the versions they replace.

    It is a sum, modulo 2**64, of a hash of each cell as it stands: so it does not depend on any order, nor on the
    batches by which the cells became what they are. Tombstones add nothing.
    """
    for row in rows:
        if row[4] is not None:
            checksum += _digest(row)
    for row in minus:
        checksum -= _digest(row)
    return checksum % 2**64


def _digest(row: Row) -> int:
    return int.from_bytes(blake2b("{}\0{}\0{}\0{}\0{}".format(*row).encode(), digest_size=8).digest(), "little")
