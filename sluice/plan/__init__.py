"""Turns a topology into a plan: plain data for one streaming query, which needs no topology to run.

`planner` derives the plan: `operator_nodes` decides which nodes are operators, `stages` puts the
operators into stages, `grouping` plans the aggregates that are not operators, and `scopes` and
`job_columns` add the columns that the steps compute. `job`, `steps`, `layers`,
`aggregation_groups`, `planned_operators` and `operator_parameters` define the plan's values.
"""

from sluice.plan.aggregation_groups import (
    AggregationGroup,
    ChangeSink,
    Combinable,
    Lookup,
    Select,
    StoreColumn,
)
from sluice.plan.explain import explain
from sluice.plan.job import Job, Plan, PlannedPipeline, PlanOf
from sluice.plan.layers import Column, Failure, FallibleExpression, Layer, Layers, Transformation
from sluice.plan.matched_job import matched_job
from sluice.plan.operator_actions import is_of_processor
from sluice.plan.planned_operators import STORE, Edge, PlannedOperator, result_column
from sluice.plan.planner import load_plan, plan
from sluice.plan.steps import (
    Expectation,
    GlobalTableInput,
    PythonFunction,
    Sink,
    Source,
    SourceField,
    Step,
)

__all__ = [
    "STORE",
    "AggregationGroup",
    "ChangeSink",
    "Column",
    "Combinable",
    "Edge",
    "Expectation",
    "Failure",
    "FallibleExpression",
    "GlobalTableInput",
    "Job",
    "Layer",
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
    "Transformation",
    "explain",
    "is_of_processor",
    "load_plan",
    "matched_job",
    "plan",
    "result_column",
]
