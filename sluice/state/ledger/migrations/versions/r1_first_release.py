"""The ledger of the first release.

A new ledger gets its tables at once, so this step has nothing to do.
"""

from __future__ import annotations

revision = "r1"
down_revision = None


def upgrade() -> None:
    """Do nothing: no ledger is older."""
