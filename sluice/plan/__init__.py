"""Turns a topology into a plan: plain data for one streaming query, which the engine runs without the topology.

`jobs`, `steps` and `operator_parameters` define the values of a plan; the other modules derive them from a topology.
"""

from sluice.plan.explain import explain
from sluice.plan.jobs import (
    AggregationGroup,
    Column,
    Combinable,
    Edge,
    Failure,
    FallibleExpression,
    Job,
    Layers,
    Lookup,
    Plan,
    PlannedOperator,
    PlannedPipeline,
    PlanOf,
    Select,
    StoreColumn,
    TableInput,
    TableSink,
    Transformation,
)
from sluice.plan.planner import load_plan, plan
from sluice.plan.stages import is_of_processor
from sluice.plan.steps import PythonFunction, Sink, Source, SourceField, Step

__all__ = [
    "AggregationGroup",
    "Column",
    "Combinable",
    "Edge",
    "Failure",
    "FallibleExpression",
    "Job",
    "Layers",
    "Lookup",
    "Plan",
    "PlanOf",
    "PlannedOperator",
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
