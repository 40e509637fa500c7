"""Commands that are paused in their middle while other commands and runs go on, and that are then resumed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from sqlalchemy import select

from sluice.engine.run.driver_lease import this_process
from sluice.state.ledger.ledger import Ledger
from sluice.state.ledger.ledger_tables import METADATA
from sluice.state.model import GenerationRef


@contextmanager
def paused_before(owner: type, method: str, meanwhile: Callable[[], object]) -> Iterator[None]:
    """In the block, the first call of a method waits until `meanwhile` has happened, in which calls do not wait."""
    whole, calls = getattr(owner, method), []

    def paused(*arguments: Any, **named: Any) -> Any:
        calls.append(arguments)
        if len(calls) == 1:
            meanwhile()
        return whole(*arguments, **named)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(owner, method, paused)
        yield
    assert calls, f"{method} was not called"


def content(ledger: Ledger) -> dict[str, list[Any]]:
    """All rows of a ledger."""
    with ledger.engine.connect() as connection:
        return {
            table.name: sorted(map(str, connection.execute(select(table)).all()))
            for table in METADATA.sorted_tables
        }


def take_lease(ledger: Ledger, ref: GenerationRef) -> None:
    """Let another process take a generation's lease, as after its holder has been silent for long."""
    while (seen := ledger.leases.get(ref)) is None or not ledger.leases.take(
        ref, this_process("another"), seen
    ):
        pass


def end_lease(ledger: Ledger, ref: GenerationRef) -> None:
    """Release a lease that `take_lease` has taken."""
    held = ledger.leases.get(ref)
    assert held is not None
    assert ledger.leases.release(held)
