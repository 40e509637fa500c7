"""Records that are set aside by a pipeline whose jobs read the same topic."""

from __future__ import annotations

from msgspec import Struct

from sluice import Pipeline, session
from tests.pipelines.conftest import Drive


class Click(Struct):
    page: str
    seconds: int


def per_click(click: Click) -> float:
    return 60 / click.seconds


def test_a_record_is_set_aside_once_though_two_jobs_read_it(drive: Drive) -> None:
    pipeline = Pipeline("twice", workers=1)
    clicks = pipeline.stream("clicks", value=Click)
    rates = clicks.map_values(per_click, returns=float).group_by_key()
    rates.aggregate(store="fastest", rate="max(value)")
    rates.windowed_by(session("1 minute")).count(store="visits")
    driver = drive(pipeline)
    driver.pipe("clicks", b"{", key="a", timestamp=0)
    driver.pipe("clicks", {"page": "a", "seconds": 0}, key="a", timestamp=1_000)
    driver.pipe("clicks", {"page": "a", "seconds": 30}, key="a", timestamp=2_000)
    assert [letter.headers["sluice.reason"] for letter in driver.dead_letters()] == ["malformed", "processing"]
    assert driver.store("fastest") == {"a": {"rate": 2.0}}
    assert driver.store("visits") == {("a", 2_000, 2_000): 1}
    assert driver.counts()["dead_letter/malformed"] == 2, "each job says what it could not read"
