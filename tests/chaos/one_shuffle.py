"""Topologies whose rows are shuffled once: tasks read a batch while the output of the batch before is written."""

from __future__ import annotations

import random
from collections.abc import Collection, Sequence

from sluice import Pipeline
from sluice.plan import plan
from tests.conformance import catalogue
from tests.conformance.catalogue import Kind, Nodes, Step, Values
from tests.conformance.topologies import Topology, add_topologies

STREAMS = ("l", "r")
STREAMS_AND_TABLES = (*STREAMS, "t", "u")
"""A global table would need a second shuffle."""


def _totals(window: dict[str, object] | None, nodes: Nodes, node: Values) -> Values:
    """Counts and maxima, which tasks combine before the shuffle. Sums of the cases would be an operator's."""
    columns = [{"name": "c", "fn": "count"}, {"name": "m", "fn": "max", "expr": node.number}]
    about = {"window": window} if window else {}
    made = nodes.add("aggregate", **{"in": node.id}, aggs=columns, **about)
    return catalogue.objects(node, made, kind="table", number=["field", "m"], text=["key"])


def _totals_step(name: str, window: dict[str, object] | None, gives: Kind) -> Step:
    return Step(name, "stream", gives, lambda nodes, node: _totals(window, nodes, node))


TOTALS = (
    _totals_step("totals", None, "table"),
    *(
        _totals_step(f"{name} totals", catalogue.WINDOWS[name], "windowed")
        for name in ("tumbling", "hopping")
    ),
)


def one_shuffle(chance: random.Random, count: int) -> tuple[list[Topology], Collection[str]]:
    """So many random topologies, and the sources of their pipeline.

    A pipeline in three has no operators: its records pass filters, maps and totals only.
    """
    without_operators = chance.random() < 1 / 3
    sources = STREAMS if without_operators else STREAMS_AND_TABLES
    chosen: list[Topology] = []
    while len(chosen) < count:
        steps = chance.choices((*catalogue.STEPS, *TOTALS * 5), k=chance.choice((1, 1, 2)))
        if (chain := catalogue.fitting(steps)) is None:
            continue
        topologies = [*chosen, Topology.of_chain(chain)]
        if _is_shuffled_once(topologies, sources, without_operators):
            chosen = topologies
    return chosen, sources


def _is_shuffled_once(
    topologies: Sequence[Topology], sources: Collection[str], without_operators: bool
) -> bool:
    used = [topology.used_sources for topology in topologies]
    if not all(names <= {*sources} for names in used):
        return False
    # Without operators, the records of different topics have no order among each other, and the
    # model's have one.
    if without_operators and any(len(names) > 1 for names in used):
        return False
    pipeline = Pipeline("one_shuffle", workers=1)
    add_topologies(pipeline, topologies, sources=sources)
    job = plan(pipeline).job
    return job.has_one_shuffle and not (without_operators and job.has_operators)
