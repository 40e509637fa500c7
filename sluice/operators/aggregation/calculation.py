"""Calculates aggregates, independent of windows, by SQL functions or an author's Python functions.

A calculation accumulates values in an aggregate of type `kind`, which msgspec can encode. The
result is JSON text.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import deepcopy
from decimal import Decimal
from operator import length_hint
from typing import Any, Protocol

import msgspec
from typing_extensions import override

from sluice.errors import TopologyError
from sluice.operators.aggregation.accumulator import InPlace
from sluice.operators.aggregation.accumulators import CountDistinct
from sluice.operators.aggregation.aggregate_functions import (
    Function,
    accumulator_of,
    table_accumulator_of,
)
from sluice.operators.aggregation.statistics import ArgumentPair
from sluice.operators.aggregation.sums import Count
from sluice.operators.encoding import (
    IMMUTABLE,
    Declared,
    encode_state,
    require_same,
    state_decoder,
    state_type,
)
from sluice.values import contract_parts
from sluice.values.aggregate_calls import SUBTRACTABLE
from sluice.values.function_wrappers import for_key
from sluice.values.stored_values import value_decoder

_ENCODER = msgspec.json.Encoder(decimal_format="number")


class Calculation(Protocol):
    """The functions that compute an aggregate."""

    kind: Any
    """The aggregate's type."""

    def new_aggregate(self) -> Any:
        """Return an aggregate of no values."""

    def read(self, value: str | None) -> Any:
        """Decode a row's value (JSON text or None) for one call of `add` or `subtract`.

        Each call gets its own copy, because an author's function may change its arguments.
        """

    def rejected(self, value: str | None) -> str | None:
        """Return the value that a row's dead letter contains."""

    def add(self, key: str, aggregate: Any, value: Any) -> Any:
        """Return the aggregate with the value added. May modify `aggregate`."""

    def add_all(
        self,
        key: str,
        aggregate: Any,
        values: Sequence[str | None],
        results: list[str | None] | None = None,
    ) -> tuple[Any, int]:
        """Return the aggregate with the values of several rows added, one after the other.

        Also return the index of the value with which the aggregate has begun: the first value after
        the last removal, or 0. If only the last value removes the aggregate, the index is 0, too.

        Appends the result after each value to `results`, if given. Raises the error that `add` or
        `result` would raise for any of the values. The changes of a call that fails cannot be
        undone.
        """

    def subtract(self, key: str, aggregate: Any, value: Any) -> Any:
        """Return the aggregate with a previously added value removed. May modify `aggregate`."""

    def merge(self, key: str, earlier: Any, later: Any) -> Any:
        """Return the combined aggregate of two sessions. May modify both aggregates."""

    def copy(self, aggregate: Any) -> Any:
        """Return an independent copy for another window."""

    def result(self, aggregate: Any) -> str | None:
        """Return the result as JSON text; None if a function has removed the aggregate."""

    def results(self, aggregates: Sequence[Any]) -> list[str | None]:
        """Return the result of each aggregate."""

    def check(self, aggregate: Any) -> None:
        """Raise the error that `result` would raise."""

    def keep_changes(self) -> None:
        """Make all changes so far final."""

    def undo_changes(self, aggregate: Any) -> Any:
        """Return the aggregate as of the last `keep_changes`."""


class Functions:
    """SQL aggregate functions. A row's value is the JSON array of the functions' arguments.

    The calculation's result is an array of the functions' results, or an object if `fields` names
    the results. If `scalar`, there is only one function, and its result is the calculation's
    result.
    """

    def __init__(
        self,
        *functions: Function,
        subtracts: bool = False,
        fields: tuple[str, ...] = (),
        scalar: bool = False,
    ) -> None:
        for function in functions:
            if subtracts and function.name not in SUBTRACTABLE:
                raise TopologyError(
                    f"{function.name} over a table cannot subtract a row that changes.",
                    next_step=f"For tables, use {', '.join(sorted(SUBTRACTABLE))}, "
                    "or Python functions.",
                )
        self.fields, self.scalar = fields, scalar
        new_accumulator = table_accumulator_of if subtracts else accumulator_of
        accumulators = [*map(new_accumulator, functions)]
        arguments = [function.json_type for function in functions]
        self.kind = tuple[tuple(accumulator.kind for accumulator in accumulators)]  # type: ignore[misc]
        self._decode = msgspec.json.Decoder(tuple[tuple(arguments)]).decode  # type: ignore[misc]
        self._nulls = (None,) * len(accumulators)
        # The indices of the functions whose argument is not a number, a Boolean or a text. Such an
        # argument stays JSON text.
        self._raw_arguments: list[int] = []
        self._pair_arguments: set[int] = set()
        for at, function in enumerate(functions):
            if function.argument is msgspec.Raw:
                self._raw_arguments.append(at)
            if function.takes_pairs:
                self._pair_arguments.add(at)
        self._map_arguments: list[int] = []
        self._json_results: list[int] = []
        for at in self._raw_arguments:
            if functions[at].maps and functions[at].name in _COMPARING:
                self._map_arguments.append(at)
            if functions[at].name not in _COUNTING:
                self._json_results.append(at)
        self.accumulators = accumulators
        self._adders = [accumulator.add for accumulator in accumulators]
        self._in_place: list[InPlace] = []
        self._has_only_counts = True
        for accumulator in accumulators:
            if isinstance(accumulator, InPlace):
                self._in_place.append(accumulator)
            if not isinstance(accumulator, Count | CountDistinct):
                self._has_only_counts = False
        """Whether all results are counts, which can always be written as JSON."""
        self._last: tuple[str | None, Any] = None, self._nulls
        """The last value read, and the arguments decoded from it. No accumulator changes arguments,
        so all windows of a row share them."""

    def new_aggregate(self) -> tuple[Any, ...]:
        return tuple([accumulator.new_accumulator() for accumulator in self.accumulators])

    def read(self, value: str | None) -> Any:
        """Decode the functions' arguments. For a null value, all arguments are null."""
        last, arguments = self._last
        # The windows of a row are computed one after the other with the same value, so decode the
        # value only once.
        if value is not last:
            arguments = self._nulls if value is None else self._arguments(value)
            self._last = value, arguments
        return arguments

    def rejected(self, value: str | None) -> str | None:
        return value

    def _arguments(self, value: str) -> Any:
        arguments = self._decode(value)
        if not self._raw_arguments:
            return arguments
        texts: list[Any] = list(arguments)
        for at in self._raw_arguments:
            argument = texts[at]
            if at not in self._pair_arguments:
                texts[at] = _text_or_none(argument)
            elif argument is not None:
                texts[at] = ArgumentPair(_text_or_none(argument.x), argument.y)
        # Two maps with the same entries in different orders are equal, so they must become equal
        # texts.
        for at in self._map_arguments:
            if texts[at] is None:
                texts[at] = None
            else:
                texts[at] = _with_sorted_names(texts[at])
        return texts

    def add(self, key: str, aggregate: tuple[Any, ...], value: Any) -> tuple[Any, ...]:
        triples = zip(self._adders, aggregate, value, strict=True)
        return tuple([add(part, argument) for add, part, argument in triples])

    def add_all(
        self,
        key: str,
        aggregate: tuple[Any, ...],
        values: Sequence[str | None],
        results: list[str | None] | None = None,
    ) -> tuple[tuple[Any, ...], int]:
        for arguments in map(self.read, values):
            aggregate = self.add(key, aggregate, arguments)
            if results is None:
                self.check(aggregate)
            else:
                results.append(self.result(aggregate))
        return aggregate, 0

    def subtract(self, key: str, aggregate: tuple[Any, ...], value: Any) -> tuple[Any, ...]:
        triples = zip(self.accumulators, aggregate, value, strict=True)
        return tuple(
            [accumulator.subtract(part, argument) for accumulator, part, argument in triples]
        )

    def merge(self, key: str, earlier: tuple[Any, ...], later: tuple[Any, ...]) -> tuple[Any, ...]:
        triples = zip(self.accumulators, earlier, later, strict=True)
        return tuple([accumulator.merge(before, after) for accumulator, before, after in triples])

    def copy(self, aggregate: tuple[Any, ...]) -> tuple[Any, ...]:
        pairs = zip(self.accumulators, aggregate, strict=True)
        return tuple([accumulator.copy(part) for accumulator, part in pairs])

    def result(self, aggregate: tuple[Any, ...]) -> str:
        pairs = zip(self.accumulators, aggregate, strict=True)
        results = [accumulator.result(part) for accumulator, part in pairs]
        for at in self._json_results:
            results[at] = _raw_json(results[at])
        shaped: Any = results
        if self.scalar:
            shaped = results[0]
        elif self.fields:
            shaped = dict(zip(self.fields, results, strict=True))
        return _ENCODER.encode(shaped).decode()

    def results(self, aggregates: Sequence[tuple[Any, ...]]) -> list[str | None]:
        return [self.result(aggregate) for aggregate in aggregates]

    def result_json(self, at: int, part: Any) -> str:
        """Return one function's result as JSON text, given its part of the aggregate."""
        result = self.accumulators[at].result(part)
        return _ENCODER.encode(_raw_json(result) if at in self._json_results else result).decode()

    def check(self, aggregate: tuple[Any, ...]) -> None:
        if not self._has_only_counts:
            self.result(aggregate)

    def keep_changes(self) -> None:
        for accumulator in self._in_place:
            accumulator.keep_changes()

    def undo_changes(self, aggregate: tuple[Any, ...]) -> tuple[Any, ...]:
        for accumulator in self._in_place:
            accumulator.undo_changes()
        return aggregate


_COMPARING = ("collect_set", "count_distinct", "approx_count_distinct", "mode")
_COUNTING = ("count", "count_distinct", "approx_count_distinct")
"""Functions that accept arguments of any type and return counts."""


def _text_or_none(raw: msgspec.Raw) -> str | None:
    text = bytes(raw).decode()
    if text == "null":
        return None
    return text


_DECODER = msgspec.json.Decoder(float_hook=Decimal)
_SORTING = msgspec.json.Encoder(decimal_format="number", order="deterministic")


def _with_sorted_names(text: str) -> str:
    """Return the JSON text with the names of each object's fields sorted."""
    return _SORTING.encode(_DECODER.decode(text)).decode()


def _raw_json(result: str | list[str] | None) -> Any:
    if result is None:
        return None
    if isinstance(result, str):
        return msgspec.Raw(result.encode())
    return [msgspec.Raw(text.encode()) for text in result]


class Custom:
    """An author's Python functions. Without an initializer, the first value is the first aggregate.

    `adder(key, aggregate, value)` and `subtractor` get values decoded as `argument_type`;
    `merger(key, earlier, later)` gets the aggregates of two sessions. Aggregates are stored as
    `value_type`. A function that returns None removes the aggregate. The next value is added to a
    new initial aggregate. Until then, nothing is subtracted.
    """

    def __init__(
        self,
        initializer: Callable[[], Any] | None,
        adder: Callable[..., Any],
        subtractor: Callable[..., Any] | None = None,
        merger: Callable[..., Any] | None = None,
        value_type: Any = Any,
        argument_type: Any = Any,
    ) -> None:
        self.kind = state_type(value_type) | None
        self._plain = value_type
        self._declared = Declared(value_type)
        self._is_plain = _plain_aggregates(self._declared)
        self._initializer = initializer
        self._adder = adder
        self._subtractor = subtractor
        self._merger = merger
        self._decode = value_decoder(argument_type)
        self._decode_kept = state_decoder(self.kind)
        if value_type is Any:
            self._check_amounts = None
        else:
            self._check_amounts = contract_parts.amount_check(value_type)
        self._before: dict[int, bytes] = {}
        """`id` of an aggregate → the aggregate's encoding from before the author's functions could
        modify it."""

    def new_aggregate(self) -> Any:
        if self._initializer is None:
            return None
        initial = self._initializer()
        # Return a copy, in case the initializer returns the same list for every key and the adder
        # appends to it.
        if type(initial) in IMMUTABLE:
            return initial
        copy = self._declared.copy_plain
        if copy is not None and self._is_plain(initial):
            return copy(initial)
        return deepcopy(initial)

    def read(self, value: str | None) -> Any:
        if value is None:
            return None
        return self._decode(value)

    def rejected(self, value: str | None) -> str | None:
        return value

    def add(self, key: str, aggregate: Any, value: Any) -> Any:
        if aggregate is None:
            if self._initializer is None:
                return self._checked(value)
            # The author's function has removed the aggregate, so begin a new one.
            aggregate = self.new_aggregate()
        self._remember(aggregate)
        return self._checked(self._adder(key, aggregate, value))

    def add_all(
        self,
        key: str,
        aggregate: Any,
        values: Sequence[str | None],
        results: list[str | None] | None = None,
    ) -> tuple[Any, int]:
        adder, declared = for_key(self._adder, key), self._declared
        is_plain, copy = self._is_plain, declared.copy_plain
        # `read` also accepts None, but `_decode` is faster.
        decode: Callable[[Any], Any] = self.read if None in values else self._decode
        begin, rest = 0, iter(values)
        for value in map(decode, rest):
            if aggregate is None:
                # Removals are rare, so compute the index from the number of remaining values
                # instead of counting the values.
                begin = len(values) - length_hint(rest) - 1
                aggregate = self.add(key, None, value)
            else:
                aggregate = adder(aggregate, value)
                if is_plain(aggregate):
                    if copy is not None:
                        aggregate = copy(aggregate)
                    if results is not None:
                        results.append(declared.plain_text(aggregate))
                    continue
                aggregate = self._checked(aggregate)
            # Even without `results`, compute the result, because this may raise an error.
            result = self.result(aggregate)
            if results is not None:
                results.append(result)
        return aggregate, begin

    def subtract(self, key: str, aggregate: Any, value: Any) -> Any:
        if not self._subtractor:
            raise TopologyError("An aggregation over a table needs a subtractor.")
        self._remember(aggregate)
        return self._checked(self._subtractor(key, aggregate, value))

    def merge(self, key: str, earlier: Any, later: Any) -> Any:
        """Return the aggregate of two merged sessions.

        If only one of the sessions has an aggregate, return that aggregate.
        """
        if earlier is None or later is None:
            if earlier is None:
                return later
            return earlier
        self._remember(earlier)
        self._remember(later)
        if not self._merger:
            raise TopologyError("An aggregation over sessions needs a merger.")
        return self._checked(self._merger(key, earlier, later))

    def copy(self, aggregate: Any) -> Any:
        return deepcopy(aggregate)

    def result(self, aggregate: Any) -> str | None:
        if aggregate is None:
            return None
        return self._declared.typed_json(aggregate)

    def results(self, aggregates: Sequence[Any]) -> list[str | None]:
        if any(aggregate is None for aggregate in aggregates):
            return [self.result(aggregate) for aggregate in aggregates]
        return [*self._declared.typed_texts(aggregates)]

    def check(self, aggregate: Any) -> None:
        if not self._is_plain(aggregate):
            self.result(aggregate)

    def keep_changes(self) -> None:
        if self._before:
            self._before.clear()

    def undo_changes(self, aggregate: Any) -> Any:
        before = self._before.get(id(aggregate))
        if before is None:
            return aggregate
        return self._decode_kept(before)

    def _remember(self, aggregate: Any) -> None:
        # Undoing needs only the encoding from before the first change. An immutable aggregate needs
        # no encoding.
        if type(aggregate) not in IMMUTABLE and id(aggregate) not in self._before:
            self._before[id(aggregate)] = encode_state(aggregate)

    def _checked(self, aggregate: Any) -> Any:
        """Return the aggregate in the form that it would have in the next batch, after decoding.

        Raises an error if the aggregate is not of the declared type.
        """
        if self._is_plain(aggregate):
            copy = self._declared.copy_plain
            if copy is None:
                return aggregate
            return copy(aggregate)
        kind = type(aggregate)
        # Integers must not return here, because their range is checked below.
        if kind is self._plain and kind in _WITHOUT_INTEGERS:
            return aggregate
        if self._check_amounts is not None:
            self._check_amounts(aggregate)
        decoded = self._decode_kept(encode_state(self._declared.accepted(aggregate)))
        if self._plain is Any:
            require_same(aggregate, decoded, "returns=...")
        return decoded


_WITHOUT_INTEGERS = IMMUTABLE - {int}


def _plain_aggregates(declared: Declared) -> Callable[[Any], bool]:
    """Return `Declared.is_plain`, but with the result False for None, which is no aggregate."""
    is_plain = declared.is_plain
    if is_plain(None):
        return lambda value: value is not None and is_plain(value)
    return is_plain


class Batched(Custom):
    """An author's functions whose adder takes a list of values.

    The author promises that the aggregate does not depend on how the values are divided into lists.
    """

    @override
    def read(self, value: str | None) -> list[Any]:
        return [super().read(value)]

    @override
    def add_all(
        self,
        key: str,
        aggregate: Any,
        values: Sequence[str | None],
        results: list[str | None] | None = None,
    ) -> tuple[Any, int]:
        if results is None:
            size = _MOST_VALUES
        else:
            size = 1
        begin = 0
        for first in range(0, len(values), size):
            if aggregate is None:
                begin = first
            several = [*map(super().read, values[first : first + size])]
            aggregate = self.add(key, aggregate, several)
            if results is not None:
                results.append(self.result(aggregate))
        self.check(aggregate)
        return aggregate, begin


_MOST_VALUES = 10_000
"""A function that takes lists gets at most this many values in one call, so that a call needs
little memory."""


class Cogrouped(Custom):
    """An author's functions for several streams.

    A row's value is a JSON array: the stream's number, and the value.

    `streams`: for each stream, its adder and the type of its values.
    """

    def __init__(
        self,
        initializer: Callable[[], Any],
        streams: Sequence[tuple[Callable[..., Any], Any]],
        merger: Callable[..., Any] | None = None,
        value_type: Any = Any,
    ) -> None:
        super().__init__(initializer, self._add_of_stream, None, merger, value_type)
        self._adders = [adder for adder, _ in streams]
        self._decoders: list[Callable[[Any], Any]] = []
        for _, kind in streams:
            self._decoders.append(value_decoder(Any if kind is Any else kind | None))
        self._decode = self._decode_with_number

    def _decode_with_number(self, value: str | msgspec.Raw) -> tuple[int, Any]:
        stream, data = _decode_numbered(value)
        return stream, self._decoders[stream](data)

    @override
    def rejected(self, value: str | None) -> str | None:
        """Return the value without its stream's number, because authors do not know this number."""
        if value is None:
            return None
        return bytes(_decode_numbered(value)[1]).decode()

    def _add_of_stream(self, key: str, aggregate: Any, numbered: tuple[int, Any]) -> Any:
        stream, value = numbered
        return self._adders[stream](key, aggregate, value)


_decode_numbered = msgspec.json.Decoder(tuple[int, msgspec.Raw]).decode
