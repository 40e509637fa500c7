"""A lease with a given epoch, for tests that write under an epoch that they know beforehand."""

from __future__ import annotations

import msgspec
from sqlalchemy import insert

from sluice.state.database import transaction
from sluice.state.ledger.ledger import Ledger
from sluice.state.ledger.ledger_tables import LEASES
from sluice.state.model import GenerationRef

NEWEST_EPOCH = 2**62
"""An epoch that no writer has exceeded."""


def hold_lease(ledger: Ledger, ref: GenerationRef, epoch: int = 1) -> None:
    """Give the lease, which nobody has taken yet, to a driver on another host."""
    holder = {
        "epoch": epoch,
        "held": True,
        "beat": 0,
        "host": "h",
        "pid": 1,
        "process": "",
        "since": "",
        "run": "",
    }
    with transaction(ledger.engine) as connection:
        connection.execute(insert(LEASES), msgspec.structs.asdict(ref) | holder)
