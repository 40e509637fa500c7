"""What an aggregation does with its values, whatever its windows: SQL's functions, or Python functions of an author.

Both keep what they have seen in an aggregate (`kind`, which msgspec can keep), and tell a result as JSON text.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from typing import Any, Protocol

import msgspec

from sluice.errors import TopologyError
from sluice.operators.aggregation.accumulators import CountDistinct
from sluice.operators.aggregation.functions import SUBTRACTABLE, Function, row_of
from sluice.operators.encoding import IMMUTABLE, encode_state, state_decoder, to_json

_ENCODER = msgspec.json.Encoder(decimal_format="number")


class Calculation(Protocol):
    """From the values of a group to its result."""

    kind: Any
    """The aggregate's type."""

    def begin(self) -> Any:
        """The aggregate of nothing."""

    def read(self, value: str | None) -> Any:
        """A row's value, JSON text or None, as `add` and `subtract` take it; read once for all windows."""

    def add(self, key: str, aggregate: Any, value: Any) -> Any:
        """The aggregate with one more value. The one given may be changed."""

    def subtract(self, key: str, aggregate: Any, value: Any) -> Any:
        """The aggregate without a value that was in it."""

    def merge(self, key: str, earlier: Any, later: Any) -> Any:
        """The aggregate of two sessions that have become one."""

    def copy(self, aggregate: Any) -> Any:
        """The same for another window: neither is changed with the other."""

    def result(self, aggregate: Any) -> str | None:
        """The result as JSON text; None if there is none."""

    def keep(self) -> None:
        """Whatever was done so far stays."""

    def undo(self, aggregate: Any) -> Any:
        """An aggregate that was there at the last `keep`, as it was then."""


class Functions:
    """SQL's aggregate functions: a value is an array of their arguments.

    The result is an array of theirs, an object if they have `fields`, or the one result itself if it is `scalar`.
    """

    def __init__(
        self, *functions: Function, subtracts: bool = False, fields: tuple[str, ...] = (), scalar: bool = False
    ) -> None:
        for function in functions:
            if subtracts and function.name not in SUBTRACTABLE:
                raise TopologyError(
                    f"{function.name} over a table cannot take back a row that changes.",
                    next_step=f"Over a table use {', '.join(sorted(SUBTRACTABLE))}, or functions of your own.",
                )
        self._fields, self._scalar = fields, scalar
        accumulators = [row_of(function) for function in functions]
        arguments = [_argument(function) for function in functions]
        self.kind = tuple[tuple(accumulator.kind for accumulator in accumulators)]  # type: ignore[misc]
        self._decode = msgspec.json.Decoder(tuple[tuple(arguments)]).decode  # type: ignore[misc]
        self._nulls = (None,) * len(accumulators)
        self._raw = [at for at, function in enumerate(functions) if function.argument is msgspec.Raw]
        self._json = [at for at in self._raw if functions[at].name not in ("count", "count_distinct")]
        self._state_rows = accumulators
        self._in_place = [accumulator for accumulator in accumulators if isinstance(accumulator, CountDistinct)]
        self._adders = [accumulator.add for accumulator in accumulators]

    def begin(self) -> tuple[Any, ...]:
        """Every function's empty accumulator."""
        return tuple([accumulator.begin() for accumulator in self._state_rows])

    def read(self, value: str | None) -> Any:
        """The functions' arguments; of a null value all are null."""
        if value is None:
            return self._nulls
        arguments = self._decode(value)
        if not self._raw:
            return arguments
        texts: list[Any] = list(arguments)
        for at in self._raw:
            text = bytes(texts[at]).decode()
            texts[at] = None if text == "null" else text
        return texts

    def add(self, key: str, aggregate: tuple[Any, ...], value: Any) -> tuple[Any, ...]:
        """Every accumulator with its argument."""
        return tuple(
            [add(accumulator, given) for add, accumulator, given in zip(self._adders, aggregate, value, strict=True)]
        )

    def subtract(self, key: str, aggregate: tuple[Any, ...], value: Any) -> tuple[Any, ...]:
        """Every accumulator without its argument."""
        given = zip(self._state_rows, aggregate, value, strict=True)
        return tuple([function.subtract(accumulator, argument) for function, accumulator, argument in given])

    def merge(self, key: str, earlier: tuple[Any, ...], later: tuple[Any, ...]) -> tuple[Any, ...]:
        """Accumulator by accumulator."""
        both = zip(self._state_rows, earlier, later, strict=True)
        return tuple([function.merge(one, other) for function, one, other in both])

    def copy(self, aggregate: tuple[Any, ...]) -> tuple[Any, ...]:
        """Accumulator by accumulator."""
        return tuple(
            [function.copy(accumulator) for function, accumulator in zip(self._state_rows, aggregate, strict=True)]
        )

    def result(self, aggregate: tuple[Any, ...]) -> str:
        """The functions' results in order."""
        results = [
            function.result(accumulator) for function, accumulator in zip(self._state_rows, aggregate, strict=True)
        ]
        for at in self._json:
            results[at] = _spliced(results[at])
        return _ENCODER.encode(self._shaped(results)).decode()

    def keep(self) -> None:
        """Only accumulators that change in place have something to remember."""
        for accumulator in self._in_place:
            accumulator.keep()

    def undo(self, aggregate: tuple[Any, ...]) -> tuple[Any, ...]:
        """The other accumulators were never changed."""
        for accumulator in self._in_place:
            accumulator.undo()
        return aggregate

    def _shaped(self, results: list[Any]) -> Any:
        if self._scalar:
            return results[0]
        return dict(zip(self._fields, results, strict=True)) if self._fields else results


def _argument(function: Function) -> Any:
    if function.argument is None:
        return Any
    return msgspec.Raw if function.argument is msgspec.Raw else function.argument | None


def _spliced(result: str | list[str] | None) -> Any:
    if result is None:
        return None
    return msgspec.Raw(result.encode()) if isinstance(result, str) else [msgspec.Raw(one.encode()) for one in result]


class Custom:
    """An author's Python functions. Without an initializer the first value is the first aggregate.

    `adder(key, aggregate, value)` and `subtractor` get values decoded as `argument_type`, `merger(key, earlier, later)`
    two sessions' aggregates. Aggregates are kept as `value_type`.
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
        self.kind = value_type | None
        self._plain = value_type
        self._initializer = initializer
        self._adder = adder
        self._subtractor = subtractor
        self._merger = merger
        self._decode = msgspec.json.Decoder(argument_type).decode
        self._decode_kept = state_decoder(self.kind)
        self._before: dict[int, bytes] = {}
        """By identity the aggregates that the author's functions were given and may have changed."""

    def begin(self) -> Any:
        """What the initializer says; nothing yet when reducing."""
        return self._initializer() if self._initializer else None

    def read(self, value: str | None) -> Any:
        """The value as the author's functions take it."""
        return None if value is None else self._decode(value)

    def add(self, key: str, aggregate: Any, value: Any) -> Any:
        """What the adder makes of it."""
        if self._initializer is None and aggregate is None:
            return self._checked(value)
        self._remember(aggregate)
        return self._checked(self._adder(key, aggregate, value))

    def subtract(self, key: str, aggregate: Any, value: Any) -> Any:
        """What the subtractor makes of it."""
        if not self._subtractor:
            raise TopologyError("An aggregation over a table needs a subtractor.")
        self._remember(aggregate)
        return self._checked(self._subtractor(key, aggregate, value))

    def merge(self, key: str, earlier: Any, later: Any) -> Any:
        """What the merger makes of both; the reducer reduces them."""
        if earlier is None or later is None:
            return later if earlier is None else earlier
        self._remember(earlier)
        self._remember(later)
        if not self._merger:
            raise TopologyError("An aggregation over sessions needs a merger.")
        return self._checked(self._merger(key, earlier, later))

    def copy(self, aggregate: Any) -> Any:
        """All of it anew."""
        return deepcopy(aggregate)

    def result(self, aggregate: Any) -> str | None:
        """The aggregate itself as JSON."""
        return None if aggregate is None else to_json(aggregate)

    def keep(self) -> None:
        """What the author's functions changed stays changed."""
        if self._before:
            self._before.clear()

    def undo(self, aggregate: Any) -> Any:
        """The aggregate itself, unless an author's function may have changed it."""
        before = self._before.get(id(aggregate))
        return aggregate if before is None else self._decode_kept(before)

    def _remember(self, aggregate: Any) -> None:
        if type(aggregate) not in IMMUTABLE and id(aggregate) not in self._before:
            self._before[id(aggregate)] = encode_state(aggregate)

    def _checked(self, aggregate: Any) -> Any:
        """The aggregate, once it is certain that the next batch can decode it as the declared type."""
        kind = type(aggregate)
        if kind is int:
            if self._plain in (int, Any) and -(1 << 63) <= aggregate < 1 << 63:
                return aggregate
        elif kind is self._plain and kind in IMMUTABLE:
            return aggregate
        self._decode_kept(encode_state(aggregate))
        return aggregate
