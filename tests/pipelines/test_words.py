"""Words by letter: tables, aggregations, and every kind of join."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from pyspark.sql import SparkSession

from sluice.errors import TopologyError
from sluice.testing import TopologyTestDriver
from sluice.topology import load_pipeline
from tests.pipelines.conftest import PIPELINES, Drive
from tests.support.postgres import new_database

WORDS = [("A", "Almonds"), ("A", "Anaconda"), ("B", "Bananas"), ("A", "Antelope"), ("B", "Barley")]
"""No other test has words of six letters or more."""
FIRST = "the first letter"
SECOND = "the second letter"


@pytest.fixture(scope="module")
def words(session: SparkSession | None, server: str) -> Iterator[TopologyTestDriver]:
    """One driver for all stories: each has letters of its own."""
    database = new_database(server) if server else ""
    with TopologyTestDriver(
        load_pipeline(PIPELINES, "words"), spark=session, database=database
    ) as made:
        yield made


def read(driver: TopologyTestDriver, topic: str, letters: str = "") -> list[tuple[str | None, Any]]:
    """The topic's new records, or only the records of the given letters."""
    records = driver.read(topic)
    return [(one.key, one.value) for one in records if not letters or (one.key or "-") in letters]


def stored(driver: TopologyTestDriver, store: str, letters: str) -> dict[Any, Any]:
    return {key: value for key, value in driver.store(store).items() if key in letters}


def test_only_topics_that_the_pipeline_writes_can_be_read(words: TopologyTestDriver) -> None:
    with pytest.raises(TopologyError, match="does not write a topic 'misspelt'"):
        words.read("misspelt")
    assert words.read("words_dead_letters") == []


@pytest.mark.parametrize("partition", [-1, 1])
def test_a_record_goes_to_a_partition_that_its_topic_has(
    words: TopologyTestDriver, partition: int
) -> None:
    with pytest.raises(TopologyError, match="it has 1, numbered from 0"):
        words.pipe("words", "Apple", "a", partition=partition)


@pytest.mark.parametrize("timestamp", [1_670_230_527_000.5, 10**17, "2022-12-05"])
def test_a_timestamp_is_in_whole_milliseconds(words: TopologyTestDriver, timestamp: Any) -> None:
    with pytest.raises(TopologyError, match="is not a time in epoch milliseconds"):
        words.pipe("words", "Zebra", "Z", timestamp=timestamp)


def pair(left: str | None, right: str | None) -> dict[str, str | None]:
    return {"left": left, "right": right}


def test_a_table_has_the_latest_word_of_each_key(words: TopologyTestDriver) -> None:
    words.pipe("words", "Apple", key="a")
    words.pipe("words", "Bus", key="b")
    words.pipe("words", "C3PO", key="c")
    words.pipe("words", "Anaconda", key="a")
    assert words.store("words_latest") == {"a": "Anaconda", "b": "Bus", "c": "C3PO"}
    assert words.store("words_clean") == {"a": "Anaconda", "b": "Bus"}, (
        "the table has no words that do not match"
    )
    clean = [("b", "Bus"), ("c", None), ("a", "Anaconda")]
    assert read(words, "words_clean") == clean, "a batch writes one update per key"

    words.pipe("words", None, key="b")
    words.pipe("words", "x", key="a")
    words.pipe("words", "no key")
    assert words.store("words_latest") == {"a": "x", "c": "C3PO"}, "null deletes"
    assert words.store("words_clean") == {}, "a word that no longer matches is deleted"
    assert words.counts()["null_key/words_latest"] == 1


def test_words_are_counted_joined_and_collected_by_letter(words: TopologyTestDriver) -> None:
    for letter, word in WORDS[:3]:
        words.pipe("alphabet", word, key=letter)
    assert stored(words, "letters_joined", "AB") == {"A": "Almonds-Anaconda", "B": "Bananas"}

    for letter, word in WORDS[3:]:
        words.pipe("alphabet", word, key=letter)
    assert stored(words, "letters_count", "AB") == {"A": 3, "B": 2}
    assert stored(words, "letters_joined", "AB") == {
        "A": "Almonds-Anaconda-Antelope",
        "B": "Bananas-Barley",
    }
    letters = stored(words, "letters", "AB")
    assert {
        key: (one["key"], sorted(one["valueList"]), one["runningCount"])
        for key, one in letters.items()
    } == {
        "A": ("A", ["Almonds", "Anaconda", "Antelope"], 3),
        "B": ("B", ["Bananas", "Barley"], 2),
    }
    assert stored(words, "lengths_count", "678") == {"7": 2, "8": 2, "6": 1}


def test_a_word_is_joined_with_the_current_description_of_its_letter(
    words: TopologyTestDriver,
) -> None:
    words.pipe("alphabet", "Apple", key="D")
    words.pipe("alphabet_descriptions", FIRST, key="D")
    words.pipe("alphabet", "Alpha", key="D")
    words.pipe("alphabet_descriptions", "another one", key="D")
    words.pipe("alphabet", "Ant", key="D")
    words.pipe("alphabet_descriptions", None, key="D")
    words.pipe("alphabet", "Arm", key="D")
    assert read(words, "words_with_description_inner", "D") == [
        ("D", pair("Alpha", FIRST)),
        ("D", pair("Ant", "another one")),
    ]
    assert read(words, "words_with_description_left", "D") == [
        ("D", pair("Apple", None)),
        ("D", pair("Alpha", FIRST)),
        ("D", pair("Ant", "another one")),
        ("D", pair("Arm", None)),
    ]


def test_two_tables_joined_follow_the_changes_of_both(words: TopologyTestDriver) -> None:
    def read_all() -> dict[str, list[tuple[str | None, Any]]]:
        return {
            how: read(words, f"letters_with_description_{how}", "EF")
            for how in ("inner", "left", "outer")
        }

    words.pipe("alphabet", "Apple", key="E")
    words.pipe("alphabet_descriptions", SECOND, key="F")
    assert read_all() == {
        "inner": [],
        "left": [("E", pair("Apple", None))],
        "outer": [("E", pair("Apple", None)), ("F", pair(None, SECOND))],
    }

    words.pipe("alphabet", "Bus", key="F")
    words.pipe("alphabet_descriptions", FIRST, key="E")
    both = [("F", pair("Bus", SECOND)), ("E", pair("Apple", FIRST))]
    assert read_all() == {"inner": both, "left": both, "outer": both}

    words.pipe("alphabet_descriptions", None, key="E")
    assert read_all() == {
        "inner": [("E", None)],
        "left": [("E", pair("Apple", None))],
        "outer": [("E", pair("Apple", None))],
    }


def test_two_streams_are_joined_within_ten_seconds(words: TopologyTestDriver) -> None:
    def at(second: int) -> int:
        return 1_000 * second

    words.pipe("alphabet", "Apple", key="G", timestamp=at(20))
    words.pipe("alphabet", "Bus", key="H", timestamp=at(20))
    words.pipe("alphabet_descriptions", FIRST, key="G", timestamp=at(30))
    words.pipe("alphabet_descriptions", SECOND, key="H", timestamp=at(31))
    words.pipe("alphabet_descriptions", "the third letter", key="I", timestamp=at(60))
    words.pipe("alphabet", "Cat", key="I", timestamp=at(90))
    match = [("G", pair("Apple", FIRST))]
    lonely = [("H", pair("Bus", None))]
    assert read(words, "words_near_description_inner", "GHI") == match
    assert sorted(read(words, "words_near_description_left", "GHI"), key=str) == match + lonely
    assert sorted(read(words, "words_near_description_outer", "GHI"), key=str) == [
        *match,
        *lonely,
        ("H", pair(None, SECOND)),
        ("I", pair(None, "the third letter")),
    ]


def test_a_global_table_is_looked_up_by_any_expression(drive: Drive) -> None:
    driver = drive("words_global")
    driver.pipe("words", "Atlas", key="A")
    driver.pipe("words", "no word: 4", key="B")
    driver.pipe("alphabet_descriptions", FIRST, key="A")
    driver.pipe("alphabet", "apple", key="A")
    driver.pipe("alphabet", "bus", key="B")
    driver.pipe("alphabet", "avocado")
    assert driver.store("words") == {"A": "Atlas", "B": "no word: 4"}
    assert read(driver, "words_with_global_description_inner") == [
        ("A", pair("apple", FIRST)),
        (None, pair("avocado", FIRST)),
    ]
    assert read(driver, "words_with_global_description_left") == [
        ("A", pair("apple", FIRST)),
        ("B", pair("bus", None)),
        (None, pair("avocado", FIRST)),
    ]
    assert read(driver, "alphabet_with_words") == [("A", pair("apple", "Atlas"))]

    driver.pipe("words", None, key="A")
    driver.pipe("alphabet", "ant", key="A")
    assert read(driver, "alphabet_with_words") == []
    assert driver.store("words") == {"B": "no word: 4"}
