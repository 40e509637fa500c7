"""Compares topologies with the model, and their results in different batches and when replayed with each other.

python -m tests.conformance.topologies [--count 100] [--seed 1] [--operators 12]    random
topologies python -m tests.conformance.topologies --tables [--count 100] [--seed 1]
random topologies of tables python -m tests.conformance.topologies --pairs [--every 10]
every pair of operators python -m tests.conformance.topologies --definitions [--count 100] [--seed
1]       every node by its definition python -m tests.conformance.topologies --triples 1000 [--seed
1]                    random chains of three operators

Every topology runs on the same records in one batch and in several. One of the several is
interrupted and repeated, and the last ones are replayed from a copy of all files. Compared are all
outputs (records, their order within a key, and their timestamps) with those of the model, and the
outputs and all state of the runs with each other. A difference from the model is shown with the
fewest records that lead to it. A random topology is named by its own seed, so that `--seed NAME
--count 1 --records-seed SEED` runs it alone, with the records that it had among others.
"""

from __future__ import annotations

import argparse
import itertools
import json
import random
import sys
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Self

import psutil

from sluice import Pipeline
from sluice.plan import plan
from sluice.settings import settings
from sluice.testing.local_run import why_not_local
from sluice.testing.piped_records import PipedRecords
from sluice.testing.topology_test_driver import shared_session
from tests.conformance import catalogue
from tests.conformance.adapter import Built, add_nodes, looked_up
from tests.conformance.catalogue import SOURCES, Chain, Kind, Nodes, Unfit, Values
from tests.conformance.model.aggregates import FinalResults
from tests.conformance.model.flow import Record, Windowed
from tests.conformance.model.tables import Table
from tests.conformance.model.topology import Topology as Model
from tests.conformance.model.topology import run
from tests.conformance.replays import Replays, Result
from tests.conformance.set_semantics import Sent, violations
from tests.conformance.values import contract

MOST_CUTS = 3
MOST_TIMES = 16
"""A step that would have more records than this for one record of the input is left out."""

Input = dict[str, Any]
"""`topic`, `key`, `value`, `ts` and `partition` of a record."""
ByKey = dict[Any, list[tuple[Any, int]]]
"""Key, with its window if it has one → the values and timestamps of its records, in order."""


@dataclass(frozen=True)
class Topology:
    """Nodes of which some write to an output topic each."""

    name: str
    nodes: list[dict[str, Any]]
    outputs: dict[str, Values]
    """Suffix of the topic → node."""

    @classmethod
    def of_chain(cls, chain: Chain) -> Self:
        nodes, last = chain.nodes()
        return cls(chain.name, nodes, {"out": last})

    @classmethod
    def random(
        cls, seed: int, operators: int, kinds: Collection[Kind] = ("stream", "table", "windowed")
    ) -> Self:
        """A topology with a random number of operators, which is at most `operators`, and whose nodes have `kinds`."""
        chance = random.Random(seed)
        nodes = Nodes()
        made = [node for node in nodes.sources.values() if node.kind in kinds]
        sources = len(made)
        target = chance.randint(3, operators) + sources
        while len(made) < target:
            # Prefer the newest nodes, to get long chains.
            node, other = chance.sample(made[-4:] if chance.random() < 0.7 else made, k=2)
            with suppress(Unfit):
                grown = _grown(chance, nodes, node, other)
                if grown.times <= MOST_TIMES and grown.kind in kinds:
                    made.append(grown)
        leaves = [node for node in made[sources:] if node.id not in _inputs(nodes.nodes)]
        return cls(
            str(seed), nodes.nodes, {f"out{number}": node for number, node in enumerate(leaves)}
        )

    def expected(self, inputs: Sequence[Input]) -> dict[str, ByKey]:
        """What the model writes to each output."""
        case = {"spec": {"nodes": self.nodes}, "inputs": inputs}
        names = [node.id for node in self.outputs.values()]
        sent = run(case, *names)
        return {topic: by_key(sent[node.id]) for topic, node in self.outputs.items()}

    def with_all_outputs(self) -> Self:
        """The topology with an output topic for each node but versioned tables, whose topics also get late versions."""
        model = Model(self.nodes)
        outputs: dict[str, Values] = {}
        for name, node in model.nodes.items():
            if name in SOURCES or (isinstance(node, Table) and node.is_versioned):
                continue
            kind: Kind = "table" if isinstance(node, Table) else "stream"
            has_windows = getattr(node, "window", None) is not None or isinstance(
                node, FinalResults
            )
            outputs[name] = Values(name, "windowed" if has_windows else kind)
        return replace(self, outputs=outputs)

    @property
    def unmatched(self) -> set[str]:
        """The left and outer joins of streams, which send records that got no match in time."""
        joins = [node for node in self.nodes if node["op"] == "join" and "window" in node]
        return {node["id"] for node in joins if node["type"] != "inner"}

    @property
    def depends_on_workers(self) -> bool:
        """Whether a step whose results depend on stream time reads records that got no match in time.

        When these are sent depends on the times of the other keys of the same worker.
        """
        behind = self.unmatched
        for node in self.nodes:
            parts = [node, *node.get("parts", ())]
            if not behind.isdisjoint(_inputs(parts)):
                is_timed = any(name in node for name in ("window", "within", "ms"))
                if is_timed or node["op"] in ("suppress", "process"):
                    return True
                behind.add(node["id"])
        return False

    @property
    def used_sources(self) -> set[str]:
        """The sources that a node of the topology reads or looks up."""
        nodes = [node for node in self.nodes if node["id"] not in SOURCES]
        parts = [part for node in nodes for part in node.get("parts", ())]
        return (_inputs([*nodes, *parts]) | looked_up([*nodes])) & {*SOURCES}


def _inputs(nodes: Sequence[dict[str, Any]]) -> set[str]:
    """The nodes that another node reads."""
    fields = [node[name] for node in nodes for name in ("in", "left", "right") if name in node]
    return {name for one in fields for name in (one if isinstance(one, list) else [one])}


def _grown(chance: random.Random, nodes: Nodes, node: Values, other: Values) -> Values:
    """A step behind a node, or behind two nodes."""
    kinds = node.kind, other.kind
    if not (node.settled and other.settled):
        raise Unfit("not all updates are known")
    how = chance.choice(("inner", "left", "outer"))
    if chance.random() < 0.4:
        if kinds == ("stream", "stream"):
            if chance.random() < 0.4:
                return catalogue.merge(nodes, node, other)
            before, grace = chance.choice((0, 3)), chance.choice((0, 5))
            return catalogue.join(how, nodes, node, other, **catalogue.within(before, 4, grace))
        if kinds == ("table", "table"):
            if how != "outer" and chance.random() < 0.5:
                return catalogue.join(how, nodes, node, other, **catalogue.foreign(node))
            return catalogue.join(how, nodes, node, other)
        if kinds == ("stream", "table") and how != "outer":
            return catalogue.join(how, nodes, node, other)
    return chance.choice([step for step in catalogue.STEPS if step.takes == node.kind]).after(
        nodes, node
    )


def records(
    chance: random.Random, count: int, partitions: int = 1, *, distinct: bool = False
) -> Iterator[Input]:
    """Records of all sources: some late, some without a key or a value, some at the same time as another.

    With `distinct`, no two of them have the same value.
    """
    clock = 0
    for number in range(count):
        topic = chance.choice(tuple(SOURCES))
        clock += chance.choice((0, 1, 1, 3, 10))
        keys = ("a", "b", "x", "") if SOURCES[topic] != "stream" else ("a", "b", "x", "", None)
        value = random_value(chance) | ({"n": number} if distinct else {})
        yield {
            "topic": topic,
            "key": chance.choice(keys),
            "value": chance.choice((value, value, value, value, None)),
            "ts": max(0, clock - chance.choice((0, 0, 0, 2, 8, 25))),
            "partition": chance.randrange(partitions),
        }


def add_topologies(
    pipeline: Pipeline,
    topologies: Sequence[Topology],
    prefix: str = "",
    sources: Collection[str] = tuple(SOURCES),
) -> dict[str, Any]:
    """Add topologies that share the sources, which are returned.

    The names of topics begin with `prefix`.

    `sources`: the names of the sources that the pipeline reads, among them all that the topologies
    use.
    """
    value = contract({"n": "int", "g": "str"})
    added: dict[str, Any] = {}
    for name in sources:
        match SOURCES[name]:
            case "stream":
                added[name] = pipeline.stream(f"{prefix}{name}", value=value, nulls="keep")
            case "table":
                added[name] = pipeline.table(f"{prefix}{name}", value=value)
            case "global_table":
                added[name] = pipeline.global_table(f"{prefix}{name}", value=value)
    samples = [{"topic": name, "value": {"n": 1, "g": "a"}} for name in SOURCES]
    for number, topology in enumerate(topologies):
        handles = dict(added)
        nodes = [
            node for node in topology.nodes if node["id"] in added or node["id"] not in SOURCES
        ]
        spec = {"nodes": nodes, "sink": topology.nodes[-1]["id"], "result_kind": "stream"}
        add_nodes(pipeline, Built({"spec": spec, "inputs": samples}, f"t{number}"), handles)
        for topic, node in topology.outputs.items():
            handles[node.id].to(f"{prefix}t{number}_{topic}")
    return added


def random_value(chance: random.Random) -> dict[str, Any]:
    return {
        "n": chance.choice((None, *range(-3, 10))),
        "g": chance.choice(("a", "b", "x", "", None)),
    }


class Trial:
    """Topologies that read the same records, in one pipeline, which shares the cost of a batch."""

    def __init__(
        self,
        topologies: Sequence[Topology],
        inputs: Sequence[Input],
        partitions: int = 1,
        *,
        definitions: bool = False,
    ) -> None:
        """With `definitions`, every node writes to a topic, and is compared with its definition, too."""
        if definitions:
            topologies = [topology.with_all_outputs() for topology in topologies]
        self.topologies, self.inputs, self.partitions = topologies, inputs, partitions
        self._checks_definitions = definitions
        # Each worker searches for unmatched records by the times of its own keys, and the model by
        # those of all keys.
        workers = 1 if partitions == 1 and any(one.unmatched for one in topologies) else 2
        self._pipeline = Pipeline("topologies", workers=workers)
        add_topologies(self._pipeline, topologies)
        self._merged = frozenset(
            output.sink.topic for output in plan(self._pipeline).job.change_sinks
        )
        """The topics that get only the last update of each key in a batch."""

    def problems(self) -> Iterator[tuple[Topology | None, str]]:
        """How results differ from the model's, and between runs.

        None for a difference that any topology may have.
        """
        chance = random.Random(len(self.inputs))
        ends = sorted(
            chance.sample(range(1, len(self.inputs)), min(MOST_CUTS, len(self.inputs) - 1))
        )
        given = lines(self.inputs)
        minimised: set[str] = set()
        batches = [given[begin:end] for begin, end in itertools.pairwise([0, *ends, len(given)])]
        with Replays(self._pipeline, dict.fromkeys(SOURCES, self.partitions)) as replays:
            whole = replays.whole(given)
            cut, problems = replays.cut(batches, chance)
            for problem in problems:
                yield None, problem
            for number, topology in enumerate(self.topologies):
                prefix = f"t{number}"
                if self._checks_definitions:
                    yield from (
                        (topology, why) for why in _violations(topology, prefix, whole, self.inputs)
                    )
                if self.partitions == 1 and (
                    found := _from_model(topology, prefix, whole, self.inputs)
                ):
                    yield (
                        topology,
                        self._minimised(topology, prefix, replays) if len(minimised) < 3 else found,
                    )
                    minimised.add(topology.name)
                else:
                    between = _between(topology, prefix, whole, cut, self._merged)
                    yield from ((topology, problem) for problem in between)
        if whole.state != cut.state:
            yield None, f"state: {whole.state} after one batch, {cut.state} after several"

    def _minimised(self, topology: Topology, prefix: str, replays: Replays) -> str:
        """The difference from the model for few records."""

        def difference(inputs: Sequence[Input]) -> str:
            return _from_model(topology, prefix, replays.whole(lines(inputs)), inputs)

        fewest = _fewest(self.inputs, lambda inputs: bool(difference(inputs)))
        return f"{difference(fewest)}, for {len(fewest)} records: {_told(fewest)}"


def lines(inputs: Sequence[Input]) -> list[str]:
    """The records as the driver's input reads them."""
    piped = PipedRecords()
    return [
        piped.record(
            one["topic"], one["value"], one["key"], timestamp=one["ts"], partition=one["partition"]
        )
        for one in inputs
    ]


def _told(inputs: Sequence[Input]) -> str:
    return "; ".join(
        f"{one['topic']} {one['key']!r} {json.dumps(one['value'])} at {one['ts']}" for one in inputs
    )


def _written(result: Result, topic: str, is_windowed: bool) -> ByKey:
    return by_key(_records(result, topic, is_windowed))


def _records(result: Result, topic: str, is_windowed: bool) -> list[Record]:
    """What a run has written to a topic.

    The records of a stream may keep the headers of the window that they had.
    """
    sent = []
    for record in result.output.get(topic, ()):
        headers = {header["key"]: header["value"] for header in record.get("headers") or ()}
        key: Any = None if record["key"] is None else _text(record["key"])
        if is_windowed:
            key = Windowed(key, int(headers["window_start"]), int(headers["window_end"]))
        value = None if record["value"] is None else json.loads(record["value"])
        sent.append(Record(key, value, record["timestamp"]))
    return sent


def _text(data: str | bytes) -> str:
    return data if isinstance(data, str) else data.decode()


def by_key(sent: Sequence[Record]) -> ByKey:
    found: ByKey = {}
    for record in sent:
        found.setdefault(record.key, []).append((record.value, record.time))
    return found


def _final(by_key: ByKey) -> ByKey:
    """The last row of each key, without deleted ones."""
    return {key: rows[-1:] for key, rows in by_key.items() if rows[-1][0] is not None}


def difference(kind: str, wanted: ByKey, found: ByKey) -> str:
    """How an output of this kind differs from the model's; empty if it does not.

    Of a table, only final rows count.
    """
    if kind != "stream":
        wanted, found = _final(wanted), _final(found)
    for key in dict.fromkeys([*wanted, *found]):
        if wanted.get(key) != found.get(key):
            return f"{key}: {found.get(key)} instead of {wanted.get(key)}"
    return ""


def _from_model(topology: Topology, prefix: str, whole: Result, inputs: Sequence[Input]) -> str:
    """How an output differs from the model's; empty if none does."""
    for topic, wanted in topology.expected(inputs).items():
        kind = topology.outputs[topic].kind
        if why := difference(
            kind, wanted, _written(whole, f"{prefix}_{topic}", kind == "windowed")
        ):
            return f"{topic} {why}"
    return ""


def _violations(
    topology: Topology, prefix: str, whole: Result, inputs: Sequence[Input]
) -> Iterator[str]:
    """Which definitions are not true of the results of the model and of Sluice."""
    case = {"spec": {"nodes": topology.nodes}, "inputs": inputs}
    written: dict[str, list[Record]] = {}
    for topic, node in topology.outputs.items():
        written[node.id] = _records(whole, f"{prefix}_{topic}", node.kind == "windowed")
    for name, sent in (("model", Sent.by_model(case)), ("Sluice", Sent.to_topics(case, written))):
        yield from (f"{name}: {why}" for why in violations(sent))


def _between(
    topology: Topology, prefix: str, whole: Result, cut: Result, merged: Collection[str]
) -> Iterator[str]:
    for suffix, node in topology.outputs.items():
        topic = f"{prefix}_{suffix}"
        one, several = (_written(result, topic, node.kind == "windowed") for result in (whole, cut))
        if topic in merged:
            one, several = _final(one), _final(several)
        for key in dict.fromkeys([*one, *several]):
            if one.get(key) != several.get(key):
                yield f"{suffix} {key}: {one.get(key)} in one batch, {several.get(key)} in several"
    for store, rows in whole.stores.items():
        if store.startswith(f"{prefix}_") and rows != cut.stores[store]:
            yield f"{store}: {rows} in one batch, {cut.stores[store]} in several"


def _fewest(inputs: Sequence[Input], fails: Callable[[Sequence[Input]], bool]) -> Sequence[Input]:
    """The inputs without most of those that the failure does not need."""
    size = len(inputs) // 2
    while size:
        begin = 0
        while begin < len(inputs):
            fewer = [*inputs[:begin], *inputs[begin + size :]]
            if fewer and fails(fewer):
                inputs = fewer
            else:
                begin += size
        size //= 2
    return inputs


def try_all(
    topologies: Sequence[Topology],
    inputs: Sequence[Input],
    partitions: int = 1,
    *,
    definitions: bool = False,
) -> Iterator[tuple[Topology, str]]:
    """The topologies that fail, each with a reason.

    After an error of any of them, each half is tried.
    """
    try:
        problems = [*Trial(topologies, inputs, partitions, definitions=definitions).problems()]
    except Exception as error:  # an error of one topology must not stop the others
        problems = [(None, f"{type(error).__name__}: {error}")]
    of_any = [problem for topology, problem in problems if topology is None]
    if of_any and len(topologies) > 1:
        half = len(topologies) // 2
        found = [
            *try_all(topologies[:half], inputs, partitions, definitions=definitions),
            *try_all(topologies[half:], inputs, partitions, definitions=definitions),
        ]
        yield from found or [(topologies[0], f"only together with others: {of_any[0]}")]
        return
    for topology, problem in problems:
        yield topology or topologies[0], problem


def main(arguments: list[str]) -> int:
    """Try topologies. Returns 0 if all are equal."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--count", type=int, default=100, help="of random topologies")
    parser.add_argument(
        "--pairs", action="store_true", help="instead: every pair of operators, and each alone"
    )
    parser.add_argument(
        "--triples", type=int, default=0, help="instead: so many random chains of three operators"
    )
    parser.add_argument("--every", type=int, default=1, help="only every Nth pair")
    parser.add_argument(
        "--from", type=int, default=0, dest="first", help="leave out so many pairs before the first"
    )
    parser.add_argument("--only", default="", help="only the chain of this name")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--records", type=int, default=60)
    parser.add_argument(
        "--records-seed", default="", help="of the records; a difference is printed with its own"
    )
    parser.add_argument(
        "--tables",
        action="store_true",
        help="random topologies of tables only, mostly of one topic's",
    )
    parser.add_argument(
        "--definitions", action="store_true", help="compare every node with its definition, too"
    )
    parser.add_argument(
        "--operators", type=int, default=12, help="at most so many in a random topology"
    )
    parser.add_argument("--together", type=int, default=0, help="topologies in one pipeline")
    parser.add_argument(
        "--show", action="store_true", help="print the topologies' nodes, and run none"
    )
    given = parser.parse_args(arguments)
    if given.only or given.pairs:
        chains = [*catalogue.chains(1), *catalogue.chains(2)][given.first :: given.every]
        if given.only:
            every = itertools.chain.from_iterable(map(catalogue.chains, (1, 2, 3)))
            chains = [chain for chain in every if chain.name == given.only]
        topologies = [Topology.of_chain(chain) for chain in chains]
    elif given.triples:
        chance = random.Random(given.seed)
        topologies = [
            Topology.of_chain(catalogue.random_chain(chance, 3)) for _ in range(given.triples)
        ]
    else:
        kinds: tuple[Kind, ...] = ("table",) if given.tables else ("stream", "table", "windowed")
        topologies = [
            Topology.random(given.seed + number, given.operators, kinds)
            for number in range(given.count)
        ]
    if given.show:
        for topology in topologies:
            print(
                topology.name,
                *topology.nodes,
                {topic: node.steps for topic, node in topology.outputs.items()},
                sep="\n  ",
            )
        return 0
    together = given.together or (24 if given.pairs or given.triples else 4)
    failed: dict[str, str] = {}
    done = 0
    for some in _shared(topologies, together):
        records_seed = given.records_seed or f"{given.seed} {done}"
        chance = random.Random(records_seed)
        of_one = given.pairs or given.triples or given.only or given.definitions
        partitions = 1 if of_one else chance.choice((1, 1, 1, 2, 4))
        # Records with different numbers can be told apart in a join.
        inputs = [
            *records(
                chance,
                given.records,
                partitions,
                distinct=given.definitions and chance.random() < 0.5,
            )
        ]
        for topology, problem in try_all(some, inputs, partitions, definitions=given.definitions):
            if topology.name not in failed:
                print(
                    f"{topology.name}, with --records-seed {records_seed!r}: {problem[:2000]}",
                    flush=True,
                )
            failed.setdefault(topology.name, problem)
        done += len(some)
        print(
            f"{done - len(failed)} equal, {len(failed)} different, {_cpu_s():.0f} s of CPU",
            flush=True,
        )
    print(
        f"{len(topologies) - len(failed)} equal, {len(failed)} different, {_cpu_s():.0f} s of CPU",
        flush=True,
    )
    return 1 if failed else 0


def needs_spark(topology: Topology) -> bool:
    """Whether only Spark computes an expression of the topology."""
    pipeline = Pipeline("topologies", workers=2)
    add_topologies(pipeline, [topology])
    return bool(why_not_local(plan(pipeline).job, settings()))


def _shared(topologies: Sequence[Topology], together: int) -> Iterator[Sequence[Topology]]:
    """The topologies that run in this process, then the others, so many in a pipeline, because they share a batch."""
    on_spark: list[Topology] = []
    in_process: list[Topology] = []
    for topology in topologies:
        (on_spark if needs_spark(topology) else in_process).append(topology)
        if len(in_process) == together:
            yield in_process
            in_process = []
    if in_process:
        yield in_process
    if on_spark:
        shared_session().sparkContext.setLogLevel(
            "OFF"
        )  # Spark would log the stack of every interrupted batch
    for begin in range(0, len(on_spark), together):
        yield on_spark[begin : begin + together]


def _cpu_s() -> float:
    """The processor time of this process, Spark's and the workers', in seconds."""
    own = psutil.Process()
    times = [process.cpu_times() for process in (own, *own.children(recursive=True))]
    return sum(
        time.user + time.system + time.children_user + time.children_system for time in times
    )


if __name__ == "__main__":
    import logging

    import structlog

    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    sys.exit(main(sys.argv[1:]))
