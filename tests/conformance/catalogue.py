"""All operators as nodes of a case: what each takes, what it gives, and how the next one reads its values.

No step lies between two operators: whatever a value looks like, `Values` says how to get a number
and a text from it.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Literal

from tests.conformance.model.expressions import SIZES

Expression = list[Any]
Kind = Literal["stream", "table", "windowed"]
"""`windowed` is a table with windowed keys."""

SOURCES: dict[str, Kind | Literal["global_table"]] = {
    "l": "stream", "r": "stream", "t": "table", "u": "table", "w": "global_table",
}  # fmt: skip
"""Topic, which is also its node's name → kind. The values have the fields `n`, a number, and `g`, a text."""


@dataclass(frozen=True)
class Values:
    """A node of a topology."""

    id: str
    kind: Kind | Literal["global_table"]
    number: Expression = field(default_factory=lambda: ["field", "n"])
    """The expression that gets a number from its values, which may be null."""
    text: Expression = field(default_factory=lambda: ["field", "g"])
    """The same for a text."""
    typed: bool = False
    """Whether the values have a declared type, as the functions of a reduce need."""
    origins: frozenset[str] = frozenset()
    """The sources behind it."""
    is_joined: bool = False
    """Whether a join is on the way here."""
    settled: bool = True
    """Whether the updates between two results are known. If a table is joined with itself by a foreign key, Kafka
    Streams skips updates that Sluice sends.
    """
    steps: tuple[str, ...] = ()
    """The names of the operators on the way here."""
    times: int = 1
    """About how many records there are for each record of the input."""


class Unfit(Exception):
    """An operator cannot follow another one."""


class Nodes:
    """The nodes of a topology, in the order of their declaration."""

    def __init__(self) -> None:
        self.nodes: list[dict[str, Any]] = [
            {"id": name, "op": op, "topic": name} for name, op in SOURCES.items()
        ]
        self.sources = {
            name: Values(name, kind, typed=True, origins=frozenset({name}))
            for name, kind in SOURCES.items()
        }
        self._numbers = itertools.count(1)

    def add(self, op: str, **fields: Any) -> str:
        """Add a node. Returns its id."""
        name = f"x{next(self._numbers)}"
        self.nodes.append({"id": name, "op": op, **fields})
        return name


@dataclass(frozen=True)
class Step:
    """An operator with one input, or a join whose other input is a source."""

    name: str
    takes: Kind
    gives: Kind
    add: Callable[[Nodes, Values], Values]

    def after(self, nodes: Nodes, node: Values) -> Values:
        """Add the operator behind a node. Raises Unfit if their results would have no meaning."""
        if not node.settled and self.name not in _STATELESS:
            raise Unfit("not all updates are known")
        made = self.add(nodes, node)
        return replace(made, kind=self.gives, steps=(*node.steps, self.name))


def _const(value: Any) -> Expression:
    return ["const", value]


def _small(number: Expression) -> Expression:
    return ["mod", number, _const(SIZES)]


def _filter(op: str, nodes: Nodes, node: Values) -> Values:
    where = [">", ["mod", node.number, _const(3)], _const(0)]
    made = nodes.add(op, **{"in": node.id}, where=where)
    return replace(node, id=made)


def _map(nodes: Nodes, node: Values) -> Values:
    value = ["struct", {"n": _small(["+", node.number, _const(1)]), "g": node.text}]
    return objects(node, nodes.add("map_values", **{"in": node.id}, value=value))


def objects(node: Values, made: str, **about: Any) -> Values:
    """A node behind another one, with values of the usual form."""
    return replace(
        node,
        **{"id": made, "number": ["field", "n"], "text": ["field", "g"], "typed": False, **about},
    )


def _map_to_number(nodes: Nodes, node: Values) -> Values:
    """The values are numbers, no objects; in a table, a null deletes."""
    made = nodes.add("map_values", **{"in": node.id}, value=node.number)
    return replace(
        node, id=made, number=["value"], text=["str", ["mod", ["value"], _const(3)]], typed=False
    )


def _select_key(nodes: Nodes, node: Values) -> Values:
    return replace(node, id=nodes.add("select_key", **{"in": node.id}, key=node.text))


def _flat_map(nodes: Nodes, node: Values) -> Values:
    elements = ["list", node.number, _small(["+", node.number, _const(1)])]
    made = nodes.add("flat_map_values", **{"in": node.id}, list=elements)
    return replace(node, id=made, number=["value"], text=["key"], typed=False, times=2 * node.times)


def merge(nodes: Nodes, node: Values, other: Values) -> Values:
    """Both streams need values of one form."""
    both = [one.id if one.id in SOURCES else _map(nodes, one).id for one in (node, other)]
    origins, times = node.origins | other.origins, node.times + other.times
    return objects(node, nodes.add("merge", **{"in": both}), origins=origins, times=times)


def _diamond(nodes: Nodes, node: Values) -> Values:
    """Two branches, of which some records take both, merged again."""
    few = nodes.add("filter", **{"in": node.id}, where=["<", node.number, _const(6)])
    return merge(nodes, replace(node, id=few), node)


def _deduplicate(nodes: Nodes, node: Values) -> Values:
    return replace(node, id=nodes.add("deduplicate", **{"in": node.id}, by=node.number, within=6))


def double(nodes: Nodes, node: Values) -> Values:
    """A map by a function. It makes typed values of objects."""
    parent = node if node.typed else _map(nodes, node)
    return objects(node, nodes.add("double", **{"in": parent.id}), typed=True)


def _process(nodes: Nodes, node: Values) -> Values:
    plain = _map(nodes, node)
    return objects(node, nodes.add("process", **{"in": plain.id}), times=2 * node.times)


def _process_values(nodes: Nodes, node: Values) -> Values:
    """Numbers the records of a key, and looks up two tables by another key than that of the record."""
    number: Expression = ["count_so_far"]
    for table in ("t", "w"):
        number = ["+", number, ["not_null", ["lookup", table, node.text]]]
    value = ["struct", {"n": _small(number), "g": ["concat", node.text]}]
    return objects(node, nodes.add("process_values", **{"in": node.id}, value=value))


def _processed_by_window(nodes: Nodes, node: Values) -> Values:
    """The updates of a windowed table, numbered by key and window, and kept as a windowed table again."""
    stream = nodes.add("to_stream", **{"in": node.id}, keep_window=True)
    number: Expression = ["+", ["window_start"], ["*", ["count_so_far"], _const(3)]]
    value = [
        "struct",
        {"n": _small(["+", node.number, number]), "g": ["concat", node.text, ["key"]]},
    ]
    made = nodes.add("process_values", **{"in": stream}, value=value)
    table = nodes.add("to_table", **{"in": made})
    return objects(node, table, kind="windowed")


def _punctuate(nodes: Nodes, node: Values) -> Values:
    about = {"type": "stream_time", "every_ms": 7, "reset": False, "forward": False}
    made = nodes.add("punctuate", **{"in": node.id}, **about)
    value = ["struct", {"n": _small(["+", ["field", "n"], ["field", "at"]]), "g": ["key"]}]
    return objects(node, nodes.add("map_values", **{"in": made}, value=value))


AGGREGATES: tuple[tuple[str, str], ...] = (("s", "sum"), ("l", "collect_list"))


def aggregate(group: str, window: dict[str, Any] | None, nodes: Nodes, node: Values) -> Values:
    """Count, sum and list of the numbers. `group` is `key`, `text`, or `all` for one group of all records."""
    keys: dict[str, dict[str, Any]] = {
        "key": {},
        "text": {"group_key": node.text},
        "all": {"group_key": _const("all")},
    }
    columns = [{"name": name, "fn": fn, "expr": node.number} for name, fn in AGGREGATES]
    about = {"window": window} if window else {}
    made = nodes.add(
        "aggregate",
        **{"in": node.id},
        aggs=[{"name": "c", "fn": "count"}, *columns],
        **keys[group],
        **about,
    )
    # The list's digest also depends on the order of the records.
    number = _small(["+", ["field", "s"], ["digest", ["field", "l"]]])
    text = ["str", ["mod", ["field", "c"], _const(3)]]
    about_values: dict[str, Any] = {"number": number, "text": text, "typed": False}
    return replace(node, id=made, kind="table", **about_values)


def _regrouped(nodes: Nodes, node: Values) -> Values:
    """A windowed table grouped by the start of its windows."""
    start = ["mod", ["window_start"], _const(3)]
    columns = [{"name": "s", "fn": "sum", "expr": node.number}]
    made = nodes.add("aggregate", **{"in": node.id}, aggs=columns, group_key=["str", start])
    return objects(node, made, kind="table", number=_small(["field", "s"]), text=["key"])


def _by_window(nodes: Nodes, node: Values) -> Values:
    """The updates of a windowed table counted by key and window."""
    stream = nodes.add("to_stream", **{"in": node.id}, keep_window=True)
    made = nodes.add("aggregate", **{"in": stream}, aggs=[{"name": "c", "fn": "count"}])
    text = ["str", ["mod", ["field", "c"], _const(3)]]
    number = _small(["field", "c"])
    return objects(node, made, kind="windowed", number=number, text=text)


def _final(window: dict[str, Any], nodes: Nodes, node: Values) -> Values:
    """The final results of a windowed aggregate."""
    columns = [{"name": "s", "fn": "sum", "expr": node.number}]
    made = nodes.add(
        "aggregate", **{"in": node.id}, aggs=columns, window=window, emit="window_close"
    )
    stream = nodes.add("to_stream", **{"in": made})
    return objects(node, stream, number=_small(["field", "s"]), text=["key"])


def _cogroup(window: dict[str, Any] | None, nodes: Nodes, node: Values) -> Values:
    """A stream and a source that add to one aggregate."""
    source = nodes.sources["r"]
    parts = [
        {
            "in": one.id,
            "aggs": [{"name": "c", "fn": "count"}, {"name": name, "fn": "sum", "expr": one.number}],
        }
        for one, name in ((node, "s"), (source, "t"))
    ]
    made = nodes.add("cogroup", parts=parts, **({"window": window} if window else {}))
    number = _small(["+", ["*", ["field", "s"], _const(3)], ["field", "t"]])
    text = ["str", ["mod", ["field", "c"], _const(3)]]
    origins = node.origins | source.origins
    return objects(
        node, made, kind="table", number=number, text=text, origins=origins, times=node.times + 1
    )


def _as_of(how: str, nodes: Nodes, node: Values) -> Values:
    """A stream that looks up the versions of a source."""
    table = nodes.add("to_table", **{"in": "r"}, versioned={"history_ms": 20})
    return join(how, nodes, node, replace(nodes.sources["r"], id=table, kind="table"))


def _reduce(group: str, nodes: Nodes, node: Values) -> Values:
    if node.kind == "table" and not node.typed:
        raise Unfit("no step gives a table's values a type")
    typed = node if node.typed else double(nodes, node)
    keys = {} if group == "key" else {"group_key": typed.text}
    made = nodes.add("reduce", **{"in": typed.id}, **keys)
    return objects(node, made, kind="table", typed=True)


def _fold(
    group: str, window: dict[str, Any] | None, nodes: Nodes, node: Values, *, removes: bool = False
) -> Values:
    """An aggregate by functions, whose values are numbers. With `removes`, the functions sometimes remove it."""
    plain = _map(nodes, node)
    about: dict[str, Any] = {"in": plain.id} | ({} if group == "key" else {"group_key": plain.text})
    about |= {"window": window} if window else {}
    about |= {"removes": True} if removes else {}
    made = nodes.add("fold", **about)
    text = ["str", ["mod", ["value"], _const(3)]]
    return replace(node, id=made, kind="table", number=_small(["value"]), text=text, typed=False)


def _to_table(nodes: Nodes, node: Values, **options: Any) -> Values:
    return replace(node, id=nodes.add("to_table", **{"in": node.id}, **options))


def _to_stream(nodes: Nodes, node: Values) -> Values:
    return replace(node, id=nodes.add("to_stream", **{"in": node.id}))


def _suppress(nodes: Nodes, node: Values, **how: Any) -> Values:
    return replace(node, id=nodes.add("suppress", **{"in": node.id}, **how))


def join(how: str, nodes: Nodes, left: Values, right: Values, **about: Any) -> Values:
    """A join of any kind."""
    if _is_joined_from_same_records(left, right):
        raise Unfit(
            "Kafka Streams would compute the joined row before Sluice's join of the tables has changed it"
        )
    if _change_one_by_one(left, right):
        raise Unfit("Kafka Streams would join a row with a row that has not been computed yet")
    made = nodes.add("join", type=how, left=left.id, right=right.id, **about)
    numbers = [
        ["if_null", _of("left", left.number), _const(0)],
        ["if_null", _of("right", right.number), _const(0)],
    ]
    number = _small(["+", ["*", numbers[0], _const(3)], numbers[1]])
    text = ["if_null", _of("left", left.text), _of("right", right.text)]
    is_shared = left.kind == right.kind == "table" and bool(left.origins & right.origins)
    return replace(
        left, id=made, number=number, text=text, typed=False, times=left.times + right.times,
        origins=left.origins | right.origins, is_joined=True,
        settled=left.settled and right.settled and not (is_shared and "fk" in about),
    )  # fmt: skip


def _is_joined_from_same_records(stream: Values, table: Values) -> bool:
    """Whether a stream looks up rows of a join of tables, which the stream's own records may change."""
    is_lookup = stream.kind == "stream" and table.kind == "table"
    return (
        is_lookup
        and table.is_joined
        and stream.id not in SOURCES
        and bool(stream.origins & table.origins)
    )


def _change_one_by_one(left: Values, right: Values) -> bool:
    """Whether Sluice gets the two changes that a row of one table leads to one after the other.

    One side is joined from the table that the other side is filtered, mapped or joined from.
    """
    is_shared = left.kind == right.kind == "table" and bool(left.origins & right.origins)
    is_joined = len(left.origins) > 1 or len(right.origins) > 1
    is_joined |= left.id != right.id and (left.is_joined or right.is_joined)
    return is_shared and is_joined and left.id not in SOURCES and right.id not in SOURCES


def foreign(left: Values) -> dict[str, Any]:
    """The foreign key of a join."""
    return {"fk": left.text}


def within(before: int, after: int, grace: int) -> dict[str, Any]:
    """The window of a join of streams."""
    return {"window": {"before": before, "after": after, "grace": grace}}


def _of(side: str, expression: Any) -> Any:
    """An expression over one side's values as one over the joined values."""
    match expression:
        case ["field", *path]:
            return ["field", side, *path]
        case ["value"]:
            return ["field", side]
        case ["const", _]:
            return expression
        case list():
            return [_of(side, one) for one in expression]
    return expression


def _with(
    how: str,
    source: str,
    place: str,
    nodes: Nodes,
    node: Values,
    foreign_key: bool = False,
    **about: Any,
) -> Values:
    """A join with a source, on whose `place`, left or right, the operator's input is; `self` joins it with itself."""
    if place == "self" and "table suppress until a limit" in node.steps:
        raise Unfit(
            "Kafka Streams does not know when a held row was written, and may keep one that was deleted twice"
        )
    other = node if place == "self" else nodes.sources[source]
    left, right = (other, node) if place == "right" else (node, other)
    return join(how, nodes, left, right, **about, **(foreign(left) if foreign_key else {}))


WINDOWS: dict[str, dict[str, Any]] = {
    "tumbling": {"type": "tumbling", "size": 5, "grace": 3},
    "hopping": {"type": "hopping", "size": 6, "advance": 3, "grace": 0},
    "sliding": {"type": "sliding", "size": 4, "grace": 10},
    "session": {"type": "session", "gap": 3, "grace": 3},
}
SUPPRESSED: dict[str, dict[str, Any]] = {
    "until close": {"type": "window_close"},
    "until a limit": {"type": "time_limit", "ms": 4},
}


_STATELESS = ("table filter", "table filter_not", "table map", "table map to a number")


def _all_steps() -> Iterator[Step]:
    kinds: tuple[Kind, ...] = ("stream", "table", "windowed")
    for kind in kinds:
        yield Step(f"{kind} filter", kind, kind, partial(_filter, "filter"))
        yield Step(f"{kind} filter_not", kind, kind, partial(_filter, "filter_not"))
        yield Step(f"{kind} map", kind, kind, _map)
        yield Step(f"{kind} map to a number", kind, kind, _map_to_number)
    yield Step("select_key", "stream", "stream", _select_key)
    yield Step("flat_map", "stream", "stream", _flat_map)
    yield Step(
        "merge", "stream", "stream", lambda nodes, node: merge(nodes, node, nodes.sources["r"])
    )
    yield Step("diamond", "stream", "stream", _diamond)
    yield Step("deduplicate", "stream", "stream", _deduplicate)
    yield Step("map by a function", "stream", "stream", double)
    yield Step("table map by a function", "table", "table", double)
    yield Step("process", "stream", "stream", _process)
    yield Step("process_values", "stream", "stream", _process_values)
    yield Step("punctuate", "stream", "stream", _punctuate)
    yield Step("to_table", "stream", "table", _to_table)
    yield Step("expiring table", "stream", "table", partial(_to_table, expires_ms=8))
    for group in ("key", "text"):
        yield Step(f"aggregate by {group}", "stream", "table", partial(aggregate, group, None))
        yield Step(f"reduce by {group}", "stream", "table", partial(_reduce, group))
        yield Step(f"fold by {group}", "stream", "table", partial(_fold, group, None))
        for name, window in WINDOWS.items():
            yield Step(
                f"{name} by {group}", "stream", "windowed", partial(aggregate, group, window)
            )
    yield Step("removing fold", "stream", "table", partial(_fold, "text", None, removes=True))
    for name, window in WINDOWS.items():
        yield Step(f"{name} fold", "stream", "windowed", partial(_fold, "key", window))
        yield Step(
            f"{name} removing fold",
            "stream",
            "windowed",
            partial(_fold, "key", window, removes=True),
        )
    for group in ("key", "text", "all"):
        yield Step(f"table aggregate by {group}", "table", "table", partial(aggregate, group, None))
    yield Step("table fold", "table", "table", partial(_fold, "text", None))
    yield Step("table removing fold", "table", "table", partial(_fold, "text", None, removes=True))
    yield Step("table reduce", "table", "table", partial(_reduce, "text"))
    for kind in ("table", "windowed"):
        yield Step(f"{kind} to_stream", kind, "stream", _to_stream)
        for name, how in SUPPRESSED.items():
            if kind == "windowed" or name == "until a limit":
                yield Step(f"{kind} suppress {name}", kind, kind, partial(_suppress, **how))
    for name, window in WINDOWS.items():
        yield Step(f"final {name}", "stream", "stream", partial(_final, window))
    yield Step("windows by start", "windowed", "table", _regrouped)
    yield Step("updates by window", "windowed", "windowed", _by_window)
    yield Step("process_values by window", "windowed", "windowed", _processed_by_window)
    yield Step("cogroup", "stream", "table", partial(_cogroup, None))
    for name in ("tumbling", "hopping", "session"):
        yield Step(f"{name} cogroup", "stream", "windowed", partial(_cogroup, WINDOWS[name]))
    yield Step("inner lookup as of", "stream", "stream", partial(_as_of, "inner"))
    yield Step("left lookup as of", "stream", "stream", partial(_as_of, "left"))
    yield from _joins()


def _joins() -> Iterator[Step]:
    for how, place in itertools.product(("inner", "left", "outer"), ("left", "right", "self")):
        streams, tables = (partial(_with, how, source, place) for source in ("r", "u"))
        reach = within(3 if place == "left" else 0, 4, 5 if place == "right" else 0)
        yield Step(
            f"{how} stream join, on the {place}", "stream", "stream", partial(streams, **reach)
        )
        yield Step(f"{how} table join, on the {place}", "table", "table", tables)
        if how != "outer":
            keyed = partial(tables, foreign_key=True)
            yield Step(f"{how} foreign-key join, on the {place}", "table", "table", keyed)
    for how in ("inner", "left"):
        yield Step(f"{how} lookup", "stream", "stream", partial(_with, how, "t", "left"))
        yield Step(f"{how} lookup in it", "table", "stream", partial(_with, how, "l", "right"))
        yield Step(f"{how} global lookup", "stream", "stream", _in_global(how))


def _in_global(how: str) -> Callable[[Nodes, Values], Values]:
    return lambda nodes, node: join(how, nodes, node, nodes.sources["w"], left_key=node.text)


STEPS = tuple(_all_steps())


@dataclass(frozen=True)
class Chain:
    """A source and the operators behind it."""

    steps: tuple[Step, ...]

    @property
    def name(self) -> str:
        return " → ".join(step.name for step in self.steps)

    def nodes(self) -> tuple[list[dict[str, Any]], Values]:
        """The nodes of the chain, and its last one."""
        nodes = Nodes()
        node = nodes.sources["l" if self.steps[0].takes == "stream" else "t"]
        for step in self.steps:
            node = step.after(nodes, node)
        return nodes.nodes, node


def chains(length: int) -> Iterator[Chain]:
    """All chains of so many operators that fit behind each other."""
    for steps in itertools.product(STEPS, repeat=length):
        if (chain := fitting(steps)) is not None:
            yield chain


def random_chain(chance: random.Random, length: int) -> Chain:
    """One of the chains of so many operators."""
    while True:
        if (chain := fitting(chance.choices(STEPS, k=length))) is not None:
            return chain


def fitting(steps: Sequence[Step]) -> Chain | None:
    """A chain of operators; None if one cannot follow another. Sources are no windowed tables."""
    fit = all(one.gives == following.takes for one, following in itertools.pairwise(steps))
    if not fit or steps[0].takes == "windowed":
        return None
    chain = Chain(tuple(steps))
    try:
        chain.nodes()
    except Unfit:
        return None
    return chain
