"""Groups of a table's rows are aggregated in columns, with the results of the operators that take row by row."""

from __future__ import annotations

from typing import Any, NamedTuple
from unittest.mock import patch

from hypothesis import given
from hypothesis import strategies as st
from msgspec import Struct

from sluice import Pipeline, Table
from sluice.engine.stages.operator_run import OperatorRun
from sluice.testing import TopologyTestDriver


class Score(Struct):
    team: str | None
    points: int


class Piped(NamedTuple):
    player: str
    score: Score | None
    time: int
    commits: bool


SCORES = st.lists(
    st.builds(
        Piped,
        st.sampled_from(["ann", "bob", "cay"]),
        st.none() | st.builds(Score, st.sampled_from(["red", "blue", None]), st.integers(0, 4)),
        st.integers(0, 9),
        st.sampled_from([False, False, True]),
    ),
    min_size=1,
    max_size=30,
)


def _add(total: int, score: Score) -> int:
    if score.points == 3:
        raise ValueError("unlucky")
    return total + score.points


def _subtract(total: int, score: Score) -> int:
    if score.points == 4 and total % 2:
        raise ValueError("cannot be taken back")
    return total - score.points


def pipeline_of(*, to_topic: bool) -> Pipeline:
    pipeline = Pipeline("teams", workers=2)
    scores = pipeline.stream("scores", value=Score, nulls="keep").to_table(store="scores")
    columns = {
        "players": "count(*)",
        "points": "sum(points)",
        "best": "max(points)",
        "last": "max_by(_key, points)",
    }
    teams = scores.group_by("team").aggregate(columns, store="teams")
    bests = (
        pipeline.stream("bests", value=Score)
        .group_by("team")
        .aggregate(best="max(points)", store="best_of_team")
    )
    sizes = teams.group_by("players").count(store="teams_of_size")
    by_best = (
        bests.filter("best > 0")
        .group_by("best")
        .aggregate(
            {"teams": "count(*)", "sum": "sum(best)", "team": "max_by(_key, best)"},
            store="teams_by_best",
        )
    )
    lucky = scores.group_by("team").aggregate(
        int, _add, _subtract, store="lucky", returns=int, on_error="dead_letter"
    )
    if to_topic:
        tables: dict[str, Table[Any]] = {
            "teams": teams,
            "sizes": sizes,
            "by_best": by_best,
            "lucky": lucky,
        }
        for name, table in tables.items():
            table.to(f"{name}_topic")
    return pipeline


def results_of(pipeline: Pipeline, piped: list[Piped], *, cut: bool = True) -> Any:
    with TopologyTestDriver(pipeline) as driver:
        for number, record in enumerate(piped):
            time = 10 + number - record.time
            driver.pipe("scores", record.score, key=record.player, timestamp=time)
            if record.score is not None:
                driver.pipe("bests", record.score, timestamp=time)
            if cut and record.commits:
                driver.commit()
        driver.commit()
        outputs: dict[str, dict[Any, list[Any]]] = {}
        for topic in pipeline.sinks:
            # Keys meet nowhere, so only the order within a key is a result.
            of_keys = outputs[topic] = {}
            for record_out in driver.output(topic):
                of_keys.setdefault(record_out.key, []).append(
                    (record_out.value, record_out.timestamp)
                )
        stores = {
            name: driver.store(name)
            for name in ("teams", "teams_of_size", "teams_by_best", "lucky")
        }
        failed = sorted(str((letter.key, letter.value)) for letter in driver.dead_letters())
        return outputs, stores, failed, driver.counts()


@given(piped=SCORES, to_topic=st.booleans())
def test_columns_have_the_results_of_rows(piped: list[Piped], to_topic: bool) -> None:
    pipeline = pipeline_of(to_topic=to_topic)
    in_columns = results_of(pipeline, piped)
    assert in_columns[:3] == results_of(pipeline, piped, cut=False)[:3]
    with patch.object(OperatorRun, "_process_columns", lambda _, keyed, part, output: part):
        assert results_of(pipeline, piped) == in_columns
