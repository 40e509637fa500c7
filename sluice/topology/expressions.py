"""Checks SQL expressions for a topology: whether they are valid, and which types they have.

Importing the parser takes as long as importing everything else that a topology needs. A pipeline
that uses only Python functions does not need the parser. The functions of this module import it
when they are called. No other module of the topology imports `sluice.sql`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from sluice.errors import TopologyError

if TYPE_CHECKING:
    from sluice.sql.expression_checks import Need as Need


def import_parser() -> None:
    """Import the parser, so that processes forked from this one need not import it."""
    import sluice.sql.aggregate_expressions
    import sluice.sql.expression_checks  # noqa: F401


def require_parsed(text: str) -> None:
    """Raise TopologyError unless `text` is an SQL expression, over any columns."""
    from sluice.sql.parsed_expression import parse

    parse(text)


def require_valid(
    text: str,
    where: str,
    readable: Mapping[str, str],
    types: Mapping[str, str],
    need: Need = "",
    *,
    aggregate: bool = False,
) -> None:
    """Raise TopologyError unless `text` is SQL over the readable columns, of the needed type.

    `types` are the known types of the columns and of computed fields.
    """
    from sluice.sql import aggregate_expressions, expression_checks, parsed_expression
    from sluice.sql.dialect import PARSE_ERRORS

    try:
        try:
            expression = parsed_expression.parse(text)
        except TopologyError as error:
            raise TopologyError(f"{where}: {error.detail}", next_step=error.next_step) from None
        parsed_expression.require_known(expression, readable, where)
        expression_checks.require_valid(text, types, where, need)
        parsed_expression.require_aggregate(expression, where, aggregate=aggregate)
        if aggregate:
            aggregate_expressions.require_supported(text, where)
    except (*PARSE_ERRORS, RecursionError) as error:
        raise TopologyError(
            f"{where}: {text!r} calls a function with other arguments than it takes.",
            next_step="Compare the arguments with those in Spark's list of functions, "
            "or use a Python function.",
        ) from error
    except TopologyError as error:
        # SQL reads a field such as `order-id` as a difference. The error then names fields `order`
        # and `id`, which do not exist.
        if advice := parsed_expression.backticks_for(text, readable):
            raise TopologyError(
                error.detail,
                next_step=f"{advice} {error.next_step}".strip(),
            ) from None
        raise


def type_of(text: str, types: Mapping[str, str]) -> str:
    """Return the Spark SQL type of an expression over columns of these types.

    Return an empty text if the type is unknown, or if the result is always null.
    """
    from sluice.sql import typed_expression

    return typed_expression.type_of(text, types)


def structure_of(text: str, types: Mapping[str, str]) -> str:
    """Do the same as `type_of`, but also give a type to an object with fields of unknown type."""
    from sluice.sql import typed_expression

    return typed_expression.structure_of(text, types)


def reference(name: str) -> str:
    """Return the expression that reads the field with this name, quoted if needed."""
    from sluice.sql import parsed_expression

    return parsed_expression.reference(name)
