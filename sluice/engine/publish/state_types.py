"""The types of a job's stores, and the totals and steps that use these types."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

from sluice.engine.combine.totals import Totals, input_types, value_types
from sluice.engine.publish.change_steps import ChangeSteps
from sluice.engine.stages.job_stages import KnownTypes


@dataclass(frozen=True)
class StateTypes:
    """The types of the values in a job's stores, and the types of the inputs of these stores."""

    stores: Mapping[str, str]
    """Store → the type of its values."""
    inputs: Mapping[int, str]
    """Number of the step of a store or operator → the types of its inputs. If a type changes, the
    state that the step has kept so far has another meaning."""
    totals: Totals
    """How shards add up the state rows of groups."""
    changes: tuple[ChangeSteps, ...]
    """The steps between stores and their outputs."""

    @classmethod
    def of(cls, known: KnownTypes, totals: Totals, inputs: Mapping[str, str]) -> Self:
        """Return the types of a job's stores and inputs.

        `known` has the types after the last stage. `inputs` gives the types of the columns that
        the job's groups read.
        """
        job = known.job
        stores = value_types(job, inputs) | known.store_types()
        return cls(
            stores,
            input_types(job, inputs) | known.input_types(),
            totals,
            tuple(ChangeSteps.of(job, sink, stores) for sink in job.change_sinks),
        )
