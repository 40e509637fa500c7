"""Converts the arguments of commands about workers to generations and placements."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sluice.errors import SettingsError
from sluice.values.host_ports import parse_address

if TYPE_CHECKING:
    from sluice.state.ledger.ledger import Ledger
    from sluice.state.ledger.placement import Placement
    from sluice.state.model import GenerationInfo


def current_generation(ledger: Ledger, pipeline: str) -> GenerationInfo:
    """Return the pipeline's current generation. Raises NotFound for an unknown pipeline."""
    from sluice.state.ledger.generations import unknown_pipeline

    info = ledger.generations.current(pipeline)
    if info is None:
        raise unknown_pipeline(pipeline)
    return info


def place_of(pipeline: str, worker: int, address: str, tls: bool) -> Placement:
    """Return the placement of a worker at HOST:PORT.

    Raises SettingsError for any other form of address.
    """
    from sluice.state.ledger.placement import Placement

    host_port = parse_address(address)
    if host_port is None:
        raise SettingsError(
            f"{address!r} is not HOST:PORT.",
            next_step="Write for example 10.0.0.6:7070, or [fd00::6]:7070.",
        )
    return Placement(pipeline, worker, *host_port, tls)
