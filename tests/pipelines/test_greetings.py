"""Greetings in two languages, as text and as JSON."""

from __future__ import annotations

from typing import Any

import pytest

from sluice.testing import TopologyTestDriver
from tests.pipelines.conftest import Drive


@pytest.fixture
def driver(drive: Drive) -> TopologyTestDriver:
    return drive("greetings")


def read(driver: TopologyTestDriver, topic: str) -> list[tuple[str | None, Any]]:
    """New records. The records of one source are in order; the order between two sources is not guaranteed."""
    return [(record.key, record.value) for record in driver.read(topic)]


def test_keys_and_values_of_both_topics_are_capitalized(driver: TopologyTestDriver) -> None:
    driver.pipe("greetings", "Good Morning", key="gm")
    driver.pipe("greetings_spanish", "¡Buenos Días!", key="bd")
    driver.pipe("greetings", "Good Night")
    assert read(driver, "greetings_uppercase") == [
        ("GM", b"GOOD MORNING"),
        (None, b"GOOD NIGHT"),
        ("BD", "¡BUENOS DÍAS!".encode()),
    ]

    driver.pipe("greetings", "Hi", key="short")
    driver.pipe("greetings", "Hello", key="five letters are not more than five")
    driver.pipe("greetings", "Transient Greeting", key="left out")
    driver.pipe("greetings", "  Hello You  ", key="kept")
    assert read(driver, "greetings_uppercase") == [("KEPT", b"HELLO YOU")]

    driver.pipe(
        "greetings",
        {"message": "Good Morning", "timeStamp": "2022-12-04T05:26:31.060293"},
        key="gm",
    )
    driver.pipe("greetings", {"message": "Hi", "timeStamp": "2022-12-04T05:26:31.060293"}, key="gm")
    driver.pipe("greetings_spanish", '{"message": 1}', key="no greeting")
    assert read(driver, "greetings_uppercase") == [
        ("GM", {"message": "GOOD MORNING", "timeStamp": "2022-12-04T05:26:31.060293"})
    ]
    (letter,) = driver.dead_letters()
    assert letter.value == {"message": 1}
    assert letter.headers["sluice.reason"] == "contract"


def test_greetings_are_split_into_words_and_short_words_into_letters(
    driver: TopologyTestDriver,
) -> None:
    driver.pipe("greetings", "How are   Friends", key="h")
    assert read(driver, "greetings_words") == [("h", "How"), ("h", "are"), ("h", "Friends")]
    assert read(driver, "greetings_letters") == [("H", one) for one in "Howare"]
