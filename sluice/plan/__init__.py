"""A topology becomes jobs: each is one streaming query that the engine can run without knowing the topology."""

from sluice.plan.draft import column_name
from sluice.plan.explain import explain
from sluice.plan.jobs import (
    TRANSFORM,
    Attempt,
    Failure,
    Family,
    Feed,
    Job,
    Layers,
    Lookup,
    Ordered,
    Plan,
    Select,
    Slot,
    StreamSink,
    TableInput,
    TableSink,
    Transformation,
)
from sluice.plan.ordered import is_of_processor
from sluice.plan.planner import plan

__all__ = [
    "TRANSFORM",
    "Attempt",
    "Failure",
    "Family",
    "Feed",
    "Job",
    "Layers",
    "Lookup",
    "Ordered",
    "Plan",
    "Select",
    "Slot",
    "StreamSink",
    "TableInput",
    "TableSink",
    "Transformation",
    "column_name",
    "explain",
    "is_of_processor",
    "plan",
]
