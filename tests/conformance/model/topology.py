"""Builds the nodes of a case, and runs its records through them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any, TypeVar

from tests.conformance.model import aggregates, flow, keyed, stream_joins, tables
from tests.conformance.model.differences import SLUICE, Difference, Differences
from tests.conformance.model.flow import Record

Case = dict[str, Any]
P = TypeVar("P", keyed.Turns, keyed.Punctuate)

_SOURCES: dict[str, type[flow.Node]] = {
    "stream": flow.Stream,
    "table": tables.Stored,
    "global_table": tables.GlobalTable,
    "global_store": tables.GlobalTable,
}


class Topology:
    """The nodes of a case's `spec`. `like`: the rules of Kafka Streams that they follow instead of Sluice's."""

    def __init__(self, nodes: Iterable[dict[str, Any]], *, like: Differences = SLUICE) -> None:
        self._like = like
        self.nodes: dict[str, Any] = {}
        self._flow = flow.Flow()
        self._sources: dict[str, list[flow.Node]] = {}
        self._timed: dict[str, list[keyed.Turns | keyed.Punctuate]] = {}
        """Topic → the processors whose stream time all of the topic's records advance."""
        self._by_time: list[keyed.Turns | keyed.Punctuate] = []
        """The processors that topics time, each before those from which its records come."""
        self._by_wall_clock: list[keyed.Punctuate] = []
        self._specs = {node["id"]: node for node in nodes}
        for name, node in self._specs.items():
            self.nodes[name] = self._add(node)

    def record_sent(self, name: str) -> list[Record]:
        """A list that gets all that a node sends from now on."""
        sent: list[Record] = []
        self.nodes[name].children.append(sent.append)
        return sent

    def take(self, inputs: Iterable[dict[str, Any]]) -> None:
        """Pipe the inputs of a case."""
        for record in inputs:
            if "advance_wall_clock_ms" in record:
                self.advance_wall_clock(record["advance_wall_clock_ms"])
                continue
            headers = tuple((name, value) for name, value in record.get("headers", ()))
            self.pipe(
                record["topic"], Record(record["key"], record["value"], record["ts"], headers)
            )

    def record_output(self, name: str) -> list[Record]:
        """A list that gets all that a node sends from now on; an update of a table as its new value."""
        sent: list[Record] = []

        def keep(record: Record) -> None:
            new = record.value.new if isinstance(record.value, flow.Change) else record.value
            sent.append(Record(record.key, new, record.time))

        self.nodes[name].children.append(keep)
        return sent

    def pipe(self, topic: str, record: Record) -> None:
        """Work a record through. A topic's sources are declared once each, as are those of Kafka Streams."""
        timed = self._timed.get(topic, ())
        for processor in timed:
            processor.time = max(processor.time, record.time)
        for source in self._sources[topic]:
            source.process(record)

        # The timers of a processor that the record has not reached come after all that the record
        # has.
        self._fire()
        self._flow.finish(self._fire)

    def _fire(self) -> None:
        """Fire the timers that are due, the earliest first."""
        while due := [processor for processor in self._by_time if processor.next_due is not None]:
            min(due, key=lambda processor: processor.next_due or 0).fire_next()

    def _add(self, node: dict[str, Any]) -> flow.Node:
        match node["op"]:
            case "stream" | "table" | "global_table" | "global_store" as kind:
                made: flow.Node = (
                    replace(_stored(node), is_named=False) if kind == "table" else _SOURCES[kind]()
                )
                self._sources.setdefault(node["topic"], []).append(made)
                return made
            case "merge":
                parents = [self.nodes[name] for name in node["in"]]
                merged = flow.Stream(rekeyed=any(parent.rekeyed for parent in parents))
                for parent in parents:
                    parent.children.append(merged.process)
                return merged
            case "join":
                return self._join(node, self.nodes[node["left"]], self.nodes[node["right"]])
            case "aggregate":
                return self._aggregate(node, aggregates.Aggregator(node["aggs"]))
            case "fold":
                if isinstance(self.nodes[node["in"]], tables.Table):
                    return self._aggregate(
                        node, keyed.RemovingSum() if node.get("removes") else keyed.Sum()
                    )
                return self._aggregate(
                    node, keyed.RemovingFold() if node.get("removes") else keyed.Fold()
                )
            case "reduce":
                return self._reduce(node, self.nodes[node["in"]])
            case "to_table":
                table = _stored(node)
                table.window = self.nodes[node["in"]].window
                self.nodes[node["in"]].connect(table.process, self._flow)
                return table
            case "cogroup":
                return self._cogroup(node)
        step = self._step(node, self.nodes[node["in"]])
        self.nodes[node["in"]].children.append(step.process)
        return step

    def _step(self, node: dict[str, Any], parent: Any) -> flow.Node:
        """A step without a state, or suppress."""
        if isinstance(parent, tables.Table):
            return self._table_step(node, parent)
        match node["op"]:
            case "filter" | "filter_not" as op:
                return flow.Filter(
                    where=node["where"], wanted=op == "filter", rekeyed=parent.rekeyed
                )
            case "map_values":
                return flow.MapValues(value=node["value"], rekeyed=parent.rekeyed)
            case "select_key":
                return flow.SelectKey(key=node["key"])
            case "map":
                return flow.Map(key=node["key"], value=node["value"])
            case "to_stream":
                keeps_window = node.get("keep_window", False)
                return flow.ToStream(
                    rekeyed=parent.rekeyed or not keeps_window, keeps_window=keeps_window
                )
            case "flat_map_values":
                return flow.FlatMapValues(list=node["list"], rekeyed=parent.rekeyed)
            case "double":
                return keyed.Doubled(rekeyed=parent.rekeyed)
            case "repartition":
                where = (
                    ["const", True] if self._feeds_left_join(node["id"]) else ["not_null", ["key"]]
                )
                return flow.Filter(where=where, wanted=True, rekeyed=True)
            case "process_values":
                return keyed.ProcessValues(
                    node=node, tables=self.nodes, rekeyed=parent.rekeyed, window=parent.window
                )
            case "punctuate":
                return self._punctuate(node)
            case "process":
                return self._with_time_of_topics(node, keyed.Turns(rekeyed=True))
            case "deduplicate":
                return keyed.Deduplicate(
                    by=node["by"], within=node["within"], rekeyed=parent.rekeyed
                )
        raise NotImplementedError(node["op"])

    def _feeds_left_join(self, name: str) -> bool:
        """Whether records from a node reach a left or outer join that has results for records without a key."""
        for node in self._specs.values():
            if name in self._streams_into(node):
                keeps_all = (
                    node["op"] == "join"
                    and node["type"] != "inner"
                    and not self._is_table(node["id"])
                )
                if keeps_all or self._feeds_left_join(node["id"]):
                    return True
        return False

    def _streams_into(self, node: dict[str, Any]) -> list[str]:
        """The inputs of a node, without the table that a stream looks up."""
        if node["op"] == "join":
            looks_up = "window" not in node and not self._is_table(node["left"])
            return [node["left"]] if looks_up else [node["left"], node["right"]]
        if node["op"] == "cogroup":
            return [part["in"] for part in node["parts"]]
        inputs = node.get("in", [])
        return [inputs] if isinstance(inputs, str) else inputs

    def _is_table(self, name: str) -> bool:
        node = self._specs[name]
        match node["op"]:
            case "table" | "to_table" | "cogroup" | "reduce" | "fold" | "suppress":
                return True
            case "aggregate":
                return "emit" not in node
            case "filter" | "filter_not" | "map_values" | "double":
                return self._is_table(node["in"])
            case "join":
                return self._is_table(node["left"])
        return False

    def _punctuate(self, node: dict[str, Any]) -> keyed.Punctuate:
        punctuate = keyed.Punctuate(
            every=node["every_ms"],
            resets=node["reset"],
            forwards=node["forward"],
            on_wall_clock=node["type"] == "wall_clock",
            rekeyed=True,
        )
        if not punctuate.on_wall_clock:
            return self._with_time_of_topics(node, punctuate)
        self._by_wall_clock.append(punctuate)
        punctuate.time = 0
        return punctuate

    def _with_time_of_topics(self, node: dict[str, Any], processor: P) -> P:
        """Let all records of the topics that a processor's task reads advance its time."""
        topics, comes_from_another_task = self._topics_of_task(node["in"])
        processor.is_timed_by_rows = comes_from_another_task or not topics
        processor.fires_with_rows = not topics
        for topic in topics:
            self._timed.setdefault(topic, []).append(processor)
        if topics:
            upstream = {id(one) for one in self._upstream(node)}
            before = [number for number, one in enumerate(self._by_time) if id(one) in upstream]
            self._by_time.insert(min(before, default=len(self._by_time)), processor)
        return processor

    def _upstream(self, node: dict[str, Any]) -> list[flow.Node]:
        """All nodes from which a node's records come."""
        names = self._streams_into(node)
        found: list[flow.Node] = [self.nodes[name] for name in names]
        for name in names:
            found += self._upstream(self._specs[name])
        return found

    def advance_wall_clock(self, milliseconds: int) -> None:
        """Advance the wall clock, and punctuate."""
        for punctuate in self._by_wall_clock:
            punctuate.time += milliseconds
            punctuate.fire()
        self._flow.finish()

    def _topics_of_task(self, name: str) -> tuple[frozenset[str], bool]:
        """The topics from which a node's records come, and whether some of them come through a repartition topic."""
        node = self._specs[name]
        match node:
            case {"op": "stream" | "table", "topic": topic}:
                return frozenset({topic}), False
            case {"op": "merge", "in": merged}:
                inputs = [(one, False) for one in merged]
            case {"op": "cogroup", "parts": parts}:
                inputs = [
                    (part["in"], "group_key" in part or self._is_rekeyed(part["in"]))
                    for part in parts
                ]
            case {"op": "join", "left": left, "right": right, "fk": _}:
                inputs = [(left, False), (right, True)]
            case {"op": "join", "left": left, "left_key": _}:
                inputs = [(left, False)]
            case {"op": "join", "left": left, "right": right}:
                inputs = [(one, self._is_rekeyed(one)) for one in (left, right)]
            case {"op": "aggregate" | "reduce" | "fold", "in": parent}:
                is_table = isinstance(self.nodes[parent], tables.Table)
                inputs = [(parent, is_table or "group_key" in node or self._is_rekeyed(parent))]
            case {"op": "to_table", "in": parent}:
                inputs = [(parent, self._is_rekeyed(parent))]
            case {"in": parent}:
                inputs = [(parent, False)]
            case _:
                raise NotImplementedError(node)
        topics: frozenset[str] = frozenset()
        comes_from_another_task = any(is_cut for _, is_cut in inputs)
        for parent, is_cut in inputs:
            if not is_cut:
                more, also_from_another = self._topics_of_task(parent)
                topics |= more
                comes_from_another_task |= also_from_another
        return topics, comes_from_another_task

    def _is_rekeyed(self, name: str) -> bool:
        return getattr(self.nodes[name], "rekeyed", False)

    def _table_step(self, node: dict[str, Any], parent: tables.Table) -> flow.Node:
        about: dict[str, Any] = {"parents": (parent,), "window": parent.window}
        match node["op"]:
            case "filter" | "filter_not" as op:
                return tables.FilteredTable(where=node["where"], wanted=op == "filter", **about)
            case "map_values":
                return tables.MappedTable(value=node["value"], **about)
            case "double":
                return keyed.DoubledTable(**about)
            case "to_stream":
                keeps_window = node.get("keep_window", False)
                is_rekeyed = parent.window is not None and not keeps_window
                kept = parent.window if keeps_window else None
                leaves_out = (
                    parent.is_filtered and parent.knows_old_values and not parent.is_versioned
                )
                return flow.ToStream(
                    rekeyed=is_rekeyed,
                    keeps_window=keeps_window,
                    window=kept,
                    leaves_out_unpassed=leaves_out,
                )
            case "suppress" if node["type"] == "time_limit":
                return tables.Suppress(ms=node["ms"], of_windows=False, like=self._like, **about)
            case "suppress":
                assert parent.window is not None
                wait = self._open_ms(parent.window)
                return tables.Suppress(ms=wait, of_windows=True, like=self._like, **about)
        raise NotImplementedError(node["op"])

    def _join(self, node: dict[str, Any], left: Any, right: Any) -> flow.Node:
        how = node["type"]
        if isinstance(left, tables.Table):
            if "fk" in node:
                return tables.ForeignKeyJoin(
                    how=how, fk=node["fk"], left=left, right=right, flow=self._flow, like=self._like
                )
            return tables.TableJoin(how=how, parents=(left, right), like=self._like)
        if isinstance(right, tables.GlobalTable):
            lookup = stream_joins.Lookup(
                how=how, table=right, on=node["left_key"], rekeyed=left.rekeyed
            )
            left.children.append(lookup.process)
            return lookup
        if isinstance(right, tables.Table):
            lookup = stream_joins.Lookup(how=how, table=right, grace=node.get("grace_ms"))
            left.connect(lookup.process, self._flow)
            return lookup
        join = stream_joins.StreamJoin(how=how, like=self._like, **node["window"])
        join.connect_sides(left, right, self._flow)
        return join

    def _aggregate(self, node: dict[str, Any], aggregator: aggregates.Calculation) -> flow.Node:
        parent = self.nodes[node["in"]]
        if isinstance(parent, tables.Table):
            made: tables.Stored = aggregates.TableAggregation(aggregator=aggregator)
        else:
            made = self._windows(aggregator, node.get("window"), node.get("retention_ms"))
            if parent.window is not None:
                # Kafka Streams finds the grace for `suppress` in the steps before the aggregate.
                made.window = parent.window
        if "versioned" in node:
            made.versions = tables.Versions(node["versioned"]["history_ms"])
        return (
            self._final(node, made, parent) if "emit" in node else self._grouped(node, parent, made)
        )

    def _final(self, node: dict[str, Any], windows: Any, parent: Any) -> flow.Node:
        """A windowed aggregate that sends only final results, as a stream."""
        # Kafka Streams' emit strategy waits until records are late, unlike its `suppress`.
        final = aggregates.FinalResults(windows=windows, wait=_open_ms(node["window"]))
        windows.children.append(final.process)
        entry = flow.Stream()
        entry.children += [windows.process, lambda record: final.release()]
        self._grouped(node, parent, entry)
        return final

    def _cogroup(self, node: dict[str, Any]) -> flow.Node:
        """An aggregation for each stream, all with the same rows. In windows, each has a time of its own."""
        columns = {one["name"]: one for part in node["parts"] for one in part["aggs"]}
        first: Any = None
        latest = aggregates.Latest()
        for part in node["parts"]:
            lists_nulls = node.get("window", {"type": "none"})["type"] not in ("none", "sliding")
            aggregator = aggregates.CogroupedAggregator(
                [*columns.values()], part["aggs"], lists_nulls
            )
            made: Any = self._windows(aggregator, node.get("window"))
            first = first or made
            made.rows, made.children = first.rows, first.children
            if "window" in node:
                made.latest = latest
            self._grouped(part, self.nodes[part["in"]], made)
        return first  # type: ignore[no-any-return]

    def _open_ms(self, window: dict[str, Any]) -> int:
        """How long after its end a window stays open: in Kafka Streams, not always until records are late for it."""
        if Difference.CLOSED_TOO_EARLY in self._like:
            return int(window["grace"] + window.get("gap", 0))
        return _open_ms(window)

    def _windows(
        self,
        aggregator: aggregates.Calculation,
        window: dict[str, Any] | None,
        retention: int | None = None,
    ) -> tables.Stored:
        about: dict[str, Any] = {"aggregator": aggregator, "like": self._like, "window": window}
        match window:
            case None:
                return aggregates.Aggregation(**about)
            case {"type": "session", "gap": gap, "grace": grace}:
                kept = max(self._open_ms(window), retention or 0)
                return aggregates.SessionWindows(gap=gap, grace=grace, retention=kept, **about)
            case {"type": "sliding", "size": size, "grace": grace}:
                return aggregates.SlidingWindows(size=size, grace=grace, **about)
            case {"size": size, "grace": grace}:
                return aggregates.TimeWindows(
                    size=size, advance=window.get("advance", size), grace=grace, **about
                )
        raise NotImplementedError(window)

    def _reduce(self, node: dict[str, Any], parent: Any) -> flow.Node:
        if isinstance(parent, tables.Table):
            made: tables.Stored = keyed.TableReduction()
        else:
            made = keyed.Reduction()
        return self._grouped(node, parent, made)

    def _grouped(self, node: dict[str, Any], parent: Any, made: flow.Node) -> flow.Node:
        """Connect an aggregation to what it groups. Only a stream that is grouped by its own key needs no re-keying."""
        if isinstance(parent, tables.Table):
            send = self._flow.later(made.process)
            key, value = node.get("group_key", ["key"]), node.get("group_value", ["value"])
            parent.children.append(aggregates.regrouped(key, value, send))
        elif "group_key" in node:
            group = flow.SelectKey(key=node["group_key"])
            parent.children.append(group.process)
            group.connect(made.process, self._flow)
        else:
            parent.connect(made.process, self._flow)
        return made


def _open_ms(window: dict[str, Any]) -> int:
    """How long after its end a window takes in records."""
    includes_end = window["type"] in ("sliding", "session")
    return int(window["grace"] + window.get("gap", 0) + includes_end)


def _stored(node: dict[str, Any]) -> tables.Stored:
    if "versioned" in node:
        return tables.VersionedTable(versions=tables.Versions(node["versioned"]["history_ms"]))
    if "expires_ms" in node:
        return tables.ExpiringTable(expires=node["expires_ms"])
    return tables.Stored()


def run(case: Case, *names: str, like: Differences = SLUICE) -> dict[str, list[Record]]:
    """What the nodes of these names send for the case's inputs. `like`: see `Topology`."""
    topology = Topology(case["spec"]["nodes"], like=like)
    sent = {name: topology.record_output(name) for name in names}
    topology.take(case["inputs"])
    return sent
