"""The samples of the examples, and the expected results that plain Python computes."""

from __future__ import annotations

from pathlib import Path

import pytest

from sluice.errors import SettingsError
from sluice.examples import NAMES, load_example
from sluice.examples.example import Results, Sample, canonical, decoded
from sluice.examples.windows_example import expected as expected_windows
from sluice.examples.windows_example import totals_once_per
from sluice.topology import load_pipeline

PIPELINES = Path(__file__).parents[3] / "spark_jobs"
START = 1_740_988_800_000


@pytest.mark.parametrize("name", NAMES)
def test_the_same_seed_makes_the_same_samples_and_every_result_has_some(name: str) -> None:
    one = load_example(name)
    samples = list(one.samples(one.count, 7, START))
    assert (
        samples == list(one.samples(one.count, 7, START)) != list(one.samples(one.count, 8, START))
    )
    assert {sample.topic for sample in samples} == {*one.topics}
    if (
        name != "orders"
    ):  # their samples are out of order, and their results do not depend on the order
        times = [sample.timestamp_ms for sample in samples]
        assert sorted(set(times)) == times

    results = one.expected(samples)
    assert all(results.stores.values())
    pipeline = load_pipeline(PIPELINES, name)
    assert {*results.tables, *results.streams} == {*pipeline.sinks} - {pipeline.dead_letters}
    assert name == "words" or results.dead_letters


def test_an_unknown_example_is_rejected() -> None:
    with pytest.raises(SettingsError, match="no example 'shop'"):
        load_example("shop")


def test_results_differ_where_a_key_or_a_record_does() -> None:
    expected = Results(stores={"stock": {"p1": 1, "p2": 2}})
    expected.write("copies", "a", {"amount": 1})
    actual = Results(stores={"stock": {"p1": 1, "p3": 2}})
    actual.write("copies", "a", decoded(b'{"amount": 1.00}'))
    assert expected.differences(actual) == {"store stock": 2}
    actual.write("copies", "a", {"amount": 1})
    assert expected.differences(actual) == {"store stock": 2, "topic copies": 1}


def test_equal_values_have_one_canonical_text() -> None:
    assert canonical(decoded(b'{"b": [1.50, true], "a": null}')) == canonical(
        {"a": None, "b": [decoded(b"1.5"), True]}
    )
    assert canonical("1") != canonical(1)


def test_the_expected_windows_of_three_visits() -> None:
    def visit(clock: str) -> Sample:
        value = f'{{"page":"home","at":"1970-01-01T{clock}"}}'
        return Sample("visits", "home", value.encode(), 0)

    stores = expected_windows([visit("08:00:36"), visit("08:00:42"), visit("08:01:20")]).stores
    eight = 8 * 3_600_000
    assert {(start - eight, end - eight): n for (_, start, end), n in stores["bursts"].items()} == {
        (6_000, 36_000): 1, (12_000, 42_000): 2, (36_001, 66_001): 1, (50_000, 80_000): 1,
    }  # fmt: skip
    assert {(start - eight, end - eight): n for (_, start, end), n in stores["sessions"].items()} == {
        (36_000, 42_000): 2, (80_000, 80_000): 1,
    }  # fmt: skip
    assert {(start - eight, end - eight): n for (_, start, end), n in stores["overlapping_minutes"].items()} == {
        (0, 60_000): 2, (30_000, 90_000): 3, (60_000, 120_000): 1,
    }  # fmt: skip


def test_the_expected_totals_that_a_suppress_step_holds_back() -> None:
    visits = [("home", 10), ("cart", 20), ("home", 60), ("help", 85), ("home", 90)]
    assert totals_once_per(50, visits, max_records=9) == [(60, "home", 2), (85, "cart", 1)]
    assert totals_once_per(1_000, visits, max_records=2) == [(85, "home", 2), (90, "cart", 1)]
