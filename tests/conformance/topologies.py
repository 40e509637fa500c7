"""Random topologies, whose results must not depend on the batches, nor on interruptions and replays.

python -m tests.conformance.topologies [--count 100] [--seed 1] [--operators 12] [--together 4]

There are no expected results. Every topology runs on the same records in one batch and in several. One of the several
is interrupted and repeated, and the last ones are replayed from a copy of all files. Compared are all outputs (records,
their order and their timestamps) and all state: the stores, and what the operators keep.
"""

from __future__ import annotations

import argparse
import random
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import psutil
from msgspec import Struct

from sluice import Context, Pipeline, Record, Timer, hopping, session, sliding, tumbling, within
from sluice.testing.driver import shared_session
from sluice.testing.piped_run import PipedRecords
from sluice.values.windows import AnyWindow
from tests.conformance.replays import Replays, Result

TOGETHER = 4
"""Number of topologies in one pipeline; they are independent and share the cost of a batch."""
MOST_RECORDS = 16
"""A step that would have more records than this for one record of the input is left out."""
MOST_CUTS = 3


class Value(Struct):
    """The values of all topics; every step of a topology returns such values."""

    n: int | None
    g: str | None


class Turns:
    """A processor that numbers the records of a key, and sends a further record when a timer fires."""

    def init(self, context: Context) -> None:
        self.context = context

    def process(self, record: Record) -> None:
        turns = self.context.store("turns")
        number = turns.get("number", 0) + 1
        turns.put("number", number)
        self.context.schedule("later", record.time + 5)
        n = None if record.value is None else record.value["n"]
        self.context.forward(record.key, {"n": ((n or 0) + number) % 50, "g": str(number % 3)})

    def on_timer(self, timer: Timer) -> None:
        self.context.forward(timer.key, {"n": timer.time % 50, "g": None})


@dataclass
class Node:
    """A handle of the topology. `kind`: `stream`, `table`, or `windowed` for a table with windowed keys."""

    kind: str
    handle: Any
    factor: int = 1
    """About how many records there are for each record of the input."""
    used: bool = False


@dataclass
class Topology:
    """A random topology in a pipeline, with its input topics and its outputs."""

    pipeline: Pipeline
    prefix: str
    seed: int
    operators: int
    partitions: dict[str, int] = field(default_factory=dict)
    outputs: list[str] = field(default_factory=list)
    steps: list[str] = field(default_factory=list)
    count: int = 0
    """The number of its records."""

    def __post_init__(self) -> None:
        self.chance = random.Random(self.seed)
        self._nodes: list[Node] = []
        self._stores = self._stateful = 0
        partitions = self.chance.choice((1, 1, 2, 4))
        for kind, name in (("stream", "l"), ("stream", "r"), ("table", "t")):
            topic = f"{self.prefix}_{name}"
            self.partitions[topic] = partitions
            if kind == "stream":
                handle: Any = self.pipeline.stream(topic, value=Value, nulls="keep")
            else:
                handle = self.pipeline.table(topic, value=Value)
            self._nodes.append(Node(kind, handle))
        while self._stateful < self.operators:
            self._grow()
        for number, node in enumerate(node for node in self._nodes[3:] if not node.used):
            topic = f"{self.prefix}_out{number}"
            node.handle.to(topic)
            self.outputs.append(topic)

    def records(self) -> Iterator[tuple[str, Any, str | None, int, int]]:
        """Topic, value, key, time and partition of the input records."""
        clock = 0
        for _ in range(self.chance.randint(10, 30)):
            topic = self.chance.choice(list(self.partitions))
            clock += self.chance.choice((0, 1, 1, 3, 10))
            when = max(0, clock - self.chance.choice((0, 0, 0, 2, 8, 25)))
            key = self.chance.choice(("a", "b", "c", None if topic[-1] != "t" else "a"))
            value = {"n": self.chance.randint(0, 9), "g": self.chance.choice(("a", "b", "x", None))}
            yield topic, self.chance.choice((value, value, value, None)), key, when, self._partition(topic)

    def _partition(self, topic: str) -> int:
        return self.chance.randrange(self.partitions[topic])

    def _pick(self, *kinds: str) -> Node | None:
        fitting = [node for node in self._nodes if node.kind in kinds]
        # Prefer the newest nodes, to get long chains.
        return self.chance.choice(fitting[-4:] if self.chance.random() < 0.7 else fitting) if fitting else None

    def _pair(self, kind: str, *, times: int = 1) -> tuple[Node, Node] | None:
        """Two nodes, which may be the same one, unless they have too many records together."""
        left, right = self._pick(kind), self._pick(kind)
        if left is None or right is None or (left.factor + right.factor) * times > MOST_RECORDS:
            return None
        return left, right

    def _add(self, step: str, kind: str, handle: Any, *parents: Node, stateful: bool = True, times: int = 1) -> None:
        for parent in parents:
            parent.used = True
        self.steps.append(f"{len(self._nodes)} = {step} of {', '.join(str(self._nodes.index(one)) for one in parents)}")
        self._nodes.append(Node(kind, handle, times * sum(parent.factor for parent in parents)))
        self._stateful += stateful

    def _store(self) -> str:
        self._stores += 1
        return f"{self.prefix}_s{self._stores}"

    def _grow(self) -> None:
        """Add a step after a random node."""
        step = self.chance.choice((
            "filter", "select", "select_key", "flat_map", "merge", "aggregate", "aggregate", "windowed", "windowed",
            "windowed", "to_table", "to_stream", "to_stream", "suppress", "suppress", "regroup", "regroup",
            "stream_join", "stream_join", "table_join", "table_join", "lookup", "lookup", "foreign_join", "diamond",
            "deduplicate", "process",
        ))  # fmt: skip
        getattr(self, f"_{step}")()

    def _filter(self) -> None:
        if (node := self._pick("stream", "table", "windowed")) is not None:
            self._add("filter", node.kind, node.handle.filter("n % 3 > 0"), node, stateful=False)

    def _select(self) -> None:
        if (node := self._pick("stream", "table", "windowed")) is not None:
            self._add("select", node.kind, node.handle.select(n="pmod(n + 1, 50)", g="g"), node, stateful=False)

    def _select_key(self) -> None:
        if (node := self._pick("stream")) is not None:
            self._add("select_key", "stream", node.handle.select_key("g"), node, stateful=False)

    def _flat_map(self) -> None:
        node = self._pick("stream")
        if node is not None and 2 * node.factor <= MOST_RECORDS:
            parts = "array(named_struct('n', n, 'g', g), named_struct('n', n + 1, 'g', 'x'))"
            made = node.handle.flat_map_values(parts).select(n="value.n", g="value.g")
            self._add("flat_map", "stream", made, node, stateful=False, times=2)

    def _merge(self) -> None:
        if (pair := self._pair("stream")) is not None and pair[0] is not pair[1]:
            self._add("merge", "stream", pair[0].handle.merge(pair[1].handle), *pair, stateful=False)

    def _diamond(self) -> None:
        """Two branches of a stream, of which some records take both, merged again."""
        node = self._pick("stream")
        if node is not None and 2 * node.factor <= MOST_RECORDS:
            few, many = node.handle.filter("n < 6"), node.handle.select(n="n + 1", g="g").filter("n > 3")
            self._add("diamond", "stream", few.merge(many), node, stateful=False, times=2)

    def _deduplicate(self) -> None:
        if (node := self._pick("stream")) is not None:
            self._add("deduplicate", "stream", node.handle.deduplicate("n", within="6 ms"), node)

    def _process(self) -> None:
        if (node := self._pick("stream")) is not None and 2 * node.factor <= MOST_RECORDS:
            made = node.handle.process(Turns, stores={"turns": int}, returns=Value, queryable=False).output
            self._add("process", "stream", made, node, times=2)

    def _aggregate(self) -> None:
        if (node := self._pick("stream")) is not None:
            grouped = node.handle.group_by(self.chance.choice(("_key", "g")))
            self._add("aggregate", "table", self._counted(grouped), node)

    def _windowed(self) -> None:
        if (node := self._pick("stream")) is not None:
            window = self._window()
            grouped = node.handle.group_by(self.chance.choice(("_key", "g"))).windowed_by(window)
            self._add(str(window), "windowed", self._counted(grouped), node)

    def _window(self) -> AnyWindow:
        grace = _ms(self.chance.choice((0, 3, 10)))
        return self.chance.choice(
            (
                tumbling("5 ms", grace=grace),
                hopping("6 ms", advance="3 ms", grace=grace),
                session("3 ms", grace=grace),
                sliding("4 ms", grace=grace),
            )
        )

    def _regroup(self) -> None:
        if (node := self._pick("table")) is not None:
            self._add("regroup", "table", self._counted(node.handle.group_by("coalesce(g, 'none')")), node)

    def _counted(self, grouped: Any) -> Any:
        """An aggregate with the number of values, their sum and their order, in the form of the usual values."""
        table = grouped.aggregate({"c": "count(*)", "s": "sum(n)", "l": "collect_list(n)"}, store=self._store())
        order = "aggregate(l, 0L, (sum, n) -> pmod(sum * 7 + n, 50))"
        return table.select(n=f"CAST(pmod(coalesce(s, 0) + {order}, 50) AS BIGINT)", g="CAST(c % 3 AS STRING)")

    def _to_table(self) -> None:
        if (node := self._pick("stream")) is not None:
            self._add("to_table", "table", node.handle.to_table(store=self._store()), node)

    def _to_stream(self) -> None:
        if (node := self._pick("table", "windowed")) is not None:
            self._add("to_stream", "stream", node.handle.to_stream().filter("n IS NOT NULL"), node, stateful=False)

    def _suppress(self) -> None:
        node = self._pick("table", "windowed")
        if node is None or node in self._nodes[:3]:
            return
        if node.kind == "windowed" and self.chance.random() < 0.7:
            self._add("suppress until close", "windowed", node.handle.suppress_until_window_closes(), node)
        else:
            self._add(
                "suppress", node.kind, node.handle.suppress_until_time_limit(_ms(self.chance.choice((2, 8)))), node
            )

    def _stream_join(self) -> None:
        if (pair := self._pair("stream", times=2)) is not None:
            left, right = pair
            before, grace = (_ms(self.chance.choice((0, ms))) for ms in (3, 5))
            window = within(before=before, after="4 ms", grace=grace)
            how = self.chance.choice(("inner", "left", "outer"))
            joined = left.handle.join(right.handle, window, how=how)
            self._add(f"{how} stream join", "stream", self._flat(joined), left, right, times=2)

    def _table_join(self) -> None:
        if (pair := self._pair("table")) is not None:
            left, right = pair
            how = self.chance.choice(("inner", "left", "outer"))
            joined = left.handle.join(right.handle, how=how)
            self._add(f"{how} table join", "table", self._flat(joined), left, right)

    def _foreign_join(self) -> None:
        if (pair := self._pair("table", times=2)) is not None:
            left, right = pair
            how = self.chance.choice(("inner", "left"))
            joined = left.handle.join(right.handle, on="g", how=how)
            self._add(f"{how} foreign-key join", "table", self._flat(joined), left, right, times=2)

    def _lookup(self) -> None:
        left, right = self._pick("stream"), self._pick("table")
        if left is not None and right is not None:
            how = self.chance.choice(("inner", "left"))
            joined = left.handle.join(right.handle, how=how)
            self._add(f"{how} stream-table join", "stream", self._flat(joined), left, right)

    @staticmethod
    def _flat(joined: Any) -> Any:
        value = "CAST(pmod(coalesce(left.n, 0) * 3 + coalesce(right.n, 0), 50) AS BIGINT)"
        return joined.select(n=value, g="coalesce(left.g, right.g)")


def _ms(number: int) -> timedelta:
    return timedelta(milliseconds=number)


class Trial:
    """Topologies in one pipeline, and their records in batches."""

    def __init__(self, seeds: Sequence[int], operators: int) -> None:
        self._pipeline = Pipeline("topologies", workers=2)
        self.topologies = [
            Topology(self._pipeline, f"t{seed}", seed, random.Random(seed).randint(3, operators)) for seed in seeds
        ]
        self._chance = random.Random(seeds[0])
        self._records = _interleaved(self.topologies)
        ends = sorted(self._chance.sample(range(1, len(self._records)), self._chance.randint(1, MOST_CUTS)))
        self.batches = [
            self._records[begin:end] for begin, end in zip([0, *ends], [*ends, len(self._records)], strict=True)
        ]

    def differences(self) -> list[str]:
        """How the results differ between runs; empty if they are equal."""
        partitions = {topic: number for topology in self.topologies for topic, number in topology.partitions.items()}
        with Replays(self._pipeline, partitions) as replays:
            whole = replays.whole(self._records)
            cut, problems = replays.cut(self.batches, self._chance)
        topics = [topic for topology in self.topologies for topic in topology.outputs]
        return problems + list(_differences(whole, cut, topics))

    def lines(self, failed: Mapping[int, str]) -> Iterator[str]:
        """A line about each topology and its result."""
        for topology in self.topologies:
            one, *_ = topology.partitions.values()
            result = f"different: {failed[topology.seed][:2000]}" if topology.seed in failed else "equal"
            yield (
                f"{topology.seed}: {topology.operators} stateful operators, {len(topology.steps)} steps, "
                f"{one} partitions, {topology.count} records, {len(self.batches)} batches: {result}"
            )


def _interleaved(made: Sequence[Topology]) -> list[str]:
    """The records of all topologies, those of each in order, as the driver's input reads them."""
    piped, placed = PipedRecords(), []
    for topology in made:
        own = [*topology.records()]
        topology.count = len(own)
        placed += [(place / len(own), record) for place, record in enumerate(own)]
    placed.sort(key=lambda one: one[0])
    return [
        piped.record(topic, value, key, timestamp=when, partition=partition)
        for _, (topic, value, key, when, partition) in placed
    ]


def _differences(whole: Result, cut: Result, topics: Iterable[str]) -> Iterator[str]:
    for topic in topics:
        one, several = (_by_key(result.output.get(topic, ())) for result in (whole, cut))
        for key in dict.fromkeys([*one, *several]):
            if one.get(key) != several.get(key):
                yield f"{topic} {key}: {one.get(key)} in one batch, {several.get(key)} in several"
    for store in whole.stores:
        if whole.stores[store] != cut.stores[store]:
            yield f"{store}: {whole.stores[store]} in one batch, {cut.stores[store]} in several"
    if whole.state != cut.state:
        yield f"state: {whole.state} after one batch, {cut.state} after several"


def _by_key(records: Iterable[dict[str, Any]]) -> dict[tuple[str | None, str], list[Any]]:
    """The records of every key and window, in order: each record's value and timestamp."""
    by_key: dict[tuple[str | None, str], list[Any]] = {}
    for record in records:
        name = record["key"], str(record.get("headers", ""))
        by_key.setdefault(name, []).append((record["value"], record.get("timestamp")))
    return by_key


def try_all(seeds: Sequence[int], operators: int) -> Iterator[tuple[int, str]]:
    """The seeds of the topologies that fail, with the reason."""
    try:
        problems = Trial(seeds, operators).differences()
    except Exception as error:  # an error of one topology must not stop the others
        problems = [f"{type(error).__name__}: {error}"]
    if problems and len(seeds) > 1:
        half = len(seeds) // 2
        found = [*try_all(seeds[:half], operators), *try_all(seeds[half:], operators)]
        yield from found or [(seeds[0], f"only together with others, {[*seeds]}: {problem}") for problem in problems]
    else:
        yield from ((seeds[0], problem) for problem in problems)


def main(arguments: list[str]) -> int:
    """Try topologies. Returns 0 if no result depends on the batches."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--operators", type=int, default=12, help="at most so many stateful ones")
    parser.add_argument("--together", type=int, default=TOGETHER, help="topologies in one pipeline")
    parser.add_argument("--show", action="store_true", help="print the steps of the topologies, and run none")
    given = parser.parse_args(arguments)
    failed: dict[int, str] = {}
    seeds = range(given.seed, given.seed + given.count)
    if given.show:
        for seed in seeds:
            made = Topology(Pipeline("shown"), f"t{seed}", seed, random.Random(seed).randint(3, given.operators))
            print(seed, made.partitions, *made.steps, made.outputs, sep="\n  ")
        return 0
    shared_session().sparkContext.setLogLevel("OFF")  # Spark would log the stack of every interrupted batch
    for begin in range(0, len(seeds), given.together):
        some = seeds[begin : begin + given.together]
        failed |= dict(try_all(some, given.operators))
        print(*Trial(some, given.operators).lines(failed), sep="\n")
        done = begin + len(some)
        print(f"{done - len(failed)} passed, {len(failed)} failed, {_cpu_s():.0f} s of CPU", flush=True)
    return 1 if failed else 0


def _cpu_s() -> float:
    """The processor time of this process, Spark's and the workers', in seconds."""
    own = psutil.Process()
    times = [process.cpu_times() for process in (own, *own.children(recursive=True))]
    return sum(time.user + time.system + time.children_user + time.children_system for time in times)


if __name__ == "__main__":
    import logging

    import structlog

    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    sys.exit(main(sys.argv[1:]))
