"""The differences between the releases of Spark."""

from sluice.spark_releases import numbers_of_workers


def test_numbers_have_sparks_own_hashes() -> None:
    # `SELECT id, pmod(hash(CAST(id AS INT)), 5) FROM range(40)` in Spark 4.0.5
    by_spark = [1, 3, 4, 1, 2, 1, 4, 2, 3, 4, 2, 3, 4, 3, 3, 2, 4, 4, 2, 4, 3, 3, 0]
    numbers = numbers_of_workers(5)
    assert [by_spark[number] for number in numbers] == [0, 1, 2, 3, 4]
