"""The Python functions and the processor of the cases. A reducer is called with the total before the value."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeVar

import msgspec
from msgspec import Struct

from sluice import Context, Record, Timer
from tests.conformance.model.aggregates import added as increased_by
from tests.conformance.model.aggregates import initial
from tests.conformance.model.aggregates import merged as combined
from tests.conformance.model.expressions import SIZES, evaluate
from tests.conformance.model.keyed import is_removed


class Value(Struct):
    """What the functions return."""

    n: int | None
    g: str | None


Total = TypeVar("Total", bound=Any)


def is_present(value: Any) -> bool:
    return value is not None


def doubled(value: Any) -> Value | None:
    """`value` is a Struct, or a dict if SQL has made it."""
    if value is None:
        return None
    n, g = _number(value), value.get("g") if isinstance(value, dict) else value.g
    return Value(None if n is None else n * 2 % SIZES, g)


def appended(total: Total, value: Total) -> Total:
    """A total that depends on the order of the values."""
    return msgspec.structs.replace(
        total, n=((total.n or 0) * 7 + (value.n or 0)) % SIZES, g=value.g
    )


def added(total: Total, value: Total) -> Total:
    """A total from which values can be subtracted again."""
    return msgspec.structs.replace(total, n=(total.n or 0) + (value.n or 0))


def subtracted(total: Total, value: Total) -> Total:
    """The inverse of `added`."""
    return msgspec.structs.replace(total, n=(total.n or 0) - (value.n or 0))


def nothing() -> int:
    return 0


def folded(total: int, value: Any) -> int:
    """A total that depends on the order of the values. Without subtractor; also called with null."""
    return (total * 7 + (_number(value) or 0)) % SIZES


def folded_or_removed(total: int, value: Any) -> int | None:
    return _unless_removed(folded(total, value))


def merged(earlier: int, later: int) -> int:
    """The total of two sessions."""
    return (earlier * 3 + later) % SIZES


def increased(total: int, value: Any) -> int:
    return total + (_number(value) or 0)


def decreased(total: int, value: Any) -> int:
    return total - (_number(value) or 0)


def increased_or_removed(total: int, value: Any) -> int | None:
    return _unless_removed(increased(total, value))


def decreased_or_removed(total: int, value: Any) -> int | None:
    return _unless_removed(decreased(total, value))


def _unless_removed(total: int) -> int | None:
    return None if is_removed(total) else total


def _number(value: Any) -> int | None:
    number: int | None = value.get("n") if isinstance(value, dict) else getattr(value, "n", None)
    return number


class Turns:
    """Numbers the records of a key, and sends a further record when a timer fires. Without a key, there is no store."""

    def init(self, context: Context) -> None:
        self.context = context

    def process(self, record: Record) -> None:
        n = None if record.value is None else record.value["n"]
        if record.key is None:
            self.context.forward(None, {"n": n, "g": None})
            return
        turns = self.context.store("turns")
        number = turns.get("number", 0) + 1
        turns.put("number", number)
        self.context.schedule("later", record.time + 5)
        self.context.forward(record.key, {"n": ((n or 0) + number) % SIZES, "g": str(number % 3)})

    def on_timer(self, timer: Timer) -> None:
        self.context.forward(timer.key, {"n": timer.time % SIZES, "g": None})


@dataclass(frozen=True, eq=False)
class Slots:
    """The functions of a cogrouped aggregate, for one stream with `aggs`. Unlike SQL's, lists include nulls."""

    columns: tuple[dict[str, Any], ...]
    contract: type[Struct]
    aggs: tuple[dict[str, Any], ...] = ()

    @property
    def __name__(self) -> str:
        return "slots"

    def initial(self) -> Struct:
        return self.contract(**{one["name"]: initial(one["fn"]) for one in self.columns})

    def __call__(self, key: str, total: Struct, value: Any) -> Struct:
        read = msgspec.to_builtins(value)
        more = {}
        for one in self.aggs:
            element = evaluate(one["expr"], key, read) if "expr" in one else None
            before = getattr(total, one["name"])
            is_list = one["fn"] == "collect_list"
            more[one["name"]] = (
                [*before, element] if is_list else increased_by(one["fn"], before, element)
            )
        return msgspec.structs.replace(total, **more)

    def merged(self, one: Struct, other: Struct) -> Struct:
        return self.contract(**{
            column["name"]: combined(column["fn"], getattr(one, column["name"]), getattr(other, column["name"]))
            for column in self.columns
        })  # fmt: skip
