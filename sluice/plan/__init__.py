"""Plans: a topology as jobs, each one streaming query, which the engine runs without knowing the topology.

`jobs`, `steps` and `operators` are what a plan is made of, plain values; the other modules make it of a topology.
"""

from sluice.plan.explain import explain
from sluice.plan.jobs import (
    AggregationGroup,
    Attempt,
    BaseJob,
    Column,
    Edge,
    Failure,
    FusedJob,
    Job,
    Layers,
    Lookup,
    OrderedJob,
    OrderedOperator,
    Plan,
    PlannedPipeline,
    Select,
    StoreColumn,
    TableInput,
    TableSink,
    Transformation,
)
from sluice.plan.ordered import is_of_processor
from sluice.plan.planner import load_plan, plan
from sluice.plan.steps import PythonFunction, Sink, Source, SourceField, Step

__all__ = [
    "AggregationGroup",
    "Attempt",
    "BaseJob",
    "Column",
    "Edge",
    "Failure",
    "FusedJob",
    "Job",
    "Layers",
    "Lookup",
    "OrderedJob",
    "OrderedOperator",
    "Plan",
    "PlannedPipeline",
    "PythonFunction",
    "Select",
    "Sink",
    "Source",
    "SourceField",
    "Step",
    "StoreColumn",
    "TableInput",
    "TableSink",
    "Transformation",
    "explain",
    "is_of_processor",
    "load_plan",
    "plan",
]
