"""Names of the counts of rows that go into a step, and of results that leave a step.

To cost no time per record, they count whole tables of rows, whose lengths are known.
"""

from __future__ import annotations

from sluice.operators.base import COGROUPED, MOVED, READ
from sluice.plan.aggregation_groups import AggregationGroup
from sluice.plan.operator_parameters import ProcessParameters, TableJoinParameters
from sluice.plan.planned_operators import Edge, PlannedOperator

RECEIVED, RESULTS = "received/", "results/"


def received_name(step: str, input_number: int) -> str:
    """Return the name of the count of rows that reach a step from one of its inputs."""
    return f"{RECEIVED}{step}/{input_number}"


def received_by_group(group: AggregationGroup) -> list[str]:
    """Return the names of the counts of records that reach a group: one for each of its stores."""
    return [received_name(store_column.store, 0) for store_column in group.store_columns]


def received_by_side(operator: PlannedOperator) -> dict[int, str]:
    """Return an operator's sides whose rows can be counted, each with the name of the count.

    Every row of such a side is one record, or one change of a table.
    """
    names: dict[int, str] = {}
    for edge in operator.edges:
        if _has_row_per_record(operator, edge):
            names[edge.side] = received_name(operator.name, edge.input_number)
    return names


def _has_row_per_record(operator: PlannedOperator, edge: Edge) -> bool:
    # Every worker gets a copy of a copied row, and a change that has an old value has two rows.
    if edge.is_copied or edge.has_old_values:
        return False
    # A foreign-key join gets some rows of its left side twice: at the old and at the new foreign
    # key.
    action = operator.action
    if isinstance(action, TableJoinParameters) and action.kind == "foreign-key":
        return False
    # All other sides only repeat rows of the sides that are listed here.
    return edge.side < MOVED or COGROUPED <= edge.side < READ


def results_name(operator: PlannedOperator) -> str | None:
    """Return the name of the count of an operator's results.

    None if its results go to several outputs, because the count does not distinguish them.
    """
    action = operator.action
    if isinstance(action, ProcessParameters) and len(action.outputs) > 1:
        return None
    return f"{RESULTS}{operator.name}"
