"""Plans the functions of a cogrouped aggregate: accumulators, and each stream's arguments."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from sluice.errors import TopologyError
from sluice.sql.aggregate_expressions import SplitAggregate, split_aggregate
from sluice.sql.typed_expression import type_of
from sluice.topology import nodes
from sluice.values.aggregate_calls import AggregateFunction
from sluice.values.record_metadata import METADATA
from sluice.values.sql_text import value_if

EACH_RECORD = "TRUE"
"""The argument of `count(*)` for the records that the function counts. For records of other
streams, the argument is null."""


@dataclass(frozen=True)
class Slot:
    """An accumulator of a column. Each stream with this column adds its own argument to it."""

    column: str
    function: AggregateFunction
    """The function with the argument of the first stream that has the column."""
    call: str
    """The author's text of this function."""
    arguments: Mapping[int, str]
    """Number of a stream → the SQL of the argument that the stream adds."""


def slots_of(node: nodes.Cogroup) -> tuple[Slot, ...]:
    """Return the accumulators of a cogrouped aggregate, in the order of its columns."""
    slots: list[Slot] = []
    for column in node.columns:
        splits = _splits(node, column)
        first, *_ = splits.values()
        for place, (name, argument, parameters) in enumerate(first.functions):
            arguments: dict[int, str] = {}
            for part, split in splits.items():
                arguments[part] = _argument(split.functions[place])
            _require_one_type(node, column, arguments)
            function = name, argument or EACH_RECORD, parameters
            slots.append(Slot(column, function, first.calls[place], arguments))
    return tuple(slots)


def _argument(function: AggregateFunction) -> str:
    name, argument, _ = function
    if argument is None:
        return EACH_RECORD
    # The streams may count values of different types, so each counted value is replaced by the same
    # constant.
    if name == "count":
        return value_if(f"({argument}) IS NOT NULL", EACH_RECORD)
    return argument


def _require_one_type(node: nodes.Cogroup, column: str, arguments: Mapping[int, str]) -> None:
    """Raise TopologyError if streams certainly add values of different types to a column."""
    kinds: set[str] = set()
    texts: list[str] = []
    for number, sql in arguments.items():
        part = node.parts[number]
        kind = type_of(sql, _types_of(part))
        kinds.add(kind)
        texts.append(f"{part.columns[column]} of {kind}")
    if len(kinds - {""}) > 1:
        raise TopologyError(
            f"aggregate into {node.store!r} at {node.at}: the streams compute the column "
            f"{column} as {' and '.join(texts)}, which cannot be added up.",
            next_step="Convert the values to one type with CAST, or use two different names.",
        )


def column_of(node: nodes.Cogroup, column: str) -> SplitAggregate:
    """Return a column's expression over the results of its functions."""
    first, *_ = _splits(node, column).values()
    return first


def types_of(node: nodes.Cogroup, column: str) -> dict[str, str]:
    """Return the types of the fields that a column reads in the first stream that has it."""
    first, *_ = _parts_with(node, column).values()
    return _types_of(first)


def _types_of(part: nodes.CogroupedStream) -> dict[str, str]:
    return part.parent.result_types | METADATA


def _parts_with(node: nodes.Cogroup, column: str) -> dict[int, nodes.CogroupedStream]:
    """Return the streams that have a column, by their numbers."""
    parts: dict[int, nodes.CogroupedStream] = {}
    for number, part in enumerate(node.parts):
        if column in part.columns:
            parts[number] = part
    return parts


def _splits(node: nodes.Cogroup, column: str) -> dict[int, SplitAggregate]:
    """Return stream number → the column's expression and functions, for each stream that has it."""
    splits: dict[int, SplitAggregate] = {}
    for number, part in _parts_with(node, column).items():
        split = split_aggregate(part.columns[column])
        assert isinstance(split, SplitAggregate)
        splits[number] = split
    # The streams add to the same accumulators, so only the functions' arguments may differ between
    # streams.
    computed: set[tuple[str, tuple[tuple[str, tuple[float, ...]], ...]]] = set()
    for split in splits.values():
        functions: list[tuple[str, tuple[float, ...]]] = []
        for name, _, parameters in split.functions:
            functions.append((name, parameters))
        computed.add((split.text, tuple(functions)))
    if len(computed) > 1:
        texts = [part.columns[column] for part in _parts_with(node, column).values()]
        raise TopologyError(
            f"aggregate into {node.store!r} at {node.at}: the streams compute the column "
            f"{column} as {' and '.join(texts)}, which cannot be added up.",
            next_step="Use the same functions in all streams, or use different names.",
        )
    return splits
