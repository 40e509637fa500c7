"""Random topologies, whose results must not depend on the division into batches.

python -m tests.conformance.topologies [--count 100] [--seed 1] [--operators 8] [--cuts random|each]

There are no expected results: every topology runs on the same records in one batch and in several, and all outputs are
compared: records, their order per key, and their timestamps.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from msgspec import Struct

from sluice import Pipeline, hopping, session, sliding, tumbling, within
from sluice.testing import TopologyTestDriver
from sluice.values.windows import AnyWindow

TOGETHER = 2
"""Number of topologies in one pipeline; they are independent and share the cost of a batch."""


class Value(Struct):
    """The values of all topics; every step of a topology returns such values."""

    n: int | None
    g: str | None


@dataclass
class Node:
    """A handle of the topology. `kind`: `stream`, `table`, or `windowed` for a table with windowed keys."""

    kind: str
    handle: Any
    used: bool = False


@dataclass
class Topology:
    """A random topology in a pipeline, with its input topics and its outputs."""

    pipeline: Pipeline
    prefix: str
    seed: int
    operators: int
    partitions: dict[str, int] = field(default_factory=dict)
    outputs: dict[str, str] = field(default_factory=dict)
    """Output topic → kind of the node that writes it."""
    steps: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.chance = random.Random(self.seed)
        self._nodes: list[Node] = []
        self._stores = self._explosions = self._stateful = 0
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
            self.outputs[topic] = node.kind

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

    def _add(self, step: str, kind: str, handle: Any, *parents: Node, stateful: bool = True) -> None:
        for parent in parents:
            parent.used = True
        self.steps.append(step)
        self._nodes.append(Node(kind, handle))
        self._stateful += stateful

    def _store(self) -> str:
        self._stores += 1
        return f"{self.prefix}_s{self._stores}"

    def _grow(self) -> None:
        """Add a step after a random node."""
        step = self.chance.choice((
            "filter", "select", "select_key", "flat_map", "merge", "aggregate", "aggregate", "windowed", "windowed",
            "windowed", "to_table", "to_stream", "to_stream", "suppress", "suppress", "regroup", "regroup",
            "stream_join", "stream_join", "table_join", "table_join", "lookup", "lookup", "foreign_join",
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
        if node is not None and self._explosions < 2:
            self._explosions += 1
            parts = "array(named_struct('n', n, 'g', g), named_struct('n', n + 1, 'g', 'x'))"
            made = node.handle.flat_map_values(parts)
            self._add("flat_map", "stream", made, node, stateful=False)

    def _merge(self) -> None:
        one, other = self._pick("stream"), self._pick("stream")
        if one is not None and other is not None and one is not other and self._explosions < 2:
            self._explosions += 1
            self._add("merge", "stream", one.handle.merge(other.handle), one, other, stateful=False)

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
        grace = self.chance.choice((0, 3, 10))
        return self.chance.choice(
            (
                tumbling(5, grace=grace),
                hopping(6, advance=3, grace=grace),
                session(3, grace=grace),
                sliding(4, grace=grace),
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
            self._add("suppress", node.kind, node.handle.suppress_until_time_limit(self.chance.choice((2, 8))), node)

    def _stream_join(self) -> None:
        left, right = self._pick("stream"), self._pick("stream")
        if left is not None and right is not None and left is not right:
            window = within(before=self.chance.choice((0, 3)), after=4, grace=self.chance.choice((0, 5)))
            how = self.chance.choice(("inner", "left", "outer"))
            joined = left.handle.join(right.handle, window, how=how)
            self._add(f"{how} stream join", "stream", self._flat(joined), left, right)

    def _table_join(self) -> None:
        left, right = self._pick("table"), self._pick("table")
        if left is not None and right is not None and left is not right:
            how = self.chance.choice(("inner", "left", "outer"))
            joined = left.handle.join(right.handle, how=how)
            self._add(f"{how} table join", "table", self._flat(joined), left, right)

    def _foreign_join(self) -> None:
        left, right = self._pick("table"), self._pick("table")
        if left is not None and right is not None and left is not right:
            joined = left.handle.join(right.handle, on="g", how=self.chance.choice(("inner", "left")))
            self._add("foreign-key join", "table", self._flat(joined), left, right)

    def _lookup(self) -> None:
        left, right = self._pick("stream"), self._pick("table")
        if left is not None and right is not None:
            joined = left.handle.join(right.handle, how=self.chance.choice(("inner", "left")))
            self._add("stream-table join", "stream", self._flat(joined), left, right)

    @staticmethod
    def _flat(joined: Any) -> Any:
        value = "CAST(pmod(coalesce(left.n, 0) * 3 + coalesce(right.n, 0), 50) AS BIGINT)"
        return joined.select(n=value, g="coalesce(left.g, right.g)")


def results(seeds: Sequence[int], operators: int, cuts: str) -> dict[str, Any]:
    """The results of the topologies of these seeds: output topic → key → records in order, or the last record of a
    table."""
    pipeline = Pipeline("topologies", workers=2)
    made = [Topology(pipeline, f"t{seed}", seed, random.Random(seed).randint(3, operators)) for seed in seeds]
    partitions = {topic: number for topology in made for topic, number in topology.partitions.items()}
    inputs = [list(topology.records()) for topology in made]
    rng = random.Random(seeds[0])
    with TopologyTestDriver(pipeline, partitions=partitions) as driver:
        for step in range(max(map(len, inputs))):
            for records in inputs:
                for topic, value, key, when, partition in records[step : step + 1]:
                    driver.pipe(topic, value, key, timestamp=when, partition=partition)
            if cuts == "each" or (cuts == "random" and rng.random() < 0.2):
                driver.commit()
        results: dict[str, Any] = {}
        for topology in made:
            for topic, kind in topology.outputs.items():
                by_key: dict[tuple[str, str], list[Any]] = {}
                for record in driver.output(topic):
                    window = str(record.headers) if kind == "windowed" else ""
                    by_key.setdefault((str(record.key), window), []).append((record.value, record.timestamp))
                results[topic] = by_key if kind == "stream" else {key: each[-1] for key, each in by_key.items()}
        return results


def differences(seeds: Sequence[int], operators: int, cuts: str) -> list[str]:
    """The outputs that depend on the batches, with both results."""
    whole, cut = results(seeds, operators, "one"), results(seeds, operators, cuts)
    return [
        f"{topic} {key}: {whole[topic].get(key)} in one batch, {cut[topic].get(key)} in several"
        for topic in whole
        for key in dict.fromkeys([*whole[topic], *cut[topic]])
        if whole[topic].get(key) != cut[topic].get(key)
    ]


def main(arguments: list[str]) -> int:
    """Try topologies. Returns 0 if no result depends on the batches."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--operators", type=int, default=8, help="at most so many stateful ones")
    parser.add_argument("--cuts", choices=("random", "each"), default="random")
    given = parser.parse_args(arguments)
    failed = 0
    start = time.monotonic()
    seeds = range(given.seed, given.seed + given.count)
    for begin in range(0, len(seeds), TOGETHER):
        some = seeds[begin : begin + TOGETHER]
        different = differences(some, given.operators, given.cuts)
        wrong = {line.partition("_")[0] for line in different}
        failed += len(wrong)
        for line in different[:10]:
            print(f"  {line}", flush=True)
        passed = begin + len(some) - failed
        print(f"{passed} passed, {failed} failed, {time.monotonic() - start:.0f} s", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    import logging

    import structlog

    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    sys.exit(main(sys.argv[1:]))
