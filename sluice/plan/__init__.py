"""Turn a topology into jobs, each one streaming query."""

from sluice.plan.builder import column_name
from sluice.plan.explain import explain
from sluice.plan.jobs import (
    TRANSFORM,
    AggregationGroup,
    Attempt,
    Edge,
    Failure,
    Job,
    Layers,
    Lookup,
    Ordered,
    Plan,
    Select,
    StoreColumn,
    StreamSink,
    TableInput,
    TableSink,
    Transformation,
)
from sluice.plan.ordered import is_of_processor
from sluice.plan.planner import plan

__all__ = [
    "TRANSFORM",
    "AggregationGroup",
    "Attempt",
    "Edge",
    "Failure",
    "Job",
    "Layers",
    "Lookup",
    "Ordered",
    "Plan",
    "Select",
    "StoreColumn",
    "StreamSink",
    "TableInput",
    "TableSink",
    "Transformation",
    "column_name",
    "explain",
    "is_of_processor",
    "plan",
]
