"""Compares what the nodes of a topology have sent with plain definitions, which know no updates and no states.

Each node is compared with what its own inputs have sent, so the definitions hold in every topology:

- the old value of a table's change is the row that the change replaces;
- a filtered, mapped, joined or grouped table has the rows that SQL would make of the rows of its
  inputs;
- a record is counted once in each window that contains its time, unless it was late for the window;
- a window to which one stream adds has at most one final result, which no record changes;
- two records of a join of streams are joined once if one comes before the grace of the other has
  passed, and a record that is sent unmatched is never joined.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.conformance.model import aggregates, tables
from tests.conformance.model.differences import SLUICE, Differences
from tests.conformance.model.expressions import compact_json, evaluate, holds
from tests.conformance.model.flow import Change, Record, Windowed, plain
from tests.conformance.model.keyed import Fold, RemovingFold, doubled
from tests.conformance.model.stream_joins import StreamJoin
from tests.conformance.model.topology import Case, Topology

Node = Mapping[str, Any]
Rows = dict[Any, Any]
"""Key → value of each row of a table."""
Groups = dict[Any, list[Any]]
"""Key of a row of an aggregate → the values that it aggregates."""


@dataclass(frozen=True)
class Sent:
    """What the nodes of a topology have sent."""

    nodes: Mapping[str, Node]
    records: Mapping[str, Sequence[Record]]
    """Node → its records in order. The value of a table's record is a `Change`."""
    tables: frozenset[str]
    """The nodes that are tables."""
    arrivals: Mapping[str, Sequence[tuple[str, Record]]] = field(default_factory=dict)
    """Join of streams → its records in the order in which they came, with their sides, if known."""
    has_old_values: bool = True
    """Whether the changes contain the old values. A topic has only new values."""

    @classmethod
    def by_model(cls, case: Case, like: Differences = SLUICE) -> Sent:
        """What the nodes of the model send for the inputs of a case."""
        topology = Topology(case["spec"]["nodes"], like=like)
        records = {name: topology.record_sent(name) for name in topology.nodes}
        topology.take(case["inputs"])
        names = [name for name, node in topology.nodes.items() if isinstance(node, tables.Table)]
        arrivals = {
            name: node.arrivals
            for name, node in topology.nodes.items()
            if isinstance(node, StreamJoin)
        }
        return cls(
            {node["id"]: node for node in case["spec"]["nodes"]},
            records,
            frozenset(names),
            arrivals,
        )

    @classmethod
    def to_topics(cls, case: Case, written: Mapping[str, Sequence[Record]]) -> Sent:
        """What the nodes of a case have `written` to topics. The sources are the case's inputs."""
        nodes = {node["id"]: node for node in case["spec"]["nodes"]}
        topology = Topology(nodes.values())
        names = {name for name, node in topology.nodes.items() if isinstance(node, tables.Table)}
        records: dict[str, list[Record]] = {}
        for name, node in nodes.items():
            sent = written.get(name, [])
            if "topic" in node:
                inputs = [one for one in case["inputs"] if one["topic"] == node["topic"]]
                sent = [Record(one["key"], one["value"], one["ts"]) for one in inputs]
            if name in names:
                sent = [
                    Record(one.key, Change(one.value, None), one.time)
                    for one in sent
                    if one.key is not None
                ]
            records[name] = [*sent]
        return cls(nodes, records, frozenset(names), has_old_values=False)

    def rows(self, name: str) -> Rows:
        """The rows of a table after all changes."""
        rows = {record.key: record.value.new for record in self.records[name]}
        return {key: value for key, value in rows.items() if value is not None}


def violations(sent: Sent) -> Iterator[str]:
    """The statements about a topology that are not true."""
    for name, node in sent.nodes.items():
        for problem in _of_node(sent, name, node):
            yield f"{node['op']} {name}: {problem}"


def _of_node(sent: Sent, name: str, node: Node) -> Iterator[str]:
    if name in sent.tables and sent.has_old_values:
        yield from _wrong_old_values(sent.records[name])
    match node:
        case {"op": "filter" | "filter_not" | "map_values" | "double", "in": parent} if (
            parent in sent.tables
        ):
            yield from _different_rows(_computed(node, sent.rows(parent)), sent.rows(name))
        case {"op": "aggregate" | "fold" | "reduce", "in": parent} if parent in sent.tables:
            # Whether functions remove a group depends on the order of changes.
            if not node.get("removes"):
                yield from _wrong_groups(node, sent.rows(parent), sent.rows(name))
        case {"op": "aggregate", "in": parent, "emit": _}:
            yield from _wrong_final_results(node, sent.records[parent], sent.records[name])
        case {"op": "aggregate" | "fold", "in": parent, "window": _}:
            yield from _wrong_windows(node, sent.records[parent], sent.rows(name))
        case {"op": "aggregate" | "fold", "in": parent} if "versioned" not in node:
            yield from _different_rows(
                _results(node, _by_key(node, sent.records[parent])), sent.rows(name)
            )
        case {"op": "suppress", "in": parent}:
            yield from _wrong_suppressed(node, sent, name, parent)
        case {"op": "join", "left": left, "right": right, "fk": foreign} if left in sent.tables:
            wanted = _joined_by_foreign_key(
                node["type"], foreign, sent.rows(left), sent.rows(right)
            )
            yield from _different_rows(wanted, sent.rows(name))
        case {"op": "join", "left": left, "right": right} if left in sent.tables:
            yield from _different_rows(
                _joined(node["type"], sent.rows(left), sent.rows(right)), sent.rows(name)
            )
        case {"op": "join", "left": left, "right": right, "window": _}:
            yield from _wrong_pairs(
                node,
                sent.records[left],
                sent.records[right],
                sent.records[name],
                sent.arrivals.get(name, ()),
            )


def _wrong_old_values(records: Sequence[Record]) -> Iterator[str]:
    rows: Rows = {}
    for record in records:
        new, old = record.value
        if old != rows.get(record.key):
            yield f"a change of {record.key} at {record.time} to {new} replaces {old} instead of {rows.get(record.key)}"
            return
        rows[record.key] = new


def _different_rows(wanted: Rows, rows: Rows) -> Iterator[str]:
    for key in {**wanted, **rows}:
        if wanted.get(key) != rows.get(key):
            yield f"the row of {key} is {rows.get(key)} instead of {wanted.get(key)}"
            return


def _computed(node: Node, rows: Rows) -> Rows:
    """The rows of a filtered or mapped table."""
    computed: Rows = {}
    for key, value in rows.items():
        match node["op"]:
            case "map_values":
                result = evaluate(node["value"], key, value)
            case "double":
                result = doubled(value)
            case op:
                result = value if holds(node["where"], key, value) is (op == "filter") else None
        if result is not None:
            computed[key] = result
    return computed


def _joined(how: str, left: Rows, right: Rows) -> Rows:
    keys = {**left, **right}
    if how == "inner":
        keys = {key: None for key in left if key in right}
    elif how == "left":
        keys = left
    return {key: {"left": left.get(key), "right": right.get(key)} for key in keys}


def _joined_by_foreign_key(how: str, foreign: Any, left: Rows, right: Rows) -> Rows:
    joined: Rows = {}
    for key, value in left.items():
        of_right = right.get(evaluate(foreign, key, value))
        if of_right is not None or how == "left":
            joined[key] = {"left": value, "right": of_right}
    return joined


# --- Aggregates ---


def _results(node: Node, groups: Groups) -> Rows:
    """The row of each group."""
    calculation = _calculation(node)
    rows: Rows = {}
    for key, values in groups.items():
        aggregate = None
        for value in values:
            # A function that returns null removes the aggregate, so the next value begins a new
            # one.
            aggregate = calculation.initial() if aggregate is None else aggregate
            aggregate = calculation.add(aggregate, plain(key) or "", value)
        if aggregate is not None:
            rows[key] = aggregate
    return rows


def _calculation(node: Node) -> Any:
    if node["op"] == "aggregate":
        return aggregates.Aggregator(node["aggs"])
    return RemovingFold() if node.get("removes") else Fold()


def _group_of(node: Node, record: Record) -> Any:
    if "group_key" in node:
        return evaluate(node["group_key"], record.key, record.value)
    return record.key


def _by_key(node: Node, records: Iterable[Record]) -> Groups:
    """The values of each key without windows, which leaves out null values."""
    groups: Groups = {}
    for record in records:
        key = _group_of(node, record)
        if key is not None and record.value is not None:
            groups.setdefault(key, []).append(record.value)
    return groups


def _wrong_groups(node: Node, rows: Rows, results: Rows) -> Iterator[str]:
    """The groups of a table whose row is not the sum of their rows."""
    group_key, group_value = node.get("group_key", ["key"]), node.get("group_value", ["value"])
    groups: Groups = {}
    for key, value in rows.items():
        group = evaluate(group_key, key, value)
        if group is not None:
            groups.setdefault(group, []).append(evaluate(group_value, key, value))
    for group in {**groups, **results}:
        wanted, found = (
            _sums(node, group, groups.get(group, [])),
            _sums_found(node, results.get(group)),
        )
        # A group that has lost its rows may keep a row of zeros.
        if found != wanted and not (found is None and group not in groups):
            yield f"the row of the group {group} is {results.get(group)}, for the rows {groups.get(group, [])}"
            return


def _sums(node: Node, group: str, values: Sequence[Any]) -> Any:
    """The counts and sums of rows; lists are sorted."""
    if node["op"] == "aggregate":
        calculation = _calculation(node)
        row = calculation.initial()
        for value in values:
            row = calculation.add(row, group, value)
        return _with_sorted_lists(row)
    return sum(value["n"] or 0 for value in values)


def _sums_found(node: Node, result: Any) -> Any:
    if result is None:
        return None
    match node["op"]:
        case "aggregate":
            return _with_sorted_lists(result)
        case "reduce":
            return result["n"] or 0
        case _:
            return result


def _with_sorted_lists(row: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: sorted(one, key=compact_json) if isinstance(one, list) else one
        for name, one in row.items()
    }


# --- Windows ---


@dataclass(frozen=True)
class _Arrival:
    """A record of a windowed aggregate."""

    key: str
    value: Any
    time: int
    stream_time: int
    """The largest time of the records so far."""


def _arrivals(node: Node, records: Iterable[Record]) -> list[_Arrival]:
    arrivals: list[_Arrival] = []
    stream_time = -1
    for record in records:
        key = plain(_group_of(node, record))
        if key is None or (record.value is None and node["window"]["type"] == "sliding"):
            continue
        stream_time = max(stream_time, record.time)
        arrivals.append(_Arrival(key, record.value, record.time, stream_time))
    return arrivals


def _windows(node: Node, arrivals: Sequence[_Arrival]) -> Groups:
    """The windows of a windowed aggregate, with the values of the records that belong to each of them."""
    match node["window"]:
        case {"type": "session"} as window:
            return _sessions(window, arrivals)
        case {"type": "sliding"} as window:
            return _sliding_windows(window, arrivals)
        case window:
            return _time_windows(window, arrivals)


def _time_windows(window: Mapping[str, Any], arrivals: Sequence[_Arrival]) -> Groups:
    groups: Groups = {}
    size, advance = window["size"], window.get("advance", window["size"])
    for one in arrivals:
        for start in range(one.time // advance * advance, -1, -advance):
            if start + size <= one.time:
                break
            if start + size + window["grace"] > one.stream_time:
                groups.setdefault(Windowed(one.key, start, start + size), []).append(one.value)
    return groups


def _sliding_windows(window: Mapping[str, Any], arrivals: Sequence[_Arrival]) -> Groups:
    """Each record has a window that ends at it, and a window right after it if there is a record in it.

    A record is dropped if all windows that contain it when it comes are closed.
    """
    size, grace = window["size"], window["grace"]
    accepted: list[_Arrival] = []
    groups: Groups = {}
    for one in arrivals:
        # No window that contains such a record is open, whatever records there are.
        if one.time + size + grace < one.stream_time:
            continue
        own = Windowed(one.key, max(one.time - size, 0), max(one.time, size))
        open_windows = [
            key
            for key in (own, *groups)
            if key.key == one.key
            and key.start <= one.time <= key.end
            and key.end + grace >= one.stream_time
        ]
        if open_windows:
            accepted.append(one)
        following = Windowed(one.key, one.time + 1, one.time + 1 + size)
        # A dropped record does not begin a window of later records.
        if open_windows or any(
            each.key == one.key and one.time < each.time <= following.end for each in accepted
        ):
            open_windows.append(following)
        groups |= {key: [] for key in open_windows}
    for key in groups:
        groups[key] = [
            one.value
            for one in accepted
            if one.key == key.key
            and key.start <= one.time <= key.end
            and key.end + grace >= one.stream_time
        ]
    return {key: values for key, values in groups.items() if values}


def _sessions(window: Mapping[str, Any], arrivals: Sequence[_Arrival]) -> Groups:
    gap, grace = window["gap"], window["grace"]
    sessions: dict[str, list[list[_Arrival]]] = {}
    groups: Groups = {}
    latest = -1
    for one in arrivals:
        of_key = sessions.setdefault(one.key, [])
        near: list[list[_Arrival]] = []
        for session in of_key:
            times = [each.time for each in session]
            is_near = min(times) - gap <= one.time <= max(times) + gap
            # A session that has closed takes in no record.
            if is_near and max(times) + gap + grace >= latest:
                near.append(session)
        merged = [each for session in near for each in session] + [one]
        if max(each.time for each in merged) + gap + grace < one.stream_time:
            continue
        of_key[:] = [session for session in of_key if all(session is not each for each in near)] + [
            merged
        ]
        latest = max(latest, max(each.time for each in merged))
    for key, of_key in sessions.items():
        for session in of_key:
            times = [each.time for each in session]
            groups[Windowed(key, min(times), max(times))] = [each.value for each in session]
    return groups


def _wrong_windows(node: Node, records: Sequence[Record], rows: Rows) -> Iterator[str]:
    wanted = _windows(node, _arrivals(node, records))
    yield from _different_windows(node, wanted, rows)


def _different_windows(node: Node, wanted: Groups, rows: Rows) -> Iterator[str]:
    results = _results(node, wanted)
    depends_on_records = node["window"]["type"] in ("session", "sliding")
    # A session or a sliding window that a function has removed is not merged or copied any more.
    if depends_on_records and node.get("removes"):
        return
    for key in {**results, **rows}:
        one, other = results.get(key), rows.get(key)
        if node["op"] == "aggregate":
            one, other = (None if row is None else _with_sorted_lists(row) for row in (one, other))
        elif depends_on_records:
            # The result of a fold depends on the order in which sessions merge.
            one, other = one is None, other is None
        if one != other:
            yield f"the row of {key} is {rows.get(key)}, for the values {wanted.get(key)}"
            return


def _wrong_final_results(
    node: Node, records: Sequence[Record], sent: Sequence[Record]
) -> Iterator[str]:
    arrivals = _arrivals(node, records)
    wanted = _windows(node, arrivals)
    window = node["window"]
    waits = window["grace"] + window.get("gap", 0) + (window["type"] in ("sliding", "session"))
    reached = arrivals[-1].stream_time if arrivals else -1
    closed = {key: values for key, values in wanted.items() if key.end + waits <= reached}
    if twice := [key for key, count in Counter(record.key for record in sent).items() if count > 1]:
        yield f"{twice[0]} has several final results"
    yield from _different_windows(node, closed, {record.key: record.value for record in sent})


def _wrong_suppressed(node: Node, sent: Sent, name: str, parent: str) -> Iterator[str]:
    rows, rows_of_parent = sent.rows(name), sent.rows(parent)
    if node["type"] == "window_close":
        if _is_of_several_streams(sent, parent):
            return
        counts = Counter(record.key for record in sent.records[name])
        for key, count in counts.items():
            if count > 1:
                yield f"{key} has several final results"
                return
        for key, value in rows.items():
            if rows_of_parent.get(key) != value:
                yield f"the final row of {key} is {value}, and became {rows_of_parent.get(key)}"
                return
        return
    earlier: dict[Any, list[Any]] = {}
    for record in sent.records[parent]:
        earlier.setdefault(record.key, []).append(record.value.new)
    for key, value in rows.items():
        if value not in earlier.get(key, []):
            yield f"the row of {key} is {value}, which it has never been"
            return


def _is_of_several_streams(sent: Sent, name: str) -> bool:
    """Whether a table is computed from windows to which several streams add.

    Each stream has a stream time of its own, so a stream that lags may change a window after its
    final result.
    """
    node = sent.nodes[name]
    if node["op"] in ("aggregate", "fold", "cogroup"):
        return bool(node["op"] == "cogroup")
    parents = [node[each] for each in ("in", "left", "right") if each in node]
    return any(_is_of_several_streams(sent, parent) for parent in parents)


# --- Joins of streams ---


def _wrong_pairs(
    node: Node,
    left: Sequence[Record],
    right: Sequence[Record],
    sent: Sequence[Record],
    arrivals: Sequence[tuple[str, Record]],
) -> Iterator[str]:
    """Only sides whose values tell their records apart are checked."""
    sides = {"left": _by_value(left), "right": _by_value(right)}
    if any(len(records) > 1 for side in sides.values() for records in side.values()):
        return
    window = node["window"]
    pairs: Counter[tuple[str, str]] = Counter()
    unmatched: Counter[tuple[str, str]] = Counter()
    matched: set[tuple[str, str]] = set()
    for record in sent:
        if record.key is None:  # it is sent unmatched at once
            continue
        names = {side: _identity(record.key, record.value[side]) for side in sides}
        if record.value["left"] is None or record.value["right"] is None:
            side = "left" if record.value["right"] is None else "right"
            unmatched[side, names[side]] += 1
            continue
        of_left, of_right = sides["left"][names["left"]][0], sides["right"][names["right"]][0]
        pairs[names["left"], names["right"]] += 1
        matched |= {("left", names["left"]), ("right", names["right"])}
        if not of_left.time - window["before"] <= of_right.time <= of_left.time + window["after"]:
            yield f"{of_left} and {of_right} are joined"
            return
    for counts in (pairs, unmatched):
        for names_of, count in counts.items():
            if count > 1:
                yield f"{names_of} was sent {count} times"
                return
    for side, name in unmatched:
        if (side, name) in matched:
            yield f"the {side} record {name} was sent unmatched, and was joined"
            return
    for names_of in _pairs_within_grace(window, arrivals):
        if names_of not in pairs:
            yield f"{names_of} were not joined"
            return


def _pairs_within_grace(
    window: Mapping[str, int], arrivals: Sequence[tuple[str, Record]]
) -> Iterator[tuple[str, str]]:
    """The pairs of which the later record came before the grace of the earlier one had passed."""
    reach = {"left": window["after"], "right": window["before"]}
    stream_time = -1
    earlier: list[tuple[str, Record]] = []
    for side, record in arrivals:
        stream_time = max(stream_time, record.time)
        if record.key is None or record.value is None:
            continue
        for other_side, other in earlier:
            is_open = other.time + reach[other_side] + window["grace"] >= stream_time
            if other_side == side or other.key != record.key or not is_open:
                continue
            of_left, of_right = (other, record) if side == "right" else (record, other)
            if of_left.time - window["before"] <= of_right.time <= of_left.time + window["after"]:
                yield _identity(of_left.key, of_left.value), _identity(of_right.key, of_right.value)
        earlier.append((side, record))


def _by_value(records: Iterable[Record]) -> dict[str, list[Record]]:
    by_value: dict[str, list[Record]] = {}
    for record in records:
        if record.key is not None and record.value is not None:
            by_value.setdefault(_identity(record.key, record.value), []).append(record)
    return by_value


def _identity(key: Any, value: Any) -> str:
    return compact_json([key, value])
