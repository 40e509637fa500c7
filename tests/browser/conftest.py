"""A real Airflow with a busy orders pipeline, for the browser."""

from __future__ import annotations

import random
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from sluice.topology import drawing, load_pipeline
from tests.airflow_server import AirflowServer
from tests.api.states import KINDS, orders_states, totals, windows
from tests.states import States

REPOSITORY = Path(__file__).parents[2]
RUNS = 6


@pytest.fixture(scope="package")
def states(tmp_path_factory: pytest.TempPathFactory) -> States:
    """Six runs over fifty locations, always the same."""
    states = orders_states(f"sqlite:///{tmp_path_factory.mktemp('sluice')}", workers=4)
    pipeline = load_pipeline(REPOSITORY / "spark_jobs", "orders")
    states.ledger.jobs.register(
        states.info(
            description=drawing.text(pipeline), drawing=drawing.mermaid(pipeline), picture=drawing.svg(pipeline)
        )
    )
    busy = Busy(random.Random(7))
    for run in range(RUNS):
        published_at = datetime.now(UTC) - timedelta(seconds=95 * (RUNS - 1 - run) + 12)
        rows = [row for kind in KINDS for row in busy.run(kind, run)]
        states.publish(
            [*rows, (4, "store_1234", -1, -1, '[{"locationId":"store_1234"}]')],
            published_at=published_at,
            counts=busy.counts,
        )
    return states


class Busy:
    """New orders, some of them bad."""

    def __init__(self, chance: random.Random) -> None:
        self.chance = chance
        self.weights = {f"store_{chance.randrange(2_000, 9_999)}": chance.uniform(0.4, 2) for _ in range(49)} | {
            "store_1234": 2.2
        }
        self.orders = {kind: dict.fromkeys(self.weights, 0) for kind in KINDS}
        self.counts: dict[str, int] = {}

    def run(self, kind: str, run: int) -> Iterator[tuple[int, str, int, int, str | None]]:
        made = {location: round(weight * self.chance.uniform(12, 24)) for location, weight in self.weights.items()}
        for location, count in made.items():
            self.orders[kind][location] += count
            starts = [f"2022-12-05T08:{50 + run}:{second:02}" for second in (0, 15, 30, 45)]
            yield from windows(kind, location, dict.fromkeys(starts, (count // 4 + 1, f"{count * 6.25:.2f}")))
        yield from totals(kind, {one: (count, f"{count * 24.5:.2f}") for one, count in self.orders[kind].items()})
        self._count(sum(made.values()), run)

    def _count(self, applied: int, run: int) -> None:
        bad = {"malformed": 3 + run % 3, "digits": 2, "contract": run % 2}
        late = self.chance.choice([0, 0, 2])
        self.counts = {
            "read": applied + sum(bad.values()),
            "applied": applied,
            "late/general_orders_count_window": late,
            **{f"dead_letter/{reason}": count for reason, count in bad.items()},
        }


@pytest.fixture(scope="package")
def airflow(tmp_path_factory: pytest.TempPathFactory, states: States) -> Iterator[AirflowServer]:
    with AirflowServer(
        tmp_path_factory.mktemp("airflow"),
        plugins_folder=REPOSITORY / "plugins",
        env={"SLUICE_HOME": states.database.removeprefix("sqlite:///"), "PYTHONPATH": str(REPOSITORY)},
    ) as server:
        yield server
