"""Stores of other pipelines, which a pipeline reads at their published snapshots."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar

from sluice.topology.serdes import Contract
from sluice.values.call_parameters import SharedStore

V = TypeVar("V")


@dataclass(frozen=True)
class StoreOf(Generic[V]):
    """A store of another pipeline, made with `pipeline.store_of`."""

    shared: SharedStore
    value: Contract
    """The type of the store's values, or a type with only the fields that are read."""
