"""Words by letter: tables, aggregations, and every kind of join."""

from __future__ import annotations

from typing import Any

import pytest

from sluice.testing import TopologyTestDriver
from tests.pipelines.conftest import Drive

WORDS = [("A", "Apple"), ("A", "Alpha"), ("B", "Bus"), ("A", "Ant"), ("B", "Baby")]
FIRST = "A is the first letter"
SECOND = "B is the second letter"


@pytest.fixture
def words(drive: Drive) -> TopologyTestDriver:
    return drive("words")


def read(driver: TopologyTestDriver, topic: str) -> list[tuple[str | None, Any]]:
    return [(record.key, record.value) for record in driver.read(topic)]


def pair(left: str | None, right: str | None) -> dict[str, str | None]:
    return {"left": left, "right": right}


def test_a_table_has_the_latest_word_of_each_key(words: TopologyTestDriver) -> None:
    words.pipe("words", "Apple", key="a")
    words.pipe("words", "Bus", key="b")
    words.pipe("words", "C3PO", key="c")
    words.pipe("words", "Anaconda", key="a")
    assert words.store("words_latest") == {"a": "Anaconda", "b": "Bus", "c": "C3PO"}
    assert words.store("words_clean") == {"a": "Anaconda", "b": "Bus"}, "the table has no words that do not match"
    clean = [("b", b"Bus"), ("c", None), ("a", b"Anaconda")]
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
    assert words.store("letters_joined") == {"A": "Apple-Alpha", "B": "Bus"}

    for letter, word in WORDS[3:]:
        words.pipe("alphabet", word, key=letter)
    assert words.store("letters_count") == {"A": 3, "B": 2}
    assert words.store("letters_joined") == {"A": "Apple-Alpha-Ant", "B": "Bus-Baby"}
    letters = words.store("letters")
    assert {key: (one["key"], sorted(one["valueList"]), one["runningCount"]) for key, one in letters.items()} == {
        "A": ("A", ["Alpha", "Ant", "Apple"], 3),
        "B": ("B", ["Baby", "Bus"], 2),
    }
    assert words.store("lengths_count") == {"5": 2, "3": 2, "4": 1}


def test_a_word_is_joined_with_the_current_description_of_its_letter(words: TopologyTestDriver) -> None:
    words.pipe("alphabet", "Apple", key="A")
    words.pipe("alphabet_descriptions", FIRST, key="A")
    words.pipe("alphabet", "Alpha", key="A")
    words.pipe("alphabet_descriptions", "A is a vowel", key="A")
    words.pipe("alphabet", "Ant", key="A")
    words.pipe("alphabet_descriptions", None, key="A")
    words.pipe("alphabet", "Arm", key="A")
    assert read(words, "words_with_description_inner") == [
        ("A", pair("Alpha", FIRST)),
        ("A", pair("Ant", "A is a vowel")),
    ]
    assert read(words, "words_with_description_left") == [
        ("A", pair("Apple", None)),
        ("A", pair("Alpha", FIRST)),
        ("A", pair("Ant", "A is a vowel")),
        ("A", pair("Arm", None)),
    ]


def test_two_tables_joined_follow_the_changes_of_both(words: TopologyTestDriver) -> None:
    def read_all() -> dict[str, list[tuple[str | None, Any]]]:
        return {how: read(words, f"letters_with_description_{how}") for how in ("inner", "left", "outer")}

    words.pipe("alphabet", "Apple", key="A")
    words.pipe("alphabet_descriptions", SECOND, key="B")
    assert read_all() == {
        "inner": [],
        "left": [("A", pair("Apple", None))],
        "outer": [("A", pair("Apple", None)), ("B", pair(None, SECOND))],
    }

    words.pipe("alphabet", "Bus", key="B")
    words.pipe("alphabet_descriptions", FIRST, key="A")
    both = [("B", pair("Bus", SECOND)), ("A", pair("Apple", FIRST))]
    assert read_all() == {"inner": both, "left": both, "outer": both}

    words.pipe("alphabet_descriptions", None, key="A")
    assert read_all() == {
        "inner": [("A", None)],
        "left": [("A", pair("Apple", None))],
        "outer": [("A", pair("Apple", None))],
    }


def test_two_streams_are_joined_within_ten_seconds(words: TopologyTestDriver) -> None:
    def at(second: int) -> int:
        return 1_000 * second

    words.pipe("alphabet", "Apple", key="A", timestamp=at(20))
    words.pipe("alphabet", "Bus", key="B", timestamp=at(20))
    words.pipe("alphabet_descriptions", FIRST, key="A", timestamp=at(30))
    words.pipe("alphabet_descriptions", SECOND, key="B", timestamp=at(31))
    words.pipe("alphabet_descriptions", "C is the third letter", key="C", timestamp=at(60))
    words.pipe("alphabet", "Cat", key="C", timestamp=at(90))
    match = [("A", pair("Apple", FIRST))]
    lonely = [("B", pair("Bus", None))]
    assert read(words, "words_near_description_inner") == match
    assert sorted(read(words, "words_near_description_left"), key=str) == match + lonely
    assert sorted(read(words, "words_near_description_outer"), key=str) == [
        *match,
        *lonely,
        ("B", pair(None, SECOND)),
        ("C", pair(None, "C is the third letter")),
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
